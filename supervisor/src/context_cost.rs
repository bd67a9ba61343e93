//! What a context costs beyond what the shim counts, learnt from what NVML says and what processes claim.
//!
//! A claim is a tenant's own word. So what a lease's processes show counts for that lease alone, and a new lease begins
//! with what the others agree on: the median of the costs that leases have shown, once there are three. One tenant's lie,
//! up or down, cannot move that beyond what honest ones have shown. Until then it begins with what the configuration says.

use crate::device::Occupancy;
use crate::lease::{Holding, Leases};
use crate::procfs::ProcessName;
use crate::unlisted::{Knowledge, Unlisted};
use gpool_policy::TenantId;
use gpool_protocol::{GpuUuid, HostPid};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// A context costs at least and at most this; a sample outside is something else.
const CONTEXT_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=1 << 30;
/// So many leases must have shown a cost before new ones begin with it.
const WITNESSES: usize = 3;
/// The newest leases that are remembered of each GPU.
const REMEMBERED: usize = 64;

/// What a process claims to hold of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Memory and contexts.
    pub holding: Holding,
    /// What it claims for images, of which it may hold less.
    pub image_bytes: u64,
    /// It may hold less of something else too.
    pub is_inexact: bool,
    /// It is just changing what it holds.
    pub is_changing: bool,
    /// How often it has changed it. Without that a claim that was another one in between looks as one that stood still. 0 where
    /// the shim does not say.
    pub changes: u64,
}

/// The claims of all processes. A pid alone may be another's at the second look.
pub type Claims = BTreeMap<ProcessName, Claim>;

/// What a context costs as far as that shows, in bytes: between these two, which are the same if its process holds no
/// images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextCost {
    /// What it costs if all that is claimed for images is allocated.
    least: u64,
    /// What it costs if nothing of that is allocated.
    most: u64,
}

/// What the contexts of a lease from an earlier life of the supervisor are charged, of which its control page says
/// `page_bytes`. Nobody but a supervisor has written there, so that goes on until its processes show something: a job none
/// of whose processes tells exactly would otherwise be charged too much for the rest of its life. What no supervisor would
/// have written is replaced by what a new lease is charged.
pub fn from_page(page_bytes: u64, of_a_new_lease: u64) -> u64 {
    if CONTEXT_BYTES.contains(&page_bytes) { page_bytes } else { of_a_new_lease }
}

impl ContextCost {
    /// With what another process shows: a context costs no more than the least that any of them did.
    fn narrowed(self, other: Self) -> Self {
        let most = self.most.min(other.most);
        Self { least: self.least.max(other.least).min(most), most }
    }

    /// What may be true and is the nearest to what was charged until now. So images, which are charged beside it, move it
    /// only as far as they must.
    fn nearest(self, charged: u64) -> u64 {
        charged.clamp(self.least, self.most)
    }
}

/// What leases have shown, by GPU.
#[derive(Debug)]
pub struct ContextCosts {
    /// What the configuration says.
    configured_bytes: u64,
    /// The least that each lease has shown; a tenant's number is never used again, and larger ones are newer.
    shown: Vec<BTreeMap<TenantId, u64>>,
    /// On which GPU that was: an instance that is gone leaves its place to another.
    uuids: Vec<Option<GpuUuid>>,
    /// Whether that was without what NVML lists for nobody.
    is_bare: Vec<bool>,
    unlisted: Unlisted,
}

impl ContextCosts {
    /// Nothing is known yet of so many GPUs.
    pub fn new(gpus: usize, configured_bytes: u64) -> Self {
        let (shown, uuids) = (vec![BTreeMap::new(); gpus], vec![None; gpus]);
        Self { configured_bytes, shown, uuids, is_bare: vec![false; gpus], unlisted: Unlisted::new(gpus) }
    }

    /// Adds to what NVML lists for the processes of GPU `gpu` what their contexts take beside that. Who is listed has one, also
    /// if it claims none.
    pub fn attribute(&mut self, leases: &Leases, gpu: usize, claims: &Claims, occupancy: &mut Occupancy) {
        let claimed: BTreeMap<HostPid, u64> =
            claims.iter().map(|(name, claim)| (name.pid, claim.holding.contexts)).collect();
        let contexts = |pid: HostPid| claimed.get(&pid).copied().unwrap_or(1);
        let is_exact = !claims.values().any(|claim| claim.is_inexact);
        self.unlisted.attribute((gpu, &leases.gpus()[gpu].uuid), occupancy, contexts, is_exact);
    }

    /// Takes what NVML, asked between the two looks at the claims, says of GPU `gpu`.
    pub fn learn(&mut self, leases: &Leases, gpu: usize, before: &Claims, after: &Claims, occupancy: &Occupancy) {
        self.begin_on(gpu, &leases.gpus()[gpu].uuid);
        let knowledge = self.unlisted.knowledge(gpu);
        if knowledge == Knowledge::Early {
            // The least that a lease has shown stays: it must not be too little.
            return;
        }
        let was_too_little = self.note_knowledge(gpu, knowledge);
        let mut book = leases.book();
        for lease in book.leases.values_mut().filter(|lease| lease.place_of(gpu).is_some()) {
            if was_too_little {
                lease.context_cost = None;
            }
            for name in lease.processes.values().map(|process| process.watched.name) {
                let Some(used_bytes) = occupancy.bytes_of(name.pid) else { continue };
                let Some(shown) = context_cost(before.get(&name), after.get(&name), used_bytes) else { continue };
                let shown = lease.context_cost.map_or(shown, |known| known.narrowed(shown));
                let charged = &lease.region.control().context_bytes;
                let cost = shown.nearest(charged.load(Ordering::Relaxed));
                lease.context_cost = Some(shown);
                charged.store(cost, Ordering::Relaxed);
                self.note(gpu, lease.tenant, cost);
            }
        }
        leases.context_bytes[gpu].store(self.of_a_new_lease(gpu), Ordering::Relaxed);
    }

    /// The place `gpu` is that of the GPU `uuid` now; of another one nothing is remembered.
    fn begin_on(&mut self, gpu: usize, uuid: &GpuUuid) {
        if self.uuids[gpu].as_ref() != Some(uuid) {
            self.shown[gpu].clear();
            self.is_bare[gpu] = false;
            self.uuids[gpu] = Some(uuid.clone());
        }
    }

    /// Takes what is known of what NVML lists for nobody. Whether all that was shown until now was without that, and this is with it:
    /// then it was too little, and is forgotten, as the least that was shown would stay for good.
    fn note_knowledge(&mut self, gpu: usize, knowledge: Knowledge) -> bool {
        let was_bare = std::mem::replace(&mut self.is_bare[gpu], knowledge == Knowledge::Untold);
        let was_too_little = was_bare && knowledge == Knowledge::Told;
        if was_too_little {
            self.shown[gpu].clear();
        }
        was_too_little
    }

    fn note(&mut self, gpu: usize, tenant: TenantId, cost: u64) {
        let shown = &mut self.shown[gpu];
        let least = shown.entry(tenant).or_insert(cost);
        *least = cost.min(*least);
        while shown.len() > REMEMBERED {
            shown.pop_first();
        }
    }

    /// What a lease that has shown nothing is charged for a context on GPU `gpu`.
    fn of_a_new_lease(&self, gpu: usize) -> u64 {
        let mut costs: Vec<u64> = self.shown[gpu].values().copied().collect();
        if costs.len() < WITNESSES {
            return self.configured_bytes;
        }
        costs.sort_unstable();
        costs[costs.len() / 2]
    }
}

/// What the context of a process costs that claimed this before and after it was seen to use `used_bytes`, if that
/// tells: it has one context, and its claim is exact but for images, of which all or nothing may be allocated yet.
fn context_cost(before: Option<&Claim>, after: Option<&Claim>, used_bytes: u64) -> Option<ContextCost> {
    let is_told = |claim: &Claim| claim.changes > 0 && !claim.is_changing && !claim.is_inexact;
    let stands = |claim: &&Claim| before == Some(claim) && is_told(claim);
    let claim = after.filter(stands).filter(|claim| claim.holding.contexts == 1)?;
    // Images are a part of what is allocated; who claims more of them than that claims nonsense.
    let exact_bytes = claim.holding.allocated_bytes.checked_sub(claim.image_bytes)?;
    let most = used_bytes.checked_sub(exact_bytes)?.min(*CONTEXT_BYTES.end());
    let least = used_bytes.saturating_sub(claim.holding.allocated_bytes).max(*CONTEXT_BYTES.start());
    (least <= most).then_some(ContextCost { least, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_a_process_with_one_context_and_an_exact_claim_tells_what_a_context_costs() {
        let claim = |allocated_bytes, contexts, is_inexact| Claim {
            holding: Holding { allocated_bytes, contexts },
            image_bytes: 0,
            is_inexact,
            is_changing: false,
            changes: 3,
        };
        let cost = |before: Claim, after: Claim| context_cost(Some(&before), Some(&after), 1 << 30);
        let (held, context) = (768 * MIB, 256 * MIB);
        let exactly = ContextCost { least: context, most: context };
        assert_eq!(cost(claim(held, 1, false), claim(held, 1, false)), Some(exactly));
        assert_eq!(cost(claim(held, 1, false), claim(held, 1, true)), None, "it may hold less");
        assert_eq!(cost(claim(held, 1, true), claim(held, 1, true)), None);
        let changing = Claim { is_changing: true, ..claim(held, 1, false) };
        assert_eq!(cost(changing, changing), None);
        assert_eq!(cost(claim(held, 2, false), claim(held, 2, false)), None);
        let again = Claim { changes: 5, ..claim(held, 1, false) };
        assert_eq!(
            cost(claim(held, 1, false), again),
            None,
            "it was another one in between, as one that is freed and allocated"
        );
        let untold = Claim { changes: 0, ..claim(held, 1, false) };
        assert_eq!(cost(untold, untold), None, "a shim that does not say whether it was");
        assert_eq!(cost(claim(0, 1, false), claim(held, 1, false)), None, "it changed meanwhile");
        assert_eq!(cost(claim(1 << 30, 1, false), claim(1 << 30, 1, false)), None, "no context is that small");
        assert_eq!(cost(claim(2 << 30, 1, false), claim(2 << 30, 1, false)), None);
        assert_eq!(cost(claim(0, 1, false), claim(0, 1, false)).map(|cost| cost.most), Some(1 << 30));
        let with_images = Claim { image_bytes: 100 * MIB, ..claim(held, 1, false) };
        let between = ContextCost { least: context, most: context + 100 * MIB };
        assert_eq!(cost(with_images, with_images), Some(between), "these may take nothing yet");
        let early = Claim { image_bytes: 600 * MIB, ..claim(1000 * MIB, 1, false) };
        let between = ContextCost { least: 24 * MIB, most: 624 * MIB };
        assert_eq!(cost(early, early), Some(between));
        let nonsense = Claim { image_bytes: held + 1, ..claim(held, 1, false) };
        assert_eq!(cost(nonsense, nonsense), None, "more images than memory");
    }

    #[test]
    fn images_move_what_a_context_is_taken_to_cost_only_as_far_as_they_must() {
        let between = |least: u64, most: u64| ContextCost { least: least * MIB, most: most * MIB };
        let shown = between(300, 900);
        let nearest = [200, 500, 1000].map(|charged| shown.nearest(charged * MIB) / MIB);
        assert_eq!(nearest, [300, 500, 900]);
        assert_eq!(shown.narrowed(between(400, 800)), between(400, 800));
        assert_eq!(shown.narrowed(between(100, 400)), between(300, 400));
        assert_eq!(shown.narrowed(between(250, 250)), between(250, 250), "a process without images shows less");
        assert_eq!(between(250, 250).narrowed(between(300, 400)), between(250, 250), "the least of them");
    }

    #[test]
    fn what_was_charged_before_a_restart_goes_on_until_something_is_shown() {
        let bytes = from_page(300 * MIB, 512 * MIB);
        let shown = |bytes: u64| ContextCost { least: bytes, most: bytes }.nearest(300 * MIB);
        assert_eq!((bytes, shown(600 * MIB), shown(250 * MIB)), (300 * MIB, 600 * MIB, 250 * MIB));
        for rubbish in [0, 1, 2 << 30, u64::MAX] {
            assert_eq!(from_page(rubbish, 512 * MIB), 512 * MIB, "{rubbish}");
        }
    }

    #[test]
    fn one_lease_moves_nothing_for_the_next_whatever_it_says() {
        for lie in [16 * MIB, 300 * MIB, 1 << 30] {
            let mut costs = ContextCosts::new(2, 256 * MIB);
            costs.note(0, TenantId(1), lie);
            assert_eq!(costs.of_a_new_lease(0), 256 * MIB, "nobody else has shown anything");
            costs.note(0, TenantId(2), 400 * MIB);
            assert_eq!(costs.of_a_new_lease(0), 256 * MIB, "two may contradict each other");
            costs.note(0, TenantId(3), 410 * MIB);
            let seed = costs.of_a_new_lease(0);
            assert!((400 * MIB..=410 * MIB).contains(&seed), "a lie of {lie} bytes made {seed}");
            assert_eq!(costs.of_a_new_lease(1), 256 * MIB, "another GPU");
        }
    }

    #[test]
    fn new_leases_begin_with_what_others_have_shown_and_old_ones_are_forgotten() {
        let mut costs = ContextCosts::new(1, 512 * MIB);
        assert_eq!(costs.of_a_new_lease(0), 512 * MIB);
        (1..=3).for_each(|tenant| costs.note(0, TenantId(tenant), 200 * MIB));
        assert_eq!(costs.of_a_new_lease(0), 200 * MIB);
        (4..=3 + REMEMBERED as u64).for_each(|tenant| costs.note(0, TenantId(tenant), 700 * MIB));
        costs.note(0, TenantId(5), 900 * MIB);
        assert_eq!((costs.shown[0].len(), costs.of_a_new_lease(0)), (REMEMBERED, 700 * MIB), "the least of each lease");
        let uuid = |name: &str| GpuUuid(name.to_owned());
        costs.begin_on(0, &uuid("MIG-a"));
        (1..=3).for_each(|tenant| costs.note(0, TenantId(tenant), 200 * MIB));
        costs.begin_on(0, &uuid("MIG-a"));
        assert_eq!(costs.of_a_new_lease(0), 200 * MIB);
        costs.begin_on(0, &uuid("MIG-b"));
        assert_eq!(costs.of_a_new_lease(0), 512 * MIB, "another instance has its place");
    }

    #[test]
    fn what_was_shown_without_what_is_listed_for_nobody_is_not_the_least_for_good() {
        let mut costs = ContextCosts::new(1, 512 * MIB);
        let show = |costs: &mut ContextCosts, mib: u64| (1..=3).for_each(|its| costs.note(0, TenantId(its), mib * MIB));
        assert!(!costs.note_knowledge(0, Knowledge::Untold));
        show(&mut costs, 520);
        assert!(costs.note_knowledge(0, Knowledge::Told) && !costs.note_knowledge(0, Knowledge::Told));
        show(&mut costs, 529);
        assert_eq!(costs.of_a_new_lease(0), 529 * MIB);
        assert!(!costs.note_knowledge(0, Knowledge::Told));
        show(&mut costs, 540);
        assert_eq!(costs.of_a_new_lease(0), 529 * MIB, "the least of those that were with it stays");
    }
}
