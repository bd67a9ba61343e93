//! What is promised of each GPU, for admission and for people.

use super::book::Book;
use super::entitlement::held_demand;
use super::record::Record;
use crate::device::Gpu;
use crate::mps::Domain;
use gpool_policy::admission::{GpuCapacity, Users};
use gpool_protocol::{ContainerId, Mechanism};

/// The GPUs as admission sees them. A place that is kept for `container` counts as free: it is the one asking.
pub fn capacities(
    gpus: &[Gpu],
    foreign_bytes: &[u64],
    outside: &[u32],
    book: &Book,
    container: Option<&ContainerId>,
) -> Vec<GpuCapacity> {
    let promised = |index: usize| {
        let nothing = (0u16, 0u64, Users::default());
        records_on(gpus, book, index, container).fold(nothing, |(permille, bytes, mut users), record: &Record| {
            let guaranteed = held_demand(record).guaranteed_permille();
            match record.mechanism {
                Mechanism::Slice => users.sliced += 1,
                Mechanism::Exclusive | Mechanism::Mig => users.whole += 1,
                Mechanism::TimeSlice => users.time_sliced += 1,
                Mechanism::Mps => users.mps += 1,
            }
            let promised_bytes = record.promised_bytes();
            (permille.saturating_add(guaranteed), bytes.saturating_add(promised_bytes), users)
        })
    };
    let capacity = |(index, gpu): (usize, &Gpu)| {
        let (fraction_leased_permille, memory_leased_bytes, mut users) = promised(index);
        users.outside = outside.get(index).copied().unwrap_or(0);
        GpuCapacity {
            key: gpu.uuid.0.clone(),
            memory_total_bytes: gpu.memory_total_bytes,
            memory_foreign_bytes: foreign_bytes.get(index).copied().unwrap_or(0),
            fraction_leased_permille,
            memory_leased_bytes,
            users,
        }
    };
    gpus.iter().enumerate().map(capacity).collect()
}

/// Counts on each GPU the leases under MPS servers that a new lease of `domain` on so many GPUs cannot join: those of other
/// domains, and those on more or fewer GPUs, beside which it would have a server of its own.
pub fn note_other_domains(capacities: &mut [GpuCapacity], gpus: &[Gpu], book: &Book, domain: &Domain, count: usize) {
    let leases = book.leases.values().map(|lease| &lease.record);
    let records: Vec<&Record> = leases.chain(book.held.iter().map(|held| &held.record)).chain(&book.stranded).collect();
    for (capacity, gpu) in capacities.iter_mut().zip(gpus) {
        let is_others = |record: &&&Record| {
            record.mps_domain.as_ref().is_some_and(|its| its != domain || record.gpus().len() != count)
                && !record.has_no_share()
                && record.gpus().contains(&gpu.uuid)
        };
        capacity.users.mps_of_others = records.iter().filter(is_others).count() as u32;
    }
}

/// What is promised of the GPU at `index`: leases, kept places but that of `container`, and leases that are not taken over
/// yet.
pub fn records_on<'a>(
    gpus: &'a [Gpu],
    book: &'a Book,
    index: usize,
    container: Option<&'a ContainerId>,
) -> impl Iterator<Item = &'a Record> {
    let leases = book.leases.values().filter(move |lease| lease.gpus().any(|gpu| gpu == index));
    let kept = book.held.iter().filter(move |held| held.gpus.contains(&index));
    let kept = kept.filter(move |held| Some(&held.record.container_id) != container);
    let stranded = book.stranded.iter().filter(move |record| record.gpus().contains(&gpus[index].uuid));
    let records = leases.map(|lease| &lease.record).chain(kept.map(|held| &held.record)).chain(stranded);
    records.filter(|record| !record.has_no_share())
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::record::{RevocationRecord, sample};
    use super::*;
    use gpool_protocol::{GpuUuid, Priority};
    use std::time::Instant;

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            uuid: GpuUuid(format!("GPU-{index}")),
            name: "a GPU".into(),
            minor: index,
            memory_total_bytes: 24 << 30,
            driver_version: "1".into(),
            is_virtual: false,
            kind: crate::device::Kind::Whole,
        }
    }

    #[test]
    fn whose_gpus_were_taken_stands_in_nobody_s_way_once_nothing_of_it_is_left() {
        let mut record = sample();
        (record.gpu_uuid, record.mechanism) = (gpu(0).uuid, Mechanism::Exclusive);
        let users = |record: &Record| {
            let book = Book { stranded: vec![record.clone()], ..Book::default() };
            let seen = capacities(&[gpu(0)], &[], &[], &book, None).remove(0);
            (seen.users.whole, seen.memory_leased_bytes >> 30)
        };
        record.revocation = Some(RevocationRecord { devices: [(195, 0)].into(), is_denied: true, is_settled: false });
        assert_eq!(users(&record), (1, 4));
        record.give_share_up();
        assert_eq!(users(&record), (0, 0));
    }

    #[test]
    fn an_mps_server_of_another_team_or_user_is_somebody_else_s() {
        let own = Domain { team: "vision".into(), uid: 0 };
        let of = |domain: &Domain| {
            let mut record = sample();
            (record.gpu_uuid, record.mechanism, record.mps_domain) =
                (gpu(1).uuid, Mechanism::Mps, Some(domain.clone()));
            record
        };
        let others = [Domain { team: "speech".into(), ..own.clone() }, Domain { uid: 1000, ..own.clone() }];
        let book = Book { stranded: [&own, &others[0], &others[1]].map(of).to_vec(), ..Book::default() };
        let gpus = [gpu(0), gpu(1)];
        let mut seen = capacities(&gpus, &[], &[], &book, None);
        let users = |seen: &[GpuCapacity]| -> Vec<(u32, u32)> {
            seen.iter().map(|gpu| (gpu.users.mps, gpu.users.mps_of_others)).collect()
        };
        note_other_domains(&mut seen, &gpus, &book, &own, 1);
        assert_eq!(users(&seen), [(0, 0), (3, 2)]);
        note_other_domains(&mut seen, &gpus, &book, &own, 2);
        assert_eq!(users(&seen), [(0, 0), (3, 3)], "on two GPUs it would have a server beside its own on one");
    }

    #[test]
    fn each_gpu_of_a_lease_is_promised_and_only_guarantees_take_share() {
        let gpus = [gpu(0), gpu(1)];
        let mut both = sample();
        both.gpu_uuids = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let mut burst = sample();
        (burst.priority, burst.container_id) = (Priority::Burst, ContainerId("burst".into()));
        let mut stranded = both.clone();
        stranded.gpu_uuids = vec![gpus[1].uuid.clone()];
        let book = Book {
            held: vec![
                Held { record: both, gpus: vec![0, 1], until: Instant::now() },
                Held { record: burst, gpus: vec![0], until: Instant::now() },
            ],
            stranded: vec![stranded],
            ..Book::default()
        };
        let taken = |container: Option<&str>| -> Vec<(u16, u64)> {
            let container = container.map(|id| ContainerId(id.into()));
            let all = capacities(&gpus, &[], &[], &book, container.as_ref());
            all.iter().map(|gpu| (gpu.fraction_leased_permille, gpu.memory_leased_bytes >> 30)).collect()
        };
        assert_eq!(taken(None), [(300, 8), (600, 8)]);
        assert_eq!(taken(Some("c")), [(0, 4), (300, 4)], "its own kept place is free for it");
    }
}
