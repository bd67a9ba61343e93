//! Launches: how long a kernel takes, and the way into the queue.

use crate::capture;
use crate::context::why_gone;
use crate::device::{MULTIPROCESSORS, THREADS_PER_BLOCK, THREADS_PER_MULTIPROCESSOR};
use crate::driver::{Driver, Outcome, code, driver, lost};
use crate::objects::{Node, Objects, Record, Target};
use crate::wait::wait;
use crate::{function, library, program};
use gpool_device_model::{QUEUE_LIMIT, Ticket};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_uint, c_void};

/// A submitter that found the queue full goes on when this much of it is free again.
const ROOM: u64 = QUEUE_LIMIT as u64 / 16;

/// What goes into a queue.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    /// These, one after the other.
    Nodes(&'a [Node]),
    Marker,
}

enum Submission {
    Done { ticket: Ticket, times: Vec<(Ticket, u64)> },
    Full { completed: Ticket },
    Gone { why: CUresult },
}

/// Queues work on a stream, or writes it down while the stream captures. Blocks while the queue is full. Refuses work
/// on memory that is not there. `record` learns where the work went.
pub(crate) fn submit(
    driver: &Driver,
    stream: CUstream,
    work: Work<'_>,
    record: impl FnOnce(&mut Objects, Record) -> Outcome,
) -> Outcome {
    loop {
        let mut objects = driver.objects();
        let target = objects.target(stream)?;
        let nodes = if let Work::Nodes(nodes) = work { nodes } else { &[] };
        let transfers = || nodes.iter().filter_map(|node| node.transfer.as_ref());
        transfers().try_for_each(|transfer| transfer.check(&objects))?;
        if let Some(handle) = target.stream
            && let Some(capture) = objects.streams.get_mut(&handle).and_then(|stream| stream.capture.as_mut())
        {
            capture.record(nodes)?;
            return record(&mut objects, Record::Capture { stream: handle });
        }
        if target.stream.is_none() {
            capture::refuse_implicit(&mut objects, target.context)?;
        }
        match attempt(driver, target, work)? {
            Submission::Done { ticket, times } => {
                objects.issued(target, ticket);
                record(&mut objects, Record::Queue { place: target.place, ticket })?;
                if matches!(work, Work::Marker) {
                    objects.times.insert((target.place, ticket), None);
                }
                objects.completed(target.place, times);
                // SAFETY: checked above, and the objects have been locked since.
                transfers().for_each(|transfer| unsafe { transfer.apply() });
                return Ok(());
            }
            Submission::Full { completed } => {
                drop(objects);
                wait(driver, target.place, Ticket(completed.0 + ROOM))?;
            }
            Submission::Gone { why } => return Err(why),
        }
    }
}

fn attempt(driver: &Driver, target: Target, work: Work<'_>) -> Outcome<Submission> {
    let id = target.place.id;
    let submitted = driver.store(target.place)?.update(|device, now_ns| {
        if !device.has_context(id) {
            return Submission::Gone { why: why_gone(device, id) };
        }
        if device.is_full(id) {
            return Submission::Full { completed: device.last_completed(id) };
        }
        let mut ticket = Ticket(0);
        match work {
            Work::Marker => ticket = device.submit_marker(now_ns, id),
            Work::Nodes(nodes) => {
                for node in nodes {
                    // A marker is completed in order and takes no time. Nobody asks for its time.
                    ticket = match node.gpu_time_ns {
                        Some(duration_ns) => device.submit_kernel(now_ns, id, duration_ns),
                        None => device.submit_marker(now_ns, id),
                    };
                }
            }
        }
        Submission::Done { ticket, times: device.take_marker_times(id) }
    });
    submitted.map_err(lost)
}

/// How a kernel is launched.
struct Launch {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl Launch {
    /// GPU time of a kernel that does not say how long it runs: 2 us, and 10 us for every time that all
    /// multiprocessors are filled with threads. An invention; no product is measured here.
    fn formula_ns(&self) -> Outcome<u64> {
        let count = |sizes: [c_uint; 3]| sizes.iter().fold(1_u64, |all, size| all.saturating_mul(u64::from(*size)));
        let (blocks, threads) = (count(self.grid), count(self.block));
        if blocks == 0 || threads == 0 || threads > u64::from(THREADS_PER_BLOCK) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let wave = u64::from(MULTIPROCESSORS * THREADS_PER_MULTIPROCESSOR);
        Ok(2_000 + blocks.saturating_mul(threads).div_ceil(wave).saturating_mul(10_000))
    }

    /// The first parameter, 8 bytes wide.
    ///
    /// # Safety
    ///
    /// The pointers are as cuLaunchKernel demands for a kernel whose first parameter is a u64.
    unsafe fn first_parameter(&self) -> Outcome<u64> {
        // SAFETY: `parameters` is NULL or an array with one pointer for each parameter, and `extra` is NULL or a list
        // of keys and values that ends with CU_LAUNCH_PARAM_END.
        unsafe {
            if !self.parameters.is_null() && !(*self.parameters).is_null() {
                return Ok((*self.parameters).cast::<u64>().read_unaligned());
            }
            let mut entry = self.extra;
            while !entry.is_null() && *entry as usize != CU_LAUNCH_PARAM_END {
                let value = *entry.add(1);
                if *entry as usize == CU_LAUNCH_PARAM_BUFFER_POINTER && !value.is_null() {
                    return Ok(value.cast::<u64>().read_unaligned());
                }
                entry = entry.add(2);
            }
        }
        Err(CUDA_ERROR_INVALID_VALUE)
    }

    /// # Safety
    ///
    /// As for [`Launch::first_parameter`].
    unsafe fn run(self, function: CUfunction, stream: CUstream) -> Outcome {
        let driver = driver()?;
        let mut duration_ns = self.formula_ns()?;
        let (spins, program, place) = {
            let mut objects = driver.objects();
            let target = objects.target(stream)?;
            match objects.libraries.kernels.get(&(function as usize)) {
                Some(kernel) => {
                    let (library, spins) = (kernel.library, function::spins(kernel.name.to_str().unwrap_or_default()));
                    library::load_into(driver, &mut objects, library, target.context)?;
                    (spins, None, target.place)
                }
                None => {
                    let found = objects.functions.get(&(function as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
                    let module = objects.modules.get(&found.module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
                    if target.context != module.context {
                        return Err(CUDA_ERROR_INVALID_HANDLE);
                    }
                    (found.spins, found.program.clone(), target.place)
                }
            }
        };
        if spins {
            // SAFETY: as this function's caller promises.
            duration_ns = unsafe { self.first_parameter() }?;
        }
        let node = Node { gpu_time_ns: Some(duration_ns), transfer: None };
        submit(driver, stream, Work::Nodes(&[node]), |_, _| Ok(()))?;
        let Some(program) = program else { return Ok(()) };
        if [self.grid[1], self.grid[2], self.block[1], self.block[2]] != [1; 4] {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let sizes = [self.grid[0], self.block[0]];
        // SAFETY: as this function's caller promises.
        unsafe { program::execute(driver, &driver.objects(), place, &program, sizes, self.parameters) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let launch = Launch { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], parameters, extra };
    // SAFETY: the API demands of its caller what `run` needs.
    code(|| unsafe { launch.run(function, stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    configuration: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    let Some(given) = (unsafe { configuration.as_ref() }) else { return CUDA_ERROR_INVALID_VALUE };
    let grid = [given.gridDimX, given.gridDimY, given.gridDimZ];
    let launch = Launch { grid, block: [given.blockDimX, given.blockDimY, given.blockDimZ], parameters, extra };
    // SAFETY: the API demands of its caller what `run` needs.
    code(|| unsafe { launch.run(function, given.hStream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> CUresult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let launch = Launch { grid, block, parameters, extra: std::ptr::null_mut() };
    // SAFETY: the API demands of its caller what `run` needs.
    code(|| unsafe { launch.run(function, stream) })
}
