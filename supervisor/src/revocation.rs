//! Taking the GPUs from a container that runs: by an administrator's or its owner's word, or because its class says so.
//!
//! The cgroup may open the devices no more, and the processes that use them are ended: the kernel asks at `open` alone,
//! and memory on a device comes back with its process. The others live on, without a GPU, until the container ends or is
//! started anew. Its share is free for others once the device has its memory back.

mod clearance;
mod strays;
mod upkeep;

use crate::cgroup::{self, devices};
use crate::clock;
use crate::gatekeeper::Order;
use crate::guard::{Descriptors, descriptors};
use crate::lease::{Lease, Leases, Record, RevocationRecord, Taking, about, failed, fails_open};
use crate::mps::terminate_clients;
use crate::procfs::{self, ProcessName, WatchedProcess};
pub use clearance::Clearance;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, HostPid, LeaseId, LeaseState, LeaseView};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use upkeep::Reach;
pub use upkeep::{Upkeep, keep_up};

/// Processes that are being started while others are killed are found in the next round.
const ROUNDS: usize = 20;
/// How long who asks may wait until the device has everything back.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who begins to take GPUs has the kernel's answer long before this.
const LEFT_BEHIND: Duration = Duration::from_secs(10);
/// What could not be taken by itself is tried again after this.
const AGAIN_NS: u64 = 60_000_000_000;

/// Takes the GPUs of a lease from its container, and waits a while until its share is free; see [`take`]. NVML is asked anew
/// meanwhile, so this is not for the thread that asks it. A lease whose container has not begun ends.
///
/// # Errors
/// Those of [`take`].
pub fn revoke(leases: &Leases, lease: &str, why: &str, uid: Option<u32>) -> Result<LeaseView, ErrorBody> {
    if let Some(last) = end_unbound(leases, lease, why, uid)? {
        return Ok(last);
    }
    let deadline = Instant::now() + PATIENCE;
    let (id, last) = begin_and_end(leases, lease, (Taking::Asked, why, uid), Some(deadline))?;
    while has_share(leases, &id) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    // A container whose first process used the GPU has ended with it.
    Ok(leases.book().leases.get(&id).map_or(*last, Lease::view))
}

/// Ends a lease that no container is bound to, and how it was seen: an engine that has given the start up may live on for long. Whoever
/// makes the container still is refused when it is bound. None of one that is.
fn end_unbound(leases: &Leases, lease: &str, why: &str, uid: Option<u32>) -> Result<Option<LeaseView>, ErrorBody> {
    let mut book = leases.book();
    let found = book.find(lease)?;
    if found.state != LeaseState::Pending {
        return Ok(None);
    }
    let (record, last) = (found.record.clone(), found.view());
    let message = format!("ended the lease of {}, which has not started: {why}", record.container_id.short());
    leases.events.note(EventKind::LeaseRevoked, about(&record, uid), message);
    leases.end(&mut book, &record.lease_id, "it was evicted before its container started");
    drop(book);
    (leases.watch_changed)();
    Ok(Some(last))
}

/// Takes the GPUs of a lease from its container. Said again, it changes nothing. `why` follows the container's name in the
/// event.
///
/// # Errors
/// An unknown lease, one without a running container or a cgroup of its own, or a kernel that does not deny the devices;
/// then the lease is as it was.
pub fn take(leases: &Leases, lease: &str, by: Taking, why: &str) -> Result<(), ErrorBody> {
    begin_and_end(leases, lease, (by, why, None), None).map(drop)
}

/// Which lease it is, and how it was seen when its GPUs were taken. Whom NVML lists by `look_until` is ended, too.
fn begin_and_end(
    leases: &Leases,
    lease: &str,
    (by, why, uid): (Taking, &str, Option<u32>),
    look_until: Option<Instant>,
) -> Result<(LeaseId, Box<LeaseView>), ErrorBody> {
    let (record, last) = match begin(leases, lease, by)? {
        Begun::Before(last) => return Ok((last.lease_id.clone(), last)),
        Begun::Now(record, last) => (record, last),
    };
    let id = record.lease_id.clone();
    let mut killed = enforce(leases, &id).map_err(|cause| take_back(leases, &id, cause))?;
    if let Some(deadline) = look_until {
        // One that has come since NVML was asked last may hold no node open by which it would be known.
        leases.occupants.look_again(deadline);
        killed.extend(enforce(leases, &id).unwrap_or_default());
    }
    let (strays, is_left) = strays::seen(leases, &id);
    let message = format!(
        "took {} from {}: {why}; {}",
        record.gpus().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        record.container_id.short(),
        strays::worded(killed.len(), strays, is_left),
    );
    leases.events.note(EventKind::LeaseRevoked, about(&record, uid), message);
    (leases.watch_changed)();
    Ok((id, last))
}

/// What the lease was when its end began.
enum Begun {
    /// Its GPUs were taken before; how it is seen.
    Before(Box<LeaseView>),
    /// What is written of it, and how it is seen.
    Now(Box<Record>, Box<LeaseView>),
}

/// Writes down that the lease is to be revoked, so that a supervisor which is killed meanwhile goes on with it.
fn begin(leases: &Leases, lease: &str, by: Taking) -> Result<Begun, ErrorBody> {
    let mut book = leases.book();
    let lease = book.find(lease)?;
    if lease.record.revocation.is_some() {
        return Ok(Begun::Before(Box::new(lease.view())));
    }
    let short = lease.record.container_id.short().to_owned();
    let conflict = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy));
    if !matches!(lease.state, LeaseState::Active | LeaseState::Ending) {
        return conflict(format!("container {short} does not run"), "wait until it has started, or has ended");
    }
    if lease.record.cgroup.is_none() {
        return conflict(
            format!("container {short} has no cgroup of its own, so a device cannot be taken from it"),
            "stop it with its engine",
        );
    }
    let gpus: Vec<_> = lease.gpus().map(|gpu| leases.gpus()[gpu].clone()).collect();
    let devices = leases.files.gpu_devices(&gpus);
    if gpus.iter().any(|gpu| leases.files.gpu_devices(std::slice::from_ref(gpu)).is_empty()) {
        return conflict(
            format!(
                "the device nodes of container {short}'s GPUs are not on this host now, so their numbers are not known"
            ),
            "stop it with its engine, or have the driver make its nodes again (nvidia-smi does)",
        );
    }
    lease.record.revocation = Some(RevocationRecord { devices, is_denied: false, is_settled: false, by });
    if let Err(error) = write_down(leases, lease) {
        lease.record.revocation = None;
        return Err(error);
    }
    lease.state = LeaseState::Revoked;
    lease.revoked_at = Some(Instant::now());
    Ok(Begun::Now(Box::new(lease.record.clone()), Box::new(lease.view())))
}

/// Denies the devices to the container's cgroup if that has not been done, and ends who uses them, as far as there is time: those that
/// were killed. The book is not locked meanwhile.
///
/// # Errors
/// The kernel does not deny them.
fn enforce(leases: &Leases, id: &LeaseId) -> io::Result<BTreeSet<HostPid>> {
    let Some((taken, mut killed)) = keep_denied(leases, id)? else { return Ok(BTreeSet::new()) };
    killed.extend(end_users(leases, id, &taken, Reach::of_one()).0);
    Ok(killed)
}

/// Denies the devices to the container's cgroup if that has not been done, or was undone: what they are, and those that were killed
/// for that. None of a lease that is over.
///
/// # Errors
/// The kernel does not deny them.
fn keep_denied(leases: &Leases, id: &LeaseId) -> io::Result<Option<(Taken, BTreeSet<HostPid>)>> {
    let known = leases.book().leases.get(id).and_then(Taken::from);
    let Some(taken) = known else { return Ok(None) };
    let mut killed = BTreeSet::new();
    if !taken.is_denied || devices::is_given_back(&taken.cgroup, &taken.devices) {
        killed = deny_or_end(leases, id, &taken)?;
    }
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return Ok(None) };
    if let Some(revocation) = lease.record.revocation.as_mut().filter(|it| !it.is_denied) {
        revocation.is_denied = true;
        // What cannot be written down is denied once more by the next supervisor.
        tell(write_down(leases, lease));
    }
    close(leases, lease);
    Ok(Some((taken, killed)))
}

/// Denies the devices. A command of `gpool run` below a cgroup whose program lets no other be added, as that of a job under Slurm, is ended
/// as a whole instead: then nothing is left that could open them. Those that were killed for that.
///
/// # Errors
/// The kernel does not deny them, and it is no such command.
fn deny_or_end(leases: &Leases, id: &LeaseId, taken: &Taken) -> io::Result<BTreeSet<HostPid>> {
    let Err(cause) = devices::deny(&taken.cgroup, &taken.devices) else { return Ok(BTreeSet::new()) };
    let is_command = leases.book().leases.get(id).is_some_and(|lease| !lease.record.run_groups.is_empty());
    if !is_command || !devices::is_held_above(&cause) {
        return Err(cause);
    }
    log!("the command of lease {id} is ended as a whole: {cause}");
    // A client that is killed while its kernels run can take the others' work with it.
    let clients = taken.mps_group.as_ref().map(|group| terminate_clients(leases, group, &taken.cgroup));
    let mut killed: BTreeSet<HostPid> = clients.unwrap_or_default().into_iter().collect();
    killed.extend(cgroup::kill(&taken.cgroup));
    Ok(killed)
}

/// The kernel denies nothing: the lease is as it was.
fn take_back(leases: &Leases, id: &LeaseId, cause: io::Error) -> ErrorBody {
    if let Some(lease) = leases.book().leases.get_mut(id) {
        lease.record.revocation = None;
        // One without a first process was taken over after that had ended.
        let has_ended = lease.init.as_ref().is_none_or(WatchedProcess::has_ended);
        lease.state = if has_ended { LeaseState::Ending } else { LeaseState::Active };
        lease.revoked_at = None;
        tell(write_down(leases, lease));
    }
    // Nobody counts any more on what would have to be taken from somebody.
    leases.may_not_take.fetch_or(lacks_the_right(&cause), Ordering::Relaxed);
    not_denied(cause)
}

/// Gives a lease back what a supervisor that was killed has begun to take from it, where the kernel denies it to nobody and never will:
/// its gate would stay closed for nothing, and its share be nobody's.
///
/// # Errors
/// The same that kept it from being denied, if that may pass, or who has begun it hears of it himself.
fn give_back(leases: &Leases, id: &LeaseId, cause: io::Error) -> io::Result<()> {
    let is_left = leases.book().leases.get(id).is_some_and(is_left_behind);
    if !is_left || !lasts(&cause) {
        return Err(cause);
    }
    let error = take_back(leases, id, cause);
    let (mut book, configuration) = (leases.book(), leases.configuration());
    let Some(lease) = book.leases.get_mut(id) else { return Ok(()) };
    lease.region.set_fail_open(fails_open(&configuration, &lease.record));
    if !lease.is_kept_from_running() {
        leases.gatekeeper.order(Order::Resume { tenant: lease.tenant });
    }
    let short = lease.record.container_id.short();
    let message = format!("{short} has its GPUs again, which the supervisor before had begun to take from it: {error}");
    leases.events.note_failure(EventKind::LeaseRevoked, about(&lease.record, None), message);
    Ok(())
}

/// Whether its revocation was begun, and nobody is at it any more.
fn is_left_behind(lease: &Lease) -> bool {
    let is_begun = lease.record.revocation.as_ref().is_some_and(|its| !its.is_denied);
    is_begun && lease.revoked_at.is_some_and(|since| since.elapsed() >= LEFT_BEHIND)
}

/// Whether the devices will not be denied at another time either.
fn lasts(cause: &io::Error) -> bool {
    devices::is_held_above(cause) || cause.kind() == io::ErrorKind::PermissionDenied
}

/// Whether it is the supervisor that may deny nothing to anybody. What a program above one cgroup keeps from it is that container's alone.
fn lacks_the_right(cause: &io::Error) -> bool {
    !devices::is_held_above(cause) && cause.kind() == io::ErrorKind::PermissionDenied
}

/// When what could not be taken for this is tried again by itself, CLOCK_MONOTONIC; never where it is not permitted, which lasts.
pub fn again_ns(error: &ErrorBody, now_ns: u64) -> Option<u64> {
    (error.code != ErrorCode::NotPermitted).then(|| now_ns.saturating_add(AGAIN_NS))
}

fn not_denied(cause: io::Error) -> ErrorBody {
    if devices::is_held_above(&cause) {
        return ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("the devices cannot be denied to the container, which keeps them: {cause}"),
            "stop the container with its engine, or end the job that it is in",
        );
    }
    if cause.kind() == io::ErrorKind::PermissionDenied {
        return ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("the supervisor may not deny devices to a container, which keeps them ({cause})"),
            "stop the container with its engine; the confined variant of the service has no such right on cgroup version 2",
        );
    }
    failed("the kernel does not deny the devices to the container, which keeps them", cause)
}

/// What a process that comes now finds: a gate that stays closed, and no memory, of the host neither.
fn close(leases: &Leases, lease: &Lease) {
    leases.gatekeeper.order(Order::Pause { tenant: lease.tenant });
    lease.region.set_fail_open(false);
    lease.region.control().memory_cap_bytes.store(0, Ordering::Relaxed);
    lease.region.control().spill_bytes.store(0, Ordering::Relaxed);
}

/// Kills the processes of the container that use the devices, and those that begin to meanwhile: those that were killed, and where it
/// has stopped. Whether anybody is left is noted with the lease.
fn end_users(leases: &Leases, id: &LeaseId, taken: &Taken, reach: Reach) -> (BTreeSet<HostPid>, Option<HostPid>) {
    let (mut killed, mut stopped_at, mut was_frozen) = (BTreeSet::new(), None, false);
    let cgroup = &taken.cgroup;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let Some(registered) = registered(leases, id) else { break };
        let (users, is_cut);
        (users, stopped_at, is_cut) = users_in(leases, cgroup, &taken.devices, &registered, reach);
        if let Some(lease) = leases.book().leases.get_mut(id).filter(|lease| !lease.record.has_lost_share()) {
            lease.clearance.note(begun, users.iter().copied(), is_cut);
        }
        if let Some(group) = taken.mps_group.as_ref().filter(|_| !users.is_empty() && killed.is_empty()) {
            killed.extend(terminate_clients(leases, group, cgroup));
        }
        for process in users.iter().filter_map(|process| WatchedProcess::open(process.pid).ok()) {
            // Asked with the pidfd in hand: the pid may have been another's when the list was read.
            if cgroup::holds(cgroup, &process) && pidfd_send_signal(&process.pidfd, Signal::KILL).is_ok() {
                killed.insert(process.name.pid);
            }
        }
        // Whoever has registered is the lease's, also where that one has moved it.
        let (strays, ended) = strays::kill(leases, id, cgroup);
        killed.extend(ended);
        if users.is_empty() && strays == 0 {
            break;
        }
        was_frozen |= cgroup::let_die(cgroup);
        std::thread::sleep(Duration::from_millis(5));
        if reach.is_over() {
            break;
        }
    }
    // Whom others have left too little time for has his turn next.
    if stopped_at.is_none() || reach.has_all_time {
        killed.extend(strays::end_late(leases, id, cgroup));
    }
    // What is left of one that somebody has paused stays so.
    if was_frozen && !cgroup::processes_in(cgroup).0.is_empty() {
        cgroup::freeze(cgroup);
    }
    (killed, stopped_at)
}

/// Those in a cgroup that use the devices, where it has stopped, and whether it has not looked at each. Who may hold one behind more
/// descriptors than are looked at is one, too: nothing else could be known of it.
fn users_in(
    leases: &Leases,
    cgroup: &str,
    devices: &BTreeSet<(u32, u32)>,
    registered: &BTreeSet<HostPid>,
    reach: Reach,
) -> (Vec<ProcessName>, Option<HostPid>, bool) {
    let may_hold = |pid: HostPid| descriptors(pid, devices) != Descriptors::NotOpen;
    let uses = |pid: HostPid| registered.contains(&pid) || leases.occupants.lists(pid) || may_hold(pid);
    // Named first: who has ended before that has let go, and who is listed as ended afterwards can be told from others.
    let (all, is_all) = cgroup::processes_in(cgroup);
    let (users, stopped_at) = reach.over(&all, |pid| name_of(pid).filter(|_| uses(pid)));
    (users, stopped_at, !is_all || stopped_at.is_some() || !reach.is_from_the_first())
}

/// Sends a signal to the processes of a lease that use its GPUs, registered or not, as far as they are found in time; to how many. The book
/// is not to be held.
pub fn signal_users(leases: &Leases, id: &LeaseId, signal: Signal) -> usize {
    let known = {
        let mut book = leases.book();
        let Some(lease) = book.leases.get_mut(id) else { return 0 };
        let gpus: Vec<_> = lease.gpus().map(|gpu| leases.gpus()[gpu].clone()).collect();
        lease.record.cgroup.clone().map(|cgroup| (cgroup, leases.files.gpu_devices(&gpus)))
    };
    let (Some((cgroup, devices)), Some(registered)) = (known, registered(leases, id)) else { return 0 };
    let (users, ..) = users_in(leases, &cgroup, &devices, &registered, Reach::of_one());
    let held = users.iter().filter_map(|process| WatchedProcess::open(process.pid).ok());
    // Asked with the pidfd in hand: the pid may have been another's when the list was read.
    let is_sent =
        |process: &WatchedProcess| cgroup::holds(&cgroup, process) && pidfd_send_signal(&process.pidfd, signal).is_ok();
    held.filter(is_sent).count() + strays::signal(&strays::strays(leases, id, &cgroup), signal).len()
}

/// None of one that has ended by now.
fn name_of(pid: HostPid) -> Option<ProcessName> {
    Some(ProcessName { pid, start_ticks: procfs::start_ticks(pid)? })
}

fn registered(leases: &Leases, id: &LeaseId) -> Option<BTreeSet<HostPid>> {
    let mut book = leases.book();
    let lease = book.leases.get_mut(id)?;
    Some(lease.processes.values().map(|process| process.watched.name.pid).collect())
}

/// Gives the share of a revoked lease back when none of its processes is left on the GPUs and the devices have their memory.
/// After how long NVML's next answer may say so, if it may.
pub fn settle(leases: &Leases, lease: &mut Lease) -> Option<Duration> {
    let is_waited_for = lease.record.revocation.as_ref().is_some_and(|it| it.is_denied && !it.is_settled);
    if !is_waited_for || !lease.processes.is_empty() || !lease.dead.is_empty() || lease.clearance.since().is_none() {
        return None;
    }
    if !lease.clearance.is_over(&leases.occupants, lease.gpus()) {
        let since = lease.clearance.since();
        let waited_for = lease.gpus().filter_map(|gpu| Some((gpu, since?)));
        return leases.occupants.ask_soon_after(waited_for, Instant::now());
    }
    // Whose cgroup it is may have made any number of groups in it, and the book is locked: so of those that are listed it is asked.
    let is_its = |pid: &HostPid| lease.record.cgroup.as_deref().is_some_and(|cgroup| cgroup::has(cgroup, *pid));
    if leases.occupants.all_listed().iter().any(is_its) {
        // It is ended at the guard's next look.
        lease.clearance = Clearance::default();
        return None;
    }
    lease.meter.run(clock::now_ns(), &lease.record);
    lease.record.give_share_up();
    tell(write_down(leases, lease));
    None
}

fn has_share(leases: &Leases, id: &LeaseId) -> bool {
    leases.book().leases.get(id).is_some_and(|lease| !lease.record.has_lost_share())
}

/// What was taken from a container, and by what those are known who use it.
#[derive(Debug)]
struct Taken {
    cgroup: String,
    devices: BTreeSet<(u32, u32)>,
    is_denied: bool,
    /// The group of its MPS daemon.
    mps_group: Option<String>,
}

impl Taken {
    fn from(lease: &Lease) -> Option<Self> {
        let record = &lease.record;
        let RevocationRecord { devices, is_denied, .. } = record.revocation.clone()?;
        Some(Self { cgroup: record.cgroup.clone()?, devices, is_denied, mps_group: record.mps_group.clone() })
    }
}

/// Tells of what nobody waits for.
fn tell<E: std::fmt::Display>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        log!("a revoked lease: {error}");
    }
}

fn write_down(leases: &Leases, lease: &Lease) -> Result<(), ErrorBody> {
    let written = lease.record.write(&leases.configuration().paths.run_dir);
    written.map_err(|cause| failed("the lease cannot be written down", cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_a_device_from_being_denied_is_named() {
        let above = not_denied(held_above()).to_string();
        assert!(above.contains("above its cgroup") && above.contains("ConstrainDevices"), "{above}");
        assert!(!above.contains("confined") && above.contains("[GPOOL-E401]"), "{above}");
        let confined = not_denied(io::Error::from_raw_os_error(nix::libc::EPERM)).to_string();
        assert!(confined.contains("the confined variant of the service"), "{confined}");
        assert!(!not_denied(io::Error::from_raw_os_error(nix::libc::ENOMEM)).to_string().contains("confined"));
    }

    fn held_above() -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, devices::HeldAbove)
    }

    #[test]
    fn what_a_killed_supervisor_has_begun_and_nobody_can_end_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = crate::lease::lease_in(dir.path(), "01");
        let long_ago = Instant::now().checked_sub(LEFT_BEHIND);
        let mut is_left = |is_denied, since| {
            let devices = [(195, 0)].into();
            let revocation = RevocationRecord { devices, is_denied, is_settled: false, by: Taking::Asked };
            (lease.record.revocation, lease.revoked_at) = (Some(revocation), since);
            is_left_behind(&lease)
        };
        assert!(is_left(false, long_ago) && !is_left(true, long_ago));
        assert!(!is_left(false, Some(Instant::now())), "who has just begun it hears of it");
        assert!(lasts(&held_above()) && lasts(&io::Error::from_raw_os_error(nix::libc::EPERM)));
        assert!(!lasts(&io::Error::from_raw_os_error(nix::libc::ENOMEM)), "that may pass");
    }

    #[test]
    fn one_container_that_keeps_its_gpus_says_nothing_of_the_others() {
        let of = io::Error::from_raw_os_error;
        assert!(lacks_the_right(&of(nix::libc::EPERM)) && lacks_the_right(&of(nix::libc::EACCES)));
        assert!(!lacks_the_right(&held_above()) && !lacks_the_right(&of(nix::libc::ENOMEM)));
        assert_eq!(again_ns(&not_denied(held_above()), 1), None, "of itself it lasts");
        assert_eq!(again_ns(&not_denied(of(nix::libc::ENOMEM)), 1), Some(60_000_000_001), "that may pass");
    }
}
