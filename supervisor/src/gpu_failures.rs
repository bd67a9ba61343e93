//! A GPU that has failed as a whole: the work of all that used it is lost, whatever their programs know of it. Their containers are
//! marked, until those programs have ended, and told, and ended where their class says so; an engine that starts them again is given
//! another GPU, since this one takes no new leases.

use crate::device::Gpu;
use crate::hang::stop;
use crate::lease::{Lease, Leases, about, class_policy};
use gpool_configuration::FailedAction;
use gpool_protocol::{Class, EventKind, HostPid, LeaseFault};

/// All work on the board is lost, for this `cause`. Whoever uses it is marked and told, once.
pub fn fail_all(leases: &Leases, board: &Gpu, cause: &str) {
    let (gpus, configuration) = (leases.gpus(), leases.configuration());
    let is_its =
        |place: usize| gpus.get(place).is_some_and(|gpu| gpu.board().is_some() && gpu.board() == board.board());
    let mut book = leases.book();
    let reached = |lease: &&mut Lease| {
        let is_told = lease.record.fault == Some(LeaseFault::GpuFailed);
        !is_told && lease.uses_gpus() && !lease.record.has_no_share() && lease.gpus().any(is_its)
    };
    for lease in book.leases.values_mut().filter(reached) {
        lease.record.fault = Some(LeaseFault::GpuFailed);
        if let Err(error) = lease.record.write(&configuration.paths.run_dir) {
            log!("{error}");
        }
        let class = lease.record.class;
        let stopped = (class_policy(&configuration, class).failed_action == FailedAction::Stop).then(|| {
            let registered = lease.processes.values().map(|process| &process.watched);
            stop(lease.record.cgroup.as_deref(), lease.init.as_ref(), registered)
        });
        if stopped.as_ref().is_some_and(|killed| !killed.is_empty()) {
            lease.stopped = Some("its container was stopped because its GPU has failed");
        }
        let message = sentence(lease.record.container_id.short(), board, cause, &consequence(class, stopped));
        leases.events.note(EventKind::GpuFailed, about(&lease.record, None), message);
    }
}

fn consequence(class: Class, stopped: Option<Vec<HostPid>>) -> String {
    let key = format!("[class.{class}] failed_action = \"stop\"");
    match stopped {
        None => "end the container and start it anew, on another GPU".to_owned(),
        Some(pids) if pids.is_empty() => {
            format!("none of its processes could be found, as {key} wants: remove the container")
        }
        Some(pids) => {
            let pids: Vec<String> = pids.iter().map(HostPid::to_string).collect();
            format!("its processes are killed (host pid {}), by {key}", pids.join(", "))
        }
    }
}

fn sentence(container: &str, board: &Gpu, cause: &str, consequence: &str) -> String {
    format!(
        "{container} has lost its work on GPU {} ({}), which has failed: {cause}; {consequence}",
        board.index, board.uuid
    )
}
