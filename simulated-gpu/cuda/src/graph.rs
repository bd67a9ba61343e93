//! Graphs: the work of a capture, submitted together.

use crate::driver::{Driver, Outcome, code, driver, put};
use crate::graph_memory;
use crate::launch::{Work, submit};
use crate::objects::Executable;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::ptr::null_mut;

/// An empty graph. Nodes of work come into graphs by capture only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        if flags != 0 || graph.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = objects.new_handle();
        objects.graphs.insert(handle, Default::default());
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(graph, handle as CUgraph) }
    })
}

/// Nothing is launched by the device, and node priorities make no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if executable.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let graph = objects.graphs.get(&(graph as usize)).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let handle = objects.new_handle();
        let frees_itself = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0;
        objects.executables.insert(handle, Executable { graph, frees_itself });
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

/// Uploads it as well where the flags say so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithParams(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    let Some(given) = (unsafe { parameters.as_mut() }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the same contract.
    let mut result = unsafe { cuGraphInstantiateWithFlags(executable, graph, given.flags) };
    if result == CUDA_SUCCESS && given.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0 {
        // SAFETY: it has just been written.
        let made = unsafe { *executable };
        result = cuGraphUpload(made, given.hUploadStream);
        if result != CUDA_SUCCESS {
            cuGraphExecDestroy(made);
        }
    }
    given.hErrNode_out = null_mut();
    given.result_out =
        if result == CUDA_SUCCESS { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_ERROR };
    result
}

fn found(driver: &Driver, executable: CUgraphExec) -> Outcome<Executable> {
    driver.objects().executables.get(&(executable as usize)).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The stream sets memory aside for it.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let executable = found(driver, executable)?;
        let mut objects = driver.objects();
        let target = objects.target(stream)?;
        graph_memory::map(driver, &mut objects, target, &executable)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let executable = found(driver, executable)?;
        if !executable.graph.memory.is_empty() {
            graph_memory::launch(driver, stream, &executable)?;
        }
        if executable.graph.nodes.is_empty() {
            return Ok(());
        }
        submit(driver, stream, Work::Nodes(&executable.graph.nodes), |_, _| Ok(()))
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
