//! What is promised of each GPU, for admission and for people.

use super::book::Book;
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
        let leases = book.leases.values().filter(|lease| lease.gpu == index).map(|lease| &lease.record);
        let kept = book.held.iter().filter(|held| held.gpu == index && Some(&held.record.container_id) != container);
        let stranded = book.stranded.iter().filter(|record| record.gpu_uuid == gpus[index].uuid);
        leases.chain(kept.map(|held| &held.record)).chain(stranded).fold((0u16, 0u64), |(permille, bytes), record| {
            (permille.saturating_add(record.fraction_permille), bytes.saturating_add(record.memory_cap_bytes))
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
