//! How busy a lease keeps a GPU, from what its processes have reported.

use core::sync::atomic::Ordering;
use gpool_shared_region::{BURST_RING, BurstTag, Slot};

/// Over so long, as NVML's own figure is on current GPUs: a sixth of a second.
const WINDOW_NS: u64 = 166_666_667;

/// The part of the last sixth of a second in which the process had work on GPU `gpu`, in thousandths. Of a process with
/// so many bursts that its ring holds fewer of them than that, over the time that they cover.
///
/// What is outstanding counts as running since the last burst ended. Only what an honest process says is right: this
/// is what a lease tells itself, and nobody decides by it.
pub fn busy_permille(slot: &Slot, gpu: usize, now_ns: u64) -> u64 {
    let count = slot.burst_count.load(Ordering::Acquire);
    let first = count.saturating_sub(BURST_RING as u64);
    let mut from_ns = now_ns.saturating_sub(WINDOW_NS);
    let burst = |number: u64| {
        let place = (number % BURST_RING as u64) as usize;
        let record = &slot.bursts[place];
        let tag = BurstTag(slot.burst_tags[place].load(Ordering::Relaxed));
        // What it stood before the device was not its own.
        let start_ns = record.start_ns.load(Ordering::Relaxed).saturating_add(tag.queued_ns());
        (start_ns, record.end_ns.load(Ordering::Relaxed), tag.gpu())
    };
    if first > 0 {
        from_ns = from_ns.max(burst(first).0);
    }
    let (mut busy_ns, mut last_end_ns, mut last_gpu) = (0u64, from_ns, gpu);
    for number in first..count {
        let (start_ns, end_ns, on) = burst(number);
        if on == gpu {
            busy_ns = busy_ns.saturating_add(end_ns.min(now_ns).saturating_sub(start_ns.max(from_ns)));
            last_end_ns = last_end_ns.max(end_ns);
        }
        last_gpu = on;
    }
    if slot.estimated_end_ns.load(Ordering::Relaxed) != 0 && last_gpu == gpu {
        busy_ns = busy_ns.saturating_add(now_ns.saturating_sub(last_end_ns));
    }
    let window_ns = now_ns.saturating_sub(from_ns).max(1);
    busy_ns.min(window_ns) * 1000 / window_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::region;

    const NOW_NS: u64 = 1_000_000_000_000;
    const MS: u64 = 1_000_000;

    /// Writes bursts of GPU `gpu` as (ms before now, length in ms), oldest first.
    fn report(slot: &Slot, bursts: impl IntoIterator<Item = (u64, u64)>, gpu: u8) {
        for (ago_ms, length_ms) in bursts {
            let number = slot.burst_count.load(Ordering::Relaxed);
            let place = number as usize % BURST_RING;
            let start_ns = NOW_NS - ago_ms * MS;
            slot.bursts[place].start_ns.store(start_ns, Ordering::Relaxed);
            slot.bursts[place].end_ns.store(start_ns + length_ms * MS, Ordering::Relaxed);
            slot.burst_tags[place].store(BurstTag::new(gpu, 1).0, Ordering::Relaxed);
            slot.burst_count.store(number + 1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_last_sixth_of_a_second_counts() {
        let region = region();
        let slot = region.slot(0);
        assert_eq!(busy_permille(slot, 0, NOW_NS), 0);
        report(slot, [(10_000, 5000), (100, 25), (50, 25)], 0);
        assert_eq!(busy_permille(slot, 0, NOW_NS), 299);
        assert_eq!(busy_permille(slot, 1, NOW_NS), 0, "on another GPU it did nothing");
        assert_eq!(busy_permille(slot, 0, NOW_NS + 1000 * MS), 0);
    }

    #[test]
    fn a_full_ring_counts_over_what_it_covers() {
        let region = region();
        let slot = region.slot(0);
        // One of two milliseconds, 64 times: the last 128 ms.
        report(slot, (0..100).rev().map(|index| (2 * (index + 1), 1)), 0);
        assert_eq!(busy_permille(slot, 0, NOW_NS), 500);
    }

    #[test]
    fn what_has_not_ended_counts_from_the_last_end_on() {
        let region = region();
        let slot = region.slot(0);
        report(slot, [(90, 40)], 0);
        slot.estimated_end_ns.store(NOW_NS + MS, Ordering::Relaxed);
        assert_eq!(busy_permille(slot, 0, NOW_NS), 539, "90 of 167 ms");
        assert_eq!(busy_permille(slot, 1, NOW_NS), 0);
    }

    #[test]
    fn absurd_reports_give_a_figure_within_bounds() {
        let region = region();
        let slot = region.slot(0);
        report(slot, [(5, 1)], 0);
        slot.bursts[0].start_ns.store(u64::MAX, Ordering::Relaxed);
        slot.bursts[0].end_ns.store(1, Ordering::Relaxed);
        assert_eq!(busy_permille(slot, 0, NOW_NS), 0);
        slot.burst_count.store(u64::MAX, Ordering::Relaxed);
        slot.estimated_end_ns.store(u64::MAX, Ordering::Relaxed);
        slot.bursts.iter().for_each(|burst| burst.end_ns.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(busy_permille(slot, 0, NOW_NS), 1000);
        assert!(busy_permille(slot, 0, 0) <= 1000);
    }
}
