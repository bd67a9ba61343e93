//! `gpool-launch-cost`: what calls through the shim cost beside the same calls of the library behind it. It runs in a
//! leased container, where both are there, and calls them in turn in one process, so that both meet the same machine.
//! With `--blocks` it also tells how long blocks of kernels of a known length take, see [`super::block_cost`].

use super::block_cost;
use super::process_cost::thread_cpu_ns;
use crate::failure::{Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CUcontext, CUevent, CUfunction, CUmodule, CuCtxCreateV2, CuCtxSynchronize, CuDriverGetVersion, CuEventCreate,
    CuEventRecord, CuEventSynchronize, CuInit, CuLaunchKernel, CuModuleGetFunction, CuModuleLoadData,
};
use serde_json::{Map, Value, json};
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
pub(super) const LAUNCHES_IN_A_ROUND: u32 = 4;
/// Steps of a program that works ahead: a launch, an event behind it, and a wait for the event of so many steps before.
const STEPS: usize = 500;
const STEPS_AHEAD: usize = 3;
/// After each block, until the shim's watcher and the supervisor have seen the end of it: what they do would be charged
/// to the block that follows. After blocks that launch nothing as well, or the one that follows would begin on a processor that
/// has not slept.
const SETTLE: Duration = Duration::from_millis(2);
/// Has blocks of kernels of a known length measured too.
const WITH_BLOCKS: &str = "--blocks";

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

/// Measures a block of one side.
type Measure<'a> = dyn Fn(&Side) -> Result<f64> + 'a;

fn measure() -> Result<Value> {
    let with_blocks = match std::env::args().nth(1) {
        Some(word) if word != WITH_BLOCKS => return Err(Failure::new(format!("{word:?} is not {WITH_BLOCKS}"))),
        word => word.is_some(),
    };
    let (shim, real) = (Library::open(SHIM)?, Library::open(REAL)?);
    // Else both ways would be one, and nothing added.
    ensure(shim.address(c"cuLaunchKernel")? != real.address(c"cuLaunchKernel")?, || {
        format!("{SHIM:?} is not the shim")
    })?;
    prepare(&shim)?;
    let kernel = load(&shim, PTX, c"spin_ns")?;
    let events = new_events(&shim)?;
    let sides = [Side::of(&shim)?, Side::of(&real)?];
    let calls: [(&str, &Measure<'_>); 4] = [
        ("launch", &|side| side.block_of_launches(kernel)),
        ("wait", &|side| side.rounds(kernel)),
        ("step", &|side| side.steps(kernel, &events)),
        ("version", &|side| version_calls(side.version)),
    ];
    let mut found = calls.map(|_| Both::default());
    for round in 0..WARM_UP_BLOCKS + BLOCKS {
        for ((_, block), both) in calls.iter().zip(&mut found) {
            both.measure(round, |side| block(&sides[side]))?;
        }
    }
    let mut told = Map::new();
    for ((name, _), both) in calls.iter().zip(found) {
        both.tell(&mut told, name, WARM_UP_BLOCKS);
    }
    if with_blocks {
        told.insert("blocks".to_owned(), block_cost::measure(&shim, &sides, &events)?);
    }
    Ok(told.into())
}

/// What was measured of one thing: through the shim, and past it.
#[derive(Debug, Default)]
pub(super) struct Both([Vec<f64>; 2]);

impl Both {
    /// One block of each side. That of the shim, 0, is first in every second round: what a block leaves behind, and what lies before the
    /// first one, meets both alike.
    pub(super) fn measure(&mut self, round: usize, block: impl Fn(usize) -> Result<f64>) -> Result<()> {
        for side in if round.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            self.0[side].push(block(side)?);
            std::thread::sleep(SETTLE);
        }
        Ok(())
    }

    /// Adds `NAME_ns` and `NAME_native_ns`, which have all but the first rounds, to what is told.
    pub(super) fn tell(self, told: &mut Map<String, Value>, name: &str, left_out: usize) {
        for (end, values) in ["ns", "native_ns"].iter().zip(self.0) {
            told.insert(format!("{name}_{end}"), json!(&values[left_out..]));
        }
    }
}

/// A context, made through the shim so that the lease counts it.
fn prepare(shim: &Library) -> Result<()> {
    let init: CuInit = shim.function(c"cuInit")?;
    let create: CuCtxCreateV2 = shim.function(c"cuCtxCreate_v2")?;
    let mut context: CUcontext = null_mut();
    // SAFETY: the result goes to a live local.
    unsafe {
        checked("cuInit", init(0))?;
        checked("cuCtxCreate", create(&mut context, 0, 0))
    }
}

/// A kernel of a module of its own, loaded through the shim.
pub(super) fn load(shim: &Library, ptx: &CStr, name: &CStr) -> Result<CUfunction> {
    let (mut module, mut kernel): (CUmodule, CUfunction) = (null_mut(), null_mut());
    let load: CuModuleLoadData = shim.function(c"cuModuleLoadData")?;
    let find: CuModuleGetFunction = shim.function(c"cuModuleGetFunction")?;
    // SAFETY: both results go to live locals, and the PTX and the name end with a zero.
    unsafe {
        checked("cuModuleLoadData", load(&mut module, ptx.as_ptr().cast()))?;
        checked("cuModuleGetFunction", find(&mut kernel, module, name.as_ptr()))?;
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

/// As many as are under way at once, and one more.
pub(super) type Events = [CUevent; STEPS_AHEAD + 1];

fn new_events(shim: &Library) -> Result<Events> {
    let create: CuEventCreate = shim.function(c"cuEventCreate")?;
    let mut events = [null_mut(); STEPS_AHEAD + 1];
    for event in &mut events {
        // SAFETY: the handle goes to a live local; a context is current to this thread.
        checked("cuEventCreate", unsafe { create(event, 0) })?;
    }
    Ok(events)
}

/// What is called, of the shim or of the library behind it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) launch: CuLaunchKernel,
    pub(super) synchronize: CuCtxSynchronize,
    pub(super) record: CuEventRecord,
    pub(super) wait: CuEventSynchronize,
    version: CuDriverGetVersion,
}

impl Side {
    fn of(library: &Library) -> Result<Self> {
        Ok(Self {
            launch: library.function(c"cuLaunchKernel")?,
            synchronize: library.function(c"cuCtxSynchronize")?,
            record: library.function(c"cuEventRecord")?,
            wait: library.function(c"cuEventSynchronize")?,
            version: library.function(c"cuDriverGetVersion")?,
        })
    }

    /// Waits for all that was launched.
    pub(super) fn synchronized(&self) -> Result<()> {
        // SAFETY: no arguments; a context is current to this thread.
        checked("cuCtxSynchronize", unsafe { (self.synchronize)() })
    }

    /// Records an event behind what was launched last, and waits for that of [`STEPS_AHEAD`] steps before.
    pub(super) fn step_ended(&self, step: usize, events: &Events) -> Result<()> {
        // SAFETY: the events were made in the context that is current to this thread.
        let failed = unsafe {
            (self.record)(events[step % events.len()], null_mut()) | (self.wait)(events[(step + 1) % events.len()])
        };
        checked("cuEventRecord or cuEventSynchronize", failed)
    }

    /// Nanoseconds of CPU time of one launch of many. Their ends are waited for afterwards.
    fn block_of_launches(&self, kernel: CUfunction) -> Result<f64> {
        let each_ns = launches(self.launch, kernel, LAUNCHES)?;
        self.synchronized().map(|()| each_ns)
    }

    /// Nanoseconds of CPU time of one round of launches and a wait for them.
    fn rounds(&self, kernel: CUfunction) -> Result<f64> {
        let start_ns = thread_cpu_ns();
        for _ in 0..ROUNDS {
            launches(self.launch, kernel, LAUNCHES_IN_A_ROUND)?;
            self.synchronized()?;
        }
        Ok((thread_cpu_ns() - start_ns) as f64 / f64::from(ROUNDS))
    }

    /// Nanoseconds of CPU time of one step of a program that works ahead.
    fn steps(&self, kernel: CUfunction, events: &Events) -> Result<f64> {
        let start_ns = thread_cpu_ns();
        for step in 0..STEPS {
            launches(self.launch, kernel, 1)?;
            self.step_ended(step, events)?;
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

pub(super) fn checked(call: &str, code: i32) -> Result<()> {
    ensure(code == 0, || format!("{call} answered {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn each_side_is_first_in_every_second_round() {
        let (mut both, order, mut told) = (Both::default(), RefCell::new(Vec::new()), Map::new());
        for round in 0..4 {
            let block = |side| {
                order.borrow_mut().push(side);
                Ok(f64::from(round as u32))
            };
            both.measure(round, block).unwrap();
        }
        assert_eq!(order.into_inner(), [0, 1, 1, 0, 0, 1, 1, 0]);
        both.tell(&mut told, "launch", 2);
        assert_eq!(Value::from(told), json!({"launch_ns": [2.0, 3.0], "launch_native_ns": [2.0, 3.0]}));
    }
}
