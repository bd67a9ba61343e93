//! A container that has work on the GPU of which nothing ends: an event, and where its class says so the end of its
//! processes, since launched work cannot be called back and the driver frees the GPU of it only when they are gone.
//!
//! Only processes that are held by pidfd and belong to the container are killed, so that a pid that has changed hands,
//! or a process outside that got hold of the lease's files, is never hit.

use crate::cgroup;
use crate::clock;
use crate::gatekeeper::Order;
use crate::lease::{Lease, Leases, about, class_policy};
use crate::procfs::{self, WatchedProcess};
use crate::region::Report;
use gpool_configuration::{ClassPolicy, HangAction};
use gpool_policy::TenantId;
use gpool_protocol::{Class, EventKind, HostPid};
use gpool_shared_region::SLOTS;
use rustix::process::{Signal, pidfd_send_signal};

/// From an excuse here to the new beginning of the silence, which the gatekeeper notes; no silence that is told is so
/// short.
const EXCUSE_DELAY_NS: u64 = 500_000_000;

/// A container that stops its own processes is excused for so many times what its class calls hung: a debugger's user may
/// think for a while, and nobody can hold a GPU's turns for ever by a signal to himself.
const EXCUSED_TIMES: u64 = 10;

/// A silence that is a container's own stopped processes', and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excuse {
    /// When it was first found, CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// When it was last found.
    pub last_ns: u64,
}

/// Why a container cannot say that its work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    /// By the freezer, which is the host's doing.
    Frozen,
    /// By a signal or a debugger, which may be its own.
    Stopped,
}

/// What follows for a hung container.
#[derive(Debug, PartialEq, Eq)]
enum Consequence {
    /// Its class asks for an event alone. These are its processes.
    Told(Vec<HostPid>),
    /// It is frozen, or stopped by a signal or a debugger: its work may have ended long ago, and it cannot say so.
    Unheard(Unheard),
    /// These processes of it were killed.
    Stopped(Vec<HostPid>),
}

/// Nothing of the tenant's work has ended since then, CLOCK_MONOTONIC.
pub fn act_on(leases: &Leases, tenant: TenantId, since_ns: u64) {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    let silent_s = clock::now_ns().saturating_sub(since_ns) / 1_000_000_000;
    let (class, container) = (lease.record.class, lease.record.container_id.short());
    let configuration = leases.configuration();
    let policy = class_policy(&configuration, class);
    let cgroup = lease.record.cgroup.as_deref();
    let registered = || lease.processes.values().map(|process| &process.watched);
    let now_ns = clock::now_ns();
    // Told once as long as it lasts; the silence of an excused tenant begins when it is excused.
    let goes_on = lease.excuse.take().filter(|excuse| since_ns.abs_diff(excuse.last_ns) <= EXCUSE_DELAY_NS);
    let excused_since_ns = goes_on.map_or(since_ns, |excuse| excuse.since_ns);
    let limit_ns = policy.hang_seconds.saturating_mul(EXCUSED_TIMES * 1_000_000_000);
    let why =
        why_unheard(lease, cgroup).filter(|why| is_excused(*why, now_ns.saturating_sub(excused_since_ns), limit_ns));
    let consequence = match (why, policy.hang_action) {
        (Some(why), _) => Consequence::Unheard(why),
        (None, HangAction::Event) => Consequence::Told(registered().map(|process| process.name.pid).collect()),
        (None, HangAction::Stop) => Consequence::Stopped(stop(cgroup, lease.init.as_ref(), registered())),
    };
    if matches!(consequence, Consequence::Unheard(_)) {
        lease.excuse = Some(Excuse { since_ns: excused_since_ns, last_ns: now_ns });
        leases.gatekeeper.order(Order::Excuse { tenant });
        if goes_on.is_some() {
            return;
        }
    }
    let message = message(container, silent_s, &rule(class, policy, silent_s), &consequence);
    leases.events.note(EventKind::Hung, about(&lease.record, None), message);
    if matches!(&consequence, Consequence::Stopped(killed) if !killed.is_empty()) {
        lease.stopped = Some("its container was stopped as hung");
    }
}

/// Why the container cannot say that its work has ended, if it cannot.
fn why_unheard(lease: &Lease, cgroup: Option<&str>) -> Option<Unheard> {
    if cgroup.is_some_and(cgroup::is_frozen) {
        return Some(Unheard::Frozen);
    }
    let mut report = Report::new();
    report.read(&lease.region, SLOTS);
    let at_work = |slot: &usize| report.taken().any(|(index, it)| index == *slot && it.estimated_end_ns() > 0);
    let processes = lease.processes.iter();
    let seen = processes.map(|(slot, process)| (at_work(slot), procfs::is_stopped(process.watched.name.pid)));
    all_at_work_are_stopped(&seen.collect::<Vec<_>>()).then_some(Unheard::Stopped)
}

/// Whether that excuses a silence of this length: only what is its own doing has an end.
fn is_excused(why: Unheard, silent_ns: u64, limit_ns: u64) -> bool {
    why == Unheard::Frozen || silent_ns < limit_ns
}

/// Whether of a container's processes, each with whether it says that work of it is on the GPU and whether it is stopped,
/// all that may be at work are stopped. Where none says that it is, any may be.
fn all_at_work_are_stopped(processes: &[(bool, bool)]) -> bool {
    let says_so = processes.iter().any(|(at_work, _)| *at_work);
    let mut may_be = processes.iter().filter(|(at_work, _)| *at_work || !says_so).peekable();
    may_be.peek().is_some() && may_be.all(|(_, is_stopped)| *is_stopped)
}

/// Kills the container's init, with which its PID namespace ends, and those registered processes that are in its
/// cgroup, as they may live in another namespace. Those that were killed.
pub fn stop<'a>(
    cgroup: Option<&str>,
    init: Option<&'a WatchedProcess>,
    registered: impl Iterator<Item = &'a WatchedProcess>,
) -> Vec<HostPid> {
    let belonging = registered.filter(|process| cgroup.is_some_and(|cgroup| cgroup::holds(cgroup, process)));
    let mut killed: Vec<HostPid> = Vec::new();
    for process in init.into_iter().chain(belonging) {
        if !killed.contains(&process.name.pid) && kill(process) {
            killed.push(process.name.pid);
        }
    }
    killed
}

/// Whether the process was there to be killed.
fn kill(process: &WatchedProcess) -> bool {
    if process.has_ended() {
        return false;
    }
    let sent = pidfd_send_signal(&process.pidfd, Signal::KILL);
    if let Err(error) = sent {
        log!("process {} cannot be killed: {error}", process.name.pid);
    }
    sent.is_ok()
}

/// The key of the configuration that has come to bear.
fn rule(class: Class, policy: &ClassPolicy, silent_s: u64) -> String {
    match policy.hang_seconds_latency_waits.filter(|_| silent_s < policy.hang_seconds) {
        Some(shorter) => {
            format!("[class.{class}] hang_seconds_latency_waits = {shorter}, and a latency container waits")
        }
        None => format!("[class.{class}] hang_seconds = {}", policy.hang_seconds),
    }
}

/// Who is hung, since when, by which key, and what follows or helps.
fn message(container: &str, silent_s: u64, rule: &str, consequence: &Consequence) -> String {
    let consequence = match consequence {
        Consequence::Told(pids) => format!(
            "only the end of its processes (host pid {}) frees the GPU of it: restart the container if that is not meant",
            listed(pids)
        ),
        Consequence::Unheard(why) => {
            let why = match why {
                Unheard::Frozen => "frozen",
                Unheard::Stopped => "stopped by a signal or a debugger",
            };
            format!("it is {why}, so its work may have ended and it cannot say so: let it go on, or remove it")
        }
        Consequence::Stopped(pids) if pids.is_empty() => {
            "its class has hang_action = \"stop\", and none of its processes could be found: remove the container"
                .to_owned()
        }
        Consequence::Stopped(pids) => {
            format!("its processes are killed (host pid {}), as its class has hang_action = \"stop\"", listed(pids))
        }
    };
    format!("{container} has work on the GPU of which nothing has ended for {silent_s} s ({rule}): {consequence}")
}

fn listed(pids: &[HostPid]) -> String {
    let all: Vec<String> = pids.iter().map(HostPid::to_string).collect();
    if all.is_empty() { "unknown".to_owned() } else { all.join(", ") }
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
    fn the_init_is_killed_and_a_process_outside_the_cgroup_is_not() {
        let ((mut child, init), (mut outside, foreign)) = (sleeper(), sleeper());
        let pid = init.name.pid;
        assert_eq!(stop(Some("/gpool-no-such-cgroup"), Some(&init), [&foreign].into_iter()), [pid]);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!foreign.has_ended());
        assert!(stop(None, Some(&init), [&foreign].into_iter()).is_empty(), "nothing is left to kill");
        assert!(!foreign.has_ended(), "nor without a cgroup");
        outside.kill().unwrap();
        outside.wait().unwrap();
    }

    #[test]
    fn the_message_names_the_key_that_came_to_bear() {
        let policy = ClassPolicy { hang_seconds_latency_waits: Some(2), ..ClassPolicy::default() };
        assert_eq!(rule(Class::Train, &policy, 30), "[class.train] hang_seconds = 30");
        let shorter = rule(Class::Train, &policy, 2);
        assert!(shorter.starts_with("[class.train] hang_seconds_latency_waits = 2"), "{shorter}");
        let text = message("3f9a", 2, &shorter, &Consequence::Stopped(vec![HostPid(7), HostPid(8)]));
        for part in ["3f9a", "for 2 s", &shorter, "host pid 7, 8", "hang_action = \"stop\""] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert!(message("3f9a", 30, "", &Consequence::Told(Vec::new())).contains("host pid unknown"));
        assert!(message("3f9a", 30, "", &Consequence::Unheard(Unheard::Frozen)).contains("it is frozen"));
    }

    #[test]
    fn who_stops_itself_is_excused_for_a_while_and_who_is_frozen_for_as_long() {
        assert!(is_excused(Unheard::Stopped, 299, 300) && !is_excused(Unheard::Stopped, 300, 300));
        assert!(is_excused(Unheard::Frozen, u64::MAX, 300));
    }

    #[test]
    fn a_stopped_process_excuses_its_container_only_if_no_other_is_at_work() {
        assert!(!all_at_work_are_stopped(&[]), "nobody is there to be stopped");
        assert!(all_at_work_are_stopped(&[(true, true), (false, false)]));
        assert!(!all_at_work_are_stopped(&[(true, true), (true, false)]));
        assert!(!all_at_work_are_stopped(&[(false, true), (true, false)]));
        assert!(all_at_work_are_stopped(&[(false, true), (false, true)]));
        assert!(!all_at_work_are_stopped(&[(false, true), (false, false)]), "nobody says who it is");
    }
}
