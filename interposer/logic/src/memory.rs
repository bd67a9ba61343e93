//! The memory account: reserve, ask the driver, commit or roll back.
//!
//! Each process counts in its own slot and the lease's total is the sum over the slots, so there is no shared
//! counter that a killed process could leave wrong, and no lock that it could take along.

#[cfg(not(loom))]
use crate::ended;
use crate::pieces;
use crate::region::Region;
use gpool_shared_region::Slot;
use gpool_shared_region::atomic::Ordering;
#[cfg(loom)]
use gpool_shared_region::atomic::fence;

pub use gpool_shared_region::Call;

/// How often a refusal that may come from another process's passing reservation is tried again.
const RETRIES: u32 = if cfg!(loom) { 1 } else { 4 };

/// What a reservation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Device memory; sizes are rounded as the driver does, see [`rounded_bytes`].
    Bytes(u64),
    /// One CUDA context, at the supervisor's estimate of its cost.
    Context,
}

/// The device memory that an allocation of `bytes` takes: large ones whole 2 MiB pages, small ones 512 byte pieces
/// of a page that many share.
pub fn rounded_bytes(bytes: u64) -> u64 {
    let granule: u64 = if bytes >= 1 << 20 { 2 << 20 } else { 512 };
    bytes.saturating_add(granule - 1) / granule * granule
}

/// Memory held by one process on GPU `gpu`, contexts and what it shares with others included.
pub fn held_bytes(region: &Region, slot: &Slot, gpu: usize) -> u64 {
    let context_bytes = region.control().context_bytes.load(Ordering::Relaxed);
    let contexts = u64::from(slot.gpu_contexts[gpu].load(Ordering::Relaxed)).saturating_mul(context_bytes);
    let own = slot.gpu_bytes[gpu].load(Ordering::Relaxed).saturating_add(contexts);
    own.saturating_add(pieces::bytes_of(region, slot, gpu))
}

/// Memory held by the lease on GPU `gpu`, contexts included: the sum over the slots that were ever taken, and what
/// several may hold once.
#[inline(never)] // many ask
pub fn used_bytes(region: &Region, gpu: usize) -> u64 {
    // Contexts are counted first and multiplied once: this is most of what an allocation costs.
    let (mut bytes, mut contexts) = (0_u64, 0_u64);
    for slot in region.slots() {
        bytes = bytes.saturating_add(slot.gpu_bytes[gpu].load(Ordering::SeqCst));
        contexts += u64::from(slot.gpu_contexts[gpu].load(Ordering::SeqCst));
    }
    let control = region.control();
    let context_bytes = control.context_bytes.load(Ordering::Relaxed);
    let uncounted_bytes = control.uncounted_bytes[gpu].load(Ordering::Relaxed);
    let bytes = bytes.saturating_add(contexts.saturating_mul(context_bytes)).saturating_add(uncounted_bytes);
    bytes.saturating_add(pieces::bytes(region, gpu))
}

/// Whether `bytes` more on GPU `gpu` would be within the cap if `returned_bytes` of what is held there came back.
pub fn fits_without(region: &Region, gpu: usize, bytes: u64, returned_bytes: u64) -> bool {
    used_bytes(region, gpu).saturating_sub(returned_bytes).saturating_add(bytes) <= cap_bytes(region)
}

/// The lease's cap on each of its GPUs, in bytes.
pub fn cap_bytes(region: &Region) -> u64 {
    region.control().memory_cap_bytes.load(Ordering::Relaxed)
}

/// The account of the process in `slot` is about to be another one. Said first: who finds nothing under way and as many of
/// these as before knows that the account was the same one in between. See [`Slot::changes`].
#[inline(always)]
pub fn note_change(slot: &Slot) {
    // It takes no part in the protocol, and models would try all orders of it.
    #[cfg(not(loom))]
    slot.changes.fetch_add(1, Ordering::AcqRel);
    #[cfg(loom)]
    let _ = slot;
}

/// Adds to the GPU's account and to the sum, cap or not.
pub fn add(slot: &Slot, gpu: usize, charge: Charge) {
    note_change(slot);
    match charge {
        Charge::Bytes(bytes) => {
            slot.allocated_bytes.fetch_add(bytes, Ordering::AcqRel);
            slot.gpu_bytes[gpu].fetch_add(bytes, Ordering::SeqCst);
        }
        Charge::Context => {
            slot.contexts.fetch_add(1, Ordering::AcqRel);
            slot.gpu_contexts[gpu].fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Takes a charge back: after a free, or when the driver refused. Never below zero.
pub fn release(slot: &Slot, gpu: usize, charge: Charge) {
    note_change(slot);
    match charge {
        Charge::Bytes(bytes) => {
            for account in [&slot.gpu_bytes[gpu], &slot.allocated_bytes] {
                let lower = |now: u64| Some(now.saturating_sub(bytes));
                let _ = account.fetch_update(Ordering::AcqRel, Ordering::Relaxed, lower);
            }
        }
        Charge::Context => {
            for account in [&slot.gpu_contexts[gpu], &slot.contexts] {
                let lower = |now: u32| Some(now.saturating_sub(1));
                let _ = account.fetch_update(Ordering::AcqRel, Ordering::Relaxed, lower);
            }
        }
    }
}

/// One context on GPU `gpu` less, and with it the `allocated_bytes` that were allocated in it. With the last one
/// nothing can be left but the `device_bytes` that belong to no context.
pub fn release_context(slot: &Slot, gpu: usize, allocated_bytes: u64, device_bytes: u64) {
    release(slot, gpu, Charge::Bytes(allocated_bytes));
    release(slot, gpu, Charge::Context);
    if slot.gpu_contexts[gpu].load(Ordering::Acquire) == 0 {
        let left = slot.gpu_bytes[gpu].load(Ordering::Acquire).saturating_sub(device_bytes);
        release(slot, gpu, Charge::Bytes(left));
    }
}

/// Charges `charge` on GPU `gpu` to `slot` if the lease stays within its cap there; false, with nothing charged and
/// nothing said, otherwise.
///
/// What has no room as things stand is refused with the account untouched: a program that asks again and again has one that
/// stands still, which is what a context's cost is learnt from.
///
/// What has is added first and looked at then: two processes that race may both see the other's passing charge, so a refusal is
/// tried a few times; the cap is never passed, because both must have seen a sum within it. For that what is added, what
/// is summed and the mark of slots that were ever taken are sequentially consistent: of two that charge at once, one of
/// which may just have come, at least one sees the other.
#[inline(never)] // a dozen allocators call it
pub fn try_reserve(region: &Region, slot: &Slot, gpu: usize, charge: Charge) -> bool {
    // Nothing fits also where the cap has been lowered below what is held.
    if charge == Charge::Bytes(0) {
        return true;
    }
    // What can never fit is not even tried: an absurd size must not wrap the sum.
    let tries = if bytes_of(region, charge) > cap_bytes(region) { 0 } else { RETRIES + 1 };
    for left in (0..tries).rev() {
        // Without a supervisor what processes hold that have ended is nobody's.
        #[cfg(not(loom))]
        if left == 0 {
            ended::free(region, Some(slot));
        }
        #[cfg(loom)]
        let _ = left;
        if used_bytes(region, gpu).saturating_add(bytes_of(region, charge)) > cap_bytes(region) {
            core::hint::spin_loop();
            continue;
        }
        add(slot, gpu, charge);
        // Loom knows no sequential consistency but that of fences; on x86 one would cost as much as two locks.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        let used = used_bytes(region, gpu);
        if used <= cap_bytes(region) {
            note_peak(slot, used);
            return true;
        }
        release(slot, gpu, charge);
        core::hint::spin_loop();
    }
    false
}

/// Remembers in the report that the lease held so much on one of its GPUs, if that is the most so far. It is a figure for
/// people: a passing charge of another process that is refused in the same moment may be in it.
#[inline(always)]
pub fn note_peak(slot: &Slot, used_bytes: u64) {
    // It takes no part in the protocol, and models would try all orders of it.
    #[cfg(not(loom))]
    if used_bytes > slot.peak_bytes.load(Ordering::Relaxed) {
        slot.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
    }
    #[cfg(loom)]
    let _ = (slot, used_bytes);
}

/// Says in the report that `charge` was refused to `call`, and what was left then: of a [`Call`] alone, for want of room within the
/// cap; with [`Call::HAD_ROOM`], by the driver.
#[inline(never)]
pub fn refuse(region: &Region, slot: &Slot, gpu: usize, charge: Charge, call: u32) {
    let free_bytes = cap_bytes(region).saturating_sub(used_bytes(region, gpu));
    slot.refused_bytes.store(bytes_of(region, charge), Ordering::Relaxed);
    slot.refused_free_bytes.store(free_bytes, Ordering::Relaxed);
    slot.refused_gpu.store(gpu as u32, Ordering::Relaxed);
    slot.refused_call.store(call, Ordering::Relaxed);
    slot.refused.fetch_add(1, Ordering::Release);
}

fn bytes_of(region: &Region, charge: Charge) -> u64 {
    match charge {
        Charge::Bytes(bytes) => bytes,
        Charge::Context => region.control().context_bytes.load(Ordering::Relaxed),
    }
}

/// What cuMemGetInfo should say on GPU `gpu`: (free, total), with the device's own free memory as an upper bound.
pub fn visible(region: &Region, gpu: usize, device_free_bytes: u64) -> (u64, u64) {
    let cap = cap_bytes(region);
    (cap.saturating_sub(used_bytes(region, gpu)).min(device_free_bytes), cap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{race, region};

    /// As [`try_reserve`], and a refusal is said in the report.
    fn reserve(region: &Region, slot: &Slot, gpu: usize, charge: Charge) -> bool {
        let is_reserved = try_reserve(region, slot, gpu, charge);
        if !is_reserved {
            refuse(region, slot, gpu, charge, Call::MemAlloc as u32);
        }
        is_reserved
    }

    #[test]
    fn the_cap_holds_over_all_processes_and_contexts() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        region.control().context_bytes.store(300, Ordering::Relaxed);
        let (one, two) = (region.slot(0), region.slot(7));
        assert!(reserve(&region, one, 0, Charge::Context));
        assert!(reserve(&region, two, 0, Charge::Bytes(700)));
        assert!(!reserve(&region, one, 0, Charge::Bytes(1)));
        assert_eq!((used_bytes(&region, 0), one.refused.load(Ordering::Relaxed)), (1000, 1));
        assert_eq!(one.refused_call.load(Ordering::Relaxed), Call::MemAlloc as u32);
        assert_eq!(one.refused_free_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(visible(&region, 0, u64::MAX), (0, 1000));
        release(two, 0, Charge::Bytes(700));
        assert_eq!(visible(&region, 0, 500), (500, 1000));
    }

    #[test]
    fn what_would_not_fit_with_all_that_can_come_back_is_known_not_to() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        assert!(reserve(&region, region.slot(0), 0, Charge::Bytes(900)));
        assert!(fits_without(&region, 0, 400, 300) && !fits_without(&region, 0, 401, 300));
        assert!(fits_without(&region, 1, 1000, 0) && !fits_without(&region, 1, u64::MAX, u64::MAX), "on another GPU");
    }

    #[test]
    fn what_takes_nothing_fits_also_below_a_cap_that_was_lowered() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let slot = region.slot(0);
        assert!(reserve(&region, slot, 0, Charge::Bytes(700)));
        region.control().memory_cap_bytes.store(500, Ordering::Relaxed);
        assert!(reserve(&region, slot, 0, Charge::Bytes(0)) && !reserve(&region, slot, 0, Charge::Bytes(1)));
    }

    #[test]
    fn what_the_supervisor_has_seen_beside_the_account_takes_room() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        region.control().uncounted_bytes[1].store(600, Ordering::Relaxed);
        let slot = region.slot(0);
        assert!(reserve(&region, slot, 0, Charge::Bytes(700)), "that was on the other GPU");
        assert!(!reserve(&region, slot, 1, Charge::Bytes(401)) && reserve(&region, slot, 1, Charge::Bytes(400)));
        assert_eq!((visible(&region, 0, u64::MAX).0, visible(&region, 1, u64::MAX).0), (300, 0));
        region.control().uncounted_bytes[1].store(u64::MAX, Ordering::Relaxed);
        assert!(!reserve(&region, slot, 1, Charge::Bytes(1)));
    }

    #[test]
    fn each_gpu_has_its_cap_and_a_context_takes_its_bytes_along() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        region.control().context_bytes.store(100, Ordering::Relaxed);
        let slot = region.slot(0);
        for gpu in [0, 1, 1] {
            assert!(reserve(&region, slot, gpu, Charge::Context));
        }
        assert!(reserve(&region, slot, 0, Charge::Bytes(900)));
        assert!(!reserve(&region, slot, 0, Charge::Bytes(1)), "the first GPU is full");
        assert!(reserve(&region, slot, 1, Charge::Bytes(500)), "the second is not");
        assert_eq!((slot.allocated_bytes.load(Ordering::Relaxed), slot.contexts.load(Ordering::Relaxed)), (1400, 3));
        release_context(slot, 1, 200, 0);
        assert_eq!((used_bytes(&region, 0), used_bytes(&region, 1)), (1000, 400));
        release_context(slot, 1, 0, 50);
        assert_eq!((used_bytes(&region, 0), used_bytes(&region, 1)), (1000, 50), "the last one leaves what is not its");
        assert_eq!((slot.allocated_bytes.load(Ordering::Relaxed), slot.contexts.load(Ordering::Relaxed)), (950, 1));
    }

    #[test]
    fn racing_processes_never_pass_the_cap() {
        let region = region();
        region.control().memory_cap_bytes.store(100, Ordering::Relaxed);
        let most = race(
            |process| reserve(&region, region.slot(process), 0, Charge::Bytes(40)),
            |process| release(region.slot(process), 0, Charge::Bytes(40)),
        );
        assert!((40..=80).contains(&most), "two fit, three do not");
        assert_eq!(used_bytes(&region, 0), 0, "nothing leaks");
    }

    #[test]
    fn the_most_that_was_held_is_remembered_and_what_was_refused_is_no_part_of_it() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let (one, two) = (region.slot(0), region.slot(1));
        assert!(reserve(&region, one, 0, Charge::Bytes(400)) && reserve(&region, two, 0, Charge::Bytes(500)));
        assert!(!reserve(&region, one, 0, Charge::Bytes(200)) && reserve(&region, one, 1, Charge::Bytes(300)));
        let peaks = || [one, two].map(|slot| slot.peak_bytes.load(Ordering::Relaxed));
        assert_eq!(peaks(), [400, 900], "each says what the lease held when it asked itself");
        release(one, 0, Charge::Bytes(400));
        release(two, 0, Charge::Bytes(500));
        assert!(reserve(&region, one, 0, Charge::Bytes(600)));
        assert_eq!(peaks(), [600, 900], "what was given back stays in it");
    }

    /// Otherwise nobody could tell what a context costs while a program asks for memory without a pause.
    #[test]
    fn who_is_refused_again_and_again_has_an_account_that_stands_still() {
        let region = region();
        region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let slot = region.slot(0);
        assert!(reserve(&region, slot, 0, Charge::Bytes(900)));
        let changes = || slot.changes.load(Ordering::Relaxed);
        assert_eq!(changes(), 1);
        assert!((0..50).all(|_| !reserve(&region, slot, 0, Charge::Bytes(200))));
        assert_eq!((changes(), slot.refused.load(Ordering::Relaxed)), (1, 50));
        release(slot, 0, Charge::Bytes(900));
        assert!(reserve(&region, slot, 0, Charge::Bytes(900)));
        assert_eq!(changes(), 3, "it holds the same, and did not in between");
    }

    #[test]
    fn an_absurd_size_is_refused_and_changes_nothing() {
        let region = region();
        region.control().memory_cap_bytes.store(4 << 30, Ordering::Relaxed);
        let slot = region.slot(0);
        assert!(reserve(&region, slot, 0, Charge::Bytes(3 << 30)));
        for size in [u64::MAX, rounded_bytes(u64::MAX), u64::MAX - (3 << 30), 1 << 63] {
            assert!(!reserve(&region, slot, 0, Charge::Bytes(size)));
        }
        assert_eq!(used_bytes(&region, 0), 3 << 30);
    }

    #[test]
    fn sizes_are_rounded_as_the_driver_does() {
        assert_eq!([1, 512, 513, 1 << 20, (2 << 20) + 1].map(rounded_bytes), [512, 512, 1024, 2 << 20, 4 << 20]);
        assert!(rounded_bytes(u64::MAX) > 1 << 60);
    }
}
