//! Of launches and waits while a call of the driver does not return to whoever measures.

use super::elsewhere::two_gpus;
use super::*;
use crate::fake_driver::{CALLBACK, FULL, IS_HELD};
use crate::process::Process;
use crate::waits::WaitFor;
use std::sync::atomic::AtomicPtr;

const OTHER: CUstream = 0x200 as CUstream;

/// Turns the clock until the watcher stands behind a queue that is full.
fn until_held() {
    let start = std::time::Instant::now();
    while !IS_HELD.load(Ordering::Acquire) {
        assert!(start.elapsed() < Duration::from_secs(100), "nobody has recorded an event on the full queue");
        clock::turn_ns(50 * US);
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A process whose watcher is about to stand behind the full queue of `STREAM` on the first GPU.
fn held_process() -> (&'static Process, &'static Slot) {
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 100 * US);
    set_current(CONTEXTS[0]);
    launch(process, KERNEL, 100 * US);
    IS_HELD.store(false, Ordering::Release);
    FULL.store(STREAM, Ordering::Release);
    until_held();
    (process, slot)
}

fn release() {
    FULL.store(core::ptr::null_mut(), Ordering::Release);
}

/// Runs `what` in a thread whose context is that of the second GPU, turning the clock; how long it took by that.
fn beside(what: impl FnOnce() + Send) -> u64 {
    let from_ns = clock::now_ns();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_current(CONTEXTS[1]);
            what();
        });
        let start = std::time::Instant::now();
        while !other.is_finished() {
            if start.elapsed() > Duration::from_secs(100) {
                release();
            }
            clock::turn_ns(MS);
            std::thread::sleep(Duration::from_micros(200));
        }
        other.join().unwrap();
    });
    clock::now_ns() - from_ns
}

/// The queue is full of work that waits for a peer on the other GPU, which this process has yet to launch.
#[test]
fn a_full_queue_keeps_nobody_from_another_gpu() {
    let _order = one_at_a_time();
    let (process, slot) = held_process();
    let charged_before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    let first_ns = beside(|| {
        launch_on(process, OTHER, KERNEL, 100 * US);
    });
    assert!((90 * MS..150 * MS).contains(&first_ns), "the first launch took {first_ns} ns");
    let more_ns = beside(|| {
        (0..20).for_each(|_| {
            launch_on(process, OTHER, KERNEL, 100 * US);
        });
        process.wait(WaitFor::Stream(OTHER), || 0);
    });
    assert!(more_ns < 50 * MS, "twenty more and a wait took {more_ns} ns");
    let charged_ns = slot.burst_total_ns.load(Ordering::Relaxed) - charged_before_ns;
    assert_eq!(charged_ns, 21 * 100 * US, "they are charged at their estimates");
    release();
    until_idle(slot);
    let records = DEVICE.lock().records;
    set_current(CONTEXTS[1]);
    launch_on(process, OTHER, KERNEL, 100 * US);
    until_idle(slot);
    assert!(DEVICE.lock().records > records, "it is measured again");
}

#[test]
fn a_closed_gate_holds_what_is_not_measured_as_well() {
    let _order = one_at_a_time();
    let (process, slot) = held_process();
    let control = process.place().unwrap().region.control();
    let word = GateWord(control.gate.load(Ordering::Relaxed)).next(false);
    control.gate.store(word.0, Ordering::Release);
    let is_through = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_current(CONTEXTS[1]);
            launch_on(process, OTHER, KERNEL, 100 * US);
            is_through.store(true, Ordering::Release);
        });
        let start = std::time::Instant::now();
        while slot.demand.load(Ordering::Acquire) != Demand::Waiting as u32 && start.elapsed().as_secs() < 100 {
            clock::turn_ns(MS);
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!((slot.waiters.load(Ordering::Relaxed), is_through.load(Ordering::Acquire)), (1, false));
        open(control, clock::now_ns() + 60_000 * MS);
        other.join().unwrap();
    });
    assert_eq!(slot.waiters.load(Ordering::Relaxed), 0);
    release();
    until_idle(slot);
}

/// A profiler's callback within the shim's own calls of the driver.
#[test]
fn who_launches_and_waits_while_an_event_is_recorded_does_not_wait_for_itself() {
    static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
    fn call() {
        // SAFETY: null, or a process that is never dropped.
        let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
        // Once: the launch in here records nothing, but the callback would be called by what comes after.
        if let Some(process) = process.filter(|_| CALLBACK.lock().take().is_some()) {
            launch_on(process, OTHER, KERNEL, 100 * US);
            process.wait(WaitFor::Context(core::ptr::null_mut()), || 0);
        }
    }
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 100 * US);
    set_current(CONTEXTS[0]);
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Ordering::Release);
    *CALLBACK.lock() = Some(call);
    launch(process, KERNEL, 100 * US);
    assert!(CALLBACK.lock().is_none(), "it has been called");
    until_idle(slot);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 2);
}
