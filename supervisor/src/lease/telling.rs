//! What events tell of grants and refusals.

use super::book::Book;
use super::changes::told;
use super::described::{about, described, without_room};
use super::grant::Leases;
use crate::events::About;
use gpool_protocol::{ErrorBody, EventKind, LeaseId, LeaseRequest};
use std::sync::atomic::Ordering;

impl Leases {
    /// Counts and tells a request that was refused.
    pub fn note_refusal(&self, asked: &LeaseRequest, error: &ErrorBody, uid: u32) {
        self.counters.note_refusal(error.code);
        let about = About { container_id: Some(asked.container_id.clone()), uid: Some(uid), ..About::default() };
        let message = format!("refused {}: {}", asked.container_id.short(), error.sentence());
        self.events.note(EventKind::LeaseRefused, about, message);
    }

    /// Tells of a lease in the book.
    pub fn note_granted(&self, book: &Book, id: &LeaseId) {
        let Some(lease) = book.leases.get(id) else { return };
        let context_bytes = lease.region.control().context_bytes.load(Ordering::Relaxed);
        let lease = &lease.record;
        let (share, container) = (described(lease), lease.container_id.short());
        let message = format!("granted {share} to {container}{}{}", told(lease), without_room(lease, context_bytes));
        self.events.note(EventKind::LeaseGranted, about(lease, Some(lease.owner_uid)), message);
    }
}
