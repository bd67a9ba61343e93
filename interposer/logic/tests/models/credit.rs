//! Launches that pass on credit while a gate closes or the credit is taken away.

use super::lease::{Lease, until};
use gpool_interposer_logic::Work;
use gpool_interposer_logic::credit::{Credit, Stripe};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

const STREAM: usize = 7;
const COST_NS: u32 = 10;

fn work() -> Work {
    Work::handle(without_provenance_mut::<c_void>(0x1000))
}

/// A lease with an open gate, and a line with credit for `launches` behind it.
fn opened(launches: u32) -> (Arc<Lease>, Arc<Stripe>) {
    let (lease, stripe) = (Lease::new(), Arc::new(Stripe::default()));
    let word = lease.control().open_gate(1, until(1000));
    let credit = Credit { burst: 0, work: work(), left_ns: launches * COST_NS };
    stripe.grant(word.0, without_provenance_mut(STREAM), None, credit);
    (lease, stripe)
}

fn admits(lease: &Lease, stripe: &Stripe) -> bool {
    stripe.admits(&lease.control().gate, without_provenance_mut(STREAM), work(), || COST_NS)
}

/// Tries to launch three times; how many of the launches passed, and how many of those after `is_over` could be seen.
fn launch(lease: &Lease, stripe: &Stripe, is_over: &AtomicU32) -> (u32, u32) {
    let (mut passed, mut late) = (0, 0);
    for _ in 0..3 {
        if admits(lease, stripe) {
            passed += 1;
            late += is_over.load(Ordering::Acquire);
        }
    }
    (passed, late)
}

#[test]
fn after_a_close_each_thread_passes_once_at_most() {
    loom::model(|| {
        let (lease, stripe) = opened(100);
        let is_closed = Arc::new(AtomicU32::new(0));
        let thread = {
            let (lease, stripe, is_closed) = (lease.clone(), stripe.clone(), is_closed.clone());
            thread::spawn(move || launch(&lease, &stripe, &is_closed))
        };
        lease.control().close_gate();
        is_closed.store(1, Ordering::Release);
        let (_, late) = thread.join().unwrap();
        assert!(late <= 1, "{late} launches passed after the close had been seen");
        assert!(!admits(&lease, &stripe), "whoever knows of the close does not pass");
    });
}

#[test]
fn a_gate_that_opens_again_gives_no_old_credit() {
    loom::model(|| {
        let (lease, stripe) = opened(100);
        let thread = {
            let (lease, stripe) = (lease.clone(), stripe.clone());
            thread::spawn(move || launch(&lease, &stripe, &AtomicU32::new(0)))
        };
        lease.control().close_gate();
        lease.control().open_gate(2, until(2000));
        thread.join().unwrap();
        assert!(!admits(&lease, &stripe), "the credit belongs to the word before");
    });
}

#[test]
fn after_the_credit_is_taken_away_one_launch_passes_at_most() {
    loom::model(|| {
        let (lease, stripe) = opened(100);
        let is_revoked = Arc::new(AtomicU32::new(0));
        let thread = {
            let (lease, stripe, is_revoked) = (lease.clone(), stripe.clone(), is_revoked.clone());
            thread::spawn(move || launch(&lease, &stripe, &is_revoked))
        };
        // The watcher, which ends a burst that nobody seems to add to.
        let (burst, spent) = stripe.revoke().expect("there is a burst");
        is_revoked.store(1, Ordering::Release);
        let (passed, late) = thread.join().unwrap();
        assert!(late <= 1, "{late} launches passed on credit that had been taken away");
        assert_eq!(burst, 0);
        assert!(spent.left_ns <= 100 * COST_NS && (1..=1 + passed).contains(&spent.launches));
        assert!(!admits(&lease, &stripe), "what the thread wrote back is worth nothing");
        assert_eq!(stripe.revoke(), None, "and is nobody's burst");
        assert_eq!(stripe.left_ns(), 0);
    });
}

#[test]
fn two_threads_on_one_line_pass_once_each_on_the_last_credit() {
    loom::model(|| {
        let (lease, stripe) = opened(1);
        let thread = {
            let (lease, stripe) = (lease.clone(), stripe.clone());
            thread::spawn(move || launch(&lease, &stripe, &AtomicU32::new(0)).0)
        };
        let own = launch(&lease, &stripe, &AtomicU32::new(0)).0;
        let other = thread.join().unwrap();
        assert!(own <= 1 && other <= 1 && own + other >= 1, "{own} and {other}");
        assert!(stripe.left_ns() <= COST_NS, "credit never grows by spending it");
    });
}
