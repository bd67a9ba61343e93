//! Copies: those that may stay on a GPU behind the gate, and those to the host that return when they have ended as waits. For
//! those from the host, and the other ones to it, that are known by their names the real functions stand.

use crate::PROCESS;
use crate::entry::{index, real};
use crate::work_exports::{NO_STREAM, STREAM_PER_THREAD, issued, legacy, per_thread};
use core::ffi::{c_uint, c_ulonglong, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::Bytes;
use gpool_interposer_logic::copies::Moved;
use gpool_interposer_logic::waits::WaitFor;

macro_rules! linear_copies {
    ($($name:ident: $kind:ident $side:ident ($($stream:ident)?) $meant:expr;)*) => {$(
        /// Gated if it is long.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            to: CUdeviceptr, from: CUdeviceptr, bytes: usize $(, $stream: CUstream)?
        ) -> CUresult {
            // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
            issued(PROCESS.admit_bytes($meant, Bytes::$side, bytes as u64), || unsafe {
                real::<$kind>(index::$name)(to, from, bytes $(, $stream)?)
            })
        }
    )*};
}

linear_copies! {
    cuMemcpyAsync: CuMemcpyAsync CopyAny (stream) legacy(stream);
    cuMemcpyAsync_ptsz: CuMemcpyAsync CopyAny (stream) per_thread(stream);
    cuMemcpyDtoD_v2: CuMemcpyDtoDV2 Copy () NO_STREAM;
    cuMemcpyDtoD_v2_ptds: CuMemcpyDtoDV2 Copy () STREAM_PER_THREAD;
    cuMemcpyDtoDAsync_v2: CuMemcpyDtoDAsyncV2 Copy (stream) legacy(stream);
    cuMemcpyDtoDAsync_v2_ptsz: CuMemcpyDtoDAsyncV2 Copy (stream) per_thread(stream);
}

macro_rules! unified_copies {
    ($($name:ident: $meant:expr;)*) => {$(
        /// Gated if it is long. To the host it returns when it has ended, and so what stood before it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult {
            // SAFETY: as above.
            let result = issued(PROCESS.admit_bytes($meant, Bytes::CopyAny, bytes as u64), || unsafe {
                real::<CuMemcpy>(index::$name)(to, from, bytes)
            });
            if result == CUDA_SUCCESS {
                // Whether it was one to the host, and all has ended, the driver says.
                PROCESS.found_ended(WaitFor::Context(core::ptr::null_mut()));
            }
            result
        }
    )*};
}

unified_copies! { cuMemcpy: NO_STREAM; cuMemcpy_ptds: STREAM_PER_THREAD; }

macro_rules! copies_to_host {
    ($($name:ident: $kind:ident ($($argument:ident: $type:ty),*);)*) => {$(
        /// A wait: it returns when the copy has ended, and so what stood before it on its stream. Source: "API synchronization
        /// behavior" of the CUDA Driver API reference.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: *mut c_void, $($argument: $type),*) -> CUresult {
            // SAFETY: as above.
            PROCESS.copy_to_host(&mut || unsafe { real::<$kind>(index::$name)(to, $($argument),*) })
        }
    )*};
}

copies_to_host! {
    cuMemcpyDtoH_v2: CuMemcpyDtoHV2 (from: CUdeviceptr, bytes: usize);
    cuMemcpyDtoH_v2_ptds: CuMemcpyDtoHV2 (from: CUdeviceptr, bytes: usize);
    cuMemcpyAtoH_v2: CuMemcpyAtoHV2 (from: CUarray, from_offset: usize, bytes: usize);
    cuMemcpyAtoH_v2_ptds: CuMemcpyAtoHV2 (from: CUarray, from_offset: usize, bytes: usize);
}

/// `count` of the caller's values at `first`; none if it is null.
///
/// # Safety
/// Null, or that many values that live as long as the call.
unsafe fn values<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if first.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(first, count) } }
}

macro_rules! copies {
    ($($(#[$export:meta])* $name:ident: $kind:ident ($($argument:ident: $type:ty),*) $meant:expr, $moved:expr;)*) => {$(
        /// Gated if it is long.
        $(#[$export])*
        #[allow(clippy::too_many_arguments)] // the driver's own signature
        #[allow(unused_unsafe)] // where the sizes are among the arguments
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            // SAFETY: null, or what the caller gives the driver to read.
            let moved = unsafe { $moved };
            // SAFETY: see cuMemcpy.
            issued(PROCESS.admit_moved($meant, moved), || unsafe { real::<$kind>(index::$name)($($argument),*) })
        }
    )*};
}

copies! {
    #[unsafe(no_mangle)]
    cuMemcpy2D_v2: CuMemcpy2DV2 (copy: *const CUDA_MEMCPY2D) NO_STREAM, Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy2D_v2_ptds: CuMemcpy2DV2 (copy: *const CUDA_MEMCPY2D) STREAM_PER_THREAD, Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy2DUnaligned_v2: CuMemcpy2DUnalignedV2 (copy: *const CUDA_MEMCPY2D) NO_STREAM, Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy2DUnaligned_v2_ptds: CuMemcpy2DUnalignedV2 (copy: *const CUDA_MEMCPY2D)
        STREAM_PER_THREAD, Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy2DAsync_v2: CuMemcpy2DAsyncV2 (copy: *const CUDA_MEMCPY2D, stream: CUstream)
        legacy(stream), Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy2DAsync_v2_ptsz: CuMemcpy2DAsyncV2 (copy: *const CUDA_MEMCPY2D, stream: CUstream)
        per_thread(stream), Moved::rows(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3D_v2: CuMemcpy3DV2 (copy: *const CUDA_MEMCPY3D) NO_STREAM, Moved::block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3D_v2_ptds: CuMemcpy3DV2 (copy: *const CUDA_MEMCPY3D) STREAM_PER_THREAD, Moved::block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DAsync_v2: CuMemcpy3DAsyncV2 (copy: *const CUDA_MEMCPY3D, stream: CUstream)
        legacy(stream), Moved::block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DAsync_v2_ptsz: CuMemcpy3DAsyncV2 (copy: *const CUDA_MEMCPY3D, stream: CUstream)
        per_thread(stream), Moved::block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DPeer: CuMemcpy3DPeer (copy: *const CUDA_MEMCPY3D_PEER) NO_STREAM, Moved::peer_block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DPeer_ptds: CuMemcpy3DPeer (copy: *const CUDA_MEMCPY3D_PEER)
        STREAM_PER_THREAD, Moved::peer_block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DPeerAsync: CuMemcpy3DPeerAsync (copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream)
        legacy(stream), Moved::peer_block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpy3DPeerAsync_ptsz: CuMemcpy3DPeerAsync (copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream)
        per_thread(stream), Moved::peer_block(copy.as_ref());
    #[unsafe(no_mangle)]
    cuMemcpyPeer: CuMemcpyPeer (
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize
    ) NO_STREAM, Moved::piece(Bytes::Peer, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyPeer_ptds: CuMemcpyPeer (
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize
    ) STREAM_PER_THREAD, Moved::piece(Bytes::Peer, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyPeerAsync: CuMemcpyPeerAsync (
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
        stream: CUstream
    ) legacy(stream), Moved::piece(Bytes::Peer, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyPeerAsync_ptsz: CuMemcpyPeerAsync (
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
        stream: CUstream
    ) per_thread(stream), Moved::piece(Bytes::Peer, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyAtoA_v2: CuMemcpyAtoAV2 (to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize)
        NO_STREAM, Moved::piece(Bytes::Rows, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyAtoA_v2_ptds: CuMemcpyAtoAV2 (
        to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize
    ) STREAM_PER_THREAD, Moved::piece(Bytes::Rows, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyAtoD_v2: CuMemcpyAtoDV2 (to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize)
        NO_STREAM, Moved::piece(Bytes::Rows, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyAtoD_v2_ptds: CuMemcpyAtoDV2 (to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize)
        STREAM_PER_THREAD, Moved::piece(Bytes::Rows, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyDtoA_v2: CuMemcpyDtoAV2 (to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize)
        NO_STREAM, Moved::piece(Bytes::Rows, bytes);
    #[unsafe(no_mangle)]
    cuMemcpyDtoA_v2_ptds: CuMemcpyDtoAV2 (to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize)
        STREAM_PER_THREAD, Moved::piece(Bytes::Rows, bytes);
}

// Newer than driver 555, where they are reached through cuGetProcAddress only.
copies! {
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpyBatchAsync: CuMemcpyBatchAsync (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream
    ) legacy(stream), Moved::batch(values(sizes, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpyBatchAsync_ptsz: CuMemcpyBatchAsync (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream
    ) per_thread(stream), Moved::batch(values(sizes, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpyBatchAsync_v2: CuMemcpyBatchAsyncV2 (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, stream: CUstream
    ) legacy(stream), Moved::batch(values(sizes, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpyBatchAsync_v2_ptsz: CuMemcpyBatchAsyncV2 (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, stream: CUstream
    ) per_thread(stream), Moved::batch(values(sizes, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpy3DBatchAsync: CuMemcpy3DBatchAsync (
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong,
        stream: CUstream
    ) legacy(stream), Moved::blocks(values(copies, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpy3DBatchAsync_ptsz: CuMemcpy3DBatchAsync (
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong,
        stream: CUstream
    ) per_thread(stream), Moved::blocks(values(copies, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpy3DBatchAsync_v2: CuMemcpy3DBatchAsyncV2 (
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream
    ) legacy(stream), Moved::blocks(values(copies, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemcpy3DBatchAsync_v2_ptsz: CuMemcpy3DBatchAsyncV2 (
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream
    ) per_thread(stream), Moved::blocks(values(copies, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemBatchDecompressAsync: CuMemBatchDecompressAsync (
        pieces: *mut CUmemDecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream
    ) legacy(stream), Moved::unpacked(values(pieces, count));
    #[cfg_attr(driver_580, unsafe(no_mangle))]
    cuMemBatchDecompressAsync_ptsz: CuMemBatchDecompressAsync (
        pieces: *mut CUmemDecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream
    ) per_thread(stream), Moved::unpacked(values(pieces, count));
    // Newer than driver 580.
    cuMemcpyWithAttributesAsync: CuMemcpyWithAttributesAsync (
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream
    ) legacy(stream), Moved::piece(Bytes::CopyAny, bytes);
    cuMemcpyWithAttributesAsync_ptsz: CuMemcpyWithAttributesAsync (
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream
    ) per_thread(stream), Moved::piece(Bytes::CopyAny, bytes);
    cuMemcpy3DWithAttributesAsync: CuMemcpy3DWithAttributesAsync (
        copy: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream
    ) legacy(stream), Moved::blocks(values(copy, 1));
    cuMemcpy3DWithAttributesAsync_ptsz: CuMemcpy3DWithAttributesAsync (
        copy: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream
    ) per_thread(stream), Moved::blocks(values(copy, 1));
}

macro_rules! refused {
    ($($name:ident)*) => {$(
        /// With the 32-bit addresses of CUDA 2, which no allocator gives. The arguments do not matter.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> CUresult {
            CUDA_ERROR_NOT_SUPPORTED
        }
    )*};
}

refused! {
    cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync
    cuMemcpyAtoA cuMemcpyAtoD cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoDAsync
    cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32
    cuMemsetD8
}
