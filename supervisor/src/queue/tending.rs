//! Leaving the queue, and those who have left it without a word.

use super::Waiter;
use crate::clock;
use crate::events::About;
use crate::lease::{Book, Leases};
use gpool_protocol::{ContainerId, ErrorBody, ErrorCode, EventKind, LeaseRequest, WaitingView, format_seconds};

/// The attendant looks twice a second; after so long it has stood still.
const STANDSTILL_NS: u64 = 2_000_000_000;
/// The file is no older than this while somebody waits.
const WRITTEN_EVERY_NS: u64 = 60_000_000_000;

/// How one leaves the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// With a lease.
    Granted,
    /// Its time was over, or something else was refused.
    Refused,
    /// Somebody took it out.
    Cancelled,
    /// Nobody asks for it any more.
    Gone,
}

impl Left {
    /// All of them.
    pub const ALL: [Left; 4] = [Left::Granted, Left::Refused, Left::Cancelled, Left::Gone];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Left::Granted => "granted",
            Left::Refused => "refused",
            Left::Cancelled => "cancelled",
            Left::Gone => "gone",
        }
    }
}

impl Leases {
    /// Takes a request out of the queue if it is in it.
    pub fn leave_queue(&self, asked: &LeaseRequest, uid: u32, how: Left) {
        let mut book = self.book();
        self.leave_queue_of(&mut book, asked, uid, how);
    }

    /// The same of a book that is held.
    pub fn leave_queue_of(&self, book: &mut Book, asked: &LeaseRequest, uid: u32, how: Left) {
        let Some(waiter) = book.queue.leave(asked, uid, how) else { return };
        self.refresh_history(book);
        self.write_queue(book);
        // That it was taken out has been told.
        if waiter.cancelled_by.is_none() {
            self.note_left(&waiter, how, None);
        }
    }

    /// Takes the request of this container of this user out of the queue; it is refused when it asks next.
    ///
    /// # Errors
    /// It does not wait any more.
    pub fn cancel_waiting(&self, id: &ContainerId, owner_uid: u32, by: u32) -> Result<WaitingView, ErrorBody> {
        let mut book = self.book();
        let place = 1 + book.queue.in_order().iter().position(|waiter| is_meant(waiter, &id.0, owner_uid)).unwrap_or(0);
        let found = book.queue.waiters.iter_mut().find(|waiter| is_meant(waiter, &id.0, owner_uid));
        let waiter = found.ok_or_else(|| nobody(&id.0))?;
        waiter.cancelled_by = Some(by);
        let view = waiter.view(place as u32);
        self.note_left(waiter, Left::Cancelled, Some(by));
        self.write_queue(&mut book);
        Ok(view)
    }

    /// Takes those out who are gone.
    pub fn tend_queue(&self) {
        let mut book = self.book();
        let urgent = self.overrides.holders(clock::unix_ms());
        book.queue.put_first(urgent);
        self.refresh_history(&mut book);
        if book.queue.len() == 0 {
            return;
        }
        let now_ns = clock::now_ns();
        let pause_ns = now_ns.saturating_sub(std::mem::replace(&mut book.queue.tended_ns, now_ns));
        // While this thread stood still the others may have, and nobody could ask.
        if pause_ns >= STANDSTILL_NS {
            let lift = |waiter: &mut Waiter| waiter.asked_ns = waiter.asked_ns.saturating_add(pause_ns).min(now_ns);
            book.queue.waiters.iter_mut().for_each(lift);
        }
        let waiters = std::mem::take(&mut book.queue.waiters);
        let is_gone = |waiter: &Waiter| match book.is_suspended(&waiter.asked.container_id, waiter.uid) {
            // Nobody asks for it while another one is being moved.
            true => waiter.requester.has_ended(),
            false => waiter.is_gone(now_ns),
        };
        let (gone, left): (Vec<Waiter>, Vec<Waiter>) = waiters.into_iter().partition(is_gone);
        book.queue.waiters = left;
        gone.iter().for_each(|waiter| book.queue.note_left(waiter, Left::Gone));
        // For how long room was kept is in the file as well.
        if !gone.is_empty() || now_ns.saturating_sub(book.queue.written_ns) >= WRITTEN_EVERY_NS {
            self.write_queue(&mut book);
        }
        drop(book);
        for waiter in gone.iter().filter(|waiter| waiter.cancelled_by.is_none()) {
            self.note_left(waiter, Left::Gone, None);
        }
    }

    fn note_left(&self, waiter: &Waiter, how: Left, by: Option<u32>) {
        let waited = waiter.waited_in_this_attempt(clock::now_ns());
        self.counters.note_left(how.word(), waited);
        let about = About {
            container_id: Some(waiter.asked.container_id.clone()),
            uid: Some(by.unwrap_or(waiter.uid)),
            ..About::default()
        };
        let (id, time) = (waiter.asked.container_id.short(), format_seconds(waited.as_secs()));
        let message = match how {
            Left::Granted => format!("{id} has room after {time}"),
            Left::Refused => format!("{id} has waited {time} for room in vain"),
            Left::Cancelled => format!("{id} was taken out of the queue by user {}, after {time}", by.unwrap_or(0)),
            Left::Gone => format!("{id} has left the queue after {time}: nobody asks for it any more"),
        };
        self.events.note(EventKind::LeaseUnqueued, about, message);
    }
}

impl super::Queue {
    /// The container and the user of the one that `text` means for the user `peer`: a container id, or a prefix that means no
    /// other. Ids are everybody's to choose, so one's own comes before another's of the same id.
    ///
    /// # Errors
    /// Nobody with that id waits, or several do.
    pub fn find(&self, text: &str, peer: u32) -> Result<(ContainerId, u32), ErrorBody> {
        let is_meant = |waiter: &&Waiter| !text.is_empty() && waiter.asked.container_id.0.starts_with(text);
        let found: Vec<&Waiter> = self.waiters.iter().filter(|waiter| waiter.is_there()).filter(is_meant).collect();
        let only = |those: &mut dyn Iterator<Item = &&Waiter>| match (those.next(), those.next()) {
            (Some(one), None) => Some((one.asked.container_id.clone(), one.uid)),
            _ => None,
        };
        let is_whole = |waiter: &&&Waiter| waiter.asked.container_id.0 == text;
        let own_whole = || only(&mut found.iter().filter(is_whole).filter(|waiter| waiter.uid == peer));
        let own = || only(&mut found.iter().filter(|waiter| waiter.uid == peer));
        let one = only(&mut found.iter()).or_else(own_whole).or_else(|| only(&mut found.iter().filter(is_whole)));
        match one.or_else(own) {
            Some(one) => Ok(one),
            None if found.is_empty() => Err(nobody(text)),
            None => Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!("{text:?} means {} containers that wait", found.len()),
                "give more of the id",
            )),
        }
    }
}

pub(super) fn is_meant(waiter: &Waiter, id: &str, owner_uid: u32) -> bool {
    waiter.is_there() && waiter.uid == owner_uid && waiter.asked.container_id.0 == id
}

pub(super) fn nobody(text: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::LeaseUnknown,
        format!("no container with the id {text:?} waits for room"),
        "gpool queue ls shows those that do",
    )
}
