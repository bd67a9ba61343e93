//! A program that keeps one GPU busy with kernels of half a millisecond and says how many have ended: what the driver's
//! time slices are tried on. It runs without a lease, by the driver's own library.

use gpool_driver_abi::cuda::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CuCtxCreateV2, CuCtxSynchronize,
    CuDeviceGetAttribute, CuEventCreate, CuEventRecord, CuEventSynchronize, CuInit, CuLaunchKernel, CuMemAllocV2,
    CuModuleGetFunction, CuModuleLoadData,
};
use libloading::Library;
use std::ffi::{c_uint, c_void};
use std::io::{BufRead, Write};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Multiplies and adds so many times, and stores what comes of it only if that were a number it cannot be: a kernel whose
/// length is work, not time, so that it makes no progress while it has no turn.
const PTX: &[u8] = b".version 6.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 rounds, .param .u64 sink)
{
    .reg .pred %p;
    .reg .u64 %left, %out;
    .reg .f32 %a, %b, %c, %d;
    ld.param.u64 %left, [rounds];
    ld.param.u64 %out, [sink];
    mov.f32 %a, 0f3F800001;
    mov.f32 %b, 0f3F7FFFFE;
    mov.f32 %c, 0f3F000000;
    mov.f32 %d, 0f3E800000;
round:
    fma.rn.f32 %c, %c, %b, %a;
    fma.rn.f32 %d, %d, %b, %a;
    fma.rn.f32 %c, %c, %b, %a;
    fma.rn.f32 %d, %d, %b, %a;
    sub.u64 %left, %left, 1;
    setp.gt.u64 %p, %left, 0;
    @%p bra round;
    setp.eq.f32 %p, %c, %d;
    @%p st.global.f32 [%out], %c;
    ret;
}
\0";
/// How long one kernel should take.
const KERNEL: Duration = Duration::from_micros(500);
/// Rounds of the first kernels, by which the others are measured.
const TRIED_ROUNDS: u64 = 2000;
const TRIED: usize = 20;
/// Kernels that wait on the device at a time: it never runs out of work.
const DEPTH: usize = 64;
const THREADS: c_uint = 256;
const BLOCKS_PER_MULTIPROCESSOR: c_uint = 2;
/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
const MULTIPROCESSORS: i32 = 16;
/// CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING.
const EVENT_FLAGS: c_uint = 1 | 2;
/// What it says when it is at work, and after it how many rounds its kernels have.
pub const READY: &str = "ready";

static ENDED: AtomicU64 = AtomicU64::new(0);

/// Runs until its standard input ends; answers each line of it with the count of kernels so far. Kernels have so many rounds;
/// with 0, as many as take half a millisecond on a GPU that nobody else uses now, which it says.
pub fn main(rounds: u64) -> std::process::ExitCode {
    match work(rounds) {
        Ok(never) => match never {},
        Err(error) => {
            log!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn work(rounds: u64) -> Result<std::convert::Infallible, String> {
    // SAFETY: the driver's library; its initialisers are the driver's.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
    let driver = Driver(library);
    let context = Work::begin(&driver, rounds)?;
    println!("{READY} {}", context.rounds);
    std::thread::spawn(answer);
    context.go_on()
}

/// Each line is a question. When there are no more, whoever asked has ended.
fn answer() {
    let mut out = std::io::stdout();
    for _ in std::io::stdin().lock().lines() {
        if writeln!(out, "{}", ENDED.load(Ordering::Relaxed)).is_err() {
            break;
        }
    }
    std::process::exit(0);
}

struct Driver(Library);

/// Calls a function of the driver: its type, its name, its arguments.
macro_rules! call {
    ($driver:expr, $kind:ty, $name:literal $(, $argument:expr)*) => {
        $driver.call::<$kind>($name, |function| {
            // SAFETY: arguments of the types that the driver's header names; places among them live through the call.
            unsafe { function($($argument),*) }
        })
    };
}

impl Driver {
    /// Calls the function `name`, of type `F`.
    fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> CUresult) -> Result<(), String> {
        // SAFETY: each caller below names the type that the driver's header has for this name.
        let function = unsafe { self.0.get::<F>(name.as_bytes()) }.map_err(|error| error.to_string())?;
        match call(*function) {
            0 => Ok(()),
            code => Err(format!("{name} gives {code}")),
        }
    }
}

/// The kernel, ready to be launched.
struct Work<'a> {
    driver: &'a Driver,
    function: CUfunction,
    sink: CUdeviceptr,
    blocks: c_uint,
    rounds: u64,
}

impl<'a> Work<'a> {
    fn begin(driver: &'a Driver, rounds: u64) -> Result<Self, String> {
        let (mut context, mut module): (CUcontext, CUmodule) = (null_mut(), null_mut());
        let (mut function, mut sink, mut multiprocessors): (CUfunction, CUdeviceptr, i32) = (null_mut(), 0, 0);
        call!(driver, CuInit, "cuInit", 0)?;
        call!(driver, CuCtxCreateV2, "cuCtxCreate_v2", &mut context, 0, 0)?;
        call!(driver, CuDeviceGetAttribute, "cuDeviceGetAttribute", &mut multiprocessors, MULTIPROCESSORS, 0)?;
        call!(driver, CuModuleLoadData, "cuModuleLoadData", &mut module, PTX.as_ptr().cast())?;
        call!(driver, CuModuleGetFunction, "cuModuleGetFunction", &mut function, module, c"work".as_ptr())?;
        call!(driver, CuMemAllocV2, "cuMemAlloc_v2", &mut sink, 4096)?;
        let blocks = BLOCKS_PER_MULTIPROCESSOR * c_uint::try_from(multiprocessors.max(1)).unwrap_or(1);
        let mut work = Self { driver, function, sink, blocks, rounds: if rounds == 0 { TRIED_ROUNDS } else { rounds } };
        if rounds != 0 {
            return Ok(work);
        }
        // The first one also loads the code, and whatever else the host does makes them seem longer.
        let mut tried = work.measure()?;
        for _ in 0..TRIED {
            tried = tried.min(work.measure()?);
        }
        let rounds = u128::from(TRIED_ROUNDS) * KERNEL.as_nanos() / tried.as_nanos().max(1);
        work.rounds = u64::try_from(rounds).unwrap_or(u64::MAX).max(1);
        Ok(work)
    }

    fn measure(&self) -> Result<Duration, String> {
        let begun = Instant::now();
        self.launch()?;
        call!(self.driver, CuCtxSynchronize, "cuCtxSynchronize")?;
        Ok(begun.elapsed())
    }

    fn launch(&self) -> Result<(), String> {
        let (mut rounds, mut sink) = (self.rounds, self.sink);
        let mut parameters: [*mut c_void; 2] = [(&raw mut rounds).cast(), (&raw mut sink).cast()];
        call!(
            self.driver,
            CuLaunchKernel,
            "cuLaunchKernel",
            self.function,
            self.blocks,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            null_mut(),
            parameters.as_mut_ptr(),
            null_mut()
        )
    }

    fn go_on(&self) -> Result<std::convert::Infallible, String> {
        let mut events: [CUevent; DEPTH] = [null_mut(); DEPTH];
        for event in &mut events {
            call!(self.driver, CuEventCreate, "cuEventCreate", event, EVENT_FLAGS)?;
        }
        for (turn, event) in events.iter().cycle().enumerate() {
            if turn >= DEPTH {
                call!(self.driver, CuEventSynchronize, "cuEventSynchronize", *event)?;
                ENDED.fetch_add(1, Ordering::Relaxed);
            }
            self.launch()?;
            call!(self.driver, CuEventRecord, "cuEventRecord", *event, null_mut())?;
        }
        Err("the work has ended, which has no end".to_owned())
    }
}
