//! A GPU that has failed as a whole: the work of all that used it is lost, whatever their programs know of it. Their containers are
//! marked, for as long as something of theirs is on it, and told, and ended where their class says so; an engine that starts
//! them again is given another GPU, since this one takes no new leases.

use crate::device::Gpu;
use crate::hang::stop;
use crate::lease::{Lease, Leases, about, class_policy};
use gpool_configuration::FailedAction;
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

/// All work on the board that `gpu` is, or is a part of, is lost, for this `cause`. Whoever uses it is marked and told, once.
pub fn fail_all(leases: &Leases, gpu: &Gpu, cause: &str) {
    let Some(board) = gpu.board() else { return };
    let (gpus, configuration) = (leases.gpus(), leases.configuration());
    let is_its = |place: usize| gpus.get(place).is_some_and(|gpu| gpu.board() == Some(board));
    let place = gpus.iter().position(|gpu| gpu.uuid == *board);
    let is_closed = leases.drains.of(gpu).is_some() || place.is_some_and(|place| leases.silence.is_silent(place));
    let mut book = leases.book();
    for lease in book.leases.values_mut().filter(|lease| may_be_marked(lease) && lease.uses_any(is_its)) {
        lease.record.fault = Some(LeaseFault::GpuFailed);
        if let Err(error) = lease.record.write(&configuration.paths.run_dir) {
            log!("{error}");
        }
        let class = lease.record.class;
        let consequence = match class_policy(&configuration, class).failed_action {
            FailedAction::Event => Consequence::Told,
            FailedAction::Stop if !is_closed => Consequence::MightComeBack,
            FailedAction::Stop => {
                let registered = lease.processes.values().map(|process| &process.watched);
                Consequence::Stopped(stop(lease.record.cgroup.as_deref(), lease.init.as_ref(), registered))
            }
        };
        if matches!(&consequence, Consequence::Stopped(killed) if !killed.is_empty()) {
            lease.stopped = Some("its container was stopped because its GPU has failed");
        }
        let message =
            sentence(lease.record.container_id.short(), (gpu.index, board), cause, &in_words(class, consequence));
        leases.events.note(EventKind::GpuFailed, about(&lease.record, None), message);
    }
}

/// The container is there, and nothing is known of it that outlasts this.
fn may_be_marked(lease: &Lease) -> bool {
    let is_final = matches!(lease.record.fault, Some(LeaseFault::GpuFailed | LeaseFault::MpsServerDied));
    lease.init.is_some() && !is_final && !lease.record.has_no_share()
}

/// Takes the marks from those that have nothing on any GPU any more: their programs have ended, and new ones begin anew.
pub fn look(leases: &Leases) {
    let mut book = leases.book();
    let is_over = |lease: &&mut Lease| lease.record.fault == Some(LeaseFault::GpuFailed) && !lease.uses_any(|_| true);
    for lease in book.leases.values_mut().filter(is_over) {
        lease.record.fault = None;
        if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
            log!("{error}");
        }
    }
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
