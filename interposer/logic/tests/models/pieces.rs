//! Pieces that several processes hold, made, taken hold of and handed on while others charge.

use super::lease::Lease;
use gpool_interposer_logic::memory::{Charge, release, try_reserve, used_bytes};
use gpool_interposer_logic::pieces::{Holds, Taken};
use gpool_shared_region::PieceSize;
use loom::sync::atomic::Ordering;
use loom::thread;
use std::sync::Arc;

const PAGE: u64 = 4096;
const NAME: u64 = 5;
const OTHER_NAME: u64 = 9;

fn lease(cap_pages: u64) -> Arc<Lease> {
    let lease = Lease::new();
    lease.control().memory_cap_bytes.store(cap_pages * PAGE, Ordering::Relaxed);
    lease
}

fn pages(count: u64) -> PieceSize {
    PieceSize::new(0, count * PAGE).expect("whole pages")
}

/// A piece of `count` pages that nobody holds.
fn abandoned(lease: &Lease, count: u64) {
    let mut holds = Holds::new();
    let index = holds.make(lease, lease.slot(0), NAME, pages(count)).expect("there is room");
    holds.leave(lease.slot(0), index);
}

/// As a call of the process in `slot` does.
fn reserve(lease: &Lease, slot: usize, count: u64) -> bool {
    let changing = &lease.slot(slot).changing;
    changing.fetch_add(1, Ordering::AcqRel);
    let is_reserved = try_reserve(lease, lease.slot(slot), 0, Charge::Bytes(count * PAGE));
    changing.fetch_sub(1, Ordering::AcqRel);
    is_reserved
}

/// Whoever sums up sees the slots in their order, so it matters which way a piece goes.
fn goes_on(cap_pages: u64, from: usize, to: usize) {
    loom::model(move || {
        let lease = lease(cap_pages);
        let mut maker = Holds::new();
        let index = maker.make(&lease, lease.slot(from), NAME, pages(6)).expect("there is room");
        let handed_on = {
            let lease = lease.clone();
            thread::spawn(move || {
                let taken = Holds::new().take(&lease, lease.slot(to), NAME);
                if taken == Taken::Held(index) {
                    maker.leave(lease.slot(from), index);
                }
            })
        };
        // A thread of the process that has had the piece.
        assert!(!reserve(&lease, from, 5), "nobody counted the piece");
        handed_on.join().unwrap();
        assert_eq!(used_bytes(&lease, 0), 6 * PAGE);
    });
}

#[test]
fn a_piece_that_goes_from_one_process_to_the_other_is_always_charged() {
    goes_on(10, 0, 1);
    goes_on(10, 1, 0);
}

#[test]
fn so_is_one_of_a_lease_above_its_cap() {
    goes_on(5, 0, 1);
    goes_on(5, 1, 0);
}

#[test]
fn memory_that_becomes_a_piece_is_always_charged() {
    loom::model(|| {
        let lease = lease(10);
        assert!(reserve(&lease, 0, 6));
        let making = {
            let lease = lease.clone();
            thread::spawn(move || {
                Holds::new().make(&lease, lease.slot(0), NAME, pages(6)).expect("there is room");
                release(lease.slot(0), 0, Charge::Bytes(6 * PAGE));
            })
        };
        assert!(!reserve(&lease, 1, 5), "neither the memory nor the piece was counted");
        making.join().unwrap();
        assert_eq!(used_bytes(&lease, 0), 6 * PAGE);
    });
}

#[test]
fn who_takes_hold_of_what_nobody_holds_and_who_charges_never_pass_the_cap_together() {
    loom::model(|| {
        let lease = lease(10);
        abandoned(&lease, 6);
        let taking = {
            let lease = lease.clone();
            thread::spawn(move || matches!(Holds::new().take(&lease, lease.slot(1), NAME), Taken::Held(_)))
        };
        let is_reserved = reserve(&lease, 0, 5);
        let is_taken = taking.join().unwrap();
        assert!(!(is_reserved && is_taken), "one of the two did not count the other");
        let expected = u64::from(is_reserved) * 5 + u64::from(is_taken) * 6;
        assert_eq!(used_bytes(&lease, 0), expected * PAGE, "a refusal leaves nothing");
    });
}

#[test]
fn a_place_is_not_made_anew_under_who_takes_hold_of_what_was_there() {
    loom::model(|| {
        let lease = lease(100);
        abandoned(&lease, 6);
        let taking = {
            let lease = lease.clone();
            thread::spawn(move || matches!(Holds::new().take(&lease, lease.slot(1), NAME), Taken::Held(_)))
        };
        let is_made = Holds::new().make(&lease, lease.slot(0), OTHER_NAME, pages(2)).is_some();
        let is_taken = taking.join().unwrap();
        assert!(!(is_made && is_taken), "one place for two");
        let expected = u64::from(is_made) * 2 + u64::from(is_taken) * 6;
        assert_eq!(used_bytes(&lease, 0), expected * PAGE);
    });
}

#[test]
fn two_that_make_pieces_never_share_a_place() {
    loom::model(|| {
        let lease = lease(100);
        let other = {
            let lease = lease.clone();
            thread::spawn(move || Holds::new().make(&lease, lease.slot(1), OTHER_NAME, pages(6)).is_some())
        };
        let own = Holds::new().make(&lease, lease.slot(0), NAME, pages(2)).is_some();
        let other = other.join().unwrap();
        assert!(!(own && other), "one place for two");
        assert_eq!(used_bytes(&lease, 0), (u64::from(own) * 2 + u64::from(other) * 6) * PAGE);
        let mut third = Holds::new();
        let found = [NAME, OTHER_NAME].map(|name| matches!(third.take(&lease, lease.slot(0), name), Taken::Held(_)));
        assert_eq!(found, [own, other], "each is found by its name");
    });
}
