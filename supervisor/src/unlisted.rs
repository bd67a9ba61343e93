//! What a context takes of a GPU beside what NVML lists for its process.
//!
//! The driver keeps some of a context's memory on nobody's account: on an H200 with driver 580 NVML lists 520 MiB for a process
//! with one context, and the device has 529 MiB less. Within which cap that is shows nowhere; without it each cap would be
//! passed by as much. So what is used and listed for nobody counts in equal parts for the processes that are there.

use crate::device::Occupancy;
use gpool_protocol::{GpuUuid, HostPid};
use std::collections::{BTreeMap, VecDeque};

/// More than this for a context is something else, and nobody's.
const MOST_BYTES: u64 = 32 << 20;
/// Looks that are remembered of each number of contexts; their median is taken.
const LOOKS: usize = 15;
/// How many looks later one is forgotten all the same, ten minutes as a rule: what it showed may be over. Those that do not tell
/// are none of these: as long as nothing else is seen, what was seen last is the best that is known.
const FORGOTTEN: u64 = 600;
/// More contexts than this are like so many, of all processes and of one, whose word it is.
const MOST_CONTEXTS: u64 = 8;
/// So many are needed.
const LEAST_LOOKS: usize = 3;

/// What was seen of one GPU.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// An instance that is gone leaves its place to another.
    uuid: Option<GpuUuid>,
    /// What was used when nobody was there.
    idle_bytes: u64,
    /// By how many contexts there were: the newest looks, by number.
    looks: BTreeMap<u64, VecDeque<Look>>,
    /// Looks until now that have told something, and those that have not.
    told: u64,
    untold: usize,
}

/// The number of a look that has told something, and what it showed in bytes for each context.
type Look = (u64, u64);

impl Seen {
    /// The most that has been seen: the first context takes more than those beside it, and any may be alone.
    fn bytes(&self) -> u64 {
        self.looks.values().map(median).max().unwrap_or(0)
    }

    fn note(&mut self, contexts: u64, bytes: Option<u64>) {
        let Some(bytes) = bytes else {
            self.untold = self.untold.saturating_add(1);
            return;
        };
        self.told += 1;
        let (number, looks) = (self.told, self.looks.entry(contexts.min(MOST_CONTEXTS)).or_default());
        looks.push_back((number, bytes));
        looks.drain(..looks.len().saturating_sub(LOOKS));
        for looks in self.looks.values_mut() {
            looks.retain(|(at, _)| number - at < FORGOTTEN);
        }
    }

    fn is_told(&self) -> bool {
        self.looks.values().any(|looks| looks.len() >= LEAST_LOOKS)
    }
}

/// None are as good as zero before there are enough.
fn median(looks: &VecDeque<Look>) -> u64 {
    let mut sorted: Vec<u64> = looks.iter().map(|(_, bytes)| *bytes).collect();
    sorted.sort_unstable();
    if sorted.len() < LEAST_LOOKS { 0 } else { sorted[sorted.len() / 2] }
}

/// What is known of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// Too little has been seen.
    Early,
    /// Looks have told nothing, as where managed memory is: what NVML lists for a process is all that is known of it.
    Untold,
    /// What a context takes beside that.
    Told,
}

/// What was seen of each GPU.
#[derive(Debug)]
pub struct Unlisted(Vec<Seen>);

impl Unlisted {
    /// Nothing has been seen of so many GPUs.
    pub fn new(gpus: usize) -> Self {
        Self(vec![Seen::default(); gpus])
    }

    /// Takes what NVML says of GPU `gpu`, on which a process claims so many `contexts`, and adds to each process what these
    /// take beside that. `is_exact` says that nobody claims what may take more than is listed, as managed memory does.
    pub fn attribute(
        &mut self,
        (gpu, uuid): (usize, &GpuUuid),
        occupancy: &mut Occupancy,
        claimed: impl Fn(HostPid) -> u64,
        is_exact: bool,
    ) {
        let contexts = |pid: HostPid| claimed(pid).clamp(1, MOST_CONTEXTS);
        let Some(seen) = self.0.get_mut(gpu) else { return };
        if seen.uuid.as_ref() != Some(uuid) {
            *seen = Seen { uuid: Some(uuid.clone()), ..Seen::default() };
        }
        if occupancy.present.is_empty() {
            // What is on its way out is not the device's own.
            if occupancy.is_still {
                seen.idle_bytes = occupancy.used_bytes;
            }
            return;
        }
        // NVML is asked for the device and for its processes: of what is allocated in between it shows too much or too little.
        if occupancy.is_still {
            let count: u64 = occupancy.present.iter().map(|pid| contexts(*pid)).sum();
            let shown = is_exact.then(|| for_each_context(occupancy, seen.idle_bytes, count)).flatten();
            seen.note(count, shown);
        }
        let bytes = seen.bytes();
        for (pid, held) in &mut occupancy.by_process {
            *held = held.saturating_add(bytes.saturating_mul(contexts(*pid)));
        }
    }

    /// What is known of GPU `gpu`.
    pub fn knowledge(&self, gpu: usize) -> Knowledge {
        match self.0.get(gpu) {
            Some(seen) if seen.is_told() => Knowledge::Told,
            Some(seen) if seen.untold >= LEAST_LOOKS => Knowledge::Untold,
            _ => Knowledge::Early,
        }
    }
}

/// What is used beside what is listed, and was when nobody was there, for each of `count` contexts; none where that does not
/// tell.
fn for_each_context(occupancy: &Occupancy, idle_bytes: u64, count: u64) -> Option<u64> {
    let are_listed = occupancy.present.iter().all(|pid| occupancy.by_process.contains_key(pid));
    let listed = occupancy.by_process.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    let beside = occupancy.used_bytes.checked_sub(listed).filter(|_| are_listed)?.saturating_sub(idle_bytes);
    beside.checked_div(count).filter(|bytes| *bytes <= MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::mechanism::ComputeMode;
    use std::collections::BTreeSet;

    const MIB: u64 = 1 << 20;

    fn occupancy(used_mib: u64, processes: &[(u32, u64)]) -> Occupancy {
        Occupancy {
            used_bytes: used_mib * MIB,
            is_still: true,
            by_process: processes.iter().map(|(pid, mib)| (HostPid(*pid), mib * MIB)).collect(),
            listed: BTreeMap::new(),
            present: processes.iter().map(|(pid, _)| HostPid(*pid)).collect(),
            inherited: BTreeSet::new(),
            compute_mode: ComputeMode::Default,
            energy: None,
        }
    }

    /// What the first process is taken to hold, in MiB. One with a pid from 100 on has two contexts.
    fn held(unlisted: &mut Unlisted, uuid: &str, mut occupancy: Occupancy) -> u64 {
        let contexts = |pid: HostPid| if pid.0 < 100 { 0 } else { 2 };
        unlisted.attribute((0, &GpuUuid(uuid.to_owned())), &mut occupancy, contexts, true);
        occupancy.by_process.values().next().map_or(0, |bytes| bytes / MIB)
    }

    #[test]
    fn what_is_listed_for_nobody_is_the_contexts() {
        let mut unlisted = Unlisted::new(1);
        let of_two = || occupancy(1067, &[(1, 520), (100, 520)]);
        assert_eq!([(); 2].map(|()| held(&mut unlisted, "a", of_two())), [520, 520]);
        assert_eq!(unlisted.knowledge(0), Knowledge::Early);
        assert_eq!(
            (held(&mut unlisted, "a", of_two()), unlisted.knowledge(0)),
            (529, Knowledge::Told),
            "after some looks"
        );
        assert_eq!(held(&mut unlisted, "a", occupancy(538, &[(100, 520)])), 538, "a new one at once");
        (0..LEAST_LOOKS).for_each(|_| _ = held(&mut unlisted, "a", occupancy(533, &[(7, 520)])));
        assert_eq!(held(&mut unlisted, "a", of_two()), 533, "one that is alone takes more");
        assert_eq!(held(&mut unlisted, "b", of_two()), 520, "another GPU has this place");
    }

    #[test]
    fn what_is_used_when_nobody_is_there_is_nobodys() {
        let mut unlisted = Unlisted::new(1);
        held(&mut unlisted, "a", occupancy(400, &[]));
        let left = Occupancy { is_still: false, ..occupancy(900, &[]) };
        held(&mut unlisted, "a", left);
        let seen = [(); 4].map(|()| held(&mut unlisted, "a", occupancy(929, &[(1, 520)])));
        assert_eq!(seen, [520, 520, 529, 529]);
    }

    #[test]
    fn a_look_in_which_something_was_allocated_or_is_not_a_contexts_moves_nothing() {
        let mut unlisted = Unlisted::new(1);
        let mut see = |is_still, used| held(&mut unlisted, "a", Occupancy { is_still, ..occupancy(used, &[(1, 520)]) });
        (0..5).for_each(|_| _ = see(true, 529));
        (0..LOOKS).for_each(|_| assert_eq!(see(false, 549), 529, "20 MiB went before it was listed"));
        assert_eq!((see(true, 900), see(true, 500)), (529, 529), "more than a context's; less than is listed");
        (0..LOOKS).for_each(|_| assert_eq!(see(true, 900), 529));
        (0..FORGOTTEN).for_each(|_| _ = see(true, 900));
        assert_eq!(see(true, 900), 529, "nothing was shown for long: what was seen last is all that is known");
    }

    #[test]
    fn what_was_seen_is_forgotten_once_other_looks_have_told_for_long() {
        let mut unlisted = Unlisted::new(1);
        (0..5).for_each(|_| _ = held(&mut unlisted, "a", occupancy(529, &[(1, 520)])));
        let of_two = || occupancy(1044, &[(1, 520), (2, 520)]);
        (0..FORGOTTEN - 10).for_each(|_| assert_eq!(held(&mut unlisted, "a", of_two()), 529));
        (0..10).for_each(|_| _ = held(&mut unlisted, "a", of_two()));
        assert_eq!(held(&mut unlisted, "a", of_two()), 522);
    }

    #[test]
    fn looks_that_tell_nothing_are_known_for_that() {
        let mut unlisted = Unlisted::new(1);
        let mut see = |is_exact| {
            let mut occupancy = occupancy(529, &[(1, 520)]);
            unlisted.attribute((0, &GpuUuid("a".to_owned())), &mut occupancy, |_| 1, is_exact);
            unlisted.knowledge(0)
        };
        assert_eq!([(); 3].map(|()| see(false)), [Knowledge::Early, Knowledge::Early, Knowledge::Untold]);
        assert_eq!([(); 3].map(|()| see(true)), [Knowledge::Untold, Knowledge::Untold, Knowledge::Told]);
        (0..2 * FORGOTTEN).for_each(|_| assert_eq!(see(false), Knowledge::Told));
    }

    #[test]
    fn what_is_claimed_moves_little() {
        let mut unlisted = Unlisted::new(1);
        let mut see = |contexts, is_exact, used| {
            let mut occupancy = occupancy(used, &[(1, 520)]);
            unlisted.attribute((0, &GpuUuid("a".to_owned())), &mut occupancy, |_| contexts, is_exact);
            occupancy.by_process[&HostPid(1)] / MIB
        };
        (0..5).for_each(|_| _ = see(1, true, 529));
        (0..LOOKS).for_each(|_| assert_eq!(see(1, false, 549), 529, "managed memory, which has tables beside it"));
        assert_eq!(see(u64::MAX, true, 529), 520 + 9 * MOST_CONTEXTS, "no more contexts than that are believed");
    }

    #[test]
    fn where_a_process_is_listed_without_its_memory_nothing_is_told() {
        let mut occupancy = occupancy(529, &[(1, 520)]);
        let told = |occupancy: &Occupancy| for_each_context(occupancy, 0, 1);
        assert_eq!(told(&occupancy), Some(9 * MIB));
        occupancy.present.insert(HostPid(2));
        assert_eq!(told(&occupancy), None);
    }
}
