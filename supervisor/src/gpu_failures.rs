//! A GPU that has failed as a whole: the work of all that used it is lost, whatever their programs know of it. Their containers are
//! marked, for as long as something of theirs is on it, and told, and ended where their class says so; an engine that starts
//! them again is given another GPU, since this one takes no new leases.

use crate::device::Gpu;
use crate::hang::stop;
use crate::lease::{Lease, Leases, about, class_policy};
use crate::region::Report;
use gpool_configuration::{Configuration, FailedAction};
use gpool_protocol::{Class, Drain, EventKind, GpuUuid, HostPid, LeaseFault};

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

/// Takes the marks from those whose programs have ended that were there: new ones begin anew. Ends those whose class has come to ask for
/// that since.
pub fn look(leases: &Leases) {
    let (gpus, configuration, mut report) = (leases.gpus(), leases.configuration(), Report::new());
    let mut book = leases.book();
    for lease in book.leases.values_mut().filter(|lease| lease.record.fault == Some(LeaseFault::GpuFailed)) {
        if !is_left(lease, &mut report) {
            mark(lease, None, &configuration);
        } else if class_policy(&configuration, lease.record.class).failed_action == FailedAction::Stop {
            stop_late(leases, lease, &gpus);
        }
    }
}

/// Ends a container that is marked, if whoever starts it again has another GPU. Of what is left of one that was ended nothing is told.
fn stop_late(leases: &Leases, lease: &mut Lease, gpus: &[Gpu]) {
    let closed = lease.gpus().find_map(|place| {
        let gpu = gpus.get(place)?;
        let cause = why_closed(leases.drains.of(gpu), leases.silence.is_silent(place))?;
        Some(((gpu.index, gpu.board()?.clone()), cause))
    });
    let Some(((index, board), cause)) = closed.filter(|_| may_be_marked(lease)) else { return };
    let killed = stop_all(lease);
    if killed.is_empty() {
        return;
    }
    let consequence = in_words(lease.record.class, Consequence::Stopped(killed));
    let message = sentence(lease.record.container_id.short(), (index, &board), &cause, &consequence);
    leases.events.note(EventKind::GpuFailed, about(&lease.record, None), message);
}

/// Why a GPU that has failed takes nobody in; none if it does. Where a person alone has drained it that may be for something else.
fn why_closed(drain: Option<Drain>, is_silent: bool) -> Option<String> {
    let fault = drain.and_then(|drain| drain.fault);
    fault.or_else(|| is_silent.then(|| "it does not answer".to_owned()))
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
    fn one_that_its_class_wants_ended_later_is_ended_where_it_would_not_come_back() {
        let drained = |fault: Option<&str>| {
            let fault = fault.map(str::to_owned);
            Some(Drain { since_unix_ms: 1, uid: Some(0), reason: "new fans".into(), fault })
        };
        assert_eq!(why_closed(drained(Some("Xid 79")), false).as_deref(), Some("Xid 79"));
        assert_eq!(why_closed(None, true).as_deref(), Some("it does not answer"));
        assert_eq!((why_closed(None, false), why_closed(drained(None), false)), (None, None));
    }

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
