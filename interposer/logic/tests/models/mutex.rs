//! The mutex of one process.

use gpool_interposer_logic::futex::Mutex;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// `threads` threads each add one; a cell of loom's says when two are in it at once.
fn count(threads: usize) {
    let counter = Arc::new(Mutex::new(UnsafeCell::new(0)));
    let add = |counter: &Mutex<UnsafeCell<usize>>| {
        // SAFETY: the guard is the right to use the cell, and loom checks it.
        counter.lock().with_mut(|count| unsafe { *count += 1 });
    };
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let counter = counter.clone();
            thread::spawn(move || add(&counter))
        })
        .collect();
    add(&counter);
    others.into_iter().for_each(|thread| thread.join().unwrap());
    // SAFETY: as above.
    assert_eq!(counter.lock().with(|count| unsafe { *count }), threads);
}

#[test]
fn it_admits_one_of_two_at_a_time() {
    loom::model(|| count(2));
}

#[test]
fn it_admits_one_of_three_at_a_time_and_forgets_nobody() {
    loom::model(|| count(3));
}

#[test]
fn whoever_only_tries_is_never_let_in_beside_another() {
    loom::model(|| {
        let counter = Arc::new(Mutex::new(UnsafeCell::new(0)));
        let other = {
            let counter = counter.clone();
            thread::spawn(move || {
                // SAFETY: as in `count`.
                counter.try_lock().map(|held| held.with_mut(|count| unsafe { *count += 1 })).is_some()
            })
        };
        // SAFETY: as in `count`.
        counter.lock().with_mut(|count| unsafe { *count += 1 });
        let is_in = other.join().unwrap();
        // SAFETY: as in `count`.
        assert_eq!(counter.lock().with(|count| unsafe { *count }), 1 + usize::from(is_in));
    });
}
