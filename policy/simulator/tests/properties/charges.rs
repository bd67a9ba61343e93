//! Where every nanosecond went.

use crate::observe::{Run, length_ns, union};

/// Asserts that what tenants were charged is the union of all reported bursts, that charged and idle time are the
/// whole time, and that no burst was doubted.
pub fn assert_conserved(run: &Run) {
    let scheduler = &run.world.scheduler.scheduler;
    let bursts = union(run.world.scheduler.bursts.iter().map(|&(_, start_ns, end_ns)| (start_ns, end_ns)).collect());
    let charged = |tenant: usize| scheduler.charged_ns(run.world.tenant(tenant)).expect("it has joined");
    let charged_ns: u64 = (0..run.count()).map(charged).sum();
    assert_eq!(scheduler.doubtful_bursts(), 0, "{}", run.story());
    assert_eq!(charged_ns, length_ns(&bursts), "charges and bursts, {}", run.story());
    assert_eq!(charged_ns, scheduler.total_charged_ns(), "{}", run.story());
    let borders = bursts.iter().flat_map(|&(start_ns, end_ns)| [start_ns, end_ns]);
    let borders: Vec<u64> = std::iter::once(0).chain(borders).chain([run.world.now]).collect();
    let idle_ns: u64 = borders.chunks_exact(2).map(|gap| gap[1] - gap[0]).sum();
    assert_eq!(charged_ns + idle_ns, run.world.now, "{}", run.story());
}
