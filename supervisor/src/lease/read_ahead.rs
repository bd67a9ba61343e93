//! What all leases' processes say of themselves, read without the book. A report is long and there are hundreds of them: whoever read
//! them all with the book held would keep everybody waiting who starts a container or waits for room.

use super::book::{Book, Lease};
use super::figures::Figures;
use crate::clock;
use crate::region::{RegionHost, Report};
use gpool_protocol::LeaseId;
use gpool_shared_region::SLOTS;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a lease's processes said, as [`Lease::figures`] has it, and when.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    pub figures: Figures,
    /// CLOCK_MONOTONIC.
    pub read_at_ns: u64,
    /// What is in it of processes that had ended.
    retired: Figures,
}

/// The same of all leases there were.
#[derive(Debug, Default)]
pub struct ReadAhead(BTreeMap<LeaseId, Said>);

impl ReadAhead {
    /// Of the leases in the book, as they are from now on. The book is not held meanwhile.
    pub fn of(book: &Mutex<Book>) -> Self {
        let known: Vec<(LeaseId, Arc<RegionHost>, Figures, usize)> = {
            let book = book.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |(id, lease): (&LeaseId, &Lease)| {
                (id.clone(), lease.region.clone(), lease.retired, lease.accounts.len())
            };
            book.leases.iter().map(of).collect()
        };
        let mut report = Report::new();
        let read = |(id, region, retired, gpus): (LeaseId, Arc<RegionHost>, Figures, usize)| {
            report.read(&region, SLOTS);
            (id, Said { figures: retired.and(&report, gpus), read_at_ns: clock::now_ns(), retired })
        };
        Self(known.into_iter().map(read).collect())
    }

    /// Of this one. `report` is for those that have come since, and for those of which a process has ended, which could be in it twice or
    /// not at all.
    pub fn said(&self, lease: &Lease, report: &mut Report) -> Said {
        let ahead = self.0.get(&lease.record.lease_id).filter(|said| said.retired == lease.retired);
        ahead.copied().unwrap_or_else(|| lease.said(report))
    }
}

impl Lease {
    /// What its processes say now.
    pub fn said(&self, report: &mut Report) -> Said {
        Said { figures: self.figures(report), read_at_ns: clock::now_ns(), retired: self.retired }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::lease_in;
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_was_read_without_the_book_is_read_again_once_a_process_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let lease = lease_in(dir.path(), "01");
        let (id, region) = (lease.record.lease_id.clone(), lease.region.clone());
        // The first slot is taken, and has launched so much.
        let launches = |count: u64| {
            let report = region.report_file();
            report.write_all_at(&7u64.to_le_bytes(), 0).and_then(|()| report.write_all_at(&count.to_le_bytes(), 104))
        };
        launches(5).unwrap();
        let book = Mutex::new(Book { leases: [(id.clone(), lease)].into(), ..Book::default() });
        let ahead = ReadAhead::of(&book);
        launches(9).unwrap();
        let mut book = book.into_inner().unwrap();
        let launched = |book: &Book, ahead: &ReadAhead| book.views(ahead)[0].launches;
        let said = ahead.said(&book.leases[&id], &mut Report::new());
        assert_eq!(book.views(&ahead)[0].read_at_ns, said.read_at_ns, "rates are of the moment of the reading");
        assert_eq!((launched(&book, &ahead), book.leases[&id].view().launches), (5, 9));
        book.leases.get_mut(&id).unwrap().retired.launches = 3;
        assert_eq!(launched(&book, &ahead), 12, "its slot may have been cleared by now");
        assert_eq!(launched(&book, &ReadAhead::default()), 12, "it is new");
    }
}
