//! What the gate costs a launch, without any driver's cost around it.

use super::null_driver::{Stream, launch, launch_natively, process};
use super::process_cost::thread_cpu_ns;
use super::sheet::{Sheet, median};
use crate::failure::Result;
use gpool_interposer_logic::Process;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Instant;

/// Calls in one measurement; five measurements are ten million.
const CALLS: u32 = 2_000_000;
/// The same on the slow path, which costs hundreds of times as much.
const SLOW_CALLS: u32 = 200_000;
/// With more threads than cores.
const CROWD: usize = 8;
/// CPU time of each of several threads: longer than they take to start, and than the kernel lets one of them run.
const THREAD_CPU_NS: u64 = 20_000_000;
/// Calls between two looks at that time.
const BLOCK: u32 = 10_000;
/// What a thread gets that asks for nothing, of Rust and of the C library. The place of a thread's stack decides which
/// line of credit it uses.
const RUST_STACK: usize = 2 << 20;
const PTHREAD_STACK: usize = 8 << 20;
/// A burst of a millisecond when a launch takes 2.5 us, as a launch of a real driver does at least.
const USUAL_BURST: u16 = 400;
/// The most that a burst holds. Without a device bursts follow each other a hundred times as fast as on one, and two
/// threads would meet on the slow path as they never do.
const LONGEST_BURST: u16 = 4096;
/// Measurements in a round, each beside its control.
const REPEATS: usize = 5;

/// Adds one round.
pub fn measure(sheet: &mut Sheet) -> Result<()> {
    let (usual, slow) = (process(), process());
    let (usual_stream, slow_stream) = (Stream::new(USUAL_BURST), Stream::new(1));
    let (mut added, mut burst, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    let (mut two, mut two_native) = (Vec::new(), Vec::new());
    let (mut crowd, mut crowd_native) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let nothing = per_call(CALLS, || launch_natively(black_box(usual_stream)));
        empty.push(nothing);
        added.push(per_call(CALLS, || launch(black_box(usual), black_box(usual_stream))) - nothing);
        burst.push(per_call(SLOW_CALLS, || launch(black_box(slow), black_box(slow_stream))) - nothing);
        let (for_two, for_crowd) = (process(), process());
        two.push(many_over_one(2, RUST_STACK, || launches(for_two)));
        crowd.push(many_over_one(CROWD, PTHREAD_STACK, || launches(for_crowd)));
        two_native.push(many_over_one(2, RUST_STACK, native_launches));
        crowd_native.push(many_over_one(CROWD, PTHREAD_STACK, native_launches));
    }
    sheet.add("gate.launch_added", &added, &empty)?;
    sheet.add("gate.burst_added", &burst, &[median(&empty)])?;
    sheet.add("gate.launch_two_threads", &two, &two_native)?;
    sheet.add("gate.launch_eight_threads", &crowd, &crowd_native)
}

/// Nanoseconds of one call.
fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Thread CPU time of one launch on a stream of its own, in nanoseconds.
fn launches(process: &Process) -> f64 {
    let stream = Stream::new(LONGEST_BURST);
    cpu_per_call(|| launch(black_box(process), black_box(stream)))
}

/// The same without gpool.
fn native_launches() -> f64 {
    let stream = Stream::new(LONGEST_BURST);
    cpu_per_call(|| launch_natively(black_box(stream)))
}

/// Nanoseconds of CPU time. Time in which a thread does not run does not count, so neighbours on the machine matter
/// little.
fn cpu_per_call(mut call: impl FnMut()) -> f64 {
    let (start_ns, mut calls) = (thread_cpu_ns(), 0);
    loop {
        (0..BLOCK).for_each(|_| call());
        calls += BLOCK;
        let used_ns = thread_cpu_ns() - start_ns;
        if used_ns >= THREAD_CPU_NS {
            return used_ns as f64 / f64::from(calls);
        }
    }
}

/// What `work` measures with many threads at once, on average, over what it measures with one alone.
fn many_over_one(threads: usize, stack_bytes: usize, work: impl Fn() -> f64 + Sync) -> f64 {
    let alone = average_of(1, stack_bytes, &work);
    average_of(threads, stack_bytes, &work) / alone
}

/// No number when a thread cannot be had.
fn average_of(threads: usize, stack_bytes: usize, work: &(impl Fn() -> f64 + Sync)) -> f64 {
    let is_started = &AtomicBool::new(false);
    let total: f64 = std::thread::scope(|scope| {
        let one = |_| {
            let measured = move || {
                while !is_started.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                work()
            };
            Builder::new().stack_size(stack_bytes).spawn_scoped(scope, measured)
        };
        let running: Vec<_> = (0..threads).map(one).collect();
        is_started.store(true, Ordering::Release);
        let measured = |thread: std::io::Result<ScopedJoinHandle<'_, f64>>| thread.ok()?.join().ok();
        running.into_iter().map(|thread| measured(thread).unwrap_or(f64::NAN)).sum()
    });
    total / threads as f64
}
