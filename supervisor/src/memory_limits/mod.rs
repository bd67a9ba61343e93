//! Memory caps that the driver itself keeps: the limit of a container's cgroup, set from outside. What goes past the shims is
//! bound by it too, and it outlives this supervisor.
//!
//! It is set when a container is bound, before its program begins, when its cap is changed, and looked at again every few seconds.
//! One thread does all of it, so that nobody else waits for a board for longer than he wants to. The shims go on counting: they say what
//! is free, and refuse with a reason that can be told.

mod keeper;
mod note;
mod verdicts;

pub use keeper::keep;
pub use note::MemoryLimitNote;

use crate::bell::Bell;
use crate::cgroup;
use crate::device::LimitRefusal;
use crate::lease::Leases;
use gpool_protocol::{ErrorBody, ErrorCode, GpuUuid, LeaseId, MemoryLimits as Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who is bound or changed waits so long for its limit: a hook waits for 4 s, and a board that hangs is waited for longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of each GPU, and what the thread that sets limits is asked to do. Its locks are taken last of all.
#[derive(Debug, Default)]
pub struct MemoryLimits {
    bell: Bell,
    /// The driver was found to have none.
    is_absent: AtomicBool,
    orders: Mutex<Orders>,
    finished: Condvar,
    verdicts: Mutex<BTreeMap<GpuUuid, Verdict>>,
}

#[derive(Debug, Default)]
struct Orders {
    /// Leases that are not to wait for the next look at all of them.
    urgent: BTreeSet<LeaseId>,
    /// Whether all are to be looked at now.
    wants_all: bool,
    /// How many were given, and until which all have been carried out.
    number: u64,
    finished: u64,
}

impl MemoryLimits {
    /// All may have changed: look now.
    pub fn ring(&self) {
        self.orders().wants_all = true;
        self.bell.ring();
    }

    /// Whether the driver of a GPU keeps caps; none where that is not wanted.
    pub fn of(&self, gpu: &GpuUuid) -> Option<Verdict> {
        self.verdicts().get(gpu).cloned()
    }

    fn verdicts(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, Verdict>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be done now; nothing of it is to be done twice.
    fn take_orders(&self) -> Orders {
        let mut orders = self.orders();
        let (urgent, wants_all) = (std::mem::take(&mut orders.urgent), std::mem::take(&mut orders.wants_all));
        Orders { urgent, wants_all, number: orders.number, finished: orders.finished }
    }

    /// All orders up to this number are carried out.
    fn finish(&self, number: u64) {
        self.orders().finished = number;
        self.finished.notify_all();
    }

    /// Has one lease looked at, and waits until it has been. Whether it has.
    fn wait_for(&self, lease: &LeaseId) -> bool {
        let mut orders = self.orders();
        orders.urgent.insert(lease.clone());
        orders.number += 1;
        let own = orders.number;
        self.bell.ring();
        let waited = self.finished.wait_timeout_while(orders, PATIENCE, |orders| orders.finished < own);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether the driver has none, as far as is known.
    fn has_none(&self, leases: &Leases) -> bool {
        !leases.inventory.has_memory_limits() || self.is_absent.load(Ordering::Relaxed)
    }
}

/// Sees to the limits of one lease before this returns, unless a board takes too long.
///
/// # Errors
/// The driver does not keep its cap, or does not say so in time, and nobody else keeps it.
pub fn keep_of(leases: &Leases, lease: &LeaseId) -> Result<(), ErrorBody> {
    let is_seen = leases.memory_limits.has_none(leases) || leases.memory_limits.wait_for(lease);
    let mut book = leases.book();
    let lease = book.exactly(&lease.0)?;
    if !lease.record.caps_time_slices {
        return Ok(());
    }
    let cap_bytes = lease.record.memory_cap_bytes;
    let is_kept = |note: &MemoryLimitNote| note.known_bytes(cap_bytes).is_some();
    let unkept = lease.accounts.iter().map(|account| &account.memory_limit).find(|note| !is_seen || !is_kept(note));
    unkept.map_or(Ok(()), |note| {
        let cause = note.refused().unwrap_or(&LimitRefusal::Unanswered);
        Err(not_kept(&cause.to_string()))
    })
}

/// Whether the driver says that it keeps the cap of a lease of which nobody else keeps one.
///
/// # Errors
/// It does not, or does not say so in time.
pub fn check_is_kept(leases: &Leases, lease: &LeaseId) -> Result<(), ErrorBody> {
    let has_cap_by_it = leases.book().exactly(&lease.0)?.record.caps_time_slices;
    if has_cap_by_it { keep_of(leases, lease) } else { Ok(()) }
}

/// Whether this host may keep the cap of a container in time slices, of which no shim knows; whether it does is seen when that is
/// bound.
///
/// # Errors
/// Why not.
pub fn check_can_keep(leases: &Leases, is_unenforced: bool) -> Result<(), ErrorBody> {
    let causes = [
        (is_unenforced, "the container is not confined, and could lift its limit".to_owned()),
        (!leases.configuration().driver.memory_limits, "[driver] memory_limits in config.toml is false".to_owned()),
        (leases.memory_limits.has_none(leases), LimitRefusal::NoFunction.to_string()),
        (!cgroup::is_version_2_alone(), LimitRefusal::NotSupported.to_string()),
    ];
    causes.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, cause)| Err(not_kept(&cause)))
}

fn not_kept(cause: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("memory goes with mode=timeslice only where the driver keeps it, and here it does not: {cause}"),
        "ask for mode=slice, or leave memory out; gpool doctor says what the driver keeps",
    )
}
