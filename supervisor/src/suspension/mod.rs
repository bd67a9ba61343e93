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
use crate::lease::{Lease, Leases, Record, SuspensionRecord, about, failed, fails_open, notices, wants};
use crate::region::Report;
use gpool_policy::suspension::{Facts, check};
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, LeaseId, LeaseState, LeaseView, Mechanism, SuspensionStage};
use gpool_shared_region::SLOTS;
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While a lease is suspended it is looked so often whether its programs want it back.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Else somebody rings.
const REST: Duration = Duration::from_secs(3600);

/// The bell of the thread that moves leases. Its lock is taken last of all.
#[derive(Debug, Default)]
pub struct Suspensions {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Suspensions {
    /// Something is to be moved: look now.
    pub fn ring(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }

    fn wait(&self, patience: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_rung, patience, |is_rung| !*is_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// What this supervisor knows of a lease that is suspended, beside what is written down.
#[derive(Debug, Default)]
pub struct SuspensionNotes {
    /// Why it is suspended, the end of a sentence.
    pub why: String,
    /// Who asked for that, if anybody.
    pub uid: Option<u32>,
    /// Somebody has asked for it to be resumed.
    pub is_asked: bool,
    /// Somebody has taken it out of the queue for room: it asks for none before it is resumed.
    pub is_cancelled: bool,
    /// What keeps it from coming back though it has room, as was told last.
    pub kept_by: Option<String>,
    /// When it is tried next, if not at once.
    pub next_try: Option<Instant>,
    /// The driver could not move it: that is tried again by somebody's word alone.
    pub has_failed: bool,
}

/// Has a lease moved to the host's memory, which takes a while. Said again, it changes nothing. `why` is the end of a sentence.
///
/// # Errors
/// An unknown lease, one without a running container, or what stands in the way; then the lease is as it was.
pub fn begin(leases: &Leases, lease: &str, why: &str, uid: Option<u32>) -> Result<LeaseView, ErrorBody> {
    let mut book = leases.book();
    let lease = book.find(lease)?;
    if lease.record.suspension.is_some() {
        return Ok(lease.view());
    }
    let short = lease.record.container_id.short().to_owned();
    if lease.record.revocation.is_some() || lease.state != LeaseState::Active {
        let message = format!("container {short} does not run, or has lost its GPUs");
        return Err(ErrorBody::new(ErrorCode::LeaseConflict, message, "suspend one that runs and has them (gpool ps)"));
    }
    if lease.suspension.has_failed && uid.is_none() {
        let message = format!("container {short} could not be suspended before");
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            message,
            "gpool suspend tries it again, gpool events says why",
        ));
    }
    let mut report = Report::new();
    check(&facts(leases, lease, &mut report)).map_err(|obstacle| {
        let message = format!("container {short} cannot be suspended: {obstacle}");
        ErrorBody::new(ErrorCode::LeaseConflict, message, obstacle.remedy())
    })?;
    let suspension = SuspensionRecord {
        stage: SuspensionStage::Suspending,
        since_unix_ms: clock::unix_ms(),
        bytes: held_bytes(lease, &mut report),
    };
    let run_dir = &leases.configuration().paths.run_dir;
    let record = Record { suspension: Some(suspension), ..lease.record.clone() };
    record.write(run_dir).map_err(|cause| failed("the lease cannot be written down, and is as it was", cause))?;
    lease.record = record;
    lease.suspension = SuspensionNotes { why: why.to_owned(), uid, ..SuspensionNotes::default() };
    close(leases, lease);
    let view = lease.view();
    drop(book);
    leases.suspensions.ring();
    Ok(view)
}

/// What is known of it, for `policy` to say what stands in the way.
fn facts(leases: &Leases, lease: &Lease, report: &mut Report) -> Facts {
    let (record, gpus) = (&lease.record, leases.gpus());
    let held_bytes = held_bytes(lease, report).into_iter().fold(0, u64::saturating_add);
    let (host_bytes, host_available_bytes) = host_memory::of_host();
    let cgroup = record.cgroup.as_deref();
    Facts {
        is_sliced: record.mechanism == Mechanism::Slice,
        is_in_instance: lease.gpus().any(|gpu| gpus[gpu].kind != Kind::Whole),
        is_counted: record.resource.is_some(),
        is_frozen: cgroup.is_some_and(cgroup::is_frozen),
        notices: report.taken().all(|(_, slot)| notices(&slot)),
        bypasses: lease.bypassing > 0,
        shares_memory: report.taken().any(|(_, slot)| slot.pieces().iter().any(|word| *word != 0)),
        held_bytes,
        host_bytes,
        host_available_bytes,
        container_available_bytes: cgroup.and_then(host_memory::of_container),
    }
}

/// What its processes hold of each of its GPUs, contexts included; the report has been read then.
fn held_bytes(lease: &Lease, report: &mut Report) -> Vec<u64> {
    report.read(&lease.region, SLOTS);
    lease.view().gpus.iter().map(|gpu| gpu.memory_used_bytes).collect()
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
    if !lease.record.paused && lease.record.revocation.is_none() {
        leases.gatekeeper.order(Order::Resume { tenant: lease.tenant });
    }
    lease.idleness.note_use(clock::now_ns());
    lease.suspension = SuspensionNotes { has_failed: lease.suspension.has_failed, ..SuspensionNotes::default() };
}

/// Whether somebody wants it back: its programs, unless it is paused, or whoever has asked for it to be resumed.
pub fn is_wanted(lease: &Lease, report: &mut Report) -> bool {
    if lease.suspension.is_asked {
        return true;
    }
    if lease.record.paused {
        return false;
    }
    report.read(&lease.region, SLOTS);
    report.taken().any(|(slot, its)| lease.processes.contains_key(&slot) && wants(&its))
}

/// Moves those that are to be moved, for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    loop {
        let is_any = look(leases);
        leases.suspensions.wait(if is_any { LOOK_PERIOD } else { REST });
    }
}

/// One look at all; whether any lease is suspended.
fn look(leases: &Leases) -> bool {
    let stages: BTreeSet<(u8, LeaseId)> = {
        let book = leases.book();
        let of = |lease: &Lease| {
            // Of one whose GPUs were taken nothing comes back.
            let suspension = lease.record.suspension.as_ref().filter(|_| lease.record.revocation.is_none())?;
            let rank = match suspension.stage {
                // Whose room is its own already comes first, and who makes room before those who look for some.
                SuspensionStage::Resuming => 0,
                SuspensionStage::Suspending => 1,
                SuspensionStage::Suspended => 2,
            };
            Some((rank, lease.record.lease_id.clone()))
        };
        book.leases.values().filter_map(of).collect()
    };
    for (_, id) in &stages {
        let stage = leases.book().leases.get(id).and_then(|lease| Some(lease.record.suspension.as_ref()?.stage));
        match stage {
            Some(SuspensionStage::Resuming) => moving::back(leases, id),
            Some(SuspensionStage::Suspending) => moving::out(leases, id),
            Some(SuspensionStage::Suspended) => waking::look(leases, id),
            None => {}
        }
    }
    !stages.is_empty()
}

/// Tells of a lease that was suspended, has come back, or could not.
fn tell(leases: &Leases, lease: &Lease, kind: EventKind, message: String) {
    leases.events.note(kind, about(&lease.record, lease.suspension.uid), message);
}

/// Writes a lease down; what cannot be written is found by the next supervisor as it was before, and put in order by it.
fn write_down(leases: &Leases, lease: &Lease) {
    if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
        log!("a suspended lease: {error}");
    }
}
