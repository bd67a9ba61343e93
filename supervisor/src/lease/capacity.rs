//! What is promised of each GPU, for admission and for people.

use super::book::Book;
use super::entitlement::held_demand;
use super::record::Record;
use crate::device::Gpu;
use gpool_policy::admission::GpuCapacity;
use gpool_protocol::ContainerId;

/// The GPUs as admission sees them. A place that is kept for `container` counts as free: it is the one asking.
pub fn capacities(
    gpus: &[Gpu],
    foreign_bytes: &[u64],
    book: &Book,
    container: Option<&ContainerId>,
) -> Vec<GpuCapacity> {
    let promised = |index: usize| {
        let leases = book.leases.values().filter(|lease| lease.gpus().any(|gpu| gpu == index));
        let kept = book.held.iter().filter(|held| held.gpus.contains(&index));
        let kept = kept.filter(|held| Some(&held.record.container_id) != container);
        let stranded = book.stranded.iter().filter(|record| record.gpus().contains(&gpus[index].uuid));
        let records = leases.map(|lease| &lease.record).chain(kept.map(|held| &held.record)).chain(stranded);
        records.fold((0u16, 0u64), |(permille, bytes), record: &Record| {
            let guaranteed = held_demand(record).guaranteed_permille();
            (permille.saturating_add(guaranteed), bytes.saturating_add(record.memory_cap_bytes))
        })
    };
    let capacity = |(index, gpu): (usize, &Gpu)| {
        let (fraction_leased_permille, memory_leased_bytes) = promised(index);
        GpuCapacity {
            key: gpu.uuid.0.clone(),
            memory_total_bytes: gpu.memory_total_bytes,
            memory_foreign_bytes: foreign_bytes.get(index).copied().unwrap_or(0),
            fraction_leased_permille,
            memory_leased_bytes,
        }
    };
    gpus.iter().enumerate().map(capacity).collect()
}
