//! What is promised of each GPU, for admission and for people.

use super::book::Book;
use super::entitlement::held_demand;
use super::grant::Leases;
use super::record::Record;
use crate::device::Gpu;
use crate::mps::Domain;
use gpool_policy::admission::{GpuCapacity, Site, Users};
use gpool_policy::mechanism::{MPS_CLIENTS, MPS_SERVER_BYTES};
use gpool_protocol::{GpuUuid, LeaseId, Mechanism};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Leases {
    /// What a context is taken to cost on these GPUs: of several, the most.
    pub fn context_bytes_of(&self, gpus: &[usize]) -> u64 {
        gpus.iter().map(|gpu| self.context_bytes[*gpu].load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// The GPUs as admission sees them; the place that the ended lease `kept` had counts as free.
    pub fn capacities(&self, gpus: &[Gpu], book: &Book, kept: Option<&LeaseId>) -> Vec<GpuCapacity> {
        let foreign_bytes: Vec<u64> = self.foreign_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect();
        let seen = capacities(gpus, &foreign_bytes, &self.outside(gpus, book), book, kept);
        gpus.iter().zip(seen).map(|(gpu, seen)| GpuCapacity { site: self.sites.of(gpu), ..seen }).collect()
    }
}

/// The GPUs as admission sees them. The place that the ended lease `kept` had counts as free: its container is the
/// one that asks.
pub fn capacities(
    gpus: &[Gpu],
    foreign_bytes: &[u64],
    outside: &[u32],
    book: &Book,
    kept: Option<&LeaseId>,
) -> Vec<GpuCapacity> {
    let promised = |index: usize| {
        let nothing = (0u16, 0u64, Users::default());
        records_on(gpus, book, index, kept).fold(nothing, |(permille, bytes, mut users), record: &Record| {
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
        // Of what is sold to nobody now all was sold before, if it is: who had some of it comes back to that.
        let with_own_bytes: u64 = records_on(gpus, book, index, None).map(Record::promised_bytes).sum();
        let is_sold_out = with_own_bytes > gpu.memory_total_bytes;
        GpuCapacity {
            key: gpu.uuid.0.clone(),
            memory_total_bytes: if is_sold_out { gpu.memory_had_bytes() } else { gpu.memory_total_bytes },
            memory_foreign_bytes: foreign_bytes.get(index).copied().unwrap_or(0),
            fraction_leased_permille,
            memory_leased_bytes,
            users,
            site: Site { product: gpu.name.clone(), ..Site::default() },
        }
    };
    gpus.iter().enumerate().map(capacity).collect()
}

/// How much memory is missing on a GPU to `bytes`, where that is there and only kept from being sold; nothing where more is missing.
pub fn missing_for_headroom(gpu: &Gpu, seen: &GpuCapacity, bytes: u64) -> u64 {
    let taken_bytes = seen.memory_leased_bytes.saturating_add(seen.memory_foreign_bytes);
    let missing_bytes = taken_bytes.saturating_add(bytes).saturating_sub(seen.memory_total_bytes);
    let kept_bytes = gpu.memory_had_bytes().saturating_sub(seen.memory_total_bytes);
    if missing_bytes <= kept_bytes { missing_bytes } else { 0 }
}

/// Notes on each GPU how its leases under MPS servers stand to a new one of `domain` on `count` GPUs: which set of GPUs they
/// share with it, and how many it cannot join. Those are the ones of other domains, and those on more or fewer GPUs, beside
/// which it would have a server of its own. The place of `kept` binds nobody. What the server itself needs of the memory is nobody's
/// who is under it, whether it runs yet or not: fractions of the memory are of the rest, so that all of them can be had.
pub fn note_mps_servers(
    capacities: &mut [GpuCapacity],
    (gpus, book): (&[Gpu], &Book),
    (domain, count): (&Domain, usize),
    kept: Option<&LeaseId>,
) {
    let place_of = |uuid: &GpuUuid| gpus.iter().position(|gpu| gpu.uuid == *uuid);
    for (index, capacity) in capacities.iter_mut().enumerate() {
        let servers =
            records_on(gpus, book, index, kept).filter_map(|record| Some((record, record.mps_domain.as_ref()?)));
        let (own, others): (Vec<_>, Vec<_>) =
            servers.partition(|(record, its)| *its == domain && record.gpus().len() == count);
        let sets: BTreeSet<BTreeSet<usize>> =
            own.iter().map(|(record, _)| record.gpus().iter().filter_map(place_of).collect()).collect();
        // Two daemons on one GPU are of a supervisor that did not look: nobody joins either.
        let is_torn = sets.len() > 1;
        capacity.users.mps_of_others = (others.len() + if is_torn { own.len() } else { 0 }) as u32;
        // Each of them has one client at least.
        capacity.users.mps_full = (own.len() >= MPS_CLIENTS).into();
        capacity.memory_total_bytes = capacity.memory_total_bytes.saturating_sub(MPS_SERVER_BYTES);
        capacity.users.mps_set = sets.first().filter(|_| !is_torn).and_then(|set| set.first().copied());
    }
}

/// The groups of MPS daemons that leases are under. One whose GPUs were taken from it is under none any more.
pub fn mps_groups_used(book: &Book) -> BTreeSet<&String> {
    let records = book.leases.values().map(|lease| &lease.record).chain(&book.stranded);
    records.filter(|record| !record.has_no_share()).filter_map(|record| record.mps_group.as_ref()).collect()
}

/// What is promised of the GPU at `index`: leases, kept places but that of the lease `own`, and leases that are not taken over
/// yet.
pub fn records_on<'a>(
    gpus: &'a [Gpu],
    book: &'a Book,
    index: usize,
    own: Option<&'a LeaseId>,
) -> impl Iterator<Item = &'a Record> {
    let leases = book.leases.values().filter(move |lease| lease.gpus().any(|gpu| gpu == index));
    let kept = book.held.iter().filter(move |held| held.gpus.contains(&index));
    let kept = kept.filter(move |held| Some(&held.record.lease_id) != own);
    let stranded = book.stranded.iter().filter(move |record| record.gpus().contains(&gpus[index].uuid));
    let records = leases.map(|lease| &lease.record).chain(kept.map(|held| &held.record)).chain(stranded);
    records.filter(|record| !record.has_no_share())
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::record::sample;
    use super::super::taken::{RevocationRecord, Taking};
    use super::*;
    use gpool_policy::admission::{Demand, MemoryDemand, Refusal, Use, place};
    use gpool_protocol::Priority;
    use std::time::Instant;

    #[test]
    fn whose_gpus_were_taken_stands_in_nobody_s_way_once_nothing_of_it_is_left() {
        let mut record = sample();
        (record.gpu_uuid, record.mechanism) = (Gpu::sample(0).uuid, Mechanism::Exclusive);
        let users = |record: &Record| {
            let book = Book { stranded: vec![record.clone()], ..Book::default() };
            let seen = capacities(&[Gpu::sample(0)], &[], &[], &book, None).remove(0);
            (seen.users.whole, seen.memory_leased_bytes >> 30)
        };
        record.revocation = Some(RevocationRecord {
            devices: [(195, 0)].into(),
            is_denied: true,
            is_settled: false,
            by: Taking::Asked,
        });
        assert_eq!(users(&record), (1, 4));
        record.give_share_up();
        assert_eq!(users(&record), (0, 0));
    }

    #[test]
    fn an_mps_daemon_is_used_by_those_who_have_a_share_under_it() {
        let of = |group: &str, is_settled: bool| {
            let revocation =
                Some(RevocationRecord { devices: [(195, 0)].into(), is_denied: true, is_settled, by: Taking::Asked });
            Record { mps_group: Some(group.into()), revocation, ..sample() }
        };
        let book = Book { stranded: vec![of("01", true), of("02", false), sample()], ..Book::default() };
        assert_eq!(mps_groups_used(&book), BTreeSet::from([&"02".to_owned()]));
    }

    #[test]
    fn an_mps_server_of_another_team_or_user_is_somebody_else_s() {
        let own = Domain { team: "vision".into(), namespace: None, uid: 0 };
        let of = |domain: &Domain| {
            let mut record = sample();
            (record.gpu_uuid, record.mechanism, record.mps_domain) =
                (Gpu::sample(1).uuid, Mechanism::Mps, Some(domain.clone()));
            record
        };
        let others = [
            Domain { team: "speech".into(), ..own.clone() },
            Domain { uid: 1000, ..own.clone() },
            Domain { namespace: Some("of-others".into()), ..own.clone() },
        ];
        let book = Book { stranded: [&own, &others[0], &others[1]].map(of).to_vec(), ..Book::default() };
        let gpus = [Gpu::sample(0), Gpu::sample(1)];
        let mut seen = capacities(&gpus, &[], &[], &book, None);
        let users = |seen: &[GpuCapacity]| -> Vec<(u32, u32)> {
            seen.iter().map(|gpu| (gpu.users.mps, gpu.users.mps_of_others)).collect()
        };
        note_mps_servers(&mut seen, (&gpus, &book), (&own, 1), None);
        assert_eq!(users(&seen), [(0, 0), (3, 2)]);
        assert_eq!([seen[0].users.mps_set, seen[1].users.mps_set], [None, Some(1)]);
        note_mps_servers(&mut seen, (&gpus, &book), (&own, 2), None);
        assert_eq!(users(&seen), [(0, 0), (3, 3)], "on two GPUs it would have a server beside its own on one");
    }

    #[test]
    fn under_a_server_all_fractions_are_of_what_its_clients_can_have_and_it_has_no_more_clients_than_it_can() {
        let own = Domain { team: "vision".into(), namespace: None, uid: 0 };
        let gpus = [Gpu::sample(0)];
        let demand = Demand {
            fraction_permille: 500,
            memory: MemoryDemand::Absent,
            priority: gpool_policy::slice::Priority::Guaranteed,
            gpus: 1,
            usage: Use::Mps,
        };
        let under = |records: Vec<Record>| {
            let book = Book { stranded: records, ..Book::default() };
            let mut seen = capacities(&gpus, &[], &[], &book, None);
            note_mps_servers(&mut seen, (&gpus, &book), (&own, 1), None);
            place(&seen, &demand).map(|placed| placed.memory_bytes)
        };
        let of = |memory_cap_bytes, fraction_permille| {
            let mut record = sample();
            (record.gpu_uuid, record.mechanism, record.mps_domain) =
                (gpus[0].uuid.clone(), Mechanism::Mps, Some(own.clone()));
            Record { memory_cap_bytes, fraction_permille, ..record }
        };
        let half = (gpus[0].memory_total_bytes - MPS_SERVER_BYTES) / 2;
        assert_eq!(under(Vec::new()), Ok(half), "before its server runs");
        assert_eq!(under(vec![of(half, 500)]), Ok(half), "and the last one");
        assert_eq!(under(vec![of(1, 10); MPS_CLIENTS - 1]), Ok(half));
        let refused = under(vec![of(1, 10); MPS_CLIENTS]);
        let is_full = |who: &str| who.contains("as many containers as it can have clients");
        assert!(matches!(&refused, Err(Refusal::Taken { taken, .. }) if is_full(taken[0].1)), "{refused:?}");
    }

    #[test]
    fn gpus_of_one_daemon_are_a_set_and_a_place_of_its_own_binds_nobody() {
        let own = Domain { team: "vision".into(), namespace: None, uid: 0 };
        let gpus = [Gpu::sample(0), Gpu::sample(1), Gpu::sample(2)];
        let on = |places: &[usize]| {
            let mut record = sample();
            record.gpu_uuids = places.iter().map(|place| gpus[*place].uuid.clone()).collect();
            (record.mechanism, record.mps_domain) = (Mechanism::Mps, Some(own.clone()));
            record
        };
        let sets = |book: &Book, own_place: Option<&LeaseId>| -> Vec<(Option<usize>, u32)> {
            let mut seen = capacities(&gpus, &[], &[], book, own_place);
            note_mps_servers(&mut seen, (&gpus, book), (&own, 2), own_place);
            seen.iter().map(|gpu| (gpu.users.mps_set, gpu.users.mps_of_others)).collect()
        };
        let pair = Book { stranded: vec![on(&[1, 2]), on(&[1, 2])], ..Book::default() };
        assert_eq!(sets(&pair, None), [(None, 0), (Some(1), 0), (Some(1), 0)]);
        let torn = Book { stranded: vec![on(&[0, 1]), on(&[1, 2])], ..Book::default() };
        assert_eq!(sets(&torn, None), [(Some(0), 0), (None, 2), (Some(1), 0)]);
        let held = Held { record: on(&[0]), gpus: vec![0], until: Instant::now() };
        let ended = held.record.lease_id.clone();
        let kept = Book { held: vec![held], ..Book::default() };
        assert_eq!(sets(&kept, None)[0], (None, 1), "on one GPU it has another server");
        assert_eq!(sets(&kept, Some(&ended))[0], (None, 0), "it is the one that asks, on two now");
    }

    /// Two halves of a GPU, sold when all of it was; one of them is suspended, and 64 MiB are kept since.
    #[test]
    fn who_was_suspended_with_a_half_has_it_again_beside_the_other_half_and_what_is_kept() {
        const HALF: u64 = 12 << 30;
        const KEPT: u64 = 64 << 20;
        let gpu = Gpu { memory_total_bytes: 2 * HALF - KEPT, memory_headroom_bytes: KEPT, ..Gpu::sample(0) };
        let of = |memory_cap_bytes| Record { gpu_uuid: gpu.uuid.clone(), memory_cap_bytes, ..sample() };
        let beside = |others: &[u64], bytes: u64| {
            let book = Book { stranded: others.iter().map(|bytes| of(*bytes)).collect(), ..Book::default() };
            let seen = capacities(std::slice::from_ref(&gpu), &[], &[], &book, None);
            let missing = missing_for_headroom(&gpu, &seen[0], bytes);
            let demand = Demand {
                fraction_permille: 100,
                memory: MemoryDemand::Bytes(bytes - missing),
                priority: gpool_policy::slice::Priority::Guaranteed,
                gpus: 1,
                usage: Use::Sliced,
            };
            (missing, place(&seen, &demand).is_ok())
        };
        assert_eq!(beside(&[HALF], HALF), (KEPT, true));
        assert_eq!(beside(&[HALF - KEPT], HALF), (0, true), "there is room as it is");
        assert_eq!(beside(&[HALF], HALF + 1), (0, false), "that was never there");
        assert_eq!(beside(&[HALF, HALF / 2], HALF / 2), (KEPT, true), "others that are there may be several");
        assert_eq!(beside(&[HALF, HALF], KEPT), (0, false), "it is had already");
    }

    #[test]
    fn each_gpu_of_a_lease_is_promised_and_only_guarantees_take_share() {
        let gpus = [Gpu::sample(0), Gpu::sample(1)];
        let mut both = sample();
        both.gpu_uuids = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let mut burst = sample();
        (burst.priority, burst.lease_id) = (Priority::Burst, LeaseId("02".into()));
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
        let taken = |ended: Option<&str>| -> Vec<(u16, u64)> {
            let ended = ended.map(|id| LeaseId(id.into()));
            let all = capacities(&gpus, &[], &[], &book, ended.as_ref());
            all.iter().map(|gpu| (gpu.fraction_leased_permille, gpu.memory_leased_bytes >> 30)).collect()
        };
        assert_eq!(taken(None), [(300, 8), (600, 8)]);
        assert_eq!(taken(Some("01")), [(0, 4), (300, 4)], "its own kept place is free for it");
    }
}
