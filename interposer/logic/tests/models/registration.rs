//! Taking a slot, and freeing that of a process that has died.

use super::lease::Lease;
use gpool_interposer_logic::memory::{self, Charge};
use gpool_interposer_logic::registration::{Hold, Registration, hold_slot, take_slot};
use gpool_shared_region::SLOTS;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;

/// The record locks on the slots' first bytes: the process that holds each, 0 for none.
#[derive(Default)]
struct Locks([AtomicU32; SLOTS]);

impl Locks {
    fn lock(&self, process: i32, index: usize, kind: i32) -> bool {
        if kind == libc::F_UNLCK {
            self.0[index].store(0, Ordering::Release);
            return true;
        }
        self.0[index].compare_exchange(0, process as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Locks {
    /// As the kernel has it for a lock that the process holds already.
    fn lock_again(&self, process: i32, index: usize, kind: i32) -> bool {
        let is_its = kind == libc::F_WRLCK && self.0[index].load(Ordering::Acquire) == process as u32;
        is_its || self.lock(process, index, kind)
    }
}

fn take(lease: &Lease, locks: &Locks, process: i32) -> Option<usize> {
    take_slot(lease, process, process as u64 * 10 + 1, |index, kind| locks.lock(process, index, kind))
}

/// What the supervisor reads of a slot, and whom it asks the kernel for.
fn look(lease: &Lease, locks: &Locks, index: usize) {
    let slot = lease.slot(index);
    let registration = slot.registration.load(Ordering::Acquire);
    if registration == 0 {
        return;
    }
    let process = slot.process_id.load(Ordering::Relaxed);
    assert_eq!(registration, u64::from(process) * 10 + 1, "half a registration");
    assert_eq!(process, locks.0[index].load(Ordering::Acquire), "the lock names another process");
}

#[test]
fn each_slot_has_one_process_and_the_lock_names_it() {
    loom::model(|| {
        let (lease, locks) = (Lease::new(), Arc::new(Locks::default()));
        let processes = [1, 2].map(|process| {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || take(&lease, &locks, process))
        });
        // The supervisor looks up by the lock who has registered. A thread like the others and behind them: loom looks for
        // other orders where a load follows a store, and not where a store follows a load of the storing thread.
        let supervisor = {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || (0..SLOTS).for_each(|index| look(&lease, &locks, index)))
        };
        let [first, second] = processes.map(|process| process.join().unwrap());
        supervisor.join().unwrap();
        assert!(first.is_some() && second.is_some() && first != second, "{first:?} and {second:?}");
    });
}

#[test]
fn a_slot_that_has_been_freed_is_clean() {
    loom::model(|| {
        let (lease, locks) = (Lease::new(), Arc::new(Locks::default()));
        // Slot 0 is that of a process that has died, so that its lock has fallen; slot 1 is taken.
        let slot = lease.slot(0);
        slot.registration.store(5, Ordering::Relaxed);
        slot.process_id.store(9, Ordering::Relaxed);
        memory::add(slot, 0, Charge::Bytes(100));
        lease.slot(1).registration.store(7, Ordering::Relaxed);
        let process = {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || {
                let taken = take(&lease, &locks, 2);
                taken.into_iter().for_each(|index| memory::add(lease.slot(index), 0, Charge::Bytes(7)));
                taken
            })
        };
        // As RegionHost::clear_slot: everything behind the registration, then the registration.
        slot.process_id.store(0, Ordering::Relaxed);
        slot.gpu_bytes[0].store(0, Ordering::Relaxed);
        slot.registration.store(0, Ordering::Release);
        if let Some(index) = process.join().unwrap() {
            assert_eq!(index, 0);
            assert_eq!(slot.process_id.load(Ordering::Relaxed), 2, "cleared after it was taken");
            assert_eq!(slot.gpu_bytes[0].load(Ordering::Relaxed), 7, "cleared after it was used");
        } else {
            assert_eq!(locks.0[0].load(Ordering::Relaxed), 0, "a lock that nobody needs");
        }
    });
}

#[test]
fn a_slot_whose_process_died_stays_taken_until_it_is_freed() {
    loom::model(|| {
        let (lease, locks) = (Lease::new(), Arc::new(Locks::default()));
        let short_lived = {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || {
                let index = take(&lease, &locks, 1).expect("two slots for two processes");
                // Its lock falls with it.
                locks.lock(1, index, libc::F_UNLCK);
                index
            })
        };
        let own = take(&lease, &locks, 2);
        assert_ne!(Some(short_lived.join().unwrap()), own, "its bytes would be charged to nobody");
    });
}

#[test]
fn a_slot_whose_lock_fell_too_early_is_never_that_of_two() {
    loom::model(|| {
        let (lease, locks) = (Lease::new(), Arc::new(Locks::default()));
        lease.slot(1).registration.store(7, Ordering::Relaxed);
        let slot = take(&lease, &locks, 1).expect("slot 0 is free");
        let early = {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || {
                // It closes descriptors, and wants its first memory later.
                locks.lock(1, slot, libc::F_UNLCK);
                let registration = Registration { slot, process_id: 1, number: 11 };
                hold_slot(&lease, &registration, |index, kind| locks.lock_again(1, index, kind))
            })
        };
        let late = {
            let (lease, locks) = (lease.clone(), locks.clone());
            thread::spawn(move || take(&lease, &locks, 2))
        };
        // The supervisor, which frees what is taken and locked by nobody.
        let freed = lease.slot(0);
        if freed.registration.load(Ordering::Acquire) == 11 && locks.0[0].load(Ordering::Acquire) == 0 {
            freed.process_id.store(0, Ordering::Relaxed);
            freed.registration.store(0, Ordering::Release);
        }
        let (early, late) = (early.join().unwrap(), late.join().unwrap());
        let holder = locks.0[0].load(Ordering::Relaxed);
        assert!(early == Hold::Lost || late.is_none(), "{early:?} and {late:?}");
        assert!(early == Hold::Lost || holder == 1, "the lock names another process");
        assert!(late.is_none() || holder == 2, "the lock names another process");
    });
}
