//! What a cluster that drives this host may count on, by the book.

use super::book::Book;
use super::grant::Leases;
use super::record::Record;
use crate::device::{Gpu, Kind};
use gpool_policy::admission::{GpuCapacity, Use, Users};
use gpool_policy::countable::available;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::{Countable, CountedResource, Counts, InstanceCount, PERCENT_OF_A_GPU};
use std::collections::{BTreeMap, BTreeSet};

impl Leases {
    /// What a cluster may give out of this host now. GPUs that are drained or do not answer are counted, and nothing of them is free.
    pub fn counts(&self) -> Counts {
        let (gpus, open) = (self.gpus(), self.gpus_for_new());
        let book = self.book();
        let capacities = self.capacities(&open, &book, None);
        let is_open = |index: usize| {
            open[index].kind == gpus[index].kind
                && self.compute_modes.of(index) != ComputeMode::Prohibited
                && gpus[index].board().is_some_and(|board| !book.is_closed(board))
                && self.closed_for(&book, index).is_none()
        };
        let free = |index: usize| is_open(index).then(|| &capacities[index]);
        counts(&gpus, &book, free)
    }
}

/// `free` gives what is taken of a GPU that takes leases.
fn counts<'a>(gpus: &[Gpu], book: &Book, free: impl Fn(usize) -> Option<&'a GpuCapacity>) -> Counts {
    let mut counted = 0;
    let mut counted_instances: BTreeMap<&str, u32> = BTreeMap::new();
    let counted_on: BTreeSet<_> = counted_records(book).flat_map(Record::gpus).collect();
    for resource in counted_records(book).filter_map(|record| record.resource.as_ref()) {
        match resource {
            CountedResource::Percent(percent) => counted += u32::from(*percent),
            CountedResource::Instance(profile) => *counted_instances.entry(profile).or_default() += 1,
        }
    }
    let mut percent = Countable::default();
    let mut instances: BTreeMap<&str, Countable> = BTreeMap::new();
    // For now `available` is what is free.
    for (index, gpu) in gpus.iter().enumerate() {
        match &gpu.kind {
            Kind::Whole => {
                percent.all += u32::from(PERCENT_OF_A_GPU);
                // Beside time slices and MPS servers of others no slices can be had; beside the cluster's own its next one may join.
                let is_others = |taken: &&GpuCapacity| {
                    taken.users.in_the_way_of(Use::Sliced).is_some() && !counted_on.contains(&gpu.uuid)
                };
                let free = free(index).filter(|taken| !is_others(taken));
                percent.available += free.map_or(0, GpuCapacity::hundredths_free);
            }
            Kind::Instance(instance) => {
                let count = instances.entry(&instance.profile).or_default();
                count.all += 1;
                count.available += u32::from(free(index).is_some_and(is_unused));
            }
            Kind::Divided | Kind::Gone => {}
        }
    }
    let with_counted =
        |count: Countable, counted| Countable { available: available(count.all, counted, count.available), ..count };
    let instance = |(profile, count): (&str, Countable)| InstanceCount {
        profile: profile.to_owned(),
        count: with_counted(count, counted_instances.get(profile).copied().unwrap_or(0)),
    };
    Counts {
        percent: with_counted(percent, counted),
        instances: instances.into_iter().map(instance).collect(),
        seal: None,
    }
}

fn is_unused(instance: &GpuCapacity) -> bool {
    Users { outside: 0, ..instance.users } == Users::default()
}

/// Those that a cluster has counted: who run or are being made, and those whose place is kept as long as there is their pod.
fn counted_records(book: &Book) -> impl Iterator<Item = &Record> {
    let kept = book.held.iter().map(|held| &held.record);
    let records = book.leases.values().map(|lease| &lease.record).chain(kept).chain(&book.stranded);
    records.filter(|record| record.resource.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::capacity::capacities;
    use super::super::record::sample;
    use super::*;
    use crate::device::MigInstance;
    use gpool_protocol::{GpuUuid, LeaseId, Mechanism, Priority};
    use std::time::Instant;

    /// On `GPU-gpu`, what a cluster has counted for it, and what it has.
    fn record(gpu: &str, resource: Option<&str>, fraction_permille: u16) -> Record {
        Record {
            lease_id: LeaseId(gpu.into()),
            gpu_uuid: GpuUuid(gpu.into()),
            fraction_permille,
            memory_cap_bytes: 1 << 30,
            resource: resource.map(|text| CountedResource::parse(text).unwrap()),
            ..sample()
        }
    }

    /// Of two GPUs and three MIG instances, with these that run; GPUs of `closed` take nobody.
    fn looked_at(running: Vec<Record>, held: Vec<Held>, closed: &[usize]) -> (Countable, Vec<(String, Countable)>) {
        let instance = |index: u32, profile: &str| {
            let place = MigInstance {
                board: Gpu::sample(2).uuid,
                profile: profile.into(),
                gpu_instance: index,
                compute_instance: 0,
                start: 0,
                size: 1,
            };
            Gpu { uuid: GpuUuid(format!("MIG-{index}")), kind: Kind::Instance(place), ..Gpu::sample(2) }
        };
        let gpus = [
            Gpu::sample(0),
            Gpu::sample(1),
            Gpu { kind: Kind::Divided, ..Gpu::sample(2) },
            instance(0, "1g.10gb"),
            instance(1, "1g.10gb"),
            instance(2, "3g.40gb"),
        ];
        let book = Book { stranded: running, held, ..Book::default() };
        let capacities = capacities(&gpus, &[], &[], &book, None);
        let counts = counts(&gpus, &book, |index| (!closed.contains(&index)).then(|| &capacities[index]));
        let instances = counts.instances.into_iter().map(|its| (its.profile, its.count)).collect();
        (counts.percent, instances)
    }

    #[test]
    fn what_others_have_is_not_to_be_given_out() {
        let percent = |running, held, closed: &[usize]| {
            let count = looked_at(running, held, closed).0;
            assert_eq!(count.all, 200, "the divided one serves nobody as a whole");
            count.available
        };
        assert_eq!(percent(vec![], vec![], &[]), 200);
        let own = || record("GPU-0", Some("percent=30"), 300);
        assert_eq!(percent(vec![own()], vec![], &[]), 200, "its scheduler takes off what is its own");
        let docker = || record("GPU-0", None, 255);
        assert_eq!(percent(vec![own(), docker()], vec![], &[]), 174);
        let more = record("GPU-0", Some("percent=30"), 500);
        assert_eq!(percent(vec![more], vec![], &[]), 180, "it was given more than was counted");
        // Drained: what runs there goes on, and is counted.
        assert_eq!(percent(vec![own(), docker()], vec![], &[0]), 130);
        assert_eq!(percent(vec![], vec![], &[0, 1]), 0);
        let whole = Record { mechanism: Mechanism::Exclusive, ..record("GPU-1", None, 1000) };
        assert_eq!(percent(vec![whole], vec![], &[]), 100);
        let kept = Held { record: record("GPU-0", None, 300), gpus: vec![0], until: Instant::now() };
        assert_eq!(percent(vec![], vec![kept], &[]), 170, "nobody has it, and nobody else is let in");
        let kept = Held { record: own(), gpus: vec![0], until: Instant::now() };
        assert_eq!(percent(vec![], vec![kept], &[]), 200, "its pod is there, which its scheduler takes off");
        let time_slices = |resource| Record { mechanism: Mechanism::TimeSlice, ..record("GPU-1", resource, 0) };
        assert_eq!(percent(vec![time_slices(None)], vec![], &[]), 100, "no slices beside them");
        assert_eq!(
            percent(vec![time_slices(Some("percent=25"))], vec![], &[]),
            200,
            "another one of the cluster may join"
        );
        let both = vec![GpuUuid("GPU-0".into()), GpuUuid("GPU-1".into())];
        let on_both = Record { gpu_uuids: both, ..record("GPU-0", Some("percent=100"), 500) };
        assert_eq!(percent(vec![on_both.clone()], vec![], &[]), 200);
        assert_eq!(percent(vec![on_both], vec![], &[1]), 150, "half of what it was counted for is on the drained one");
        let burst = Record { priority: Priority::Burst, ..record("GPU-0", None, 800) };
        assert_eq!(percent(vec![burst], vec![], &[]), 200, "it is promised nothing");
    }

    #[test]
    fn instances_are_counted_by_profile() {
        let count = |all, available| Countable { all, available };
        let instances = |running, closed: &[usize]| looked_at(running, vec![], closed).1;
        let both = |small, large| vec![("1g.10gb".to_owned(), small), ("3g.40gb".to_owned(), large)];
        assert_eq!(instances(vec![], &[]), both(count(2, 2), count(1, 1)));
        let mig = |gpu: &str, resource| Record { mechanism: Mechanism::Mig, ..record(gpu, resource, 1000) };
        let own = mig("MIG-0", Some("mig=1g.10gb"));
        assert_eq!(instances(vec![own.clone()], &[]), both(count(2, 2), count(1, 1)));
        let shared = record("MIG-2", None, 300);
        assert_eq!(instances(vec![own, mig("MIG-1", None), shared], &[]), both(count(2, 1), count(1, 0)));
        assert_eq!(instances(vec![], &[3, 4, 5]), both(count(2, 0), count(1, 0)));
    }
}
