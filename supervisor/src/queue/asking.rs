//! Asking for a lease, and for one that may have to wait.

use super::tending::Left;
use crate::clock;
use crate::events::About;
use crate::lease::Leases;
use crate::procfs::WatchedProcess;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, LeaseAnswer, LeaseRequest, LeaseWaiting, format_seconds};

/// Of the places in the queue a user without root has one in so many at most.
const USER_PART: usize = 4;

impl Leases {
    /// Grants a lease, or has the request wait as long as it wants to, or refuses it.
    ///
    /// # Errors
    /// As [`Leases::grant`]; and a longer wait than this host allows, a full queue, or a request that was taken out of it.
    pub fn lease_or_wait(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
    ) -> Result<LeaseAnswer, ErrorBody> {
        if asked.request.wait_seconds.is_none() {
            return self.grant(asked, requester, uid).map(LeaseAnswer::Granted);
        }
        self.check_wait(asked)?;
        self.check_taken_out(asked, uid)?;
        let who_waits = requester.try_clone();
        match self.grant(asked, requester, uid) {
            Ok(granted) => Ok(LeaseAnswer::Granted(granted)),
            Err(refusal) if is_for_want_of_room(&refusal) => {
                let who_waits = who_waits.map_err(|_| refusal.clone())?;
                self.have_wait(asked, who_waits, uid, refusal).map(LeaseAnswer::Waiting)
            }
            Err(refusal) => {
                self.leave_queue(asked, uid, Left::Refused);
                Err(refusal)
            }
        }
    }

    /// Whether the host lets anybody wait for so long.
    fn check_wait(&self, asked: &LeaseRequest) -> Result<(), ErrorBody> {
        let (queue, wait_seconds) = (self.configuration().queue.clone(), asked.request.wait_seconds.unwrap_or(0));
        let refused =
            |message: String, remedy: String| Err(ErrorBody::new(ErrorCode::RequestNotAllowed, message, remedy));
        if queue.places == 0 {
            return refused(
                "nobody waits for room on this host".to_owned(),
                "leave wait out, or let [queue] places in config.toml be more than 0".to_owned(),
            );
        }
        if wait_seconds > queue.longest_wait_seconds {
            let longest = format_seconds(queue.longest_wait_seconds);
            return refused(
                format!("wait={} is longer than this host allows", format_seconds(wait_seconds)),
                format!("ask for {longest} or less, or raise [queue] longest_wait_seconds in config.toml"),
            );
        }
        Ok(())
    }

    /// Tells a request that it was taken out of the queue, once.
    fn check_taken_out(&self, asked: &LeaseRequest, uid: u32) -> Result<(), ErrorBody> {
        let mut book = self.book();
        let by = book.queue.waiter_of(asked, uid).and_then(|waiter| waiter.cancelled_by);
        let Some(by) = by else { return Ok(()) };
        book.queue.leave(asked, uid);
        self.write_queue(&book);
        Err(ErrorBody::new(
            ErrorCode::TakenOutOfQueue,
            format!("it waited for room and was taken out of the queue by user {by}"),
            "start it again to wait again",
        ))
    }

    /// Puts the request into the queue, or keeps its place, unless it has waited long enough or could wait for ever.
    fn have_wait(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
        refusal: ErrorBody,
    ) -> Result<LeaseWaiting, ErrorBody> {
        let now_ns = clock::now_ns();
        let mut book = self.book();
        let known = book.queue.waiter_of(asked, uid).map(|waiter| waiter.is_over(now_ns));
        if known == Some(true) {
            drop(book);
            self.leave_queue(asked, uid, Left::Refused);
            let waited = format_seconds(asked.request.wait_seconds.unwrap_or(0));
            return Err(ErrorBody { message: format!("waited {waited} for room, and {}", refusal.message), ..refusal });
        }
        if known.is_none() {
            // What no end of a lease makes room for is refused now and not when the time is over.
            self.could_fit(asked, uid)?;
            self.check_places(&book.queue, uid, &refusal)?;
            book.queue.join(asked, uid, requester, now_ns);
        } else if let Some(waiter) = book.queue.waiter_of_mut(asked, uid) {
            (waiter.asked, waiter.requester) = (asked.clone(), requester);
        }
        let place = 1 + book.queue.ahead_of(asked, uid).len() as u32;
        if let Some(waiter) = book.queue.waiter_of_mut(asked, uid) {
            waiter.note_asked(refusal.message.clone(), place, now_ns);
        }
        if place == 1 {
            // Also while nobody stands behind it: from now on.
            self.keep_for_first(&book);
        }
        let Some(waiter) = book.queue.waiter_of(asked, uid) else { return Err(refusal) };
        let answer = LeaseWaiting { waiting: waiter.view(place), retry_ms: waiter.retry.as_millis() as u64 };
        if known.is_none() {
            self.write_queue(&book);
            drop(book);
            self.tell_queued(asked, uid, &answer);
        }
        Ok(answer)
    }

    /// Whether there is a place in the queue.
    fn check_places(&self, queue: &super::Queue, uid: u32, refusal: &ErrorBody) -> Result<(), ErrorBody> {
        let places = self.configuration().queue.places;
        let own = queue.waiters.iter().filter(|waiter| waiter.uid == uid).count();
        let is_full = queue.len() >= places || uid != 0 && own >= (places / USER_PART).max(1);
        if !is_full {
            return Ok(());
        }
        Err(ErrorBody {
            message: format!("{}; and the queue has no place for user {uid}: {} wait", refusal.message, queue.len()),
            remedy: "try again later; gpool queue ls shows who waits, [queue] places says how many may".to_owned(),
            ..refusal.clone()
        })
    }

    fn tell_queued(&self, asked: &LeaseRequest, uid: u32, answer: &LeaseWaiting) {
        let about = About { container_id: Some(asked.container_id.clone()), uid: Some(uid), ..About::default() };
        let longest = format_seconds(asked.request.wait_seconds.unwrap_or(0));
        let (id, waiting) = (asked.container_id.short(), &answer.waiting);
        let message =
            format!("{id} waits for room, at place {}, for {longest} at most: {}", waiting.place, waiting.cause);
        self.events.note(EventKind::LeaseQueued, about, message);
    }
}

/// Whether the end of a lease could make room for it.
fn is_for_want_of_room(refusal: &ErrorBody) -> bool {
    matches!(refusal.code, ErrorCode::ShareNotFree | ErrorCode::MemoryNotFree | ErrorCode::NoMechanism)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_want_of_room_is_waited_for() {
        let refused = |code| is_for_want_of_room(&ErrorBody::new(code, "x", "y"));
        assert!(refused(ErrorCode::ShareNotFree) && refused(ErrorCode::MemoryNotFree));
        assert!(
            !refused(ErrorCode::LeaseConflict) && !refused(ErrorCode::NoGpu) && !refused(ErrorCode::RequestInvalid)
        );
    }
}
