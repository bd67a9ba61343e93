//! Reserving against the cap.

use super::lease::Lease;
use gpool_interposer_logic::memory::{Charge, release, try_reserve, used_bytes};
use gpool_interposer_logic::registration::take_slot;
use loom::sync::atomic::Ordering;
use loom::thread;

fn lease(cap_bytes: u64) -> std::sync::Arc<Lease> {
    let lease = Lease::new();
    lease.control().memory_cap_bytes.store(cap_bytes, Ordering::Relaxed);
    lease.control().context_bytes.store(30, Ordering::Relaxed);
    lease
}

#[test]
fn two_processes_never_pass_the_cap_together() {
    for charge in [Charge::Bytes(60), Charge::Context] {
        let bytes = if charge == Charge::Context { 30 } else { 60 };
        loom::model(move || {
            let lease = lease(bytes * 2 - 1);
            let other = {
                let lease = lease.clone();
                thread::spawn(move || try_reserve(&lease, lease.slot(1), 0, charge))
            };
            let own = try_reserve(&lease, lease.slot(0), 0, charge);
            let granted = u64::from(own) + u64::from(other.join().unwrap());
            assert!(granted <= 1, "both fit only one by one");
            assert_eq!(used_bytes(&lease, 0), granted * bytes, "a refusal leaves nothing");
        });
    }
}

#[test]
fn a_process_that_has_just_come_and_one_that_charges_never_pass_the_cap_together() {
    loom::model(|| {
        let lease = lease(100);
        let come = |process| take_slot(&lease, process, 1, |_, _| true).expect("there is room");
        assert_eq!(come(7), 0);
        let newcomer = {
            let lease = lease.clone();
            thread::spawn(move || {
                let index = take_slot(&lease, 8, 3, |_, _| true).expect("there is room");
                try_reserve(&lease, lease.slot(index), 0, Charge::Bytes(60))
            })
        };
        let own = try_reserve(&lease, lease.slot(0), 0, Charge::Bytes(60));
        let granted = u64::from(own) + u64::from(newcomer.join().unwrap());
        assert!(granted <= 1, "one of the two did not count the other");
        assert_eq!(used_bytes(&lease, 0), granted * 60, "a refusal leaves nothing");
    });
}

#[test]
fn two_threads_of_one_process_never_pass_the_cap_with_a_third() {
    // Three threads have many more orders than two.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.map(|bound| bound - 1);
    model.check(|| {
        let lease = lease(100);
        let others = [0, 1].map(|slot| {
            let lease = lease.clone();
            thread::spawn(move || try_reserve(&lease, lease.slot(slot), 0, Charge::Bytes(51)))
        });
        let own = try_reserve(&lease, lease.slot(0), 0, Charge::Bytes(51));
        let granted = others.map(|thread| thread.join().unwrap()).into_iter().filter(|is_granted| *is_granted).count();
        assert!(granted + usize::from(own) <= 1);
        assert_eq!(used_bytes(&lease, 0), (granted as u64 + u64::from(own)) * 51);
    });
}

#[test]
fn what_the_driver_refused_and_what_was_freed_is_given_back_once() {
    loom::model(|| {
        let lease = lease(100);
        let other = {
            let lease = lease.clone();
            thread::spawn(move || {
                let is_reserved = try_reserve(&lease, lease.slot(1), 0, Charge::Bytes(60));
                if is_reserved {
                    release(lease.slot(1), 0, Charge::Bytes(60));
                }
            })
        };
        let is_reserved = try_reserve(&lease, lease.slot(0), 0, Charge::Bytes(60));
        other.join().unwrap();
        assert_eq!(used_bytes(&lease, 0), if is_reserved { 60 } else { 0 });
        release(lease.slot(0), 0, Charge::Bytes(100));
        assert_eq!(used_bytes(&lease, 0), 0, "never below zero");
    });
}
