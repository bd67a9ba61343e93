//! How long blocks of kernels take from the first launch to the last end, by the clock on the wall, through the shim and past it. A
//! kernel does a fixed amount of arithmetic, so that it is as long either way: what a block takes more is what a program
//! waits for that launches short kernels.

use super::call_cost::{Both, Events, LAUNCHES_IN_A_ROUND, Side, checked, load};
use crate::failure::Result;
use crate::library::Library;
use gpool_driver_abi::cuda::{CUdeviceptr, CUfunction, CuMemAllocV2};
use serde_json::{Map, Value};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::time::Instant;

/// So many rounds of two dependent multiplications and additions, in one warp. The result goes to `sink` in a case that does not
/// come, so that nothing can be left out. The simulated driver takes the first parameter of what is called so for nanoseconds.
const PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns_rounds(.param .u64 rounds, .param .u64 sink)
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
    sub.u64 %left, %left, 1;
    setp.gt.u64 %p, %left, 0;
    @%p bra round;
    setp.eq.f32 %p, %c, %d;
    @%p st.global.f32 [%out], %c;
    ret;
}
";
const NAME: &CStr = c"spin_ns_rounds";
const THREADS: u32 = 32;
const SINK_BYTES: usize = 4096;

/// Kernels by their length: what it is called, in nanoseconds, and so many are a block, which takes some milliseconds.
const LENGTHS: [(&str, u64, usize); 3] = [("3us", 3_000, 400), ("10us", 10_000, 240), ("50us", 50_000, 80)];
/// Blocks of each side; and before the estimates are settled.
const BLOCKS: usize = 40;
const WARM_UP_BLOCKS: usize = 6;
/// What tells how long a round takes: kernels of so many, one behind the other, several times, of which the last counts: the device's
/// clock rises with work.
const CALIBRATION: (u64, usize, usize) = (20_000, 100, 5);

/// How a program waits that launches kernels.
#[derive(Debug, Clone, Copy)]
enum Waits {
    /// For the last one.
    AtTheEnd,
    /// After each fourth for all.
    InRounds,
    /// After each for the third before it.
    Ahead,
}

const WAITS: [(&str, Waits); 3] = [("free", Waits::AtTheEnd), ("wait", Waits::InRounds), ("event", Waits::Ahead)];

/// What a block is of.
#[derive(Debug)]
struct Block {
    kernel: CUfunction,
    rounds: u64,
    sink: CUdeviceptr,
    launches: usize,
}

/// By length and way of waiting, the nanoseconds that each kernel of a block takes, in each block.
pub(super) fn measure(shim: &Library, sides: &[Side; 2], events: &Events) -> Result<Value> {
    let (allocate, mut sink): (CuMemAllocV2, CUdeviceptr) = (shim.function(c"cuMemAlloc_v2")?, 0);
    // SAFETY: the address goes to a live local; a context is current to this thread.
    checked("cuMemAlloc", unsafe { allocate(&mut sink, SINK_BYTES) })?;
    let round_ns = round_ns(shim, sides, events, sink)?;
    let mut told = Map::new();
    for (length, length_ns, launches) in LENGTHS {
        // Each length has a kernel of its own: what one takes is expected by its handle.
        let block =
            Block { kernel: load(shim, PTX, NAME)?, rounds: (length_ns as f64 / round_ns) as u64, sink, launches };
        let mut of_length = Map::new();
        for (name, waits) in WAITS {
            let mut both = Both::default();
            for round in 0..WARM_UP_BLOCKS + BLOCKS {
                both.measure(round, |side| block.kernel_ns(&sides[side], waits, events))?;
            }
            both.tell(&mut of_length, name, WARM_UP_BLOCKS);
        }
        told.insert(length.to_owned(), of_length.into());
    }
    Ok(told.into())
}

/// Nanoseconds of a round, past the shim.
fn round_ns(shim: &Library, [_, real]: &[Side; 2], events: &Events, sink: CUdeviceptr) -> Result<f64> {
    let (rounds, launches, times) = CALIBRATION;
    let block = Block { kernel: load(shim, PTX, NAME)?, rounds, sink, launches };
    let mut last_ns = 0.0;
    for _ in 0..times {
        last_ns = block.kernel_ns(real, Waits::AtTheEnd, events)?;
    }
    Ok(last_ns / rounds as f64)
}

impl Block {
    /// Nanoseconds of one block by the clock on the wall, for each of its kernels.
    fn kernel_ns(&self, side: &Side, waits: Waits, events: &Events) -> Result<f64> {
        let start = Instant::now();
        for index in 0..self.launches {
            self.launch(side)?;
            match waits {
                Waits::InRounds if (index + 1).is_multiple_of(LAUNCHES_IN_A_ROUND as usize) => side.synchronized()?,
                Waits::Ahead => side.step_ended(index, events)?,
                Waits::InRounds | Waits::AtTheEnd => {}
            }
        }
        side.synchronized()?;
        Ok(start.elapsed().as_nanos() as f64 / self.launches as f64)
    }

    fn launch(&self, side: &Side) -> Result<()> {
        let (mut rounds, mut sink) = (self.rounds.max(1), self.sink);
        let mut parameters = [(&raw mut rounds).cast::<c_void>(), (&raw mut sink).cast()];
        let list = parameters.as_mut_ptr();
        // SAFETY: the kernel takes two u64, which outlive the call.
        let code = unsafe { (side.launch)(self.kernel, 1, 1, 1, THREADS, 1, 1, 0, null_mut(), list, null_mut()) };
        checked("cuLaunchKernel", code)
    }
}
