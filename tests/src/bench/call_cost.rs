//! `gpool-launch-cost`: what calls through the shim cost beside the same calls of the library behind it. It runs in a
//! leased container, where both are there, and calls them in turn in one process, so that both meet the same machine.

use super::process_cost::thread_cpu_ns;
use crate::failure::{Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CUcontext, CUevent, CUfunction, CUmodule, CuCtxCreateV2, CuCtxSynchronize, CuDriverGetVersion, CuEventCreate,
    CuEventRecord, CuEventSynchronize, CuInit, CuLaunchKernel, CuModuleGetFunction, CuModuleLoadData,
};
use serde_json::json;
use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Where a program finds the shim, and where the shim finds what it stands for.
const SHIM: &CStr = c"libcuda.so.1";
const REAL: &CStr = c"/dev/gpool/real/libcuda.so.1";

const PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns) { ret; }
";

/// Shorter than a launch takes on the host, so that no launch waits for room in the queue.
const KERNEL_NS: u64 = 1000;
/// Measurements, each of one block through the shim and one past it.
const BLOCKS: usize = 300;
/// Before the estimates are settled and the caches warm.
const WARM_UP_BLOCKS: usize = 20;
const LAUNCHES: u32 = 500;
const CALLS: u32 = 30_000;
/// Rounds of a few launches and a wait for them, as of a program that looks at each result.
const ROUNDS: u32 = 100;
const LAUNCHES_IN_A_ROUND: u32 = 4;
/// Steps of a program that works ahead: a launch, an event behind it, and a wait for the event of so many steps before.
const STEPS: usize = 500;
const STEPS_AHEAD: usize = 3;
/// After each block of launches, until the shim's watcher and the supervisor have seen the end of it: what they do
/// would be charged to the block that follows.
const SETTLE: Duration = Duration::from_millis(2);

/// Prints the measurements as one line of JSON, in nanoseconds a call.
pub fn run() -> ExitCode {
    match measure() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("gpool-launch-cost: {what}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<serde_json::Value> {
    let (shim, real) = (Library::open(SHIM)?, Library::open(REAL)?);
    // Else both ways would be one, and nothing added.
    ensure(shim.address(c"cuLaunchKernel")? != real.address(c"cuLaunchKernel")?, || {
        format!("{SHIM:?} is not the shim")
    })?;
    let kernel = prepare(&shim)?;
    let synchronize: CuCtxSynchronize = shim.function(c"cuCtxSynchronize")?;
    let (mut launch, mut launch_native) = (Vec::new(), Vec::new());
    let (mut wait, mut wait_native) = (Vec::new(), Vec::new());
    let (mut step, mut step_native) = (Vec::new(), Vec::new());
    let (mut version, mut version_native) = (Vec::new(), Vec::new());
    let events = new_events(&shim)?;
    let ahead = [Ahead::of(&shim)?, Ahead::of(&real)?];
    let waits = [synchronize, real.function(c"cuCtxSynchronize")?];
    let ways = [shim.function::<CuLaunchKernel>(c"cuLaunchKernel")?, real.function(c"cuLaunchKernel")?];
    let versions = [shim.function::<CuDriverGetVersion>(c"cuDriverGetVersion")?, real.function(c"cuDriverGetVersion")?];
    for _ in 0..WARM_UP_BLOCKS + BLOCKS {
        for (way, into) in ways.iter().zip([&mut launch, &mut launch_native]) {
            into.push(launches(*way, kernel, LAUNCHES)?);
            // SAFETY: no arguments; a context is current to this thread.
            checked("cuCtxSynchronize", unsafe { synchronize() })?;
            std::thread::sleep(SETTLE);
        }
        for ((way, wait), into) in ways.iter().zip(waits).zip([&mut wait, &mut wait_native]) {
            into.push(rounds(*way, wait, kernel)?);
            std::thread::sleep(SETTLE);
        }
        for (ahead, into) in ahead.iter().zip([&mut step, &mut step_native]) {
            into.push(ahead.steps(kernel, &events)?);
            std::thread::sleep(SETTLE);
        }
        for (way, into) in versions.iter().zip([&mut version, &mut version_native]) {
            into.push(version_calls(*way)?);
        }
    }
    let all = [&mut launch, &mut launch_native, &mut wait, &mut wait_native];
    let others = [&mut step, &mut step_native, &mut version, &mut version_native];
    for measured in all.into_iter().chain(others) {
        measured.drain(..WARM_UP_BLOCKS);
    }
    Ok(json!({
        "launch_ns": launch, "launch_native_ns": launch_native,
        "wait_ns": wait, "wait_native_ns": wait_native,
        "step_ns": step, "step_native_ns": step_native,
        "version_ns": version, "version_native_ns": version_native,
    }))
}

/// A context and a kernel, made through the shim so that the lease counts them.
fn prepare(shim: &Library) -> Result<CUfunction> {
    let (mut context, mut module, mut kernel): (CUcontext, CUmodule, CUfunction) = (null_mut(), null_mut(), null_mut());
    let init: CuInit = shim.function(c"cuInit")?;
    let create: CuCtxCreateV2 = shim.function(c"cuCtxCreate_v2")?;
    let load: CuModuleLoadData = shim.function(c"cuModuleLoadData")?;
    let find: CuModuleGetFunction = shim.function(c"cuModuleGetFunction")?;
    // SAFETY: all results go to live locals, and the PTX and the name end with a zero.
    unsafe {
        checked("cuInit", init(0))?;
        checked("cuCtxCreate", create(&mut context, 0, 0))?;
        checked("cuModuleLoadData", load(&mut module, PTX.as_ptr().cast()))?;
        checked("cuModuleGetFunction", find(&mut kernel, module, c"spin_ns".as_ptr()))?;
    }
    Ok(kernel)
}

/// Nanoseconds of CPU time of one launch: a launch of the simulated driver waits for whoever else uses the device, which
/// is no cost of the shim.
fn launches(launch: CuLaunchKernel, kernel: CUfunction, count: u32) -> Result<f64> {
    let mut duration_ns = KERNEL_NS;
    let mut parameters = [(&raw mut duration_ns).cast::<c_void>()];
    let mut failed = 0;
    let start_ns = thread_cpu_ns();
    for _ in 0..count {
        let list = parameters.as_mut_ptr();
        // SAFETY: the kernel takes one u64, which outlives the call.
        failed |= unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), list, null_mut()) };
    }
    let used_ns = (thread_cpu_ns() - start_ns) as f64;
    checked("cuLaunchKernel", failed)?;
    Ok(used_ns / f64::from(count))
}

/// Nanoseconds of CPU time of one round of launches and a wait for them.
fn rounds(launch: CuLaunchKernel, wait: CuCtxSynchronize, kernel: CUfunction) -> Result<f64> {
    let start_ns = thread_cpu_ns();
    for _ in 0..ROUNDS {
        launches(launch, kernel, LAUNCHES_IN_A_ROUND)?;
        // SAFETY: no arguments; a context is current to this thread.
        checked("cuCtxSynchronize", unsafe { wait() })?;
    }
    Ok((thread_cpu_ns() - start_ns) as f64 / f64::from(ROUNDS))
}

/// As many events as are under way at once, and one more.
fn new_events(shim: &Library) -> Result<[CUevent; STEPS_AHEAD + 1]> {
    let create: CuEventCreate = shim.function(c"cuEventCreate")?;
    let mut events = [null_mut(); STEPS_AHEAD + 1];
    for event in &mut events {
        // SAFETY: the handle goes to a live local; a context is current to this thread.
        checked("cuEventCreate", unsafe { create(event, 0) })?;
    }
    Ok(events)
}

/// What a program calls that works ahead, of the shim or of the library behind it.
struct Ahead {
    launch: CuLaunchKernel,
    record: CuEventRecord,
    wait: CuEventSynchronize,
}

impl Ahead {
    fn of(library: &Library) -> Result<Self> {
        let launch = library.function(c"cuLaunchKernel")?;
        let (record, wait) = (library.function(c"cuEventRecord")?, library.function(c"cuEventSynchronize")?);
        Ok(Self { launch, record, wait })
    }

    /// Nanoseconds of CPU time of one step.
    fn steps(&self, kernel: CUfunction, events: &[CUevent]) -> Result<f64> {
        let start_ns = thread_cpu_ns();
        for step in 0..STEPS {
            launches(self.launch, kernel, 1)?;
            // SAFETY: the events were made in the context that is current to this thread.
            let failed = unsafe {
                (self.record)(events[step % events.len()], null_mut()) | (self.wait)(events[(step + 1) % events.len()])
            };
            checked("cuEventRecord or cuEventSynchronize", failed)?;
        }
        Ok((thread_cpu_ns() - start_ns) as f64 / STEPS as f64)
    }
}

/// Nanoseconds of one cuDriverGetVersion, a call that the shim only passes on.
fn version_calls(get: CuDriverGetVersion) -> Result<f64> {
    let (mut version, mut failed) = (0, 0);
    let start = Instant::now();
    for _ in 0..CALLS {
        // SAFETY: the result goes to a live local.
        failed |= unsafe { black_box(get)(&mut version) };
    }
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    checked("cuDriverGetVersion", failed)?;
    Ok(elapsed_ns / f64::from(CALLS))
}

fn checked(call: &str, code: i32) -> Result<()> {
    ensure(code == 0, || format!("{call} answered {code}"))
}
