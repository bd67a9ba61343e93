//! Graphs: the work of a capture, submitted together.

use crate::driver::{code, driver, put};
use crate::launch::{Work, submit};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_char, c_ulonglong};
use std::ptr::null_mut;

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
        let nodes = objects.graphs.get(&(graph as usize)).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let handle = objects.new_handle();
        objects.executables.insert(handle, nodes);
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

/// Flags make no difference: there is nothing to upload, and no launch by the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithParams(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    let Some(given) = (unsafe { parameters.as_mut() }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the same contract.
    let result = unsafe { cuGraphInstantiateWithFlags(executable, graph, given.flags) };
    given.hErrNode_out = null_mut();
    given.result_out =
        if result == CUDA_SUCCESS { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_ERROR };
    result
}

/// Checks its arguments; there is nothing to upload.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        objects.target(stream)?;
        objects.executables.get(&(executable as usize)).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let nodes = driver.objects().executables.get(&(executable as usize)).cloned();
        let nodes = nodes.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if nodes.is_empty() {
            return Ok(());
        }
        submit(driver, stream, Work::Nodes(&nodes), |_, _| Ok(()))
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
