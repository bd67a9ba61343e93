//! A suspended lease that is wanted asks for room as a container that starts does, and waits in the queue if there is none.

use super::{is_stopped, is_wanted, moving, tell_failure, write_down};
use crate::clock;
use crate::lease::Leases;
use crate::procfs::WatchedProcess;
use crate::queue::Left;
use crate::region::Report;
use gpool_protocol::{EventKind, LeaseId, LeaseRequest, LeaseState};
use std::time::{Duration, Instant};

/// Who gets no place in the queue, or is refused for something else than want of room, asks again after this.
const RETRY: Duration = Duration::from_secs(2);

/// What it asks for, for whom, and by which process it is known that it is there.
struct Asking {
    asked: LeaseRequest,
    uid: u32,
    init: WatchedProcess,
}

/// Looks whether a suspended lease is wanted, and asks for its room; with that it is brought back. Whether that took time.
pub fn look(leases: &Leases, id: &LeaseId) -> bool {
    let Some(Asking { asked, uid, init }) = asking(leases, id) else { return false };
    let Err(refusal) = leases.wake(id, &asked, uid) else { return moving::back(leases, id) };
    let Err(refusal) = leases.wait_for_room(&asked, init, uid, refusal) else { return false };
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return false };
    lease.suspension.next_try = Some(Instant::now() + RETRY);
    let short = lease.record.container_id.short();
    let kept_by = format!("{short} wants to come back, and does not even wait for room: {refusal}");
    // Told once, however often it is tried.
    if lease.suspension.kept_by.replace(kept_by.clone()).is_none() {
        lease.suspension.is_fault_told = true;
        tell_failure(leases, lease, EventKind::LeaseWoken, kept_by);
    }
    false
}

/// What the lease asks for now; none if nobody wants it, or it is not its time.
fn asking(leases: &Leases, id: &LeaseId) -> Option<Asking> {
    let longest_wait_seconds = leases.configuration().queue.longest_wait_seconds;
    let gpus = leases.gpus();
    let mut book = leases.book();
    let lease = book.leases.get_mut(id)?;
    let is_there = lease.state == LeaseState::Active && lease.record.revocation.is_none();
    let is_due = lease.suspension.next_try.is_none_or(|at| Instant::now() >= at);
    // Who is frozen could not come back.
    let is_wanted = is_there && is_wanted(lease, &mut Report::new()) && !is_stopped(lease);
    let sold_bytes = lease.gpus().map(|gpu| gpus[gpu].memory_total_bytes).min().unwrap_or(u64::MAX);
    let (asked, uid) = (lease.request_to_wake(longest_wait_seconds, sold_bytes), lease.record.owner_uid);
    let init = lease.init.as_ref().and_then(|init| init.try_clone().ok());
    let Some(waiter) = book.queue.waiter_of(&asked, uid) else {
        let init = init.filter(|_| is_wanted && is_due)?;
        return Some(Asking { asked, uid, init });
    };
    if waiter.cancelled_by.is_some() {
        leases.leave_queue_of(&mut book, &asked, uid, Left::Cancelled);
        let lease = book.leases.get_mut(id)?;
        lease.record.suspension.iter_mut().for_each(|its| (its.is_cancelled, its.is_asked) = (true, false));
        write_down(leases, lease);
        return None;
    }
    // Whose program has ended before it had room waits no more.
    if !is_wanted {
        leases.leave_queue_of(&mut book, &asked, uid, Left::Gone);
        return None;
    }
    let rests = waiter.is_early(clock::now_ns()) || waiter.held_by.is_some();
    init.filter(|_| !rests).map(|init| Asking { asked, uid, init })
}
