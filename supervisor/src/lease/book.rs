//! All leases of this host, in memory.

use super::record::{ProcessRecord, Record};
use crate::procfs::WatchedProcess;
use crate::region::{RegionHost, Report};
use gpool_policy::TenantId;
use gpool_protocol::{ContainerId, ErrorBody, ErrorCode, LeaseId, LeaseState};
use gpool_shared_region::SLOTS;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Seconds over which a received share is averaged.
pub const SHARE_WINDOW: usize = 10;

/// A registered process.
#[derive(Debug)]
pub struct Process {
    /// The number that it made up when it took the slot.
    pub registration: u64,
    /// The process, held by pidfd.
    pub watched: WatchedProcess,
}

/// Sums over processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Memory reserved, contexts not included.
    pub allocated_bytes: u64,
    /// Contexts.
    pub contexts: u64,
    /// Allocations refused.
    pub refused: u64,
    /// Size of the last refused allocation.
    pub refused_bytes: u64,
    /// Time stood at the gate.
    pub gate_wait_ns: u64,
    /// Launches.
    pub launches: u64,
}

/// One lease.
pub struct Lease {
    /// What is written down of it.
    pub record: Record,
    /// Where it stands.
    pub state: LeaseState,
    /// Its tenant in the scheduler.
    pub tenant: TenantId,
    /// Index of its GPU.
    pub gpu: usize,
    /// Its region.
    pub region: Arc<RegionHost>,
    /// The OCI runtime that asked for it, until the container is bound.
    pub requester: Option<WatchedProcess>,
    /// The least that a context of this lease was seen to cost.
    pub context_bytes: Option<u64>,
    /// When the requester was seen to have ended without binding.
    pub abandoned: Option<Instant>,
    /// The container's init.
    pub init: Option<WatchedProcess>,
    /// Registered processes by slot.
    pub processes: BTreeMap<usize, Process>,
    /// What ended processes leave in the sums.
    pub retired: Figures,
    /// Refusals that an event has told.
    pub refusals_told: u64,
    /// (at, charged) by the second, newest last.
    pub charges: VecDeque<(u64, u64)>,
}

impl Lease {
    /// Writes the processes into the record, which the caller writes to disk.
    pub fn note_processes(&mut self) {
        self.record.processes = (self.processes.iter())
            .map(|(slot, process)| ProcessRecord {
                slot: *slot,
                registration: process.registration,
                process: process.watched.name,
            })
            .collect();
    }

    /// Sums over the report as it is now and the processes that have ended.
    pub fn figures(&self, report: &mut Report) -> Figures {
        report.read(&self.region, SLOTS);
        report.taken().fold(self.retired, |sum, (_, slot)| Figures {
            allocated_bytes: sum.allocated_bytes.saturating_add(slot.allocated_bytes()),
            contexts: sum.contexts.saturating_add(slot.contexts().into()),
            refused: sum.refused.saturating_add(slot.refused()),
            refused_bytes: if slot.refused() > 0 { slot.refused_bytes() } else { sum.refused_bytes },
            gate_wait_ns: sum.gate_wait_ns.saturating_add(slot.gate_wait_ns()),
            launches: sum.launches.saturating_add(slot.launches()),
        })
    }

    /// Adds the charged total of one moment; keeps a window of them.
    pub fn note_charge(&mut self, at_ns: u64, charged_ns: u64) {
        self.charges.push_back((at_ns, charged_ns));
        while self.charges.len() > SHARE_WINDOW + 1 {
            self.charges.pop_front();
        }
    }

    /// Charged GPU time over the window, in permille of it.
    pub fn received_permille(&self) -> u16 {
        let (Some(first), Some(last)) = (self.charges.front(), self.charges.back()) else { return 0 };
        let elapsed_ns = last.0.saturating_sub(first.0);
        let charged_ns = last.1.saturating_sub(first.1);
        (charged_ns.saturating_mul(1000) + elapsed_ns / 2).checked_div(elapsed_ns).unwrap_or(0).min(1000) as u16
    }

    /// All GPU time charged.
    pub fn charged_ns(&self) -> u64 {
        self.charges.back().map_or(0, |(_, charged_ns)| *charged_ns)
    }
}

/// The place of an ended container, kept for a restart of the same one.
#[derive(Debug, Clone)]
pub struct Held {
    /// What the lease was.
    pub record: Record,
    /// Index of its GPU.
    pub gpu: usize,
    /// Kept until.
    pub until: Instant,
    /// GPU time that it owed at its end.
    pub debt_ns: u64,
}

/// The leases and the kept places.
#[derive(Default)]
pub struct Book {
    /// By id, which sorts by time.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Kept places.
    pub held: Vec<Held>,
    /// Leases of running containers that could not be taken over yet.
    pub stranded: Vec<Record>,
}

impl Book {
    /// The lease that `text` means: a lease id or container id, or a unique prefix of one.
    ///
    /// # Errors
    /// Unknown, or not unique.
    pub fn find(&mut self, text: &str) -> Result<&mut Lease, ErrorBody> {
        let means = |lease: &Lease| {
            !text.is_empty()
                && (lease.record.lease_id.0.starts_with(text) || lease.record.container_id.0.starts_with(text))
        };
        let exact = |lease: &Lease| lease.record.lease_id.0 == text || lease.record.container_id.0 == text;
        let found: Vec<LeaseId> = match self.leases.values().find(|lease| exact(lease)) {
            Some(lease) => vec![lease.record.lease_id.clone()],
            None => self.leases.values().filter(|l| means(l)).map(|l| l.record.lease_id.clone()).collect(),
        };
        match found.as_slice() {
            [one] => Ok(self.leases.get_mut(one).expect("found above")),
            [] => Err(ErrorBody::new(
                ErrorCode::LeaseUnknown,
                format!("no lease or container has the id {text:?}"),
                "gpool ps shows those that there are",
            )),
            several => Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!("{text:?} means {} leases", several.len()),
                "give more of the id",
            )),
        }
    }

    /// The lease of a container that is not over.
    pub fn of_container(&self, container: &ContainerId) -> Option<&Lease> {
        self.leases.values().find(|lease| lease.record.container_id == *container)
    }

    /// The lease of a tenant.
    pub fn of_tenant(&mut self, tenant: TenantId) -> Option<&mut Lease> {
        self.leases.values_mut().find(|lease| lease.tenant == tenant)
    }
}
