//! Stream capture: work is written down instead of done, and what cannot be written down breaks the capture.

use crate::driver::{Outcome, code, driver, put};
use crate::graph_memory::{MemoryNode, Step};
use crate::objects::{Graph, Node, Objects, Stream};
use gpool_driver_abi::cuda::*;
use std::cell::Cell;
use std::ptr::{null, null_mut};

pub(crate) struct Capture {
    pub(crate) mode: CUstreamCaptureMode,
    pub(crate) thread: i32,
    pub(crate) invalid: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) memory: Vec<MemoryNode>,
    /// The handle of the graph that it becomes.
    pub(crate) graph: usize,
}

impl Capture {
    /// Writes work down.
    pub(crate) fn record(&mut self, nodes: &[Node]) -> Outcome {
        if self.invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        self.nodes.extend_from_slice(nodes);
        Ok(())
    }

    /// Writes down that memory comes or goes, as the node `handle`.
    pub(crate) fn record_memory(&mut self, handle: usize, step: Step) -> Outcome {
        self.record(&[])?;
        self.memory.push(MemoryNode { handle, step });
        Ok(())
    }
}

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

fn thread() -> i32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }
}

/// Breaks every capture that `conflicts` names; the code to return if there was one.
fn break_captures(objects: &mut Objects, code: CUresult, conflicts: impl Fn(usize, u32, &Capture) -> bool) -> Outcome {
    let mut broken = false;
    for stream in objects.streams.values_mut() {
        let (context, flags) = (stream.context, stream.flags);
        if let Some(capture) = stream.capture.as_mut().filter(|capture| conflicts(context, flags, capture)) {
            capture.invalid = true;
            broken = true;
        }
    }
    if broken { Err(code) } else { Ok(()) }
}

/// For calls that are unsafe during a capture (cuEventQuery, cuMemAlloc ...): refuses them as the calling thread's
/// mode demands, and breaks the captures in question. Source: cuThreadExchangeStreamCaptureMode.
pub(crate) fn refuse_unsafe(objects: &mut Objects) -> Outcome {
    let mode = MODE.get();
    if mode == CU_STREAM_CAPTURE_MODE_RELAXED || objects.streams.values().all(|stream| stream.capture.is_none()) {
        return Ok(());
    }
    let thread = thread();
    break_captures(objects, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |_, _, capture| {
        let own = capture.thread == thread && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        own || (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
    })
}

/// For calls that wait for a whole context.
pub(crate) fn refuse_in_context(objects: &mut Objects, handle: usize) -> Outcome {
    break_captures(objects, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |context, _, _| context == handle)
}

/// Whether a stream of these `flags` in `context` keeps the default stream of context `handle` from being used while it
/// captures.
fn is_in_the_way(handle: usize, context: usize, flags: u32) -> bool {
    context == handle && flags & CU_STREAM_NON_BLOCKING == 0
}

/// For work on the default stream, which blocking streams wait for.
pub(crate) fn refuse_implicit(objects: &mut Objects, handle: usize) -> Outcome {
    break_captures(objects, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, |context, flags, _| {
        is_in_the_way(handle, context, flags)
    })
}

/// For calls that wait for, or ask about, the stream itself.
pub(crate) fn refuse_on_stream(objects: &mut Objects, stream: usize) -> Outcome {
    match objects.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
        Some(capture) => {
            capture.invalid = true;
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    code(|| {
        let driver = driver()?;
        if !(CU_STREAM_CAPTURE_MODE_GLOBAL..=CU_STREAM_CAPTURE_MODE_RELAXED).contains(&mode) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let handle = objects.target(stream)?.stream.ok_or(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
        let graph = objects.new_handle();
        let stream = objects.streams.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if stream.capture.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        stream.capture =
            Some(Capture { mode, thread: thread(), invalid: false, nodes: Vec::new(), memory: Vec::new(), graph });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    code(|| {
        let driver = driver()?;
        if graph.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let handle = objects.target(stream)?.stream.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let stream = objects.streams.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let found = stream.capture.as_ref().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if found.mode != CU_STREAM_CAPTURE_MODE_RELAXED && found.thread != thread() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let finished = stream.capture.take().filter(|capture| !capture.invalid);
        let made = finished.map(|capture| {
            objects.graphs.insert(capture.graph, Graph { nodes: capture.nodes.into(), memory: capture.memory });
            capture.graph
        });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(graph, made.map_or(null_mut(), |handle| handle as CUgraph)) }?;
        made.map(|_| ()).ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    })
}

/// Whether a stream captures, and the handle of the graph that this becomes.
fn state(objects: &Objects, stream: CUstream) -> Outcome<(CUstreamCaptureStatus, usize)> {
    let target = objects.target(stream)?;
    // Asking breaks no capture.
    let captures =
        |stream: &Stream| stream.capture.is_some() && is_in_the_way(target.context, stream.context, stream.flags);
    if target.stream.is_none() && objects.streams.values().any(captures) {
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let capture = target.stream.and_then(|handle| objects.streams.get(&handle)?.capture.as_ref());
    Ok(match capture {
        None => (CU_STREAM_CAPTURE_STATUS_NONE, 0),
        Some(capture) if capture.invalid => (CU_STREAM_CAPTURE_STATUS_INVALIDATED, capture.graph),
        Some(capture) => (CU_STREAM_CAPTURE_STATUS_ACTIVE, capture.graph),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult {
    code(|| {
        let (found, _) = state(&driver()?.objects(), stream)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(status, found) }
    })
}

/// A capture's number is that of its graph. Nodes of work have no handles here, so it is told of none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    number: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    count: *mut usize,
) -> CUresult {
    code(|| {
        let (found, handle) = state(&driver()?.objects(), stream)?;
        // SAFETY: NULL or valid, as the API demands of its caller; only the first may not be NULL.
        unsafe {
            let _ = put(number, handle as u64);
            let _ = put(graph, handle as CUgraph);
            let _ = put(nodes, null());
            let _ = put(count, 0);
            put(status, found)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult {
    code(|| {
        driver()?;
        if mode.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        let wanted = unsafe { mode.read() };
        if !(CU_STREAM_CAPTURE_MODE_GLOBAL..=CU_STREAM_CAPTURE_MODE_RELAXED).contains(&wanted) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(mode, MODE.replace(wanted)) }
    })
}
