//! Doing with all leases what takes a while with each, as reading its report does and writing it down.

use super::book::{Book, Lease};
use super::grant::Leases;
use gpool_protocol::LeaseId;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// With so many the book is held once: that takes less than a millisecond.
const AT_ONCE: usize = 8;
/// For so long it is given back then: who waits for it has to wake up first.
const REST: Duration = Duration::from_micros(100);

impl Leases {
    /// Does this with each lease that there is now, if it is still there in its turn. Between some and the next ones others have the book.
    pub fn each_in_turn(&self, does: impl FnMut(&mut Lease)) {
        each_in_turn(&self.book, does, || std::thread::sleep(REST));
    }
}

fn each_in_turn(book: &Mutex<Book>, mut does: impl FnMut(&mut Lease), rest: impl Fn()) {
    let held = || -> MutexGuard<'_, Book> { book.lock().unwrap_or_else(PoisonError::into_inner) };
    let ids: Vec<LeaseId> = held().leases.keys().cloned().collect();
    for (turn, some) in ids.chunks(AT_ONCE).enumerate() {
        if turn > 0 {
            rest();
        }
        let mut book = held();
        for id in some {
            if let Some(lease) = book.leases.get_mut(id) {
                does(lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::lease_in;
    use super::*;

    #[test]
    fn others_have_the_book_between_the_leases_and_may_end_some() {
        let dir = tempfile::tempdir().unwrap();
        let lease = |number: usize| {
            let id = format!("{number:02}");
            (LeaseId(id.clone()), lease_in(dir.path(), &id))
        };
        let book = Mutex::new(Book { leases: (0..2 * AT_ONCE + 1).map(lease).collect(), ..Book::default() });
        let mut done = Vec::new();
        let does = |lease: &mut Lease| done.push(lease.record.lease_id.0.clone());
        each_in_turn(&book, does, || drop(book.try_lock().expect("it was given back").leases.pop_last()));
        let all: Vec<String> = (0..2 * AT_ONCE).map(|number| format!("{number:02}")).collect();
        assert_eq!(done, all, "the last was gone before its turn");
    }
}
