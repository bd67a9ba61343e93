//! How many blocks of a kernel fit on a multiprocessor, by threads, registers and dynamic shared memory. All kernels are
//! alike here.

use crate::device::{MULTIPROCESSORS, THREADS_PER_BLOCK, THREADS_PER_MULTIPROCESSOR};
use crate::driver::{Outcome, code_at_once, driver, put};
use crate::function::REGISTERS;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_int, c_uint, c_void};

/// Of compute capability 8.0. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
const REGISTERS_PER_MULTIPROCESSOR: u32 = 64 << 10;
const SHARED_PER_MULTIPROCESSOR: usize = 164 << 10;
/// What the system takes of a block's shared memory.
const SHARED_RESERVED: usize = 1 << 10;
const WARP: u32 = 32;

/// Blocks of so many threads and bytes of shared memory that fit.
fn blocks(threads: c_int, shared_bytes: usize) -> Outcome<u32> {
    driver()?;
    let threads = u32::try_from(threads).ok().filter(|threads| (1..=THREADS_PER_BLOCK).contains(threads));
    let threads = threads.ok_or(CUDA_ERROR_INVALID_VALUE)?.next_multiple_of(WARP);
    let by_shared = (SHARED_PER_MULTIPROCESSOR / shared_bytes.saturating_add(SHARED_RESERVED)) as u32;
    let by_registers = REGISTERS_PER_MULTIPROCESSOR / (REGISTERS * threads);
    Ok((THREADS_PER_MULTIPROCESSOR / threads).min(by_registers).min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: *mut c_int,
    _function: CUfunction,
    threads: c_int,
    shared_bytes: usize,
) -> CUresult {
    code_at_once(|| {
        let found = blocks(threads, shared_bytes)? as c_int;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: *mut c_int,
    function: CUfunction,
    threads: c_int,
    shared_bytes: usize,
    _flags: c_uint,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared_bytes) }
}

/// Tells the dynamic shared memory of a block of so many threads.
type SharedOf = Option<unsafe extern "C" fn(c_int) -> usize>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    threads: *mut c_int,
    _function: CUfunction,
    shared_of: SharedOf,
    shared_bytes: usize,
    limit: c_int,
) -> CUresult {
    code_at_once(|| {
        let most = if limit > 0 { limit.min(THREADS_PER_BLOCK as c_int) } else { THREADS_PER_BLOCK as c_int };
        let mut best = (0, most, 0);
        for size in (1..=most).rev().filter(|size| *size == most || *size % WARP as c_int == 0) {
            // SAFETY: a function of the caller's, to be called with numbers of threads.
            let shared = shared_of.map_or(shared_bytes, |shared_of| unsafe { shared_of(size) });
            let fitting = blocks(size, shared)?;
            if fitting as c_int * size > best.0 {
                best = (fitting as c_int * size, size, fitting);
            }
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(grid, (best.2 * MULTIPROCESSORS) as c_int)?;
            put(threads, best.1)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut c_int,
    threads: *mut c_int,
    function: CUfunction,
    shared_of: SharedOf,
    shared_bytes: usize,
    limit: c_int,
    _flags: c_uint,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuOccupancyMaxPotentialBlockSize(grid, threads, function, shared_of, shared_bytes, limit) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    _function: CUfunction,
    wanted_blocks: c_int,
    threads: c_int,
) -> CUresult {
    code_at_once(|| {
        let fitting = blocks(threads, 0)? as c_int;
        if !(1..=fitting).contains(&wanted_blocks) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let each = SHARED_PER_MULTIPROCESSOR / wanted_blocks as usize;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(bytes, each - SHARED_RESERVED) }
    })
}

/// The simulated devices have no clusters.
#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveClusters(
    _count: *mut c_int,
    _function: CUfunction,
    _configuration: *const c_void,
) -> CUresult {
    code_at_once(|| driver().and(Err(CUDA_ERROR_NOT_SUPPORTED)))
}
