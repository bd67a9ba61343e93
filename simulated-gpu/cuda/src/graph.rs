//! Graphs: the kernels of a capture, submitted together.

use crate::driver::{code, driver, put};
use crate::launch::{Work, submit};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_char, c_ulonglong};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if executable.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let kernels = objects.graphs.get(&(graph as usize)).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let handle = objects.new_handle();
        objects.executables.insert(handle, kernels);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(executable, handle as CUgraphExec) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate_v2(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    _error_node: *mut CUgraphNode,
    _log: *mut c_char,
    _log_bytes: usize,
) -> CUresult {
    // SAFETY: the same contract; nothing is logged.
    unsafe { cuGraphInstantiateWithFlags(executable, graph, 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let kernels = driver.objects().executables.get(&(executable as usize)).cloned();
        let kernels = kernels.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if kernels.is_empty() {
            return Ok(());
        }
        submit(driver, stream, Work::Kernels(&kernels), |_, _| Ok(()))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: CUgraphExec) -> CUresult {
    code(|| {
        let removed = driver()?.objects().executables.remove(&(executable as usize));
        removed.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    code(|| {
        let removed = driver()?.objects().graphs.remove(&(graph as usize));
        removed.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}
