//! Work: launches of kernels and graphs, and memsets, each behind the gate.

use crate::PROCESS;
use crate::entry::{index, real};
use crate::graph_memory;
use core::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::copies::Moved;
use gpool_interposer_logic::{Admission, Work};

/// The per-thread default stream as a handle; `_ptsz` and `_ptds` entry points mean it when they are given none.
pub const STREAM_PER_THREAD: CUstream = 2 as CUstream;
/// The legacy default stream as a handle (CU_STREAM_LEGACY), which no stream is to entry points without a suffix.
const STREAM_LEGACY: CUstream = 1 as CUstream;
/// What entry points without a stream mean.
pub const NO_STREAM: CUstream = core::ptr::null_mut();

/// The stream that a `_ptsz` or `_ptds` entry point means.
#[inline(always)]
pub fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { STREAM_PER_THREAD } else { legacy(stream) }
}

/// The stream that all other entry points mean: a program that calls the default stream now by the one and now by the other of its
/// two names goes on with one burst.
#[inline(always)]
pub fn legacy(stream: CUstream) -> CUstream {
    if stream == STREAM_LEGACY { NO_STREAM } else { stream }
}

/// Issues work as it was admitted.
#[inline(always)]
pub fn issued(admission: Admission, issue: impl FnOnce() -> CUresult) -> CUresult {
    match admission {
        Admission::Pass => issue(),
        Admission::PassAlone(burst) => {
            let result = issue();
            PROCESS.launched_alone(burst);
            result
        }
        Admission::NotInitialized => CUDA_ERROR_NOT_INITIALIZED,
    }
}

/// Stands at the gate, then launches `handle`.
#[inline(always)]
fn gated(stream: CUstream, handle: *mut c_void, launch: impl FnOnce() -> CUresult) -> CUresult {
    issued(PROCESS.admit(stream, Work::handle(handle)), launch)
}

/// Launches a graph that may allocate. What it allocates is charged behind the gate: while a thread stands in front of it,
/// others may take what streams keep.
#[cold]
#[inline(never)]
fn launch_kept(graph: CUgraphExec, meant: CUstream, stream: CUstream, launch: CuGraphLaunch) -> CUresult {
    gated(meant, graph, || {
        // SAFETY: the driver's function of this type, the caller's arguments.
        graph_memory::behind(graph, meant, || unsafe { launch(graph, stream) })
    })
}

macro_rules! launches {
    ($($meant:ident: $kernel:ident, $kernel_ex:ident, $cooperative:ident, $graph:ident;)*) => {$(
        /// Gated.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // the driver's own signature
        pub unsafe extern "C" fn $kernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
            gated($meant(stream), function, || unsafe {
                real::<CuLaunchKernel>(index::$kernel)(
                    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra,
                )
            })
        }

        /// Gated.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $kernel_ex(
            configuration: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: null, or the caller's configuration.
            let stream = unsafe { configuration.as_ref() }.map_or(NO_STREAM, |given| given.hStream);
            // SAFETY: see cuLaunchKernel.
            gated($meant(stream), function, || unsafe {
                real::<CuLaunchKernelEx>(index::$kernel_ex)(configuration, function, parameters, extra)
            })
        }

        /// Gated.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // the driver's own signature
        pub unsafe extern "C" fn $cooperative(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: see cuLaunchKernel.
            gated($meant(stream), function, || unsafe {
                real::<CuLaunchCooperativeKernel>(index::$cooperative)(
                    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                )
            })
        }

        /// Gated, and charged first for what it allocates.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $graph(graph: CUgraphExec, stream: CUstream) -> CUresult {
            if graph_memory::are_used() {
                // SAFETY: the entry point's type.
                return launch_kept(graph, $meant(stream), stream, unsafe { real(index::$graph) });
            }
            // SAFETY: see cuLaunchKernel.
            gated($meant(stream), graph, || unsafe { real::<CuGraphLaunch>(index::$graph)(graph, stream) })
        }
    )*};
}

launches! {
    legacy: cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel, cuGraphLaunch;
    per_thread: cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, cuLaunchCooperativeKernel_ptsz, cuGraphLaunch_ptsz;
}

macro_rules! old_launches {
    ($($name:ident: $kind:ident ($function:ident $(, $argument:ident: $type:ty)*), $stream:expr;)*) => {$(
        /// Gated.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($function: CUfunction $(, $argument: $type)*) -> CUresult {
            // SAFETY: see cuLaunchKernel.
            gated($stream, $function, || unsafe { real::<$kind>(index::$name)($function $(, $argument)*) })
        }
    )*};
}

old_launches! {
    cuLaunch: CuLaunch (function), NO_STREAM;
    cuLaunchGrid: CuLaunchGrid (function, width: c_int, height: c_int), NO_STREAM;
    cuLaunchGridAsync: CuLaunchGridAsync (function, width: c_int, height: c_int, stream: CUstream), legacy(stream);
}

/// Launches on streams of several contexts at once, each of which would have to be admitted before the first goes:
/// refused. Deprecated since CUDA 11.3, and the runtime of CUDA 13 has no function for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernelMultiDevice(
    _list: *mut c_void,
    _count: c_uint,
    _flags: c_uint,
) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

macro_rules! memsets {
    ($($value:ty: $($name:ident: $kind:ident ($($stream:ident)?) $meant:expr),*;)*) => {$($(
        /// Gated if it is long.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            to: CUdeviceptr, value: $value, count: usize $(, $stream: CUstream)?
        ) -> CUresult {
            let moved = Moved::fill(size_of::<$value>(), count, 1);
            // SAFETY: see cuLaunchKernel.
            issued(PROCESS.admit_moved($meant, moved), || unsafe {
                real::<$kind>(index::$name)(to, value, count $(, $stream)?)
            })
        }
    )*)*};
}

memsets! {
    c_uchar:
        cuMemsetD8_v2: CuMemsetD8V2 () NO_STREAM,
        cuMemsetD8_v2_ptds: CuMemsetD8V2 () STREAM_PER_THREAD,
        cuMemsetD8Async: CuMemsetD8Async (stream) legacy(stream),
        cuMemsetD8Async_ptsz: CuMemsetD8Async (stream) per_thread(stream);
    c_ushort:
        cuMemsetD16_v2: CuMemsetD16V2 () NO_STREAM,
        cuMemsetD16_v2_ptds: CuMemsetD16V2 () STREAM_PER_THREAD,
        cuMemsetD16Async: CuMemsetD16Async (stream) legacy(stream),
        cuMemsetD16Async_ptsz: CuMemsetD16Async (stream) per_thread(stream);
    c_uint:
        cuMemsetD32_v2: CuMemsetD32V2 () NO_STREAM,
        cuMemsetD32_v2_ptds: CuMemsetD32V2 () STREAM_PER_THREAD,
        cuMemsetD32Async: CuMemsetD32Async (stream) legacy(stream),
        cuMemsetD32Async_ptsz: CuMemsetD32Async (stream) per_thread(stream);
}

macro_rules! memsets_2d {
    ($($value:ty: $($name:ident: $kind:ident ($($stream:ident)?) $meant:expr),*;)*) => {$($(
        /// Gated if it is long.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize $(, $stream: CUstream)?
        ) -> CUresult {
            let moved = Moved::fill(size_of::<$value>(), width, height);
            // SAFETY: see cuLaunchKernel.
            issued(PROCESS.admit_moved($meant, moved), || unsafe {
                real::<$kind>(index::$name)(to, pitch, value, width, height $(, $stream)?)
            })
        }
    )*)*};
}

memsets_2d! {
    c_uchar:
        cuMemsetD2D8_v2: CuMemsetD2D8V2 () NO_STREAM,
        cuMemsetD2D8_v2_ptds: CuMemsetD2D8V2 () STREAM_PER_THREAD,
        cuMemsetD2D8Async: CuMemsetD2D8Async (stream) legacy(stream),
        cuMemsetD2D8Async_ptsz: CuMemsetD2D8Async (stream) per_thread(stream);
    c_ushort:
        cuMemsetD2D16_v2: CuMemsetD2D16V2 () NO_STREAM,
        cuMemsetD2D16_v2_ptds: CuMemsetD2D16V2 () STREAM_PER_THREAD,
        cuMemsetD2D16Async: CuMemsetD2D16Async (stream) legacy(stream),
        cuMemsetD2D16Async_ptsz: CuMemsetD2D16Async (stream) per_thread(stream);
    c_uint:
        cuMemsetD2D32_v2: CuMemsetD2D32V2 () NO_STREAM,
        cuMemsetD2D32_v2_ptds: CuMemsetD2D32V2 () STREAM_PER_THREAD,
        cuMemsetD2D32Async: CuMemsetD2D32Async (stream) legacy(stream),
        cuMemsetD2D32Async_ptsz: CuMemsetD2D32Async (stream) per_thread(stream);
}
