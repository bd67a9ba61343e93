//! Graphs that allocate, see `graphs` of the logic: what they allocate is learnt where they are made ready for launches.

use crate::entry::{index, real};
use crate::work_exports::{legacy, per_thread};
use crate::{HANDLES, PROCESS, pool_accounts};
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::graphs::{DEVICES, Needs};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::scratch::Scratch;

/// Some graph of this process may allocate. In most none does, and nobody looks.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Graphs within graphs within a graph.
const DEPTH: u32 = 16;

/// From now on graphs are looked at.
#[inline(never)]
pub fn note() {
    ARE_USED.store(true, Ordering::Release);
}

/// What `graph` allocates, graphs within it included.
#[cold]
fn needs_of(place: &Place, graph: CUgraph, needs: &mut Needs, depth: u32) {
    let mut count = 0;
    // SAFETY: the entry point's type; a graph that the driver checks, and places for the answers; so for all calls of
    // `real` here.
    let result = unsafe { real::<CuGraphGetNodes>(index::cuGraphGetNodes)(graph, null_mut(), &mut count) };
    let nodes = Scratch::new(count.saturating_mul(size_of::<CUgraphNode>())).filter(|_| result == CUDA_SUCCESS);
    let Some(mut nodes) = nodes else { return };
    let start = nodes.all().as_mut_ptr().cast::<CUgraphNode>();
    // SAFETY: as above; there is room for so many.
    if unsafe { real::<CuGraphGetNodes>(index::cuGraphGetNodes)(graph, start, &mut count) } != CUDA_SUCCESS {
        return;
    }
    for place_of_node in 0..count {
        // SAFETY: as above; the driver has written so many.
        unsafe {
            let (node, mut kind, mut inner) = (*start.add(place_of_node), CU_GRAPH_NODE_TYPE_EMPTY, null_mut());
            real::<CuGraphNodeGetType>(index::cuGraphNodeGetType)(node, &mut kind);
            let open = index::cuGraphChildGraphNodeGetGraph;
            if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
                add(place, node, needs);
            } else if kind == CU_GRAPH_NODE_TYPE_GRAPH
                && depth > 0
                && real::<CuGraphChildGraphNodeGetGraph>(open)(node, &mut inner) == CUDA_SUCCESS
            {
                needs_of(place, inner, needs, depth - 1);
            }
        }
    }
}

/// Adds what `node` allocates, if that is on a device.
#[cold]
fn add(place: &Place, node: CUgraphNode, needs: &mut Needs) {
    let mut parameters = MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    let ask = index::cuGraphMemAllocNodeGetParams;
    // SAFETY: see needs_of; zeros are as good as any other content of the answer.
    let (result, parameters) = unsafe {
        let result = real::<CuGraphMemAllocNodeGetParams>(ask)(node, parameters.as_mut_ptr());
        (result, parameters.assume_init())
    };
    let location = parameters.poolProps.location;
    if result == CUDA_SUCCESS && crate::virtual_memory::gpu_at(place, location).is_some() {
        needs.add(location.id as usize, parameters.bytesize as u64);
    }
}

/// Sees to it that what `graph` allocates in `stream` is there and charged; or what to answer instead.
#[cold]
#[inline(never)]
fn kept(graph: CUgraphExec, stream: CUstream) -> Result<(), CUresult> {
    let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    if stream as usize > CU_STREAM_LEGACY && place.driver.is_capturing(stream) {
        return Ok(());
    }
    // Launches so far may have taken more than streams kept.
    pool_accounts::look_at_graphs(place);
    for device in 0..DEVICES {
        let trims = pool_accounts::trims();
        let need = HANDLES.lock().graph_needs(graph as u64, device, stream as u64, trims);
        let Some(need) = need else { continue };
        place.note_inexact();
        let upload = || {
            // SAFETY: see needs_of; the driver checks graph and stream.
            unsafe { real::<CuGraphUpload>(index::cuGraphUpload)(graph, stream) }
        };
        let trims = pool_accounts::mapped(place, device as CUdevice, need, stream, &upload)?;
        HANDLES.lock().graph_kept(graph as u64, device, stream as u64, trims);
    }
    Ok(())
}

/// What `graph` allocates in `stream` is there and charged; or what to answer instead of launching or uploading it.
#[inline(always)]
pub fn ready(graph: CUgraphExec, stream: CUstream) -> Result<(), CUresult> {
    if ARE_USED.load(Ordering::Acquire) { kept(graph, stream) } else { Ok(()) }
}

/// `graph` is about to be destroyed.
#[inline(always)]
pub fn gone(graph: CUgraphExec) {
    if ARE_USED.load(Ordering::Acquire) {
        HANDLES.lock().graph_gone(graph as u64);
    }
}

/// What `graph` allocates; nothing where no graph does.
fn needs(graph: CUgraph) -> Needs {
    let mut needs = Needs::default();
    if ARE_USED.load(Ordering::Acquire)
        && let Some(place) = PROCESS.place()
    {
        needs_of(place, graph, &mut needs, DEPTH);
    }
    needs
}

/// Makes `graph` ready for launches through `driver`, and remembers what it allocates.
fn made(executable: *mut CUgraphExec, needs: &Needs, driver: impl FnOnce() -> CUresult) -> CUresult {
    let result = driver();
    if result == CUDA_SUCCESS && ARE_USED.load(Ordering::Acquire) {
        // SAFETY: the driver succeeded, so `executable` is valid and holds the handle.
        HANDLES.lock().graph_made(unsafe { *executable } as u64, needs);
    }
    result
}

macro_rules! instantiations {
    ($($name:ident: $kind:ident ($($argument:ident: $type:ty),*);)*) => {$(
        /// What it allocates is learnt.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            executable: *mut CUgraphExec, graph: CUgraph, $($argument: $type),*
        ) -> CUresult {
            made(executable, &needs(graph), || {
                // SAFETY: the entry point's type, the caller's arguments.
                unsafe { real::<$kind>(index::$name)(executable, graph, $($argument),*) }
            })
        }
    )*};
}

instantiations! {
    cuGraphInstantiate: CuGraphInstantiate (node: *mut CUgraphNode, log: *mut c_char, room: usize);
    cuGraphInstantiate_v2: CuGraphInstantiateV2 (node: *mut CUgraphNode, log: *mut c_char, room: usize);
    cuGraphInstantiateWithFlags: CuGraphInstantiateWithFlags (flags: c_ulonglong);
}

macro_rules! of_streams {
    ($($meant:ident: $upload:ident, $instantiate:ident;)*) => {$(
        /// What it allocates is charged.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $upload(graph: CUgraphExec, stream: CUstream) -> CUresult {
            if let Err(refused) = ready(graph, $meant(stream)) {
                return refused;
            }
            // SAFETY: the entry point's type, the caller's arguments.
            unsafe { real::<CuGraphUpload>(index::$upload)(graph, stream) }
        }

        /// What it allocates is learnt, and charged if it is uploaded at once.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $instantiate(
            executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
        ) -> CUresult {
            let needs = needs(graph);
            let instantiate = || {
                // SAFETY: as above.
                unsafe { real::<CuGraphInstantiateWithParams>(index::$instantiate)(executable, graph, parameters) }
            };
            // SAFETY: null or valid, as the driver demands of its caller.
            let given = unsafe { parameters.as_mut() }.filter(|_| !needs.is_empty());
            let uploads = given.filter(|given| given.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0);
            let Some(given) = uploads else { return made(executable, &needs, instantiate) };
            given.flags &= !CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
            let result = made(executable, &needs, instantiate);
            given.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
            if result != CUDA_SUCCESS {
                return result;
            }
            // SAFETY: the driver succeeded, so `executable` is valid and holds the handle.
            let result = unsafe { $upload(*executable, given.hUploadStream) };
            if result != CUDA_SUCCESS {
                given.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
                // SAFETY: as above.
                unsafe { crate::exports::cuGraphExecDestroy(*executable) };
            }
            result
        }
    )*};
}

of_streams! {
    legacy: cuGraphUpload, cuGraphInstantiateWithParams;
    per_thread: cuGraphUpload_ptsz, cuGraphInstantiateWithParams_ptsz;
}

/// Graphs are looked at from now on.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    note();
    let add = index::cuGraphAddMemAllocNode;
    // SAFETY: the entry point's type, the caller's arguments.
    unsafe { real::<CuGraphAddMemAllocNode>(add)(node, graph, dependencies, count, parameters) }
}

macro_rules! nodes {
    ($($(#[$export:meta])* $name:ident: $kind:ident [$($data:ident: $type:ty)?];)*) => {$(
        /// Graphs are looked at from now on if it allocates.
        $(#[$export])*
        pub unsafe extern "C" fn $name(
            node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, $($data: $type,)? count: usize,
            parameters: *mut c_void,
        ) -> CUresult {
            // SAFETY: null, or valid as the driver demands of its caller, and the type of the node comes first.
            if unsafe { parameters.cast::<c_uint>().as_ref() } == Some(&CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
                note();
            }
            // SAFETY: the entry point's type, the caller's arguments.
            unsafe { real::<$kind>(index::$name)(node, graph, dependencies, $($data,)? count, parameters) }
        }
    )*};
}

nodes! {
    #[unsafe(no_mangle)]
    cuGraphAddNode: CuGraphAddNode [];
    // Newer than the oldest driver. In shims of drivers that lack it, it is reached through cuGetProcAddress only.
    #[cfg_attr(driver_550, unsafe(no_mangle))]
    cuGraphAddNode_v2: CuGraphAddNodeV2 [data: *const c_void];
    cuGraphAddNode_v3: CuGraphAddNodeV2 [data: *const c_void];
}

/// What streams give back of what they keep for graphs is no longer charged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    // SAFETY: the entry point's type, the caller's argument.
    let result = unsafe { real::<CuDeviceGraphMemTrim>(index::cuDeviceGraphMemTrim)(device) };
    pool_accounts::trimmed();
    result
}
