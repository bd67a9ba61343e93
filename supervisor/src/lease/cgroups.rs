//! In whose cgroup a process is.

use super::book::Book;
use crate::cgroup;
use gpool_protocol::HostPid;
use std::sync::{Arc, Mutex, PoisonError};

/// The cgroups of all leases, for who asks of many processes and must not keep the book meanwhile.
#[derive(Debug, Default)]
pub struct Cgroups(Vec<String>);

impl Cgroups {
    /// Whether the cgroup `path` is a lease's, or below one.
    pub fn hold(&self, path: &str) -> bool {
        self.0.iter().any(|its| cgroup::is_at_or_below(its, path))
    }

    /// Whether a process is in one of them; not of one that has ended.
    pub fn have(&self, pid: HostPid) -> bool {
        !self.0.is_empty() && cgroup::path_of(pid).is_some_and(|path| self.hold(&path))
    }
}

/// The same as of the last change: every connection is asked for that before it is served, and must not wait for the book.
#[derive(Debug, Default)]
pub struct KnownCgroups(Mutex<Arc<Cgroups>>);

impl KnownCgroups {
    /// They are as the book, which is held, has them. To be called before anything runs in one that is new.
    pub fn note(&self, book: &Book) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(book.cgroups());
    }

    /// Those of all leases.
    pub fn now(&self) -> Arc<Cgroups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Book {
    /// The cgroups of all leases, those included that could not be taken over: their containers run all the same.
    pub fn cgroups(&self) -> Cgroups {
        let records = self.leases.values().map(|lease| &lease.record).chain(&self.stranded);
        Cgroups(records.filter_map(|record| record.cgroup.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, sample};
    use super::*;

    #[test]
    fn who_is_in_a_container_that_could_not_be_taken_over_is_in_a_lease() {
        let book = Book { stranded: vec![sample()], ..Book::default() };
        let cgroups = book.cgroups();
        assert!(cgroups.hold("/docker/c") && cgroups.hold("/docker/c/init.scope"));
        assert!(!cgroups.hold("/docker/cc") && !cgroups.hold("/docker") && !cgroups.hold("/"));
        let known = KnownCgroups::default();
        assert!(!known.now().hold("/docker/c"));
        known.note(&book);
        assert!(known.now().hold("/docker/c"));
        known.note(&Book::default());
        assert!(!known.now().hold("/docker/c"));
        let me = HostPid(std::process::id());
        assert!(!Book::default().cgroups().have(me) && !cgroups.have(me));
        if let Some(its) = cgroup::path_of(me) {
            let book = Book { stranded: vec![Record { cgroup: Some(its), ..sample() }], ..Book::default() };
            assert!(book.cgroups().have(me));
        }
    }
}
