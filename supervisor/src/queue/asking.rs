//! Asking for a lease, and for one that may have to wait.

use super::holding::held_back;
use super::tending::Left;
use super::waiter::owner_of;
use super::{Queue, Waiter};
use crate::clock;
use crate::events::About;
use crate::lease::{Asked, Book, END_PATIENCE, GRANT_PATIENCE, Leases, Place, is_no_more};
use crate::procfs::WatchedProcess;
use gpool_protocol::{
    ErrorBody, ErrorCode, EventKind, LeaseAnswer, LeaseGranted, LeaseRequest, LeaseWaiting, format_seconds,
};
use std::time::Instant;

impl Leases {
    /// Grants a lease, or has the request wait as long as it wants to, or refuses it.
    ///
    /// # Errors
    /// A conflict with a running container of the same id, no room, or a file of the driver that is not there; and a longer wait than this host allows, a full queue, or a request that was taken out of it.
    pub fn lease_or_wait(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
    ) -> Result<LeaseAnswer, ErrorBody> {
        if asked.request.wait_seconds.is_none() {
            return self.grant(asked, requester, uid).map(LeaseAnswer::Granted);
        }
        let Some((changed, before)) = self.changes.of(asked, uid) else {
            return self.lease_or_queue(asked, requester, uid, None, None);
        };
        let waits_as_changed = self.book().queue.waiter_of(asked, uid).map(|waiter| waiter.asks_the_same(&changed));
        let is_as_changed = waits_as_changed.unwrap_or_else(|| {
            let could_be = || self.check_can_be(&changed).and_then(|()| self.could_fit(&changed, uid, &self.book()));
            is_no_more(&changed.request, &before) && could_be().is_ok()
        });
        if is_as_changed {
            return self.lease_or_queue(&changed, requester, uid, Some(before), None);
        }
        // In its place in the queue it has what was kept or planned for what it asks for.
        let is_first = waits_as_changed.is_none();
        self.lease_or_queue(asked, requester, uid, None, is_first.then_some((changed, before)))
    }

    /// Grants a lease, as its container was changed when it ran last if there is room for that, or refuses with the cause and the
    /// next step.
    ///
    /// # Errors
    /// A conflict with a running container of the same id, no room, or a file of the driver that is not there.
    fn grant(&self, asked: &LeaseRequest, requester: WatchedProcess, uid: u32) -> Result<LeaseGranted, ErrorBody> {
        let (now, was_changed) = (Instant::now(), self.changes.of(asked, uid));
        let (end, deadline) = (now + END_PATIENCE, now + GRANT_PATIENCE);
        let mut refusal = None;
        if let Some((changed, before)) = was_changed {
            match self.place_as(&changed, requester.name, uid, end) {
                Ok((book, place)) => {
                    let place = Place { before: Some(before), ..place };
                    return self.grant_at(book, place, (&changed, uid), &requester, deadline);
                }
                Err(cause) => refusal = Some((changed, cause)),
            }
        }
        self.check_can_be(asked)?;
        let (book, place) = self.find_place(asked, requester.name, uid, end)?;
        let granted = self.grant_at(book, place, (asked, uid), &requester, deadline)?;
        if let Some((changed, cause)) = refusal {
            self.tell_as_asked(&changed, &cause);
        }
        Ok(granted)
    }

    /// Grants a lease or has the request wait, as it is served: `before` is what its container asks for by itself if that is something
    /// else. What it was changed to otherwise is `rather` granted where there is room for that, and not waited for.
    fn lease_or_queue(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
        before: Option<Asked>,
        rather: Option<(LeaseRequest, Asked)>,
    ) -> Result<LeaseAnswer, ErrorBody> {
        let can_be = || self.check_wait(asked).and_then(|()| self.check_values(asked));
        if rather.is_none() {
            can_be().inspect_err(|_| self.leave_queue(asked, uid, Left::Refused))?;
        }
        if let Some(answer) = self.asked_too_soon(asked, uid, &requester)? {
            return Ok(LeaseAnswer::Waiting(Box::new(answer)));
        }
        // For one that waits a driver that was replaced over night is no end: the host is put in order.
        if let Err(refusal) = self.check_driver() {
            return self.wait_or_leave(asked, requester, uid, refusal);
        }
        let now = Instant::now();
        let (end, deadline) = (now + END_PATIENCE, now + GRANT_PATIENCE);
        let mut refusal = None;
        if let Some((changed, before)) = rather {
            match self.place_as(&changed, requester.name, uid, end) {
                Ok((mut book, place)) => {
                    self.check_taken_out(&mut book, asked, uid)?;
                    if let Some(by) = book.queue.held_by(asked, uid) {
                        drop(book);
                        return self.wait_or_leave(asked, requester, uid, held_back(by));
                    }
                    let place = Place { before: Some(before), ..place };
                    let granted = self.grant_at(book, place, (&changed, uid), &requester, deadline);
                    return match granted {
                        Ok(granted) => Ok(LeaseAnswer::Granted(granted)),
                        Err(error) => self.wait_or_leave(asked, requester, uid, error),
                    };
                }
                Err(cause) => refusal = Some((changed, cause)),
            }
            can_be().inspect_err(|_| self.leave_queue(asked, uid, Left::Refused))?;
        }
        match self.find_place(asked, requester.name, uid, end) {
            Ok((mut book, place)) => {
                // Somebody may have taken it out since it was looked at last.
                self.check_taken_out(&mut book, asked, uid)?;
                if let Some(by) = book.queue.held_by(asked, uid) {
                    drop(book);
                    return self.wait_or_leave(asked, requester, uid, held_back(by));
                }
                let place = Place { before, ..place };
                let granted = match self.grant_at(book, place, (asked, uid), &requester, deadline) {
                    Ok(granted) => granted,
                    Err(error) => return self.wait_or_leave(asked, requester, uid, error),
                };
                if let Some((changed, cause)) = refusal {
                    self.tell_as_asked(&changed, &cause);
                }
                Ok(LeaseAnswer::Granted(granted))
            }
            Err(refusal) => self.wait_or_leave(asked, requester, uid, refusal),
        }
    }

    /// The answer to one that was not granted a lease: that it waits, also where there was room and the lease could not be made. What
    /// fails now, as on a full disk, would fail for the whole queue, one after the other.
    fn wait_or_leave(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
        refusal: ErrorBody,
    ) -> Result<LeaseAnswer, ErrorBody> {
        self.wait_for_room(asked, requester, uid, refusal).map(|answer| LeaseAnswer::Waiting(Box::new(answer)))
    }

    /// The answer to one that asks again before it was told to, as it stood then: it costs nobody anything.
    fn asked_too_soon(
        &self,
        asked: &LeaseRequest,
        uid: u32,
        requester: &WatchedProcess,
    ) -> Result<Option<LeaseWaiting>, ErrorBody> {
        let mut book = self.book();
        self.check_taken_out(&mut book, asked, uid)?;
        // Whoever asks for something else under the same name has not waited for that.
        if book.queue.waiter_of(asked, uid).is_some_and(|waiter| !waiter.asks_the_same(asked)) {
            self.leave_queue_of(&mut book, asked, uid, Left::Gone);
        }
        let place = 1 + book.queue.ahead_of(asked, uid).len() as u32;
        let waiter = book.queue.waiter_of(asked, uid);
        let is_its = |waiter: &&Waiter| waiter.requester.name == requester.name;
        let early = waiter.filter(is_its).filter(|waiter| waiter.is_early(clock::now_ns()));
        Ok(early.map(|waiter| answer_to(waiter, place)))
    }

    /// Whether the host lets anybody wait for so long.
    fn check_wait(&self, asked: &LeaseRequest) -> Result<(), ErrorBody> {
        let (queue, wait_seconds) = (self.configuration().queue.clone(), asked.request.wait_seconds.unwrap_or(0));
        let refused =
            |message: String, remedy: String| Err(ErrorBody::new(ErrorCode::RequestNotAllowed, message, remedy));
        if queue.places == 0 {
            return refused(
                "nobody waits for room on this host".to_owned(),
                "leave wait out, or let [queue] places in config.toml be more than 0 and run gpool config reload"
                    .to_owned(),
            );
        }
        if wait_seconds > queue.longest_wait_seconds {
            let longest = format_seconds(queue.longest_wait_seconds);
            return refused(
                format!("wait={} is longer than this host allows", format_seconds(wait_seconds)),
                format!(
                    "ask for {longest} or less, or raise [queue] longest_wait_seconds in config.toml and run gpool config reload"
                ),
            );
        }
        Ok(())
    }

    /// Tells a request that it was taken out of the queue, once.
    fn check_taken_out(&self, book: &mut Book, asked: &LeaseRequest, uid: u32) -> Result<(), ErrorBody> {
        let by = book.queue.waiter_of(asked, uid).and_then(|waiter| waiter.cancelled_by);
        let Some(by) = by else { return Ok(()) };
        self.leave_queue_of(book, asked, uid, Left::Cancelled);
        Err(ErrorBody::new(
            ErrorCode::TakenOutOfQueue,
            format!("it waited for room and was taken out of the queue by user {by}"),
            "start it again to wait again",
        ))
    }

    /// Puts the request into the queue, or keeps its place, unless it has waited long enough, is refused for something else
    /// than room, or could wait for ever.
    ///
    /// # Errors
    /// Then what it was refused for, or that the queue has no place.
    pub fn wait_for_room(
        &self,
        asked: &LeaseRequest,
        requester: WatchedProcess,
        uid: u32,
        refusal: ErrorBody,
    ) -> Result<LeaseWaiting, ErrorBody> {
        let now_ns = clock::now_ns();
        let mut book = self.book();
        self.check_taken_out(&mut book, asked, uid)?;
        let known = book.queue.waiter_of(asked, uid);
        let (is_known, is_over) = (known.is_some(), known.is_some_and(|waiter| waiter.is_over(now_ns)));
        if is_over || !is_for_want_of_room(&refusal, is_known) {
            self.leave_queue_of(&mut book, asked, uid, Left::Refused);
            return Err(if is_over { after_a_wait(refusal) } else { refusal });
        }
        if is_known && (refusal.code == ErrorCode::QuotaReached || self.is_too_much_spill(asked, uid)) {
            // It may have been lowered since, and what is larger than all of it fits at no time.
            let could = self.could_fit(asked, uid, &book);
            could.inspect_err(|_| self.leave_queue_of(&mut book, asked, uid, Left::Refused))?;
        }
        let mut is_to_be_written = match book.queue.waiter_of_mut(asked, uid) {
            Some(waiter) => waiter.note_asker(asked, requester),
            None => {
                // What no end of a lease makes room for is refused now and not when the time is over.
                self.could_fit(asked, uid, &book)?;
                self.check_places(&book.queue, (asked, uid), &refusal)?;
                let (appointment, _) = self.appoint(&book, asked, uid)?;
                let waiter = book.queue.join(asked, uid, requester, now_ns);
                if let Some(its) = &appointment {
                    self.tell_planned(asked, uid, its);
                }
                waiter.appointment.replace(appointment);
                self.refresh_history(&mut book);
                true
            }
        };
        let is_held = book.queue.held_by(asked, uid).is_some();
        if is_known && !is_held {
            is_to_be_written |= self.appoint(&book, asked, uid)?.1;
        }
        let ahead = book.queue.ahead_of(asked, uid);
        let place = 1 + ahead.len() as u32;
        // Who waits for a quota of its own, or for the host's memory, holds nobody up.
        let place_for_room = 1 + ahead.iter().filter(|waiter| !waiter.is_in_nobodys_way()).count() as u32;
        let lacks_host_memory = self.check_spill(asked, uid, &book).is_err();
        // It is asked in its turn all the same.
        let place_to_ask = if lacks_host_memory { place } else { place_for_room };
        // Whose moment comes later has time until then.
        let waits_for_its_moment =
            book.queue.waiter_of(asked, uid).is_some_and(|waiter| waiter.has_settled_plan() && !waiter.is_due(now_ns));
        // What has failed is not tried five times a second.
        let has_failed = refusal.code == ErrorCode::SupervisorFailed;
        let lacks_other = has_failed || is_held;
        let place_to_ask = if waits_for_its_moment || has_failed { u32::MAX } else { place_to_ask };
        let making = book.room_in_the_making(&asked.container_id);
        let cause = making.map_or_else(|| refusal.message.clone(), |making| format!("{}; {making}", refusal.message));
        let waiting = book.queue.len() as u32;
        if let Some(waiter) = book.queue.waiter_of_mut(asked, uid) {
            let lacks = (refusal.code == ErrorCode::QuotaReached, lacks_host_memory);
            is_to_be_written |= lacks != (waiter.is_over_quota, waiter.lacks_host_memory);
            (waiter.is_over_quota, waiter.lacks_host_memory) = lacks;
            is_to_be_written |= waiter.note_lack(lacks_other, now_ns);
            waiter.has_failed = has_failed;
            if has_failed && waiter.cause != cause {
                log!("{} waits on, its lease cannot be made: {cause}", waiter.asked.container_id.short());
            }
            waiter.note_asked(cause, (place_to_ask, waiting), now_ns);
        }
        if place_for_room == 1 && !is_held && !lacks_host_memory && !waits_for_its_moment {
            // Also while nobody stands behind it: from now on.
            self.keep_for_first(&book);
        }
        let Some(waiter) = book.queue.waiter_of(asked, uid) else { return Err(refusal) };
        let answer = answer_to(waiter, place);
        if is_to_be_written {
            self.write_queue(&mut book);
        }
        drop(book);
        if !is_known {
            self.tell_queued(asked, uid, &answer);
        }
        Ok(answer)
    }

    /// Whether there is a place in the queue.
    fn check_places(
        &self,
        queue: &Queue,
        (asked, uid): (&LeaseRequest, u32),
        refusal: &ErrorBody,
    ) -> Result<(), ErrorBody> {
        let is_over_quota = refusal.code == ErrorCode::QuotaReached;
        if queue.has_place_for(asked, uid, is_over_quota, self.configuration().queue.places) {
            return Ok(());
        }
        let owner = owner_of(asked, uid);
        Err(ErrorBody {
            message: format!("{}; and the queue has no place for {owner}: {} wait", refusal.message, queue.len()),
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

fn answer_to(waiter: &Waiter, place: u32) -> LeaseWaiting {
    LeaseWaiting { waiting: waiter.view(place), retry_ms: waiter.retry.as_millis() as u64 }
}

/// The refusal of one whose time is over.
fn after_a_wait(refusal: ErrorBody) -> ErrorBody {
    ErrorBody { message: format!("the time to wait for room is over: {}", refusal.message), ..refusal }
}

/// Whether the end of a lease could make room for it, or there is room and the supervisor could not do its part, or has just started,
/// which passes. For one that waits GPUs that do not answer for a moment are no end, nor is a driver that was replaced.
pub fn is_for_want_of_room(refusal: &ErrorBody, is_known: bool) -> bool {
    match refusal.code {
        ErrorCode::ShareNotFree | ErrorCode::MemoryNotFree | ErrorCode::NoMechanism | ErrorCode::QuotaReached => true,
        ErrorCode::SupervisorFailed | ErrorCode::SupervisorAbsent => true,
        ErrorCode::NoGpu => is_known,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_want_of_room_is_waited_for() {
        let refused = |code| is_for_want_of_room(&ErrorBody::new(code, "x", "y"), false);
        assert!(refused(ErrorCode::ShareNotFree) && refused(ErrorCode::MemoryNotFree));
        assert!(refused(ErrorCode::QuotaReached), "its own team's leases end as well");
        assert!(
            !refused(ErrorCode::LeaseConflict) && !refused(ErrorCode::NoGpu) && !refused(ErrorCode::RequestInvalid)
        );
        assert!(refused(ErrorCode::SupervisorFailed), "a full disk refuses the whole queue, one after the other");
        assert!(refused(ErrorCode::SupervisorAbsent), "it has just started, and costs nobody his place");
        let silent = ErrorBody::new(ErrorCode::NoGpu, "x", "y");
        assert!(is_for_want_of_room(&silent, true), "NVML may say nothing for a while");
    }
}
