//! The second half of a grant under an MPS server. The lease is in the book, so that nobody else is sold its place and those
//! of its team find its group; now its daemon is started, and others come and go meanwhile.

use super::book::Book;
use super::grant::Leases;
use super::refusal::failed;
use crate::queue::Left;
use gpool_protocol::{ErrorBody, ErrorCode, LeaseId, LeaseRequest};
use std::time::Instant;

impl Leases {
    /// Has the daemon of the group run and serve the lease by `deadline`, without the book. Who waited for it leaves the queue with that.
    ///
    /// # Errors
    /// The daemon does not start or does not live to serve it, its server takes nobody in, or the lease was given up meanwhile: then it is taken
    /// out again, and a place that it had come back to is kept as long as it was to be. So is the one in the queue.
    pub fn seat(
        &self,
        group: &str,
        lease: &LeaseId,
        (asked, uid): (&LeaseRequest, u32),
        deadline: Instant,
    ) -> Result<(), ErrorBody> {
        let ready = self.make_ready(group, deadline);
        if ready.is_ok() {
            self.learn_server_state(group, deadline);
        }
        let mut book = self.book();
        let seated = is_wanted(&book, lease).and(ready).and_then(|()| self.is_served(group));
        let seated = seated.and_then(|()| self.must_take_in(group, &book));
        match &seated {
            Ok(()) => {
                self.note_granted(&book, lease);
                self.leave_queue_of(&mut book, asked, uid, Left::Granted);
            }
            Err(_) => {
                book.queue.set_seated(asked, uid, false);
                // The group is taken away when nobody uses it. What nobody has had is on no bill, however often it is tried.
                let billed = book.ended.len();
                if let Some(lease) = self.take_out(&mut book, lease) {
                    // Of one that the ledger has seen it is to know the end.
                    if !lease.meter.was_entered() {
                        book.ended.truncate(billed);
                    }
                    self.keep_place(&mut book, lease);
                }
                self.ended.notify_all();
            }
        }
        seated
    }

    /// Whether the daemon of the group runs.
    ///
    /// # Errors
    /// It does not.
    pub fn is_served(&self, group: &str) -> Result<(), ErrorBody> {
        let lives = self.groups.all().iter().any(|its| its.record.id == group && its.is_alive());
        if lives { Ok(()) } else { Err(failed("the MPS daemon does not start", "it has ended")) }
    }
}

/// It may have gone while nobody held the book.
fn is_wanted(book: &Book, lease: &LeaseId) -> Result<(), ErrorBody> {
    let gone = || {
        let message = "the container was given up while its MPS daemon started";
        ErrorBody::new(ErrorCode::LeaseConflict, message, "start it again")
    };
    book.leases.contains_key(lease).then_some(()).ok_or_else(gone)
}
