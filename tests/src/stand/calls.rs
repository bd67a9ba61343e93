//! What is called, through the shim and past it.

use super::place::{REAL, SHIM};
use crate::failure::{Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CUfunction, CUgraphExec, CUstream, CuCtxCreateV2, CuDriverGetVersion, CuGraphLaunch, CuInit, CuLaunchKernel,
    CuMemAllocV2, CuMemFreeV2, CuMemGetInfoV2, CuMemcpyDtoDAsyncV2, CuStreamCreate,
};
use std::ffi::CStr;
use std::ptr::{null_mut, without_provenance_mut};

/// Functions that a program launches in turn.
const FUNCTIONS: usize = 8;
/// A copy that is too short to be gated.
const COPY_BYTES: usize = 64 << 10;
const ALLOCATION_BYTES: usize = 1 << 20;

/// A call that is counted or timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// One function, again and again.
    Launch,
    /// Several functions in turn.
    Mixed,
    /// A graph.
    Graph,
    /// A short copy on the device.
    Copy,
    /// An allocation and its end.
    Pair,
    /// A call that is only passed on.
    Trampoline,
}

/// The entry points of one library, and a stream.
#[derive(Clone, Copy)]
pub struct Calls {
    launch: CuLaunchKernel,
    graph: CuGraphLaunch,
    copy: CuMemcpyDtoDAsyncV2,
    allocate: CuMemAllocV2,
    free: CuMemFreeV2,
    room: CuMemGetInfoV2,
    version: CuDriverGetVersion,
    stream: CUstream,
}

// SAFETY: addresses of functions, and a handle that is valid on every thread.
unsafe impl Send for Calls {}

impl Calls {
    /// Through the shim, initialised and with a context.
    ///
    /// # Errors
    /// What the shim answered.
    pub fn of_shim() -> Result<Self> {
        let library = Library::open(SHIM)?;
        let init: CuInit = library.function(c"cuInit")?;
        let create: CuCtxCreateV2 = library.function(c"cuCtxCreate_v2")?;
        let mut context = null_mut();
        // SAFETY: the entry points have these types, and there is a place for the handle.
        let begun = unsafe { (init(0), create(&mut context, 0, 0)) };
        ensure(begun == (0, 0), || format!("cuInit and cuCtxCreate answered {begun:?}"))?;
        Self::of(&library)
    }

    /// Past it.
    pub fn of_driver() -> Result<Self> {
        Self::of(&Library::open(REAL)?)
    }

    fn of(library: &Library) -> Result<Self> {
        fn found<F: Copy>(library: &Library, name: &CStr) -> Result<F> {
            library.function(name)
        }
        let mut stream = null_mut();
        let create: CuStreamCreate = found(library, c"cuStreamCreate")?;
        // SAFETY: there is a place for the handle.
        let failed = unsafe { create(&mut stream, 0) };
        ensure(failed == 0, || format!("cuStreamCreate answered {failed}"))?;
        Ok(Self {
            launch: found(library, c"cuLaunchKernel")?,
            graph: found(library, c"cuGraphLaunch")?,
            copy: found(library, c"cuMemcpyDtoDAsync_v2")?,
            allocate: found(library, c"cuMemAlloc_v2")?,
            free: found(library, c"cuMemFree_v2")?,
            room: found(library, c"cuMemGetInfo_v2")?,
            version: found(library, c"cuDriverGetVersion")?,
            stream,
        })
    }

    /// Makes a call, the `turn`th of its kind; whether it succeeded.
    #[inline(never)]
    pub fn make(&self, call: Call, turn: usize) -> bool {
        match call {
            Call::Launch => self.launch(0),
            Call::Mixed => self.launch(1 + turn % FUNCTIONS),
            Call::Graph => {
                let graph: CUgraphExec = without_provenance_mut(0x9000);
                // SAFETY: the driver behind the stand looks at no handle but the stream's, which is its own.
                unsafe { (self.graph)(graph, self.stream) == 0 }
            }
            // SAFETY: as above; the addresses are never followed.
            Call::Copy => unsafe { (self.copy)(1 << 41, 1 << 40, COPY_BYTES, self.stream) == 0 },
            Call::Pair => self.allocate(ALLOCATION_BYTES).is_some_and(|pointer| self.free(pointer)),
            Call::Trampoline => {
                let mut version = 0;
                // SAFETY: there is a place for the answer.
                unsafe { (self.version)(&mut version) == 0 }
            }
        }
    }

    fn launch(&self, number: usize) -> bool {
        let function: CUfunction = without_provenance_mut(0x10_0000 + number * 256);
        // SAFETY: as for graphs; no parameters are looked at.
        unsafe { (self.launch)(function, 1, 1, 1, 1, 1, 1, 0, self.stream, null_mut(), null_mut()) == 0 }
    }

    /// Allocates; the address.
    pub fn allocate(&self, bytes: usize) -> Option<u64> {
        let mut pointer = 0;
        // SAFETY: there is a place for the address.
        (unsafe { (self.allocate)(&mut pointer, bytes) } == 0).then_some(pointer)
    }

    /// Frees; whether there was something.
    pub fn free(&self, pointer: u64) -> bool {
        // SAFETY: the driver behind the stand checks the address.
        unsafe { (self.free)(pointer) == 0 }
    }

    /// Free and total memory.
    pub fn room(&self) -> Option<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: there are places for both answers.
        (unsafe { (self.room)(&mut free, &mut total) } == 0).then_some((free, total))
    }
}
