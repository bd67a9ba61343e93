//! Standing at the gate: what is said, the bell, and the word that is waited for.

use super::lease::{Bell, Lease, until};
use gpool_interposer_logic::announce::{say, say_issued};
use gpool_interposer_logic::futex::{self, Mutex};
use gpool_shared_region::{Demand, GateWord, Slot};
use loom::sync::atomic::Ordering;
use loom::thread;
use std::sync::Arc;

/// When the process's work ends: it may go on behind a gate that is open until later.
const END_NS: u64 = 10;

/// As the slow path does: looks, says that it waits, rings, and sleeps on the word that it saw. The word behind which it
/// passed.
fn pass(lease: &Lease, bell: &Bell) -> GateWord {
    loop {
        let word = lease.gate();
        if word.is_open() && END_NS < lease.control().until_ns.load(Ordering::Relaxed) {
            say_issued(lease.slot(0), word.0, END_NS);
            return word;
        }
        say(lease.slot(0), Demand::Waiting, word.0, END_NS);
        bell.ring();
        futex::wait(&lease.control().gate, word.0, None);
    }
}

/// What the supervisor reads of a slot: what is wanted, for which word, and until when.
fn read(slot: &Slot) -> (Demand, u32, u64) {
    let demand = Demand::from_word(slot.demand.load(Ordering::Acquire));
    (demand, slot.demand_word.load(Ordering::Relaxed), slot.estimated_end_ns.load(Ordering::Relaxed))
}

fn open(lease: &Lease, until_ns: u64) -> GateWord {
    let word = lease.control().open_gate(1, until(until_ns));
    futex::wake(&lease.control().gate, i32::MAX);
    word
}

fn tenant(lease: &Arc<Lease>, bell: &Arc<Bell>) -> thread::JoinHandle<GateWord> {
    let (lease, bell) = (lease.clone(), bell.clone());
    thread::spawn(move || pass(&lease, &bell))
}

#[test]
fn whoever_comes_to_a_closed_gate_is_heard_and_woken() {
    loom::model(|| {
        let (lease, bell) = (Lease::new(), Arc::new(Bell::default()));
        let tenant = tenant(&lease, &bell);
        bell.hear();
        let (demand, word, end_ns) = read(lease.slot(0));
        assert_eq!((demand, word, end_ns), (Demand::Waiting, 0, END_NS), "rung before it was said");
        let opened = open(&lease, 1000);
        assert_eq!(tenant.join().unwrap(), opened);
    });
}

#[test]
fn whoever_announces_while_the_gate_closes_is_served_when_it_opens() {
    loom::model(|| {
        let (lease, bell) = (Lease::new(), Arc::new(Bell::default()));
        lease.control().open_gate(1, until(END_NS));
        let tenant = tenant(&lease, &bell);
        // The slice is over, whether or not that has been announced; nobody is woken by a close.
        lease.control().close_gate();
        bell.hear();
        assert_eq!(read(lease.slot(0)).0, Demand::Waiting);
        let opened = open(&lease, 1000);
        assert_eq!(tenant.join().unwrap(), opened);
    });
}

#[test]
fn whoever_announces_while_the_gate_is_renewed_goes_on() {
    loom::model(|| {
        let (lease, bell) = (Lease::new(), Arc::new(Bell::default()));
        let first = lease.control().open_gate(1, until(END_NS));
        let tenant = tenant(&lease, &bell);
        let renewed = open(&lease, 1000);
        // Nobody answers its bell: an announcement of the word before is void. It may find the new end under the old word.
        let passed = tenant.join().unwrap();
        assert!(passed == renewed || passed == first);
    });
}

/// Two threads of one process, with its bursts locked as on the slow path: the one has come to the end of the slice on its
/// GPU, the other one has not.
#[test]
fn whoever_waits_is_heard_though_another_thread_issues() {
    loom::model(|| {
        let (lease, bell) = (Lease::new(), Arc::new(Bell::default()));
        let first = lease.control().open_gate(1, until(END_NS));
        let bursts = Arc::new(Mutex::new(()));
        let waiting = {
            let (lease, bell, bursts) = (lease.clone(), bell.clone(), bursts.clone());
            thread::spawn(move || {
                let locked = bursts.lock();
                lease.slot(0).waiters.fetch_add(1, Ordering::AcqRel);
                say(lease.slot(0), Demand::Waiting, first.0, END_NS);
                drop(locked);
                bell.ring();
                futex::wait(&lease.control().gate, first.0, None);
            })
        };
        let issuing = {
            let (lease, bursts) = (lease.clone(), bursts.clone());
            thread::spawn(move || {
                let _locked = bursts.lock();
                say_issued(lease.slot(0), lease.gate().0, END_NS / 2);
            })
        };
        bell.hear();
        assert_eq!(read(lease.slot(0)), (Demand::Waiting, first.0, END_NS));
        open(&lease, 1000);
        waiting.join().unwrap();
        issuing.join().unwrap();
    });
}

#[test]
fn an_open_word_brings_the_end_that_belongs_to_it() {
    loom::model(|| {
        let lease = Lease::new();
        let first = lease.control().open_gate(1, until(100));
        let reader = {
            let lease = lease.clone();
            thread::spawn(move || (lease.gate(), lease.control().until_ns.load(Ordering::Relaxed)))
        };
        lease.control().open_gate(2, until(200));
        let (word, until_ns) = reader.join().unwrap();
        assert!(word == first || until_ns == 200, "a new word with the old end");
    });
}

#[test]
fn a_demand_brings_the_word_and_the_end_that_belong_to_it() {
    loom::model(|| {
        let lease = Lease::new();
        let process = {
            let lease = lease.clone();
            thread::spawn(move || say(lease.slot(0), Demand::Waiting, 9, END_NS))
        };
        let (demand, word, end_ns) = read(lease.slot(0));
        assert!(demand == Demand::Idle || (word, end_ns) == (9, END_NS), "half an announcement");
        process.join().unwrap();
    });
}
