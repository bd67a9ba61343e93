//! Suspending processes to host memory: what is asked of `gpool-simgpu`, which does it.
//!
//! The pid is one of the caller's PID namespace, and to name another process takes CAP_SYS_ADMIN in it. As with NVIDIA's
//! driver the caller has called cuInit. Of a process that is locked all calls wait but those that only tell of devices,
//! names and the caller's own context; see `code_at_once`. Errors are:
//!
//! | CUDA_ERROR_... | because |
//! |---|---|
//! | NOT_INITIALIZED | the caller has not called cuInit |
//! | INVALID_VALUE | no such process, or one that has not called cuInit; reserved arguments that are no zeroes |
//! | ILLEGAL_STATE | not from the state that the process is in |
//! | NOT_READY | the process did not come to rest in time, and runs on |
//! | NOT_SUPPORTED | a driver before 570; a process of MPS; managed memory, or memory that others can hold |
//! | NOT_PERMITTED | the caller may not name the process |
//! | OUT_OF_MEMORY | a GPU has not enough free memory for what comes back: the process has failed |
//! | OPERATING_SYSTEM | `gpool-simgpu` cannot be reached, or the MIG instance is gone on which the process was |

use crate::driver::{Outcome, code_at_once, driver, put, version};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::Layout;
use gpool_simulated_hardware::checkpoint::{ProcessState, Refusal, Verb, ask};
use std::ffi::c_int;

/// The first version of the API with these functions, which the library has whatever version it plays.
const SINCE: c_int = 12080;

fn request(pid: c_int, verb: Verb) -> Outcome<ProcessState> {
    driver()?;
    if version() < SINCE {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    ask(&Layout::default(), pid, verb).map_err(|refusal| match refusal {
        Refusal::NoProcess => CUDA_ERROR_INVALID_VALUE,
        Refusal::NotPermitted => CUDA_ERROR_NOT_PERMITTED,
        Refusal::WrongState => CUDA_ERROR_ILLEGAL_STATE,
        Refusal::NotReady => CUDA_ERROR_NOT_READY,
        Refusal::NotSupported => CUDA_ERROR_NOT_SUPPORTED,
        Refusal::OutOfMemory => CUDA_ERROR_OUT_OF_MEMORY,
        Refusal::Failed => CUDA_ERROR_OPERATING_SYSTEM,
    })
}

fn refuse_reserved(is_zero: bool) -> Outcome {
    if is_zero { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessGetState(pid: c_int, state: *mut CUprocessState) -> CUresult {
    code_at_once(|| {
        let found = match request(pid, Verb::State)? {
            ProcessState::Running => CU_PROCESS_STATE_RUNNING,
            ProcessState::Locked => CU_PROCESS_STATE_LOCKED,
            ProcessState::Checkpointed => CU_PROCESS_STATE_CHECKPOINTED,
            ProcessState::Failed => CU_PROCESS_STATE_FAILED,
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(state, found) }
    })
}

/// No thread of the process does anything for this here; its first one is named.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: *mut c_int) -> CUresult {
    code_at_once(|| {
        request(pid, Verb::State)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(thread, pid) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessLock(pid: c_int, arguments: *mut CUcheckpointLockArgs) -> CUresult {
    code_at_once(|| {
        // SAFETY: NULL or valid, as the API demands of its caller.
        let given = unsafe { arguments.as_ref() }.copied().unwrap_or_default();
        refuse_reserved(given.reserved0 == 0 && given.reserved1 == [0; 7])?;
        request(pid, Verb::Lock { timeout_ms: given.timeoutMs }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessCheckpoint(
    pid: c_int,
    arguments: *mut CUcheckpointCheckpointArgs,
) -> CUresult {
    code_at_once(|| {
        // SAFETY: NULL or valid, as the API demands of its caller.
        refuse_reserved(unsafe { arguments.as_ref() }.is_none_or(|given| given.reserved == [0; 8]))?;
        request(pid, Verb::Checkpoint).map(drop)
    })
}

/// Processes come back to the GPUs that they were on; others are refused as not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessRestore(pid: c_int, arguments: *mut CUcheckpointRestoreArgs) -> CUresult {
    code_at_once(|| {
        // SAFETY: NULL or valid, as the API demands of its caller.
        if let Some(given) = unsafe { arguments.as_ref() } {
            refuse_reserved(given.reserved == [0; 44] && given.reserved1 == 0)?;
            if !given.gpuPairs.is_null() || given.gpuPairsCount != 0 {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        request(pid, Verb::Restore).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessUnlock(pid: c_int, arguments: *mut CUcheckpointUnlockArgs) -> CUresult {
    code_at_once(|| {
        // SAFETY: NULL or valid, as the API demands of its caller.
        refuse_reserved(unsafe { arguments.as_ref() }.is_none_or(|given| given.reserved == [0; 8]))?;
        request(pid, Verb::Unlock).map(drop)
    })
}
