//! What of a lease's memory lies in the host's: what has no room within its cap, as far as the lease may have that beside it.
//!
//! As for memory of GPUs each process counts in its own slot, and the lease's total is the sum over the slots; see
//! [`crate::memory`]. It is one for all GPUs of the lease, since the host's memory is.

use crate::ended;
use crate::region::Region;
use gpool_shared_region::Slot;
use gpool_shared_region::atomic::Ordering;

/// How often a refusal that may come from another process's passing reservation is tried again.
const RETRIES: u32 = 4;
/// The host gives memory in pages.
const PAGE_BYTES: u64 = 4096;

/// The memory of the host that an allocation of `bytes` takes.
pub fn rounded_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
}

/// The most that the lease may hold there, in bytes; 0 for none.
pub fn limit_bytes(region: &Region) -> u64 {
    region.control().spill_bytes.load(Ordering::Relaxed)
}

/// What the lease's processes hold there, in bytes.
pub fn used_bytes(region: &Region) -> u64 {
    region.slots().fold(0, |sum, slot| sum.saturating_add(slot.spilled_bytes.load(Ordering::SeqCst)))
}

/// Charges `bytes` to `slot` if the lease stays within what it may hold there; false, with nothing charged, otherwise.
///
/// What has no room as things stand is refused without being added, or one that asks again and again would be in the way of those whose
/// charge fits. What has is added before the sum is taken, so of two that charge at once at least one sees the other.
#[cold]
#[inline(never)]
pub fn try_reserve(region: &Region, slot: &Slot, bytes: u64) -> bool {
    // What can never fit is not even tried: an absurd size must not wrap the sum.
    let tries = if bytes > limit_bytes(region) { 0 } else { RETRIES + 1 };
    for left in (0..tries).rev() {
        if left == 0 {
            ended::free(region, Some(slot));
        }
        if used_bytes(region).saturating_add(bytes) > limit_bytes(region) {
            core::hint::spin_loop();
            continue;
        }
        slot.spilled_bytes.fetch_add(bytes, Ordering::SeqCst);
        if used_bytes(region) <= limit_bytes(region) {
            return true;
        }
        release(slot, bytes);
        core::hint::spin_loop();
    }
    false
}

/// Takes a charge back. Never below zero.
#[cold]
#[inline(never)]
pub fn release(slot: &Slot, bytes: u64) {
    let lower = |now: u64| Some(now.saturating_sub(bytes));
    let _ = slot.spilled_bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, lower);
}

/// One more allocation lies there.
pub fn note(slot: &Slot) {
    slot.spills.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{race, region};

    fn region_with_limit(bytes: u64) -> Region {
        let region = region();
        region.control().spill_bytes.store(bytes, Ordering::Relaxed);
        region
    }

    #[test]
    fn the_limit_holds_over_all_processes() {
        let region = region_with_limit(100);
        let (one, two) = (region.slot(0), region.slot(9));
        assert!(try_reserve(&region, one, 60) && !try_reserve(&region, two, 41) && try_reserve(&region, two, 40));
        assert_eq!(used_bytes(&region), 100);
        release(one, 60);
        release(one, 1);
        assert_eq!(used_bytes(&region), 40, "never below zero");
    }

    #[test]
    fn without_a_limit_nothing_goes_there_and_absurd_sizes_change_nothing() {
        assert!(!try_reserve(&region(), region().slot(0), 1));
        let region = region_with_limit(100);
        assert!(!try_reserve(&region, region.slot(0), rounded_bytes(u64::MAX)));
        assert_eq!(used_bytes(&region), 0);
        assert_eq!([0, 1, 4096, 4097].map(rounded_bytes), [0, 4096, 4096, 8192]);
    }

    #[test]
    fn who_is_refused_again_and_again_is_in_nobodys_way() {
        let region = region_with_limit(100);
        let (asks, other) = (region.slot(0), region.slot(1));
        assert!(try_reserve(&region, asks, 60));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert!(!try_reserve(&region, asks, 50));
                }
            });
            let granted = (0..20_000).all(|_| {
                let is_granted = try_reserve(&region, other, 40);
                release(other, 40);
                is_granted
            });
            is_done.store(true, Ordering::Relaxed);
            asking.join().unwrap();
            assert!(granted, "what fits is refused because of what does not");
        });
    }

    #[test]
    fn what_is_held_stays_when_the_limit_is_lowered() {
        let region = region_with_limit(100);
        assert!(try_reserve(&region, region.slot(0), 90));
        region.control().spill_bytes.store(50, Ordering::Relaxed);
        assert!(!try_reserve(&region, region.slot(0), 1));
        assert_eq!(used_bytes(&region), 90);
    }

    #[test]
    fn racing_processes_never_pass_the_limit() {
        let region = region_with_limit(100);
        let most =
            race(|process| try_reserve(&region, region.slot(process), 40), |process| release(region.slot(process), 40));
        assert!((40..=80).contains(&most), "two fit, three do not");
        assert_eq!(used_bytes(&region), 0, "nothing leaks");
    }
}
