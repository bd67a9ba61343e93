//! Who is not reached through the container's cgroup. Whose own cgroup that is, or lies below one of his own, moves his processes out of
//! it: under podman without root, and on version 2 also a command of `gpool run` that was started with sudo from a unit of its user's.

use crate::cgroup;
use crate::hang;
use crate::lease::{Lease, Leases, about};
use crate::procfs::{self, WatchedProcess};
use gpool_protocol::{EventKind, HostPid, LeaseId};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A device has back by now what killed processes held; what it still has not is held by somebody who was not found. Well before
/// those who wait for it reckon with it no more.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while one of the killed is at its end, which takes the kernel long where much memory of the host is pinned.
const PATIENCE_WITH_AN_END: Duration = Duration::from_secs(60);

/// The processes that have registered with the lease, live, and are in its cgroup no more. A process registers from within that, or
/// descends from the container's first one.
pub fn strays(leases: &Leases, id: &LeaseId, cgroup: &str) -> Vec<WatchedProcess> {
    outside(cgroup, registered(leases, id))
}

fn registered(leases: &Leases, id: &LeaseId) -> Vec<WatchedProcess> {
    let book = leases.book();
    let processes = book.leases.get(id).into_iter().flat_map(|lease| lease.processes.values());
    processes.filter_map(|process| process.watched.try_clone().ok()).collect()
}

fn outside(cgroup: &str, registered: Vec<WatchedProcess>) -> Vec<WatchedProcess> {
    let is_outside = |process: &WatchedProcess| !cgroup::holds(cgroup, process) && goes_on(process);
    registered.into_iter().filter(is_outside).collect()
}

/// Whether any thread of the process is not at its end. One that is killed can take seconds for that, and version 1 says of it then that
/// it is in no group.
fn goes_on(process: &WatchedProcess) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.name.pid)).into_iter().flatten().flatten();
    let mut pids = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok().map(HostPid));
    // Asked last: a process that lives has its pid to itself.
    pids.any(|pid| procfs::goes_on(pid, procfs::start_ticks(pid))) && !process.has_ended()
}

/// How many had left the cgroup, and whether anybody who has registered goes on, or may be there who was not looked at.
pub fn seen(leases: &Leases, id: &LeaseId) -> (usize, bool) {
    let its = |lease: &Lease| (lease.clearance.strays(), lease.clearance.is_cut());
    let (strays, is_cut) = leases.book().leases.get(id).map_or((0, false), its);
    (strays, is_cut || registered(leases, id).iter().any(goes_on))
}

/// Kills those: how many there were, and who was killed. It is noted with the lease that the denial does not bind all of it.
pub fn kill(leases: &Leases, id: &LeaseId, cgroup: &str) -> (usize, BTreeSet<HostPid>) {
    let found = strays(leases, id, cgroup);
    // Later ones nobody is told of, and they may be any number.
    if !found.is_empty()
        && let Some(lease) = leases.book().leases.get_mut(id).filter(|lease| !lease.record.has_lost_share())
    {
        lease.clearance.note_strays(found.iter().map(|process| process.name));
    }
    (found.len(), signal(&found, Signal::KILL))
}

/// Sends them a signal; to whom.
pub fn signal(processes: &[WatchedProcess], signal: Signal) -> BTreeSet<HostPid> {
    let sent = processes.iter().filter(|process| pidfd_send_signal(&process.pidfd, signal).is_ok());
    sent.map(|process| process.name.pid).collect()
}

/// Ends the container as a whole, once, if its share is not free so long after its GPUs were taken: then somebody holds them who is not
/// found in its cgroup and has not registered, as a child is to whom a device was handed, or its processes, their descriptors or its groups
/// are more than a look gets through, and nobody can say that none of them does. With its first process its PID
/// namespace ends, which nobody leaves. Those that were killed.
pub fn end_late(leases: &Leases, id: &LeaseId, cgroup: &str) -> BTreeSet<HostPid> {
    let (now, nothing) = (Instant::now(), BTreeSet::new());
    let is_late = |lease: &Lease, is_at_an_end| {
        !lease.record.has_lost_share()
            && has_waited(held_since(lease), now, is_at_an_end)
            && !lease.clearance.is_ended()
    };
    let Some(users) =
        leases.book().leases.get(id).filter(|lease| is_late(lease, false)).map(|lease| lease.clearance.users())
    else {
        return nothing;
    };
    let is_at_its_end = |process: WatchedProcess| !goes_on(&process) && !process.has_ended();
    let users = users.into_iter().filter_map(|user| WatchedProcess::reopen(user).ok());
    let is_at_an_end = users.chain(registered(leases, id)).any(is_at_its_end);
    let (about, short, init, is_cut) = {
        let mut book = leases.book();
        let Some(lease) = book.leases.get_mut(id).filter(|lease| is_late(lease, is_at_an_end)) else { return nothing };
        lease.clearance.note_end();
        let init = lease.init.as_ref().and_then(|init| init.try_clone().ok());
        let short = lease.record.container_id.short().to_owned();
        (about(&lease.record, None), short, init, lease.clearance.is_cut())
    };
    let mut killed = cgroup::kill(cgroup);
    killed.extend(hang::stop(None, init.as_ref(), std::iter::empty()));
    if !killed.is_empty() {
        let seconds = patience(is_at_an_end).as_secs();
        let message = if is_cut {
            format!(
                "ended {short} as a whole: {seconds} s after its GPUs were taken from it nobody could say whether it held them still, since its processes, what they have open or its cgroups are more than are looked at"
            )
        } else {
            format!(
                "ended {short} as a whole: something of it held its GPUs still {seconds} s after they were taken from it and all who were found had ended"
            )
        };
        leases.events.note(EventKind::LeaseRevoked, about, message);
    }
    killed
}

/// Since when nobody of it is known to hold its GPUs that were taken, who would have to: the device has still to say so after a death.
fn held_since(lease: &Lease) -> Option<Instant> {
    let last_death = lease.dead.values().map(|dead| dead.died).max();
    // Whoever makes one process after the other puts it off no further than one that is at its end.
    let latest = |at| [last_death, lease.clearance.since()].into_iter().flatten().fold(at, Instant::max);
    lease.revoked_at.map(|at| latest(at).min(at + PATIENCE_WITH_AN_END))
}

fn patience(is_at_an_end: bool) -> Duration {
    if is_at_an_end { PATIENCE_WITH_AN_END } else { PATIENCE }
}

fn has_waited(since: Option<Instant>, now: Instant, is_at_an_end: bool) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) >= patience(is_at_an_end))
}

/// How many of the processes were killed, and what there is to say of others: whether any `is_left`, and that so many were `strays`.
pub fn worded(killed: usize, strays: usize, is_left: bool) -> String {
    let was = |count| if count == 1 { "was" } else { "were" };
    let killed = format!("{killed} of its processes that used it {} killed", was(killed));
    let others = match (strays, is_left) {
        (0, false) => "and no other can open it".to_owned(),
        (0, true) => format!("and what is left is ended with all of it in {} s", PATIENCE.as_secs()),
        (_, false) => format!("and no other in its cgroup can open it, which {strays} of them had left"),
        (_, true) => format!(
            "{strays} of them had left its cgroup, and what is left is ended with all of it in {} s",
            PATIENCE.as_secs()
        ),
    };
    format!("{killed}, {others}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, WatchedProcess) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        (child, watched)
    }

    #[test]
    fn a_registered_process_that_has_left_the_cgroup_is_found_and_killed() {
        let (mut child, process) = sleeper();
        let pid = process.name.pid;
        let own = cgroup::path_of(pid);
        if let Some(own) = &own {
            assert!(outside(own, vec![process.try_clone().unwrap()]).is_empty(), "that one is found there");
        }
        let found = outside("/gpool-no-such-cgroup", vec![process]);
        assert_eq!(signal(&found, Signal::KILL), [pid].into());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(outside("/gpool-no-such-cgroup", found).is_empty(), "it has ended");
        // Killed and not waited for, it has its pid and no thread that goes on.
        let (mut child, process) = sleeper();
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(outside("/gpool-no-such-cgroup", vec![process]).is_empty(), "it is at its end");
        child.wait().unwrap();
    }

    #[test]
    fn what_is_held_for_long_is_late_and_what_is_just_let_go_of_is_not() {
        let since = Instant::now();
        assert!(!has_waited(Some(since), since + PATIENCE - Duration::from_millis(1), false));
        assert!(has_waited(Some(since), since + PATIENCE, false));
        assert!(!has_waited(Some(since), since + PATIENCE, true), "the kernel is about to let go of it");
        assert!(has_waited(Some(since), since + PATIENCE_WITH_AN_END, true));
        assert!(!has_waited(None, since + PATIENCE, false), "nothing was taken from it");
    }

    #[test]
    fn nothing_is_said_to_be_out_of_reach_that_is_not() {
        assert_eq!(worded(1, 0, false), "1 of its processes that used it was killed, and no other can open it");
        let moved = worded(2, 1, false);
        assert_eq!(
            moved,
            "2 of its processes that used it were killed, and no other in its cgroup can open it, which 1 of them had left"
        );
        for left in [worded(0, 0, true), worded(3, 2, true)] {
            assert!(
                left.ends_with("what is left is ended with all of it in 10 s") && !left.contains("no other"),
                "{left}"
            );
        }
    }
}
