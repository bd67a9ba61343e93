//! Taking a place in the region.

use crate::clock;
use crate::region::{Region, RegionError};
#[cfg(not(loom))]
use crate::{ended, futex};
use core::sync::atomic::Ordering;
use gpool_shared_region::{SLOT_BYTES, SLOTS, VERSION};

/// How long a process that wants its first memory waits for the supervisor to have seen it. Without the wait, one
/// killed at once after its first allocation could be charged to nobody.
const ACCEPT_LIMIT_NS: u64 = 500_000_000;
/// The supervisor wakes who waits for its answer; one that does not know that is looked at as often as this.
const ACCEPT_PAUSE_NS: u64 = 200_000;

/// A process's place in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Index of its slot.
    pub slot: usize,
    /// Its pid in its own namespace; a forked child has another one and no place.
    pub process_id: i32,
    /// What it has written there as [`Slot::registration`](gpool_shared_region::Slot::registration).
    pub number: u64,
}

impl Registration {
    /// Whether the calling process is the one that has registered, and none that it has forked.
    pub(crate) fn is_own(&self) -> bool {
        // SAFETY: getpid cannot fail.
        unsafe { libc::getpid() == self.process_id }
    }
}

/// Takes a free slot and tells the supervisor. It need not have seen that before something is charged: see [`confirm`].
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
    #[cfg(not(loom))]
    ended::free(region, None);
    let lock = |index, kind| lock_slot(region.report_fd(), index, kind);
    let index = take_slot(region, process_id, number, lock).ok_or(RegionError::Full)?;
    #[cfg(not(loom))]
    ended::sign(region.slot(index));
    region.ring(index);
    Ok(Registration { slot: index, process_id, number })
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
        region.note_taken(index);
        slot.process_id.store(process_id as u32, Ordering::Relaxed);
        slot.shim_version.store(VERSION, Ordering::Relaxed);
        slot.registration.store(number, Ordering::Release);
        return Some(index);
    }
    None
}

/// Waits until the supervisor holds the process by a pidfd, so that nothing is charged to one whose end nobody would
/// see; at most half a second, and not at all while no supervisor is there. False if its place has gone to another
/// process.
#[cfg(not(loom))]
pub fn confirm(region: &Region, registration: &Registration) -> bool {
    let start_ns = clock::now_ns();
    let mut registration = *registration;
    let accepted = &region.control().slots[registration.slot].accepted;
    loop {
        let seen = accepted.load(Ordering::Acquire);
        if seen == registration.number {
            return true;
        }
        match hold_slot(region, &registration, |index, kind| lock_slot(region.report_fd(), index, kind)) {
            Hold::Held => {}
            Hold::Again(number) => {
                registration.number = number;
                region.ring(registration.slot);
            }
            Hold::Lost => return false,
        }
        let now_ns = clock::now_ns();
        if now_ns - start_ns > ACCEPT_LIMIT_NS || region.supervisor_is_away(now_ns) {
            return true;
        }
        futex::wait_low(accepted, seen, ACCEPT_PAUSE_NS);
    }
}

/// What has become of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is still this process's.
    Held,
    /// It had been freed, and is this process's again, under this number: of the one before the supervisor has heard.
    Again(u64),
    /// It is another process's.
    Lost,
}

/// Makes sure of the slot of a process that has not been accepted yet. A program that closes descriptors wholesale drops
/// the record lock with them, and a slot that nobody holds is freed. `lock` is as for [`take_slot`], and may be asked for
/// a lock that the process has.
pub fn hold_slot(region: &Region, registration: &Registration, lock: impl Fn(usize, i32) -> bool) -> Hold {
    if !lock(registration.slot, libc::F_WRLCK) {
        return Hold::Lost;
    }
    let slot = region.slot(registration.slot);
    match slot.registration.load(Ordering::Acquire) {
        0 => {
            slot.process_id.store(registration.process_id as u32, Ordering::Relaxed);
            slot.shim_version.store(VERSION, Ordering::Relaxed);
            let number = registration.number.wrapping_add(2);
            slot.registration.store(number, Ordering::Release);
            #[cfg(not(loom))]
            ended::sign(slot);
            Hold::Again(number)
        }
        number if number == registration.number => Hold::Held,
        _ => {
            lock(registration.slot, libc::F_UNLCK);
            Hold::Lost
        }
    }
}

/// Takes the record lock of slot `index` (F_WRLCK) or gives it back (F_UNLCK); whether it did. To this process's own threads it is
/// never locked.
pub(crate) fn lock_slot(fd: i32, index: usize, kind: i32) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::region;

    /// The lock as it is when nobody else has it.
    const FREE: fn(usize, i32) -> bool = |_, _| true;

    #[test]
    fn a_slot_that_was_freed_too_early_is_taken_again_under_another_number() {
        let region = region();
        let slot = take_slot(&region, 40, 7, FREE).unwrap();
        let registration = Registration { slot, process_id: 40, number: 7 };
        assert_eq!(hold_slot(&region, &registration, FREE), Hold::Held);
        region.slot(slot).registration.store(0, Ordering::Relaxed);
        region.slot(slot).process_id.store(0, Ordering::Relaxed);
        assert_eq!(hold_slot(&region, &registration, FREE), Hold::Again(9));
        assert_eq!(region.slot(slot).registration.load(Ordering::Relaxed), 9);
        assert_eq!(region.slot(slot).process_id.load(Ordering::Relaxed), 40);
        let again = Registration { number: 9, ..registration };
        assert_eq!(hold_slot(&region, &again, FREE), Hold::Held);
        assert_eq!(hold_slot(&region, &again, |_, _| false), Hold::Lost, "another process has the lock");
        region.slot(slot).registration.store(5, Ordering::Relaxed);
        assert_eq!(hold_slot(&region, &again, FREE), Hold::Lost, "another process had it and has died");
    }

    #[test]
    fn memory_waits_for_the_supervisors_word_and_for_no_other() {
        let region = region();
        region.control().heartbeat_ns.store(u64::MAX / 2, Ordering::Relaxed);
        let slot = take_slot(&region, 40, 7, FREE).unwrap();
        let registration = Registration { slot, process_id: 40, number: 7 };
        let accepted = &region.control().slots[slot].accepted;
        accepted.store(5, Ordering::Release);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| confirm(&region, &registration));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished(), "that was the slot's process before");
            accepted.store(7, Ordering::Release);
            assert!(waiting.join().unwrap());
        });
        region.control().heartbeat_ns.store(0, Ordering::Relaxed);
        accepted.store(5, Ordering::Release);
        assert!(confirm(&region, &registration), "nobody is there to be waited for");
        region.slot(slot).registration.store(9, Ordering::Relaxed);
        assert!(!confirm(&region, &registration), "the place is another process's");
    }
}
