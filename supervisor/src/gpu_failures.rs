//! A GPU that has failed as a whole: the work of all that used it is lost, whatever their programs know of it. Their containers are
//! marked, for as long as something of theirs is on it, and told, and ended where their class says so; an engine that starts
//! them again is given another GPU, since this one takes no new leases.

use crate::device::Gpu;
use crate::hang::stop;
use crate::lease::{Lease, Leases, about, class_policy};
use crate::region::Report;
use gpool_configuration::{Configuration, FailedAction};
use gpool_protocol::{Class, EventKind, GpuUuid, HostPid, LeaseFault};

/// What follows for a container.
enum Consequence {
    /// Its class asks for an event alone.
    Told,
    /// Its class asks for more, and whoever starts it again might have the same GPU.
    MightComeBack,
    /// These processes of it were killed.
    Stopped(Vec<HostPid>),
}

/// All work on the board that `gpu` is, or is a part of, is lost, for this `cause`. Whoever uses it is marked and told, once, and ended
/// where that may be.
pub fn fail_all(leases: &Leases, gpu: &Gpu, cause: &str) {
    let Some(board) = gpu.board() else { return };
    let (gpus, configuration) = (leases.gpus(), leases.configuration());
    let is_its = |place: usize| gpus.get(place).is_some_and(|gpu| gpu.board() == Some(board));
    let is_drained = leases.drains.of(gpu).is_some();
    let is_closed = |place: usize| is_its(place) && (is_drained || leases.silence.is_silent(place));
    let (mut book, mut report) = (leases.book(), Report::new());
    for lease in book.leases.values_mut().filter(|lease| may_be_marked(lease)) {
        let is_marked = lease.record.fault == Some(LeaseFault::GpuFailed);
        if !lease.uses_any(&mut report, is_its) {
            continue;
        }
        let class = lease.record.class;
        let ends = class_policy(&configuration, class).failed_action == FailedAction::Stop;
        let is_closed = lease.gpus().any(is_closed);
        let consequence = match is_closed {
            true if ends => Consequence::Stopped(stop_all(lease)),
            _ if is_marked => continue,
            _ if ends => Consequence::MightComeBack,
            _ => Consequence::Told,
        };
        // Whose processes cannot be found is told once.
        if is_marked && matches!(&consequence, Consequence::Stopped(killed) if killed.is_empty()) {
            continue;
        }
        lease.failed = lease.processes.iter().map(|(slot, process)| (*slot, process.registration)).collect();
        mark(lease, Some(LeaseFault::GpuFailed), &configuration);
        let message =
            sentence(lease.record.container_id.short(), (gpu.index, board), cause, &in_words(class, consequence));
        leases.events.note(EventKind::GpuFailed, about(&lease.record, None), message);
    }
}

/// The container is there, has not been ended, and nothing is known of it that outlasts this.
fn may_be_marked(lease: &Lease) -> bool {
    let is_final = lease.record.fault == Some(LeaseFault::MpsServerDied);
    lease.init.is_some() && lease.stopped.is_none() && !is_final && !lease.record.has_no_share()
}

fn stop_all(lease: &mut Lease) -> Vec<HostPid> {
    let registered = lease.processes.values().map(|process| &process.watched);
    let killed = stop(lease.record.cgroup.as_deref(), lease.init.as_ref(), registered);
    if !killed.is_empty() {
        lease.stopped = Some("its container was stopped because its GPU has failed");
    }
    killed
}

fn mark(lease: &mut Lease, fault: Option<LeaseFault>, configuration: &Configuration) {
    lease.record.fault = fault;
    if let Err(error) = lease.record.write(&configuration.paths.run_dir) {
        log!("{error}");
    }
}

/// Takes the marks from those whose programs have ended that were there: new ones begin anew.
pub fn look(leases: &Leases) {
    let (configuration, mut report) = (leases.configuration(), Report::new());
    let mut book = leases.book();
    for lease in book.leases.values_mut().filter(|lease| lease.record.fault == Some(LeaseFault::GpuFailed)) {
        if !is_left(lease, &mut report) {
            mark(lease, None, &configuration);
        }
    }
}

/// Whether something is left of what was there when a GPU failed. After a restart of the supervisor, and without shims, that is
/// whatever is there.
fn is_left(lease: &Lease, report: &mut Report) -> bool {
    if lease.failed.is_empty() {
        return lease.uses_any(report, |_| true);
    }
    let is_there = |(slot, registration): &(usize, u64)| {
        lease.processes.get(slot).is_some_and(|process| process.registration == *registration)
    };
    lease.failed.iter().any(is_there)
}

fn in_words(class: Class, consequence: Consequence) -> String {
    let key = format!("[class.{class}] failed_action = \"stop\"");
    match consequence {
        Consequence::Told => "end the container and start it anew, on another GPU".to_owned(),
        Consequence::MightComeBack => {
            format!(
                "it is not ended by {key}, since the GPU takes new leases: drain it with gpool gpu drain, and end the container"
            )
        }
        Consequence::Stopped(pids) if pids.is_empty() => {
            format!("none of its processes could be found, as {key} wants: remove the container")
        }
        Consequence::Stopped(pids) => {
            let pids: Vec<String> = pids.iter().map(HostPid::to_string).collect();
            format!("its processes are killed (host pid {}), by {key}", pids.join(", "))
        }
    }
}

fn sentence(container: &str, (index, board): (u32, &GpuUuid), cause: &str, consequence: &str) -> String {
    format!("{container} has lost its work on GPU {index} ({board}), which has failed: {cause}; {consequence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_failed_and_what_follows_is_said_in_a_sentence() {
        let said = |consequence| {
            let board = GpuUuid("GPU-1".into());
            sentence("3f9a", (1, &board), "Xid 79, it has fallen off its bus", &in_words(Class::Train, consequence))
        };
        let want = "3f9a has lost its work on GPU 1 (GPU-1), which has failed: Xid 79, it has fallen off its bus; end the container and \
                    start it anew, on another GPU";
        assert_eq!(said(Consequence::Told), want);
        let stopped = said(Consequence::Stopped(vec![HostPid(7), HostPid(8)]));
        assert!(
            stopped.ends_with("its processes are killed (host pid 7, 8), by [class.train] failed_action = \"stop\""),
            "{stopped}"
        );
        assert!(said(Consequence::Stopped(Vec::new())).contains("none of its processes could be found"));
        assert!(said(Consequence::MightComeBack).contains("it is not ended by [class.train] failed_action"));
    }
}
