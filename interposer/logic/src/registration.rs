//! Taking a place in the region.

use crate::clock;
use crate::region::{Region, RegionError};
use core::sync::atomic::Ordering;
use gpool_shared_region::{SLOT_BYTES, SLOTS, VERSION};

/// How long a new process waits for the supervisor to have seen it. Without the wait, a process killed at once
/// after its first allocation could be charged to nobody.
const ACCEPT_LIMIT_NS: u64 = 500_000_000;
/// First look for the supervisor's answer; each further one is twice as late, up to the second figure.
const ACCEPT_PAUSE_NS: u64 = 25_000;
const ACCEPT_PAUSE_MOST_NS: u64 = 200_000;

/// A process's place in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Index of its slot.
    pub slot: usize,
    /// Its pid in its own namespace; a forked child has another one and no place.
    pub process_id: i32,
}

/// Takes a free slot, tells the supervisor, and waits until it has been seen.
///
/// The POSIX lock on the slot's first byte tells the host which process this is: F_GETLK on the host answers
/// with the host's pid. It is not inherited by fork, and the kernel drops it with the process.
///
/// # Errors
/// [`RegionError::Full`] when all slots are taken.
pub fn register(region: &Region) -> Result<Registration, RegionError> {
    // SAFETY: getpid cannot fail.
    let process_id = unsafe { libc::getpid() };
    let number = clock::now_ns() | 1;
    let lock = |index, kind| lock_slot(region.report_fd(), index, kind);
    let index = take_slot(region, process_id, number, lock).ok_or(RegionError::Full)?;
    region.ring(index);
    wait_until_accepted(region, index, number);
    Ok(Registration { slot: index, process_id })
}

/// Takes a free slot for `process_id` under the registration `number`. `lock` takes the record lock of a slot
/// (F_WRLCK) or gives it back (F_UNLCK); whether it did.
pub fn take_slot(region: &Region, process_id: i32, number: u64, lock: impl Fn(usize, i32) -> bool) -> Option<usize> {
    for index in 0..SLOTS {
        let slot = region.slot(index);
        if slot.registration.load(Ordering::Acquire) != 0 || !lock(index, libc::F_WRLCK) {
            continue;
        }
        if slot.registration.load(Ordering::Acquire) != 0 {
            // The supervisor has not freed it yet, or another process was quicker.
            lock(index, libc::F_UNLCK);
            continue;
        }
        slot.process_id.store(process_id as u32, Ordering::Relaxed);
        slot.shim_version.store(VERSION, Ordering::Relaxed);
        region.note_taken(index);
        slot.registration.store(number, Ordering::Release);
        return Some(index);
    }
    None
}

fn wait_until_accepted(region: &Region, index: usize, registration: u64) {
    let start_ns = clock::now_ns();
    let accepted = &region.control().slots[index].accepted;
    // The supervisor has been rung and mostly answers in a fraction of this.
    let mut pause_ns = ACCEPT_PAUSE_NS;
    loop {
        let now_ns = clock::now_ns();
        if accepted.load(Ordering::Acquire) == registration
            || now_ns - start_ns > ACCEPT_LIMIT_NS
            || region.supervisor_is_away(now_ns)
        {
            return;
        }
        clock::sleep_until_ns(now_ns + pause_ns);
        pause_ns = (pause_ns * 2).min(ACCEPT_PAUSE_MOST_NS);
    }
}

fn lock_slot(fd: i32, index: usize, kind: i32) -> bool {
    if fd < 0 {
        return true;
    }
    // SAFETY: all-zero is a valid flock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = (index * SLOT_BYTES) as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` is a valid description of one byte.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &lock) == 0 }
}
