//! A suspended lease that is wanted asks for room as a container that starts does, and waits in the queue if there is none.

use super::{is_stopped, is_wanted, moving, tell_failure, write_down};
use crate::clock;
use crate::lease::{Lease, Leases};
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
    asker: WatchedProcess,
}

/// Looks whether a suspended lease is wanted, and asks for its room; with that it is brought back. Whether that took time.
pub fn look(leases: &Leases, id: &LeaseId) -> bool {
    let Some(Asking { asked, uid, asker }) = asking(leases, id) else { return false };
    let Err(refusal) = leases.wake(id, &asked, uid) else { return moving::back(leases, id) };
    let Err(refusal) = leases.wait_for_room(&asked, asker, uid, refusal) else { return false };
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
    let is_there = matches!(lease.state, LeaseState::Active | LeaseState::Ending) && lease.record.revocation.is_none();
    let is_due = lease.suspension.next_try.is_none_or(|at| Instant::now() >= at);
    // Who is frozen could not come back.
    let is_wanted = is_there && is_wanted(lease, &mut Report::new()) && !is_stopped(lease);
    let sold_bytes = lease.gpus().map(|gpu| gpus[gpu].memory_total_bytes).min().unwrap_or(u64::MAX);
    let (asked, uid) = (lease.request_to_wake(longest_wait_seconds, sold_bytes), lease.record.owner_uid);
    let asker = asker(lease).and_then(|asker| asker.try_clone().ok());
    let Some(waiter) = book.queue.waiter_of(&asked, uid) else {
        let asker = asker.filter(|_| is_wanted && is_due)?;
        return Some(Asking { asked, uid, asker });
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
    asker.filter(|_| !rests).map(|asker| Asking { asked, uid, asker })
}

/// By whom it is known that it is there: the first process of its container. Where that has ended, others of it may live on and want the
/// GPU.
fn asker(lease: &Lease) -> Option<&WatchedProcess> {
    let processes = lease.processes.values().map(|process| &process.watched);
    lease.init.iter().chain(processes).find(|its| !its.has_ended())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Process, lease_in};
    use gpool_protocol::HostPid;
    use std::process::{Child, Command};

    #[test]
    fn who_lives_on_without_the_first_process_of_its_container_can_ask_to_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let start = || {
            let child = Command::new("sleep").arg("600").spawn().unwrap();
            let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
            (child, watched)
        };
        let end = |child: &mut Child| child.kill().and_then(|()| child.wait()).unwrap();
        let (((mut init, first), (mut other, watched)), mut lease) = ((start(), start()), lease_in(dir.path(), "01"));
        let (first_name, other_name) = (first.name, watched.name);
        lease.init = Some(first);
        lease
            .processes
            .insert(0, Process { registration: 1, watched, program: None, refusals_told: 0, refusals_seen: None });
        let name = |lease: &Lease| asker(lease).map(|its| its.name);
        assert_eq!(name(&lease), Some(first_name));
        end(&mut init);
        assert_eq!(name(&lease), Some(other_name));
        end(&mut other);
        assert_eq!(name(&lease), None);
    }
}
