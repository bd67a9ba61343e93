//! Suspending processes to host memory. Source of layouts and numbers: cuda.h of CUDA 12.8, and of 13.0 for what restoring
//! onto other GPUs takes.

use super::{CUresult, CUuuid};
use core::ffi::{c_int, c_uint};

/// How far the suspension of a process is.
pub type CUprocessState = c_uint;
/// It is not suspended.
pub const CU_PROCESS_STATE_RUNNING: CUprocessState = 0;
/// Its calls of the driver wait.
pub const CU_PROCESS_STATE_LOCKED: CUprocessState = 1;
/// Its memory has been copied to the host, and its GPUs are released.
pub const CU_PROCESS_STATE_CHECKPOINTED: CUprocessState = 2;
/// It met an error from which it does not recover.
pub const CU_PROCESS_STATE_FAILED: CUprocessState = 3;

/// What cuCheckpointProcessLock may be told.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_snake_case)] // NVIDIA's names
pub struct CUcheckpointLockArgs {
    /// When to give up, in milliseconds; 0: never.
    pub timeoutMs: c_uint,
    /// Zero.
    pub reserved0: c_uint,
    /// Zeroes.
    pub reserved1: [u64; 7],
}

/// What cuCheckpointProcessCheckpoint may be told.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUcheckpointCheckpointArgs {
    /// Zeroes.
    pub reserved: [u64; 8],
}

/// A GPU that a process was on, and the one that it is to be on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case)] // NVIDIA's names
pub struct CUcheckpointGpuPair {
    /// The one that it was on.
    pub oldUuid: CUuuid,
    /// The one that takes its place.
    pub newUuid: CUuuid,
}

/// What cuCheckpointProcessRestore may be told. Before CUDA 13.0 all of it was reserved.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case)] // NVIDIA's names
pub struct CUcheckpointRestoreArgs {
    /// All GPUs of the process with their replacements; NULL: the same ones.
    pub gpuPairs: *const CUcheckpointGpuPair,
    /// How many pairs there are.
    pub gpuPairsCount: c_uint,
    /// Zeroes.
    pub reserved: [u8; 44],
    /// Zero.
    pub reserved1: u64,
}

/// What cuCheckpointProcessUnlock may be told.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUcheckpointUnlockArgs {
    /// Zeroes.
    pub reserved: [u64; 8],
}

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> CUresult;)*
    };
}

functions! {
    CuCheckpointProcessGetState, "cuCheckpointProcessGetState"(c_int, *mut CUprocessState);
    CuCheckpointProcessGetRestoreThreadId, "cuCheckpointProcessGetRestoreThreadId"(c_int, *mut c_int);
    CuCheckpointProcessLock, "cuCheckpointProcessLock"(c_int, *mut CUcheckpointLockArgs);
    CuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint"(c_int, *mut CUcheckpointCheckpointArgs);
    CuCheckpointProcessRestore, "cuCheckpointProcessRestore"(c_int, *mut CUcheckpointRestoreArgs);
    CuCheckpointProcessUnlock, "cuCheckpointProcessUnlock"(c_int, *mut CUcheckpointUnlockArgs);
}
