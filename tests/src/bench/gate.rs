//! What the gate costs a launch, without any driver's cost around it.

use super::null_driver::{Stream, copy, launch, launch_and_wait, launch_natively, process, work};
use super::process_cost::thread_cpu_ns;
use super::sheet::{Sheet, median};
use crate::failure::Result;
use gpool_interposer_logic::{Process, Work};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::black_box;
use std::ops::Range;
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
/// A graph of ten such launches.
const GRAPHS_IN_A_BURST: u16 = USUAL_BURST / 10;
/// Functions that a program launches in turn. A power of two.
const FUNCTIONS: usize = 64;
/// A copy that is too short to be measured.
const COPY_BYTES: u64 = 64 << 10;
/// Measurements in a round, each beside its control.
const REPEATS: usize = 5;
/// The same of many threads at once, which the machine's other work disturbs more.
const REPEATS_OF_MANY: usize = 15;

/// Adds one round.
pub fn measure(sheet: &mut Sheet) -> Result<()> {
    one_thread(sheet)?;
    many_threads(sheet)
}

fn one_thread(sheet: &mut Sheet) -> Result<()> {
    let [usual, mixed, graphs, slow, waits, copies] = [(); 6].map(|()| process());
    let [usual_stream, mixed_stream, wait_stream] = [(); 3].map(|()| Stream::new(USUAL_BURST));
    let [graph_stream, slow_stream] = [GRAPHS_IN_A_BURST, 1].map(Stream::new);
    let functions: [Work; FUNCTIONS] = std::array::from_fn(|number| work(number as u16));
    let function = work(0);
    let (mut empty, mut mixed_empty) = (Vec::new(), Vec::new());
    let (mut added, mut mixed_added, mut graph, mut copied, mut burst, mut rest) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    for _ in 0..REPEATS {
        let nothing = per_call(CALLS, || launch_natively(black_box(usual_stream)));
        empty.push(nothing);
        added
            .push(per_call(CALLS, || launch(black_box(usual), black_box(usual_stream), black_box(function))) - nothing);
        graph.push(
            per_call(CALLS, || launch(black_box(graphs), black_box(graph_stream), black_box(function))) - nothing,
        );
        copied.push(
            per_call(CALLS, || copy(black_box(copies), black_box(usual_stream), black_box(COPY_BYTES))) - nothing,
        );
        burst.push(
            per_call(SLOW_CALLS, || launch(black_box(slow), black_box(slow_stream), black_box(function))) - nothing,
        );
        rest.push(
            per_call(SLOW_CALLS, || {
                launch_and_wait(black_box(waits), black_box(wait_stream), black_box(function));
            }) - nothing,
        );
        let mut turn = 0;
        let mut next = || {
            turn = (turn + 1) % FUNCTIONS;
            black_box(functions[turn])
        };
        let nothing = per_call(CALLS, || {
            next();
            launch_natively(black_box(mixed_stream));
        });
        mixed_empty.push(nothing);
        mixed_added.push(per_call(CALLS, || launch(black_box(mixed), black_box(mixed_stream), next())) - nothing);
    }
    sheet.add("gate.launch_added", &added, &empty)?;
    sheet.add("gate.launch_added_mixed", &mixed_added, &mixed_empty)?;
    sheet.add("gate.graph_added", &graph, &empty)?;
    sheet.add("gate.copy_added", &copied, &empty)?;
    sheet.add("gate.burst_added", &burst, &[median(&empty)])?;
    sheet.add("gate.rest_added", &rest, &[median(&empty)])
}

fn many_threads(sheet: &mut Sheet) -> Result<()> {
    let (mut two, mut two_native) = (Vec::new(), Vec::new());
    let (mut crowd, mut crowd_native) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS_OF_MANY {
        let (for_two, for_crowd) = (process(), process());
        two.push(many_over_one(2, RUST_STACK, || launches(for_two)));
        crowd.push(many_over_one(CROWD, PTHREAD_STACK, || launches(for_crowd)));
        two_native.push(many_over_one(2, RUST_STACK, native_launches));
        crowd_native.push(many_over_one(CROWD, PTHREAD_STACK, native_launches));
    }
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
    let function = work(0);
    cpu_per_call(|| launch(black_box(process), black_box(stream), black_box(function)))
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

/// What `work` measures with many threads at once, on average, over what it measures with one alone: on each of the
/// processors before and after, as the speeds of two differ and change.
fn many_over_one(threads: usize, stack_bytes: usize, work: impl Fn() -> f64 + Sync) -> f64 {
    let processors = threads.min(allowed_processors().len().max(1));
    let alone = || (0..processors).map(|number| average_of(number..number + 1, stack_bytes, &work)).sum::<f64>();
    let before = alone();
    let many = average_of(0..threads, stack_bytes, &work);
    many * 2.0 * processors as f64 / (before + alone())
}

/// Binds the calling thread to a processor of its own, as long as there are enough: moved about, it would begin with
/// cold caches. Where that is refused it is measured unbound.
fn pin(number: usize) {
    let processors = allowed_processors();
    if processors.is_empty() {
        return;
    }
    let mut own = CpuSet::new();
    own.set(processors[number % processors.len()]);
    let _ = sched_setaffinity(None, &own);
}

/// None where nobody says.
fn allowed_processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None);
    allowed.map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// No number when a thread cannot be had.
fn average_of(threads: Range<usize>, stack_bytes: usize, work: &(impl Fn() -> f64 + Sync)) -> f64 {
    let is_started = &AtomicBool::new(false);
    let total: f64 = std::thread::scope(|scope| {
        let one = |number: usize| {
            let measured = move || {
                pin(number);
                while !is_started.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                work()
            };
            Builder::new().stack_size(stack_bytes).spawn_scoped(scope, measured)
        };
        let running: Vec<_> = threads.clone().map(one).collect();
        is_started.store(true, Ordering::Release);
        let measured = |thread: std::io::Result<ScopedJoinHandle<'_, f64>>| thread.ok()?.join().ok();
        running.into_iter().map(|thread| measured(thread).unwrap_or(f64::NAN)).sum()
    });
    total / threads.len() as f64
}
