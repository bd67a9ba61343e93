//! What a lease enters the book with.

use super::account::GpuAccount;
use super::book::Lease;
use super::kernels::KernelNotes;
use super::lost_contexts::LostContexts;
use super::meter::Meter;
use super::promised::PromiseNotes;
use super::record::Record;
use super::tellings::Tellings;
use crate::preemptions::MakesRoom;
use crate::procfs::WatchedProcess;
use crate::region::RegionHost;
use crate::revocation::Clearance;
use crate::shortages::Shortages;
use crate::suspension::SuspensionNotes;
use crate::uncounted::Uncounted;
use gpool_policy::TenantId;
use gpool_policy::repetition::Repetition;
use gpool_policy::run_time::Notice;
use gpool_protocol::LeaseState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A lease on its way into the book.
pub struct Entry {
    pub record: Record,
    pub accounts: Vec<GpuAccount>,
    pub region: Arc<RegionHost>,
    pub requester: Option<WatchedProcess>,
    /// GPU time that it owes from an earlier life.
    pub debt_ns: u64,
    pub state: LeaseState,
    /// Whether an earlier supervisor had granted it.
    pub is_taken_over: bool,
}

impl Entry {
    /// The lease, of which nothing was seen yet.
    pub fn into_lease(self, tenant: TenantId, now_ns: u64) -> Lease {
        let Self { mut record, accounts, region, requester, state, is_taken_over, .. } = self;
        let makes_room = MakesRoom::of(&record);
        record.told_to_go = makes_room.told_to_go();
        Lease {
            promise: PromiseNotes::default(),
            kernels: KernelNotes::default(),
            idleness: record.idleness(now_ns, 0),
            signs: None,
            was_seen: false,
            makes_room,
            end_notice: Notice::told_of(record.told_of_end_ns),
            suspension: SuspensionNotes::default(),
            ending_since: (state == LeaseState::Ending).then(Instant::now),
            // One that a supervisor before has begun counts from now on.
            revoked_at: record.revocation.as_ref().filter(|its| !its.is_settled).map(|_| Instant::now()),
            state,
            tenant,
            uncounted: accounts.iter().map(|_| Uncounted::default()).collect(),
            accounts,
            meter: Meter::begin(now_ns, is_taken_over),
            region,
            requester,
            context_cost: None,
            since: Instant::now(),
            abandoned: None,
            init: None,
            processes: BTreeMap::new(),
            retired: Default::default(),
            dead: BTreeMap::new(),
            refusals_told: 0,
            refusal_repetition: Repetition::default(),
            shortages: Shortages::default(),
            unknown_versions_told: 0,
            unknown_version_repetition: Repetition::default(),
            failed: Vec::new(),
            spills: Tellings::default(),
            lost_contexts: LostContexts::default(),
            is_full_told: false,
            stopped: None,
            bypassing: 0,
            kept_until: None,
            back_until: None,
            excuse: None,
            clearance: Clearance::default(),
            record,
        }
    }
}

/// A lease of the sample's container, for tests; its region lies below `dir`.
#[cfg(test)]
pub fn lease_in(dir: &std::path::Path, id: &str) -> Lease {
    lease_of(dir, Record { lease_id: gpool_protocol::LeaseId(id.into()), ..super::record::sample() }, id)
}

/// One that is written down so, for tests; its region lies in the folder `name` of `dir`.
#[cfg(test)]
pub fn lease_of(dir: &std::path::Path, record: Record, name: &str) -> Lease {
    let region_dir = dir.join(name);
    std::fs::create_dir(&region_dir).unwrap();
    let region = RegionHost::create_unmounted(&region_dir, &crate::region::ControlPage::of_half());
    let entry = Entry {
        record,
        accounts: vec![GpuAccount::new(0, 0)],
        region: Arc::new(region),
        requester: None,
        debt_ns: 0,
        state: LeaseState::Active,
        is_taken_over: false,
    };
    entry.into_lease(TenantId(1), 1)
}
