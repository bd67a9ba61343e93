//! Of launches and waits while a call of the driver does not return to whoever measures.

use super::elsewhere::two_gpus;
use super::*;
use crate::fake_driver::{CALLBACK, DESTROYED, FULL, IS_HELD};
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

/// What has been told of work on the second GPU: begins and ends.
fn told_of_second(process: &Process, slot: &Slot) -> Vec<(u64, u64)> {
    let tag = process.enter_context(CONTEXTS[1], 1);
    let its = tags(slot).into_iter().zip(&slot.bursts).filter(|(its, _)| *its == tag);
    its.map(|(_, burst)| (burst.start_ns.load(Ordering::Relaxed), burst.end_ns.load(Ordering::Relaxed))).collect()
}

/// The queue is full of work that waits for a peer on the other GPU, which this process has yet to launch.
#[test]
fn a_full_queue_keeps_nobody_from_another_gpu() {
    let _order = one_at_a_time();
    let (process, slot) = held_process();
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
    release();
    until_idle(slot);
    let told = told_of_second(process, slot);
    let charged_ns: u64 = told.iter().map(|(begin_ns, end_ns)| end_ns - begin_ns).sum();
    assert_eq!(charged_ns, 21 * 100 * US, "they are charged at their estimates: {told:?}");
    assert!(told.windows(2).all(|two| two[0].1 <= two[1].0), "one after the other: {told:?}");
    let records = DEVICE.lock().records;
    set_current(CONTEXTS[1]);
    launch_on(process, OTHER, KERNEL, 100 * US);
    until_idle(slot);
    assert!(DEVICE.lock().records > records, "it is measured again");
}

/// What fills the queue may wait for what is launched after these.
#[test]
fn a_full_queue_keeps_nobody_from_what_changes_another_stream() {
    let _order = one_at_a_time();
    let (process, slot) = held_process();
    let is_open = |process: &Process| process.stripes.iter().any(|stripe| stripe.burst().is_some());
    process.capture_begun();
    let changes: [fn(&Process); 3] = [
        |process| process.leave_for_capture(OTHER),
        |process| process.leave_for_join(OTHER),
        |process| assert!(!process.leave_stream(OTHER), "nobody could end a burst on it"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let took_ns = beside(|| change(process));
        assert!(took_ns < 150 * MS, "change {index} took {took_ns} ns");
        assert!(!is_open(process), "nothing more is added to a burst that should have ended");
    }
    assert_ne!(DESTROYED.load(Ordering::Acquire), OTHER);
    release();
    until_idle(slot);
    assert_eq!(DESTROYED.load(Ordering::Acquire), OTHER);
    assert!(process.leave_stream(OTHER), "now the program destroys it");
}

#[test]
fn what_goes_by_is_no_more_than_the_slice_and_the_depth_allow() {
    let _order = one_at_a_time();
    let (process, slot) = held_process();
    let control = process.place().unwrap().region.control();
    // Nobody waits for the lock in vain any more.
    beside(|| {
        launch_on(process, OTHER, KERNEL, 100 * US);
    });
    let (passed, most_ahead_ns) = (AtomicU32::new(0), std::sync::atomic::AtomicU64::new(0));
    let from_ns = clock::now_ns();
    open(control, from_ns + 20 * MS);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_current(CONTEXTS[1]);
            for _ in 0..300 {
                let admission = process.admit(OTHER, KERNEL);
                assert_eq!(admission, Admission::Pass);
                let count = u64::from(passed.fetch_add(1, Ordering::SeqCst) + 1);
                let ahead_ns = (from_ns + count * 100 * US).saturating_sub(clock::now_ns());
                most_ahead_ns.fetch_max(ahead_ns, Ordering::SeqCst);
            }
        });
        let start = std::time::Instant::now();
        while slot.waiters.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 100 {
            clock::turn_ns(100 * US);
            std::thread::sleep(Duration::from_micros(200));
        }
        let count = passed.load(Ordering::SeqCst);
        assert!((150..=210).contains(&count), "{count} launches of 0.1 ms in a slice of 20 ms");
        open(control, clock::now_ns() + 60_000 * MS);
        while !other.is_finished() {
            clock::turn_ns(MS);
            std::thread::sleep(Duration::from_micros(200));
        }
        other.join().unwrap();
    });
    let ahead_ns = most_ahead_ns.into_inner();
    assert!(ahead_ns <= DEPTH_NS + MS, "{ahead_ns} ns ahead");
    let (told, total) = (told_of_second(process, slot), 301 * 100 * US);
    let charged_ns: u64 = told.iter().map(|(begin_ns, end_ns)| end_ns - begin_ns).sum();
    assert!(charged_ns + 11 * MS >= total, "{charged_ns} ns of {total} have been told while it goes on");
    release();
    until_idle(slot);
    let told = told_of_second(process, slot);
    let charged_ns: u64 = told.iter().map(|(begin_ns, end_ns)| end_ns - begin_ns).sum();
    assert_eq!(charged_ns, total, "{told:?}");
}

/// The launch returns when nobody can record the end of its burst.
#[test]
fn a_lone_launch_that_returns_meanwhile_is_charged_at_its_estimate() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 100 * US);
    set_current(CONTEXTS[1]);
    let Admission::PassAlone(burst) = process.admit(OTHER, Work::numbered(99)) else { panic!("it is not known") };
    set_current(CONTEXTS[0]);
    launch(process, KERNEL, 100 * US);
    IS_HELD.store(false, Ordering::Release);
    FULL.store(STREAM, Ordering::Release);
    until_held();
    let returned_ns = beside(|| process.launched_alone(burst));
    assert!(returned_ns < 150 * MS, "it took {returned_ns} ns to return");
    release();
    until_idle(slot);
    let told = told_of_second(process, slot);
    assert_eq!(told.len(), 1, "{told:?}");
    let charged_ns = told[0].1 - told[0].0;
    assert!((1..=2 * MS).contains(&charged_ns), "{charged_ns} ns, not the time for which nobody could look");
    assert!(told[0].1 <= clock::now_ns(), "nothing is told before it has passed");
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
