//! Copies of rows and blocks, and between contexts. Arrays are not simulated: a copy from or to one is refused.

use crate::copy::{copy, enqueue};
use crate::driver::{Outcome, code, driver};
use crate::objects::Objects;
use crate::transfer::{Block, End, Transfer};
use gpool_driver_abi::cuda::*;
use std::ffi::c_void;

/// One side of a copy as cuda.h describes it.
struct Side {
    memory: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    pitch: usize,
    /// Rows in a layer.
    height: usize,
    /// Where the copy begins: a byte in a row, a row, a layer.
    at: [usize; 3],
}

impl Side {
    /// The rows from the first byte on that the copy moves, of which each is `width` long.
    fn block(&self, objects: &Objects, width: usize) -> Outcome<Block> {
        let [x, y, z] = self.at;
        let pitch = if self.pitch == 0 { x.saturating_add(width) } else { self.pitch };
        let layer = pitch.saturating_mul(self.height);
        let first = x.saturating_add(y.saturating_mul(pitch)).saturating_add(z.saturating_mul(layer));
        let base = match self.memory {
            CU_MEMORYTYPE_HOST => End::Host(self.host as usize),
            CU_MEMORYTYPE_DEVICE => End::Device(self.device),
            CU_MEMORYTYPE_UNIFIED => End::of(objects, self.device),
            CU_MEMORYTYPE_ARRAY => return Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        Ok(Block { first: base.plus(first)?, pitch, layer })
    }
}

/// # Safety
///
/// NULL or valid.
unsafe fn plane(copy: *const CUDA_MEMCPY2D) -> Outcome<Transfer> {
    // SAFETY: as this function's caller promises.
    let copy = unsafe { copy.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let from = Side {
        memory: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        pitch: copy.srcPitch,
        height: 0,
        at: [copy.srcXInBytes, copy.srcY, 0],
    };
    let to = Side {
        memory: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        pitch: copy.dstPitch,
        height: 0,
        at: [copy.dstXInBytes, copy.dstY, 0],
    };
    transfer(&to, &from, [copy.WidthInBytes, copy.Height, 1])
}

/// # Safety
///
/// NULL or valid.
unsafe fn block(copy: *const CUDA_MEMCPY3D) -> Outcome<Transfer> {
    // SAFETY: as this function's caller promises.
    let copy = unsafe { copy.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let from = Side {
        memory: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        pitch: copy.srcPitch,
        height: copy.srcHeight,
        at: [copy.srcXInBytes, copy.srcY, copy.srcZ],
    };
    let to = Side {
        memory: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        pitch: copy.dstPitch,
        height: copy.dstHeight,
        at: [copy.dstXInBytes, copy.dstY, copy.dstZ],
    };
    transfer(&to, &from, [copy.WidthInBytes, copy.Height, copy.Depth])
}

fn transfer(to: &Side, from: &Side, extent: [usize; 3]) -> Outcome<Transfer> {
    let objects = driver()?.objects();
    Ok(Transfer::Block { to: to.block(&objects, extent[0])?, from: from.block(&objects, extent[0])?, extent })
}

/// A copy between contexts that are there.
fn between(to: (CUdeviceptr, CUcontext), from: (CUdeviceptr, CUcontext), bytes: usize) -> Outcome<Transfer> {
    let objects = driver()?.objects();
    let is_there = |context: CUcontext| objects.contexts.contains_key(&(context as usize));
    if !is_there(to.1) || !is_there(from.1) {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(Transfer::Copy { to: End::Device(to.0), from: End::Device(from.0), bytes })
}

macro_rules! described {
    ($($name:ident, $name_async:ident: $description:ty, $read:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(description: *const $description) -> CUresult {
            // SAFETY: NULL or valid, as the API demands of its caller.
            code(|| copy(driver()?, unsafe { $read(description) }?))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name_async(description: *const $description, stream: CUstream) -> CUresult {
            // SAFETY: as above.
            code(|| enqueue(driver()?, unsafe { $read(description) }?, stream))
        }
    )*};
}

described! {
    cuMemcpy2D_v2, cuMemcpy2DAsync_v2: CUDA_MEMCPY2D, plane;
    cuMemcpy3D_v2, cuMemcpy3DAsync_v2: CUDA_MEMCPY3D, block;
    cuMemcpy3DPeer, cuMemcpy3DPeerAsync: CUDA_MEMCPY3D_PEER, block;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DUnaligned_v2(description: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: the same contract; no alignment is asked for here.
    unsafe { cuMemcpy2D_v2(description) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeer(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
) -> CUresult {
    code(|| copy(driver()?, between((to, to_context), (from, from_context), bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    code(|| enqueue(driver()?, between((to, to_context), (from, from_context), bytes)?, stream))
}
