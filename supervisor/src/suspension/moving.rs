//! Moving a lease's processes to the host's memory and back.

use super::driver::{Outcome, Way};
use super::{open, tell, write_down};
use crate::clock;
use crate::lease::{Lease, Leases};
use crate::region::Report;
use gpool_protocol::{EventKind, HostPid, LeaseId, SuspensionStage, format_bytes};
use gpool_shared_region::SLOTS;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Held by the process that calls the driver, so that one which a killed supervisor has left behind is at its end before the next begins.
const LOCK: &str = "checkpoint.lock";
/// How long the driver may take, beside what is moved ...
const PATIENCE: Duration = Duration::from_secs(30);
/// ... and for that: a sixteenth of what an H200 with driver 580 was measured to do (docs/measurements/2026-11-26-h200.md).
const SLOWEST_BYTES_PER_SECOND: u64 = 128 << 20;
/// It is looked so often whether it has come back.
const LOOK_PERIOD: Duration = Duration::from_millis(2);
/// How long NVML may take to say what is free.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// So long after a try that had to wait comes the next.
const RETRY: Duration = Duration::from_millis(500);

/// What is to be moved.
struct Load {
    pids: Vec<HostPid>,
    bytes: u64,
}

/// Moves a lease out, or leaves it as it was.
pub fn out(leases: &Leases, id: &LeaseId) {
    let Some(load) = load(leases, id, true) else { return };
    let begun = Instant::now();
    let outcome = run(leases, Way::Suspend, &load);
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return };
    // Its GPUs may have been taken from it meanwhile, and its processes killed.
    let is_still = lease.record.is_going_out() && lease.record.revocation.is_none();
    match outcome.failure {
        _ if !is_still => leave(leases, lease),
        None => {
            lease.meter.run(clock::now_ns(), &lease.record);
            set_stage(lease, SuspensionStage::Suspended);
            write_down(leases, lease);
            leases.counters.note_suspension("suspended");
            let message = format!(
                "suspended {}: {} of its GPU memory {} in the host's since {:.1} s after that was begun, and its room is free; {}",
                lease.record.container_id.short(),
                format_bytes(load.bytes),
                if load.pids.len() == 1 { "is, of one program," } else { "are, of its programs," },
                begun.elapsed().as_secs_f64(),
                lease.suspension.why,
            );
            tell(leases, lease, EventKind::LeaseSuspended, message);
        }
        Some(cause) => {
            leases.counters.note_suspension(if outcome.is_whole { "not_suspended" } else { "lost" });
            let lost = if outcome.is_whole { String::new() } else { end_lost(lease) };
            let message =
                format!("{} could not be suspended and goes on: {cause}{lost}", lease.record.container_id.short());
            tell(leases, lease, EventKind::LeaseSuspended, message);
            leave(leases, lease);
            lease.suspension.has_failed = true;
        }
    }
    drop(book);
    leases.ended.notify_all();
}

/// Brings a lease back, for which there is room.
pub fn back(leases: &Leases, id: &LeaseId) {
    let Some(load) = load(leases, id, false) else { return };
    if !is_free(leases, id, &load) {
        return;
    }
    let begun = Instant::now();
    let outcome = run(leases, Way::Resume, &load);
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return };
    let short = lease.record.container_id.short().to_owned();
    let message = match outcome.failure {
        None => {
            leases.counters.note_suspension("woken");
            format!(
                "{short} is back on its GPUs: {} were moved in {:.1} s",
                format_bytes(load.bytes),
                begun.elapsed().as_secs_f64()
            )
        }
        Some(cause) => {
            leases.counters.note_suspension("lost");
            format!("{short} could not be brought back: {cause}{}", end_lost(lease))
        }
    };
    tell(leases, lease, EventKind::LeaseWoken, message);
    leave(leases, lease);
}

/// It is suspended no more.
fn leave(leases: &Leases, lease: &mut Lease) {
    lease.meter.run(clock::now_ns(), &lease.record);
    lease.record.suspension = None;
    write_down(leases, lease);
    open(leases, lease);
}

fn set_stage(lease: &mut Lease, stage: SuspensionStage) {
    if let Some(its) = &mut lease.record.suspension {
        its.stage = stage;
    }
}

/// The processes of a lease that are to be moved, if it is to go out as `is_out` says, or to come back, and it is time.
fn load(leases: &Leases, id: &LeaseId, is_out: bool) -> Option<Load> {
    let mut book = leases.book();
    let lease = book.leases.get_mut(id)?;
    if lease.suspension.next_try.is_some_and(|at| Instant::now() < at) {
        return None;
    }
    let mut report = Report::new();
    report.read(&lease.region, SLOTS);
    // A process that has no context has nothing that could be moved. On the way back it may have come meanwhile, and the driver says so.
    let has_context = |slot: &usize| report.taken().any(|(its, claimed)| its == *slot && claimed.contexts() > 0);
    let processes = lease.processes.iter().filter(|(slot, _)| !is_out || has_context(slot));
    let pids = processes.map(|(_, process)| process.watched.name.pid).collect();
    let bytes = lease.record.suspension.as_ref()?.bytes.iter().sum();
    Some(Load { pids, bytes })
}

/// Whether the devices have room for what comes back: a process for which there is too little is lost. What keeps it is told once.
fn is_free(leases: &Leases, id: &LeaseId, load: &Load) -> bool {
    // What a supervisor that was killed had begun to move may be there in parts: then it is brought back whole, or not at all.
    if load.pids.is_empty() || load.pids.iter().any(|pid| leases.occupants.lists(*pid)) {
        return true;
    }
    leases.occupants.look_again(Instant::now() + LOOK_PATIENCE);
    let gpus = leases.gpus();
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return false };
    let Some(suspension) = &lease.record.suspension else { return false };
    let lacks = lease.gpus().zip(&suspension.bytes).find_map(|(gpu, bytes)| {
        let used_bytes = leases.used_bytes[gpu].load(std::sync::atomic::Ordering::Relaxed);
        let free_bytes = gpus[gpu].memory_total_bytes.saturating_sub(used_bytes);
        (free_bytes < *bytes).then(|| (gpus[gpu].uuid.clone(), free_bytes, *bytes))
    });
    let Some((uuid, free_bytes, bytes)) = lacks else { return true };
    lease.suspension.next_try = Some(Instant::now() + RETRY);
    let kept_by = format!("{uuid} has {} free of {} that it takes", format_bytes(free_bytes), format_bytes(bytes));
    if lease.suspension.kept_by.is_none() {
        let message = format!(
            "{} has room again and waits until the device has it: {kept_by}",
            lease.record.container_id.short()
        );
        tell(leases, lease, EventKind::LeaseWoken, message);
    }
    lease.suspension.kept_by = Some(kept_by);
    false
}

/// Ends processes that the driver has lost: no call of theirs would ever return. What is said of it, the end of a sentence.
fn end_lost(lease: &Lease) -> String {
    let killed = lease.processes.values();
    let killed = killed.filter(|process| pidfd_send_signal(&process.watched.pidfd, Signal::KILL).is_ok()).count();
    match killed {
        1 => "; its program on the GPU was killed, since no call of it would return".to_owned(),
        several => format!("; its {several} programs on the GPU were killed, since no call of theirs would return"),
    }
}

/// Calls the driver for these processes, by a process of our own.
fn run(leases: &Leases, way: Way, load: &Load) -> Outcome {
    if load.pids.is_empty() {
        return Outcome { failure: None, is_whole: true };
    }
    let patience = PATIENCE + Duration::from_secs(load.bytes / SLOWEST_BYTES_PER_SECOND);
    match called(leases, way, &load.pids, patience) {
        Ok(outcome) => outcome,
        // Nobody knows how far it came.
        Err(cause) if way == Way::Suspend => {
            let back = called(leases, Way::Resume, &load.pids, patience);
            let is_whole = back.as_ref().is_ok_and(|outcome| outcome.is_whole);
            Outcome { failure: Some(cause.to_string()), is_whole }
        }
        Err(cause) => Outcome { failure: Some(cause.to_string()), is_whole: false },
    }
}

fn called(leases: &Leases, way: Way, pids: &[HostPid], patience: Duration) -> io::Result<Outcome> {
    let configuration = leases.configuration();
    let lock = File::create(configuration.paths.run_dir.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["--checkpoint", way.text()]).args(pids.iter().map(|pid| pid.0.to_string()));
    let libraries: Vec<String> =
        configuration.driver.library_dirs.iter().map(|dir| dir.display().to_string()).collect();
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    // Not a client of a daemon that the host may have in the usual place.
    command.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    // The lock is that process's from here on, whatever becomes of this one.
    command.stdin(Stdio::from(lock)).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    drop(command);
    let Some(status) = wait(&mut child, patience)? else {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other(format!("the driver has not come back within {} s", patience.as_secs())));
    };
    let mut text = String::new();
    child.stdout.take().map(|mut out| out.read_to_string(&mut text)).transpose()?;
    serde_json::from_str(&text).map_err(|_| {
        io::Error::other(format!("the process that calls the driver ended with {status} and said {text:?}"))
    })
}

/// Waits for the end of a process; none if it has not come by then.
fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
}
