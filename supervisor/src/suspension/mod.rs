//! Leases whose processes are moved to the host's memory, by somebody's word or because they are idle and somebody waits: their room is
//! for others meanwhile, and they come back by themselves when their programs want the GPU and there is room.
//!
//! A process is moved by the driver (`driver`), as a whole: its memory on the GPU and its contexts. Until it is back its calls of the
//! driver would not return, so that the shims stop before them, say that they want to go on, and stand as they do at a closed gate. Who
//! wants to come back asks for room as a container that starts does (`waking`), and waits in the queue if there is none.

mod driver;
mod host_memory;
mod moving;
mod waking;

pub use driver::main as call_driver;

use crate::cgroup;
use crate::clock;
use crate::device::Kind;
use crate::gatekeeper::Order;
use crate::lease::{
    Book, ForWhom, Lease, Leases, Record, SuspensionRecord, about, failed, fails_open, notices, unspilled_bytes, wants,
};
use crate::preemptions;
use crate::procfs;
use crate::region::Report;
use gpool_policy::suspension::{Facts, check, host_bytes, is_old_driver};
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, LeaseId, LeaseState, LeaseView, Mechanism, SuspensionStage};
use gpool_shared_region::SLOTS;
use std::time::{Duration, Instant};

/// While a lease is suspended it is looked so often whether its programs want it back.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Else somebody rings.
const REST: Duration = Duration::from_secs(3600);
/// So long after the driver could not move a lease nobody has it try again, and what is done by itself does not for longer.
const PAUSE: Duration = Duration::from_secs(30);
const LONG_PAUSE: Duration = Duration::from_secs(600);

/// What this supervisor knows of a lease that is suspended, beside what is written down.
#[derive(Debug, Default)]
pub struct SuspensionNotes {
    /// Why it is suspended, the end of a sentence.
    pub why: String,
    /// Who asked for that, if anybody.
    pub uid: Option<u32>,
    /// For whom it makes room by that as `[preemption]` says: its GPUs are taken from it if it cannot be moved.
    pub for_whom: Option<ForWhom>,
    /// What keeps it from coming back though it has room, as was told last.
    pub kept_by: Option<String>,
    /// Whether a fault that kept it away was told.
    pub is_fault_told: bool,
    /// When it is tried next, if not at once.
    pub next_try: Option<Instant>,
    /// It was found half-way: it may be on the devices in parts.
    pub is_half_way: bool,
    /// When the driver could not move it last, if it has not since.
    pub failed_at: Option<Instant>,
    /// How often it could not be brought back.
    pub failures: u32,
}

/// Who has a lease suspended.
#[derive(Debug)]
pub enum By<'a> {
    /// This user.
    User(u32),
    /// Its class, because it is idle.
    Class,
    /// `[preemption]`, for one of a higher priority.
    Preemption(&'a ForWhom),
}

/// Has a lease moved to the host's memory, which takes a while. Said again, it changes nothing. `why` is the end of a sentence.
///
/// # Errors
/// An unknown lease, one without a running container, or what stands in the way; then the lease is as it was.
pub fn begin(leases: &Leases, lease: &str, why: &str, by: By<'_>) -> Result<LeaseView, ErrorBody> {
    let mut book = leases.book();
    let id = book.find(lease)?.record.lease_id.clone();
    let spoken_for_bytes = spoken_for_bytes(&book, &id);
    let lease = book.exactly(&id.0)?;
    let short = lease.record.container_id.short().to_owned();
    let conflict = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy));
    match lease.record.suspension.as_ref().map(|its| its.stage) {
        Some(SuspensionStage::Suspending | SuspensionStage::Suspended) => return Ok(lease.view()),
        Some(SuspensionStage::Resuming) => {
            return conflict(format!("container {short} is on its way back"), "suspend it when it is there (gpool ps)");
        }
        None => {}
    }
    if lease.record.revocation.is_some() || lease.state != LeaseState::Active {
        let message = format!("container {short} does not run, or has lost its GPUs");
        return conflict(message, "suspend one that runs and has them (gpool ps)");
    }
    // Nobody keeps the driver busy with what it cannot do.
    let pause = if matches!(by, By::User(_)) { PAUSE } else { LONG_PAUSE };
    if lease.suspension.failed_at.is_some_and(|at| at.elapsed() < pause) {
        let remedy = "gpool events says why; gpool suspend tries it again, half a minute later at the earliest";
        return conflict(format!("container {short} could not be suspended before"), remedy);
    }
    let mut report = Report::new();
    check(&facts(leases, lease, spoken_for_bytes, &mut report)).map_err(|obstacle| {
        let message = format!("container {short} cannot be suspended: {obstacle}");
        ErrorBody::new(ErrorCode::LeaseConflict, message, obstacle.remedy())
    })?;
    let suspension = SuspensionRecord {
        stage: SuspensionStage::Suspending,
        since_unix_ms: clock::unix_ms(),
        bytes: held_bytes(lease, &mut report),
        is_asked: false,
        is_cancelled: false,
    };
    let run_dir = &leases.configuration().paths.run_dir;
    let record = on_its_way(&lease.record, suspension);
    record.write(run_dir).map_err(|cause| failed("the lease cannot be written down, and is as it was", cause))?;
    lease.record = record;
    lease.suspension = SuspensionNotes::new(why, &by, lease.suspension.failed_at);
    preemptions::forget(leases, lease);
    close(leases, lease);
    let view = lease.view();
    drop(book);
    leases.suspensions.ring();
    Ok(view)
}

impl SuspensionNotes {
    fn new(why: &str, by: &By<'_>, failed_at: Option<Instant>) -> Self {
        let (uid, for_whom) = match by {
            By::User(uid) => (Some(*uid), None),
            By::Class => (None, None),
            By::Preemption(for_whom) => (None, Some((*for_whom).clone())),
        };
        Self { why: why.to_owned(), uid, for_whom, failed_at, ..Self::default() }
    }
}

/// What is written of a lease that is to go out. What it was told before, to make room, is over: long after that it comes back, and is told
/// anew if it has to go then.
fn on_its_way(record: &Record, suspension: SuspensionRecord) -> Record {
    Record { suspension: Some(suspension), told_to_go: None, ..record.clone() }
}

/// What of the host's memory is others' already, in bytes, though nothing shows it before: that of those who are about to be moved, and what
/// was sold as `spill` and is not taken yet.
fn spoken_for_bytes(book: &Book, but: &LeaseId) -> u64 {
    under_way_bytes(book, but).saturating_add(unspilled_bytes(book))
}

/// The first of that.
fn under_way_bytes(book: &Book, but: &LeaseId) -> u64 {
    let others = book.leases.values().filter(|lease| lease.record.is_going_out() && lease.record.lease_id != *but);
    let bytes = others.filter_map(|lease| Some(lease.record.suspension.as_ref()?.bytes.iter().sum()));
    bytes.map(host_bytes).fold(0, u64::saturating_add)
}

/// Whether it is frozen, or a process of it stopped.
fn is_stopped(lease: &Lease) -> bool {
    lease.record.cgroup.as_deref().is_some_and(cgroup::is_frozen)
        || lease.processes.values().any(|process| procfs::is_stopped(process.watched.name.pid))
}

/// What is known of it, for `policy` to say what stands in the way; `spoken_for_bytes` of the host's memory are others'.
fn facts(leases: &Leases, lease: &Lease, spoken_for_bytes: u64, report: &mut Report) -> Facts {
    let (record, gpus) = (&lease.record, leases.gpus());
    let held_bytes = held_bytes(lease, report).into_iter().fold(0, u64::saturating_add);
    let (host_bytes, host_available_bytes) = host_memory::of_host();
    let cgroup = record.cgroup.as_deref();
    Facts {
        is_sliced: record.mechanism == Mechanism::Slice,
        is_in_instance: lease.gpus().any(|gpu| gpus[gpu].kind != Kind::Whole),
        has_old_driver: lease.gpus().any(|gpu| is_old_driver(&gpus[gpu].driver_version)),
        is_counted: record.resource.is_some(),
        is_frozen: is_stopped(lease),
        notices: report.taken().all(|(_, slot)| notices(&slot)),
        bypasses: lease.bypassing > 0,
        shares_memory: report.taken().any(|(_, slot)| slot.pieces().iter().any(|word| *word != 0)),
        held_bytes,
        host_bytes,
        host_available_bytes: host_available_bytes.saturating_sub(spoken_for_bytes),
        container_available_bytes: cgroup.and_then(host_memory::of_container),
    }
}

/// What its processes hold of each of its GPUs, contexts included; the report has been read then.
fn held_bytes(lease: &Lease, report: &mut Report) -> Vec<u64> {
    report.read(&lease.region, SLOTS);
    // A tenant may claim what it likes: no more is believed than it was ever allowed.
    let most_bytes = lease.record.highest_cap_bytes.unwrap_or(0).max(lease.record.memory_cap_bytes);
    lease.view().gpus.iter().map(|gpu| gpu.memory_used_bytes.min(most_bytes)).collect()
}

/// From now on its processes stop before they call the driver.
fn close(leases: &Leases, lease: &Lease) {
    lease.region.set_suspended(true);
    lease.region.set_fail_open(false);
    leases.gatekeeper.order(Order::Pause { tenant: lease.tenant });
}

/// They go on, unless they are paused.
fn open(leases: &Leases, lease: &mut Lease) {
    lease.region.set_suspended(false);
    lease.region.set_fail_open(fails_open(&leases.configuration(), &lease.record));
    if !lease.is_kept_from_running() {
        leases.gatekeeper.order(Order::Resume { tenant: lease.tenant });
    }
    lease.idleness.note_use(clock::now_ns());
    lease.suspension = SuspensionNotes { failed_at: lease.suspension.failed_at, ..SuspensionNotes::default() };
}

/// Whether somebody wants it back: its programs, unless it is paused, or whoever has asked for it to be resumed.
pub fn is_wanted(lease: &Lease, report: &mut Report) -> bool {
    let Some(suspension) = &lease.record.suspension else { return false };
    if lease.record.paused || suspension.is_cancelled || suspension.is_asked {
        return suspension.is_asked && !lease.record.paused;
    }
    // Twenty times a second of each that is suspended: no more is read than its processes have.
    let Some(last) = lease.processes.keys().next_back() else { return false };
    report.read(&lease.region, last + 1);
    report.taken().any(|(slot, its)| lease.processes.contains_key(&slot) && wants(&its))
}

/// Moves those that are to be moved, for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    loop {
        let is_any = look(leases);
        leases.suspensions.wait(if is_any { LOOK_PERIOD } else { REST });
    }
}

/// One look at all; whether any lease is suspended. What takes time is done one after the other, and each time all are looked at anew: those
/// first whose room is their own already, then those who look for some, and those last who are to make room.
fn look(leases: &Leases) -> bool {
    loop {
        let stages = stages(leases);
        let of = |stage| stages.iter().filter(move |its| its.1 == stage).map(|its| &its.0);
        let has_moved = of(SuspensionStage::Resuming).any(|id| moving::back(leases, id))
            || of(SuspensionStage::Suspended).any(|id| waking::look(leases, id))
            || of(SuspensionStage::Suspending).any(|id| moving::out(leases, id));
        if !has_moved {
            return !stages.is_empty();
        }
    }
}

/// Those that are suspended. Nothing comes back of one whose GPUs were taken, and what was to go out is left.
fn stages(leases: &Leases) -> Vec<(LeaseId, SuspensionStage)> {
    let mut book = leases.book();
    for lease in book.leases.values_mut() {
        if lease.record.is_going_out() && lease.record.revocation.is_some() {
            moving::leave(leases, lease);
        }
    }
    let of = |lease: &Lease| Some((lease.record.lease_id.clone(), lease.record.suspension.as_ref()?.stage));
    book.leases.values().filter(|lease| lease.record.revocation.is_none()).filter_map(of).collect()
}

/// Tells of a lease that could not be suspended, or could not come back.
fn tell_failure(leases: &Leases, lease: &Lease, kind: EventKind, message: String) {
    leases.events.note_failure(kind, about(&lease.record, lease.suspension.uid), message);
}

/// Tells of a lease that was suspended or has come back, or what keeps it away.
fn tell(leases: &Leases, lease: &Lease, kind: EventKind, message: String) {
    leases.events.note(kind, about(&lease.record, lease.suspension.uid), message);
}

/// Writes a lease down; what cannot be written is found by the next supervisor as it was before, and put in order by it.
fn write_down(leases: &Leases, lease: &Lease) {
    if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
        log!("a suspended lease: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preemptions::{MakesRoom, ToldToGo};
    use gpool_protocol::ContainerId;

    fn suspension() -> SuspensionRecord {
        SuspensionRecord {
            stage: SuspensionStage::Suspending,
            since_unix_ms: 1,
            bytes: vec![5 << 30],
            is_asked: false,
            is_cancelled: false,
        }
    }

    #[test]
    fn what_a_lease_was_told_does_not_outlive_its_suspension() {
        let dir = tempfile::tempdir().unwrap();
        let lease = crate::lease::lease_in(dir.path(), "01");
        let told_to_go = Some(ToldToGo { until_ns: 130, for_whom: None });
        let told = Record { told_to_go, ..lease.record };
        assert_eq!(MakesRoom::of(&told).notice.until_ns(), Some(130));
        let back = Record { suspension: None, ..on_its_way(&told, suspension()) };
        assert_eq!(MakesRoom::of(&back), MakesRoom::default(), "it has a grace of its own when it is told anew");
    }

    #[test]
    fn for_whom_a_lease_goes_is_known_until_it_is_out() {
        let for_whom = ForWhom::Waits(ContainerId("waits".into()));
        let of = |by: By<'_>| SuspensionNotes::new("why", &by, None);
        let all = [of(By::User(7)), of(By::Class), of(By::Preemption(&for_whom))];
        assert_eq!(all.map(|its| (its.uid, its.for_whom)), [(Some(7), None), (None, None), (None, Some(for_whom))]);
    }
}
