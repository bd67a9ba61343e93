//! Handles of one process, let go by several threads at once.

use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::handles::{Handles, Held, Kind};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

const HANDLE: u64 = 7;

/// A process with its table, what it is charged, and a driver that knows one handle and gives it again and again.
struct Process {
    handles: Mutex<Handles<8>>,
    charged_bytes: AtomicU64,
    /// What lives under the handle, 0 for nothing.
    alive_bytes: AtomicU64,
}

impl Process {
    fn new() -> Arc<Self> {
        let (handles, charged_bytes) = (Mutex::new(Handles::new()), AtomicU64::new(0));
        Arc::new(Self { handles, charged_bytes, alive_bytes: AtomicU64::new(0) })
    }

    /// Charged, made, remembered.
    fn make(&self, bytes: u64) {
        self.charged_bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_made = self.alive_bytes.compare_exchange(0, bytes, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_made {
            self.handles.lock().put(Held::new(Kind::Array, HANDLE, bytes));
        } else {
            self.charged_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Forgotten, let go, given back; remembered again if the driver refuses.
    fn let_go(&self) {
        let thing = self.handles.lock().take(Kind::Array, HANDLE);
        let is_gone = self.alive_bytes.swap(0, Ordering::AcqRel) != 0;
        match thing {
            Some(thing) if is_gone => drop(self.charged_bytes.fetch_sub(thing.bytes, Ordering::AcqRel)),
            Some(thing) => drop(self.handles.lock().put(thing)),
            None => {}
        }
    }

    fn check(&self) {
        let (charged, alive) = (self.charged_bytes.load(Ordering::Acquire), self.alive_bytes.load(Ordering::Acquire));
        assert!(charged >= alive && charged < 1 << 32, "{charged} bytes charged for {alive} that are held");
    }
}

#[test]
fn two_threads_that_let_go_of_one_thing_give_it_back_once() {
    loom::model(|| {
        let process = Process::new();
        process.make(10);
        let other = {
            let process = process.clone();
            thread::spawn(move || process.let_go())
        };
        process.let_go();
        other.join().unwrap();
        process.check();
    });
}

#[test]
fn a_thing_let_go_twice_while_its_handle_is_given_again_is_never_charged_too_little() {
    loom::model(|| {
        let process = Process::new();
        process.make(20);
        let other = {
            let process = process.clone();
            thread::spawn(move || process.let_go())
        };
        process.let_go();
        process.make(5);
        other.join().unwrap();
        process.check();
    });
}
