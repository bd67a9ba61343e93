//! Waiting for work: sleep until it should be complete, look again.

use crate::context::why_gone;
use crate::driver::{Driver, Outcome, lost};
use crate::objects::Place;
use crate::pool;
use gpool_device_model::Ticket;
use gpool_driver_abi::cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;

/// Returns when `ticket` is complete. Late wake-ups delay the caller, never the device's accounts.
pub(crate) fn wait(driver: &Driver, place: Place, ticket: Ticket) -> Outcome {
    loop {
        // The look into the future runs on a copy, so that nobody else waits for it.
        let device = driver.store(place)?.snapshot().map_err(lost)?;
        if !device.has_context(place.id) {
            return Err(why_gone(&device, place.id));
        }
        if device.last_completed(place.id) >= ticket {
            return pool::synchronized(driver);
        }
        let due_ns = device.projected_completion(place.id, ticket).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        sleep_until(due_ns);
    }
}

/// Sleeps until CLOCK_MONOTONIC shows `due_ns`, or a signal comes.
fn sleep_until(due_ns: u64) {
    let due = libc::timespec { tv_sec: (due_ns / 1_000_000_000) as i64, tv_nsec: (due_ns % 1_000_000_000) as i64 };
    // SAFETY: the time is a valid local, and an absolute sleep writes no remainder.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &due, std::ptr::null_mut()) };
}
