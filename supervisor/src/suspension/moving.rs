//! Moving a lease's processes to the host's memory and back.

use super::driver::{Outcome, Way, named};
use super::{facts, open, spoken_for_bytes, tell, tell_failure, write_down};
use crate::clock;
use crate::lease::{Lease, Leases, Process, RecordError, dir_of};
use crate::preemptions;
use crate::procfs::ProcessName;
use crate::region::Report;
use gpool_policy::suspension::{Obstacle, check};
use gpool_protocol::{EventKind, LeaseId, SuspensionStage, format_bytes};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// In the directory of a lease. Held by the process that calls the driver for it, so that one which a killed supervisor has left behind is at
/// its end before the next begins. One that never comes to its end is in the way of nobody else's.
const LOCK: &str = "checkpoint.lock";
/// One that was killed is at its end at once, unless it stands in the driver; others are not kept waiting for that.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long the driver may take, beside what is moved ...
const PATIENCE: Duration = Duration::from_secs(30);
/// ... and for that: a sixteenth of what an H200 with driver 580 was measured to do (docs/measurements/2026-11-26-h200.md).
const SLOWEST_BYTES_PER_SECOND: u64 = 128 << 20;
/// It is looked so often whether who is moved is stopped, and waited so long for one that is.
const STOPPED_PERIOD: Duration = Duration::from_millis(250);
const STOPPED_PATIENCE: Duration = Duration::from_secs(1);
/// It is looked so often whether it has come back.
const LOOK_PERIOD: Duration = Duration::from_millis(2);
/// How long NVML may take to say what is free.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// So long after a try that had to wait comes the next.
const RETRY: Duration = Duration::from_secs(1);
/// Further tries are further apart, up to so many times twice that.
const RETRY_DOUBLED: u32 = 6;

/// What is to be moved.
struct Load {
    processes: Vec<ProcessName>,
    bytes: u64,
    /// Whether it was found half-way: then it may be on the devices in parts.
    is_half_way: bool,
}

/// Moves a lease out, or leaves it as it was. Whether that took time.
pub fn out(leases: &Leases, id: &LeaseId) -> bool {
    let Some(load) = load(leases, id) else { return false };
    if let Some(obstacle) = obstacle(leases, id) {
        stays(leases, id, Outcome::untried(obstacle, Way::Suspend));
        return false;
    }
    let begun = Instant::now();
    let outcome = left_on_the_device(leases, id, &load, run(leases, id, Way::Suspend, &load));
    if outcome.failure.is_some() {
        stays(leases, id, outcome);
    } else if let Err(cause) = is_out(leases, id, &load, begun) {
        // Its room would be others', and the next supervisor, who would not know that, bring it back there.
        let failure = Some(format!("that it is cannot be written down: {cause}"));
        stays(leases, id, Outcome { failure, ..run(leases, id, Way::Resume, &load) });
    }
    leases.ended.notify_all();
    true
}

/// A lease has been moved out since `begun`: its room is free.
///
/// # Errors
/// That cannot be written down, and nothing has changed.
fn is_out(leases: &Leases, id: &LeaseId, load: &Load, begun: Instant) -> Result<(), RecordError> {
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return Ok(()) };
    if !is_to_go(lease) {
        leave(leases, lease);
        return Ok(());
    }
    note_out(lease, &leases.configuration().paths.run_dir)?;
    lease.suspension.failed_at = None;
    leases.counters.note_suspension("suspended");
    if lease.suspension.for_whom.is_some() {
        leases.counters.note_preemption("suspended");
    }
    let message = format!(
        "suspended {}: {} that its programs ({}) hold of its GPUs were moved to the host's memory in {:.1} s, and its room is free; {}",
        lease.record.container_id.short(),
        format_bytes(load.bytes),
        load.processes.len(),
        begun.elapsed().as_secs_f64(),
        lease.suspension.why,
    );
    tell(leases, lease, EventKind::LeaseSuspended, message);
    Ok(())
}

/// Writes down that a lease is out, and has it so from then on.
fn note_out(lease: &mut Lease, run_dir: &Path) -> Result<(), RecordError> {
    let mut record = lease.record.clone();
    record.suspension.iter_mut().for_each(|its| its.stage = SuspensionStage::Suspended);
    record.write(run_dir)?;
    lease.meter.run(clock::now_ns(), &lease.record);
    lease.record = record;
    Ok(())
}

/// Its GPUs may have been taken from it while it was moved, and its processes killed.
fn is_to_go(lease: &Lease) -> bool {
    lease.record.is_going_out() && lease.record.revocation.is_none()
}

/// A lease could not be moved out. It goes on, unless it was to make room for one that needs that still: then its GPUs are taken.
fn stays(leases: &Leases, id: &LeaseId, outcome: Outcome) {
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return };
    if !is_to_go(lease) {
        return leave(leases, lease);
    }
    leases.counters.note_suspension(if outcome.lost.is_empty() { "not_suspended" } else { "lost" });
    let for_whom = lease.suspension.for_whom.take();
    let goes_on = if for_whom.is_none() { " and goes on" } else { "" };
    let (short, cause) = (lease.record.container_id.short().to_owned(), outcome.failure.unwrap_or_default());
    let lost = end_lost(lease, &outcome.lost);
    let message = format!("{short} could not be suspended{goes_on}: {cause}{lost}");
    tell_failure(leases, lease, EventKind::LeaseSuspended, message);
    if outcome.is_whole {
        leave(leases, lease);
    } else {
        // Its room is its own, and somebody of it is half-way.
        set_stage(lease, SuspensionStage::Resuming);
        lease.suspension.is_half_way = true;
        write_down(leases, lease);
    }
    lease.suspension.failed_at = Some(Instant::now());
    drop(book);
    if let Some(for_whom) = for_whom {
        preemptions::take_instead(leases, id, &for_whom);
    }
}

/// What has come to stand in the way since it was begun: others have had the host's memory, or it was frozen.
fn obstacle(leases: &Leases, id: &LeaseId) -> Option<Obstacle> {
    let mut book = leases.book();
    let spoken_for_bytes = spoken_for_bytes(&book, id);
    let lease = book.leases.get_mut(id)?;
    check(&facts(leases, lease, spoken_for_bytes, &mut Report::new())).err()
}

/// Whether the devices still list somebody of it, as they do a process that made its first context just as the others were moved. Room that
/// is not free is given to nobody: all are brought back then.
fn left_on_the_device(leases: &Leases, id: &LeaseId, load: &Load, outcome: Outcome) -> Outcome {
    if outcome.failure.is_some() || load.processes.is_empty() {
        return outcome;
    }
    leases.occupants.look_again(Instant::now() + LOOK_PATIENCE);
    let registered = leases.book().leases.get(id).map(Lease::process_names).unwrap_or_default();
    let Some(left) = registered.iter().find(|process| leases.occupants.lists(process.pid)) else { return outcome };
    let failure = format!("process {} is on the GPU still", left.pid);
    Outcome { failure: Some(failure), ..run(leases, id, Way::Resume, load) }
}

/// Brings a lease back, for which there is room. Whether that took time.
pub fn back(leases: &Leases, id: &LeaseId) -> bool {
    let Some(load) = load(leases, id) else { return false };
    if is_stopped(leases, id) || !is_free(leases, id, &load) {
        return false;
    }
    let begun = Instant::now();
    let outcome = run(leases, id, Way::Resume, &load);
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return true };
    let short = lease.record.container_id.short().to_owned();
    let lost = end_lost(lease, &outcome.lost);
    let cause = outcome.failure.unwrap_or_default();
    if !outcome.lost.is_empty() {
        leases.counters.note_suspension("lost");
        tell_failure(leases, lease, EventKind::LeaseWoken, format!("{short} could not be brought back: {cause}{lost}"));
    } else if outcome.is_whole {
        leases.counters.note_suspension("woken");
        let moved = match load.processes.len() {
            0 => "none of its programs is left".to_owned(),
            _ => format!("{} were moved in {:.1} s", format_bytes(load.bytes), begun.elapsed().as_secs_f64()),
        };
        tell(leases, lease, EventKind::LeaseWoken, format!("{short} is back on its GPUs: {moved}"));
    }
    if outcome.is_whole {
        leave(leases, lease);
    } else {
        // Who is not lost stays where it is, and is tried again.
        lease.suspension.failures += 1;
        keep_away(leases, lease, &format!("it could not be brought back yet: {cause}"), true);
    }
    true
}

/// It cannot come back now, and is tried again. Why is told once; and once more where what kept it away was no fault, and this is.
fn keep_away(leases: &Leases, lease: &mut Lease, why: &str, is_fault: bool) {
    lease.suspension.next_try = Some(Instant::now() + RETRY * (1 << lease.suspension.failures.min(RETRY_DOUBLED)));
    let was_told = lease.suspension.kept_by.replace(why.to_owned()).is_some();
    let is_worse = is_fault && !lease.suspension.is_fault_told;
    lease.suspension.is_fault_told |= is_fault;
    if was_told && !is_worse {
        return;
    }
    let message = format!("{} has its room again and waits: {why}", lease.record.container_id.short());
    let tell = if is_fault { tell_failure } else { tell };
    tell(leases, lease, EventKind::LeaseWoken, message);
}

/// Whether it is frozen or stopped: its own threads would have to do the work, and the driver would wait for them.
fn is_stopped(leases: &Leases, id: &LeaseId) -> bool {
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return true };
    let is_stopped = super::is_stopped(lease);
    if is_stopped {
        keep_away(leases, lease, "it is frozen or stopped", false);
    }
    is_stopped
}

/// It is suspended no more.
pub fn leave(leases: &Leases, lease: &mut Lease) {
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

/// The processes of a lease that are to be moved, if it is time. Those without a context are moved as well: the driver knows better than
/// they say what they have.
fn load(leases: &Leases, id: &LeaseId) -> Option<Load> {
    let book = leases.book();
    let lease = book.leases.get(id)?;
    if lease.suspension.next_try.is_some_and(|at| Instant::now() < at) {
        return None;
    }
    let bytes = lease.record.suspension.as_ref()?.bytes.iter().sum();
    Some(Load { processes: lease.process_names(), bytes, is_half_way: lease.suspension.is_half_way })
}

/// Whether the devices have room for what comes back: a process for which there is too little is lost.
fn is_free(leases: &Leases, id: &LeaseId, load: &Load) -> bool {
    if load.processes.is_empty() || load.is_half_way {
        return true;
    }
    let is_told = leases.occupants.look_again(Instant::now() + LOOK_PATIENCE);
    let gpus = leases.gpus();
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return false };
    if !is_told {
        keep_away(leases, lease, "NVML does not say what is free", false);
        return false;
    }
    let Some(suspension) = &lease.record.suspension else { return false };
    let lacks = lease.gpus().zip(&suspension.bytes).find_map(|(gpu, bytes)| {
        let used_bytes = leases.used_bytes[gpu].load(Ordering::Relaxed);
        let free_bytes = gpus[gpu].memory_had_bytes().saturating_sub(used_bytes);
        (free_bytes < *bytes).then(|| (gpus[gpu].uuid.clone(), free_bytes, *bytes))
    });
    let Some((uuid, free_bytes, bytes)) = lacks else { return true };
    let why = format!("{uuid} has {} free of {} that it takes", format_bytes(free_bytes), format_bytes(bytes));
    keep_away(leases, lease, &why, false);
    false
}

/// Ends processes that the driver has lost: no call of theirs would ever return. What is said of it, the end of a sentence.
fn end_lost(lease: &Lease, lost: &[ProcessName]) -> String {
    let is_lost = |process: &&Process| lost.contains(&process.watched.name);
    let killed = lease.processes.values().filter(is_lost);
    let killed = killed.filter(|process| pidfd_send_signal(&process.watched.pidfd, Signal::KILL).is_ok()).count();
    match killed {
        0 => String::new(),
        1 => "; a program of it was killed, since no call of it would return".to_owned(),
        several => format!("; {several} programs of it were killed, since no call of theirs would return"),
    }
}

/// Calls the driver for these processes, by a process of our own.
fn run(leases: &Leases, id: &LeaseId, way: Way, load: &Load) -> Outcome {
    if load.processes.is_empty() {
        return Outcome { is_whole: true, ..Outcome::default() };
    }
    let patience = PATIENCE + Duration::from_secs(load.bytes / SLOWEST_BYTES_PER_SECOND);
    let lock = dir_of(&leases.configuration().paths.run_dir, id).join(LOCK);
    // Nobody knows how far one came that does not say so.
    let half_way = |cause: String| Outcome { failure: Some(cause), lost: Vec::new(), is_whole: false };
    let begun = match take(&lock, Instant::now() + LOCK_PATIENCE) {
        // One that was left behind may suspend it yet: it is brought back when that one has ended.
        Err(busy) if busy.kind() == io::ErrorKind::WouldBlock => return half_way(busy.to_string()),
        taken => taken.and_then(|lock| begin(leases, way, &load.processes, lock)),
    };
    let mut child = match begun {
        Ok(child) => child,
        Err(cause) => return Outcome::untried(cause, way),
    };
    match answer(&mut child, Instant::now() + patience, || is_stopped_now(leases, id)) {
        Ok(outcome) => outcome,
        Err(cause) => {
            abandon(child);
            half_way(cause.to_string())
        }
    }
}

/// Takes a lock, which is free once the process before this one is at its end.
fn take(lock: &Path, deadline: Instant) -> io::Result<File> {
    let lock = File::create(lock)?;
    while let Err(cause) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if cause != Errno::WOULDBLOCK || Instant::now() >= deadline {
            let kind = if cause == Errno::WOULDBLOCK { io::ErrorKind::WouldBlock } else { io::ErrorKind::Other };
            return Err(io::Error::new(kind, "a process that called the driver for it before is in it still"));
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(lock)
}

/// Starts the process that calls the driver.
fn begin(leases: &Leases, way: Way, processes: &[ProcessName], lock: File) -> io::Result<Child> {
    let configuration = leases.configuration();
    let mut command = Command::new("/proc/self/exe");
    command.args(["--checkpoint", way.text()]).args(processes.iter().map(named));
    let dirs = &configuration.driver.library_dirs;
    let libraries: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    // Not a client of a daemon that the host may have in the usual place.
    command.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    // The lock is that process's from here on, whatever becomes of this one.
    command.stdin(Stdio::from(lock)).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn()
}

/// What it says when it is at its end.
fn answer(child: &mut Child, deadline: Instant, is_stopped: impl Fn() -> bool) -> io::Result<Outcome> {
    let Some(status) = wait(child, deadline, is_stopped)? else {
        return Err(io::Error::other("the driver has not come back in time"));
    };
    let mut text = String::new();
    child.stdout.take().map(|mut out| out.read_to_string(&mut text)).transpose()?;
    let no_answer =
        |_| io::Error::other(format!("the process that calls the driver ended with {status} and said {text:?}"));
    serde_json::from_str(&text).map_err(no_answer)
}

/// Waits for the end of a process; none if it has not come by then. Of a lease that is stopped meanwhile the driver waits for as long as that
/// lasts, and everybody else would for it: that is given up soon.
fn wait(child: &mut Child, deadline: Instant, is_stopped: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    let (mut deadline, mut next_look) = (deadline, Instant::now() + STOPPED_PERIOD);
    let mut stopped_since = None;
    loop {
        let (status, now) = (child.try_wait()?, Instant::now());
        if status.is_some() || now >= deadline {
            return Ok(status);
        }
        if now >= next_look {
            next_look = now + STOPPED_PERIOD;
            stopped_since = is_stopped().then(|| stopped_since.unwrap_or(now));
            deadline = stopped_since.map_or(deadline, |since| deadline.min(since + STOPPED_PATIENCE));
        }
        std::thread::sleep(LOOK_PERIOD);
    }
}

/// Whether the lease is frozen or stopped at this moment.
fn is_stopped_now(leases: &Leases, id: &LeaseId) -> bool {
    leases.book().leases.get(id).is_some_and(super::is_stopped)
}

/// Ends it. One that hangs within the kernel's driver is left to a thread of its own, and has the lock until it ends.
fn abandon(mut child: Child) {
    // One that has ended needs no killing.
    let _ = child.kill();
    let waits = move || drop(child.wait());
    if let Err(error) = std::thread::Builder::new().name("abandoned".into()).spawn(waits) {
        log!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::SuspensionRecord;

    #[test]
    fn a_lease_that_is_out_and_cannot_be_written_so_keeps_its_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = crate::lease::lease_in(dir.path(), "01");
        let suspension = SuspensionRecord {
            stage: SuspensionStage::Suspending,
            since_unix_ms: 1,
            bytes: vec![5 << 30],
            is_asked: false,
            is_cancelled: false,
        };
        lease.record.suspension = Some(suspension);
        let full = dir.path().join("full");
        std::fs::write(&full, "").unwrap();
        assert!(note_out(&mut lease, &full).is_err());
        assert!(lease.record.is_going_out() && is_to_go(&lease) && !lease.record.has_no_share());
        note_out(&mut lease, dir.path()).unwrap();
        assert!(lease.record.is_out() && lease.record.has_no_share());
    }

    #[test]
    fn who_stands_in_the_driver_for_one_lease_keeps_no_other_from_it() {
        let leases = tempfile::tempdir().unwrap();
        let [stuck, other] = ["01", "02"].map(|id| {
            let directory = leases.path().join(id);
            std::fs::create_dir(&directory).unwrap();
            directory.join(LOCK)
        });
        let mut child = Command::new("sleep").arg("600").stdin(take(&stuck, Instant::now()).unwrap()).spawn().unwrap();
        let begun = Instant::now();
        let refused = take(&stuck, begun + Duration::from_millis(20)).unwrap_err();
        assert!(refused.to_string().contains("is in it still"), "{refused}");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(take(&other, begun).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(take(&stuck, begun).is_ok(), "it is at its end");
    }
}
