//! The second half of a grant under an MPS server. The lease is in the book, so that nobody else is sold its place and those
//! of its team find its group; now its daemon is started, and others come and go meanwhile.

use super::book::{Book, Held};
use super::grant::{Leases, failed};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseId};
use std::time::Instant;

impl Leases {
    /// Has the daemon of the group run and serve the lease, without the book. `kept` is the place that the lease has come
    /// back to.
    ///
    /// # Errors
    /// The daemon does not start or does not live to serve it, or the lease was given up meanwhile: then everything is as it
    /// was before the lease was asked for.
    pub fn seat(&self, group: &str, lease: &LeaseId, kept: Option<Held>) -> Result<(), ErrorBody> {
        let ready = self.make_ready(group);
        let mut book = self.book();
        let seated = ready.and_then(|()| self.check_seat(&book, group, lease));
        match &seated {
            Ok(()) => self.note_granted(&book, lease),
            Err(_) => {
                // The group is taken away when nobody uses it.
                drop(self.take_out(&mut book, lease));
                book.held.extend(kept.filter(|kept| kept.until > Instant::now()));
                self.ended.notify_all();
            }
        }
        seated
    }

    /// What may have happened while nobody held the book.
    fn check_seat(&self, book: &Book, group: &str, lease: &LeaseId) -> Result<(), ErrorBody> {
        if !book.leases.contains_key(lease) {
            return Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                "the container was given up while its MPS daemon started",
                "start it again",
            ));
        }
        let lives = self.groups.all().iter().any(|its| its.record.id == group && its.is_alive());
        if lives { Ok(()) } else { Err(failed("the MPS daemon does not start", "it has ended")) }
    }
}
