//! Graphs that allocate, see `graphs` of the logic: what they allocate is learnt where they are made ready for launches.

use crate::entry::{index, real};
use crate::work_exports::{legacy, per_thread};
use crate::{HANDLES, PROCESS, pool_accounts};
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::contexts;
use gpool_interposer_logic::graphs::{Launch, Needs};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::scratch::Scratch;

/// Some graph of this process may allocate. In most none does, and nobody looks.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Graphs within graphs within a graph.
const DEPTH: u32 = 16;
/// Launches of graphs that allocate.
static LAUNCHES: AtomicU32 = AtomicU32::new(0);
/// So often what they hold is looked at, if nobody waits.
const LAUNCHES_PER_LOOK: u32 = 64;

/// From now on graphs are looked at.
#[inline(never)]
pub fn note() {
    if !ARE_USED.swap(true, Ordering::AcqRel)
        && let Some(place) = PROCESS.place()
    {
        pool_accounts::enter_graphs(place);
    }
}

/// Nodes of one graph, and what is allocated so far.
struct Walk<'a> {
    place: &'a Place,
    needs: Needs,
}

/// What a node has allocated that none has freed so far.
#[repr(C)]
#[derive(Clone, Copy)]
struct Live {
    address: CUdeviceptr,
    bytes: u64,
    device: usize,
}

impl Walk<'_> {
    /// Goes through `graph`, and through graphs within it.
    #[cold]
    fn through(&mut self, graph: CUgraph, depth: u32) {
        let mut count = 0;
        // SAFETY: the entry point's type; a graph that the driver checks, and places for the answers; so for all calls of
        // `real` here.
        let result = unsafe { real::<CuGraphGetNodes>(index::cuGraphGetNodes)(graph, null_mut(), &mut count) };
        let room = |each: usize| Scratch::new(count.saturating_mul(each)).filter(|_| result == CUDA_SUCCESS);
        let (Some(mut nodes), Some(mut live)) = (room(size_of::<CUgraphNode>()), room(size_of::<Live>())) else {
            return;
        };
        let nodes = nodes.all().as_mut_ptr().cast::<CUgraphNode>();
        // SAFETY: zeros of that many, whose memory begins with a page; zeros are one.
        let live = unsafe { core::slice::from_raw_parts_mut(live.all().as_mut_ptr().cast::<Live>(), count) };
        // SAFETY: as above; there is room for so many.
        if unsafe { real::<CuGraphGetNodes>(index::cuGraphGetNodes)(graph, nodes, &mut count) } != CUDA_SUCCESS {
            return;
        }
        let mut there = 0;
        for index_of_node in 0..count.min(live.len()) {
            let (mut kind, mut inner, mut address) = (CU_GRAPH_NODE_TYPE_EMPTY, null_mut(), 0);
            // SAFETY: as above; the driver has written so many.
            let node = unsafe { *nodes.add(index_of_node) };
            // SAFETY: as above.
            unsafe { real::<CuGraphNodeGetType>(index::cuGraphNodeGetType)(node, &mut kind) };
            match kind {
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                    if let Some(allocated) = self.allocated(node) {
                        self.needs.add(allocated.device, allocated.bytes);
                        live[there] = allocated;
                        there += 1;
                    }
                }
                CU_GRAPH_NODE_TYPE_MEM_FREE => {
                    let ask = index::cuGraphMemFreeNodeGetParams;
                    // SAFETY: as above.
                    unsafe { real::<CuGraphMemFreeNodeGetParams>(ask)(node, (&raw mut address).cast()) };
                    // Most free what was allocated last.
                    if let Some(last) = live[..there].iter().rposition(|known| known.address == address) {
                        self.needs.subtract(live[last].device, live[last].bytes);
                        there -= 1;
                        live[last] = live[there];
                    }
                }
                CU_GRAPH_NODE_TYPE_GRAPH if depth > 0 => {
                    let open = index::cuGraphChildGraphNodeGetGraph;
                    // SAFETY: as above.
                    if unsafe { real::<CuGraphChildGraphNodeGetGraph>(open)(node, &mut inner) } == CUDA_SUCCESS {
                        self.through(inner, depth - 1);
                    }
                }
                _ => {}
            }
        }
    }

    /// What `node` allocates, if that is on a device.
    #[cold]
    fn allocated(&self, node: CUgraphNode) -> Option<Live> {
        let mut parameters = MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
        let ask = index::cuGraphMemAllocNodeGetParams;
        // SAFETY: see above; zeros are as good as any other content of the answer.
        let (result, parameters) = unsafe {
            let result = real::<CuGraphMemAllocNodeGetParams>(ask)(node, parameters.as_mut_ptr());
            (result, parameters.assume_init())
        };
        let location = parameters.poolProps.location;
        crate::virtual_memory::gpu_at(self.place, location).filter(|_| result == CUDA_SUCCESS)?;
        Some(Live { address: parameters.dptr, bytes: parameters.bytesize as u64, device: location.id as usize })
    }
}

/// What tells `stream` from all others that there were: handles come back, and those of default streams mean several.
fn identity(stream: CUstream) -> u64 {
    let mut number = 0;
    // SAFETY: see above.
    let result = unsafe { real::<CuStreamGetId>(index::cuStreamGetId)(stream, &mut number) };
    if result == CUDA_SUCCESS { number } else { stream as u64 }
}

/// Launches or uploads `graph` by `driver`, once what it allocates in `stream` is there and charged; or what to answer
/// instead.
#[cold]
pub fn behind(graph: CUgraphExec, stream: CUstream, driver: impl FnOnce() -> CUresult) -> CUresult {
    match ready(graph, stream) {
        Err(refused) => refused,
        Ok(None) => driver(),
        Ok(Some(age)) => {
            let result = driver();
            // What streams kept may have gone meanwhile.
            if age != pool_accounts::age()
                && let Some(place) = PROCESS.place()
            {
                let _relaxed = place.driver.relaxed_capture();
                pool_accounts::look_at_graphs(place);
            }
            result
        }
    }
}

/// Sees to it that what `graph` allocates in `stream` is there and charged: the age of what streams keep then, none where it
/// allocates nothing; or what to answer.
#[cold]
#[inline(never)]
fn ready(graph: CUgraphExec, stream: CUstream) -> Result<Option<u32>, CUresult> {
    if !are_used() {
        return Ok(None);
    }
    let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    let (handle, gpus) = (graph as u64, contexts::gpus(place.region.control()));
    let Some(known) = HANDLES.lock().graph_needs(handle, gpus) else { return Ok(None) };
    let _relaxed = place.driver.relaxed_capture();
    if stream as usize > CU_STREAM_LEGACY && place.driver.is_capturing(stream) {
        return Ok(None);
    }
    let mut launch = Launch { stream: identity(stream), age: pool_accounts::age() };
    let is_kept = HANDLES.lock().is_graph_kept(handle, &known.needs, launch);
    // What it has left may be there still: it is freed by the launch, which takes it again, and not by an upload.
    let has_its_own = known.was_launched && known.frees_itself && known.needs.leave();
    // Now and then as well: who launches and never waits.
    if !is_kept || LAUNCHES.fetch_add(1, Ordering::Relaxed).is_multiple_of(LAUNCHES_PER_LOOK) {
        pool_accounts::look_at_graphs(place);
    }
    if is_kept || has_its_own {
        // Of what it had the launch may find less.
        return Ok(Some(if is_kept { launch.age } else { launch.age.wrapping_sub(1) }));
    }
    place.note_inexact();
    let upload = || {
        // SAFETY: see above; the driver checks graph and stream.
        unsafe { real::<CuGraphUpload>(index::cuGraphUpload)(graph, stream) }
    };
    let Some(age) = pool_accounts::mapped(place, &known, (stream, launch.stream), &upload)? else {
        return Ok(Some(launch.age.wrapping_sub(1)));
    };
    launch.age = age;
    if known.needs.leave() {
        // What it leaves lies where others had their memory.
        pool_accounts::grow_older();
        launch.age = launch.age.wrapping_add(1);
        pool_accounts::leave(&known);
    }
    HANDLES.lock().graph_kept(handle, &known.needs, launch);
    Ok(Some(launch.age))
}

/// Something has been freed that no other table knows: what a graph has left, perhaps, which others may take now.
pub fn freed() {
    if are_used() {
        pool_accounts::grow_older();
        pool_accounts::look_later();
    }
}

/// Whether some graph of this process may allocate.
#[inline(always)]
pub fn are_used() -> bool {
    ARE_USED.load(Ordering::Acquire)
}

/// `graph` is about to be destroyed.
#[inline(always)]
pub fn gone(graph: CUgraphExec) {
    // In a forked child the lock may be a thread's that it does not have.
    if are_used() && PROCESS.place().is_some() {
        HANDLES.lock().graph_gone(graph as u64);
    }
}

/// What `graph` allocates; nothing where no graph does.
fn needs(graph: CUgraph) -> Needs {
    let mut needs = Needs::default();
    if are_used()
        && let Some(place) = PROCESS.place()
    {
        let mut walk = Walk { place, needs };
        walk.through(graph, DEPTH);
        needs = walk.needs;
    }
    needs
}

/// Makes `graph` ready for launches through `driver`, and remembers what it allocates.
fn made(
    executable: *mut CUgraphExec,
    needs: &Needs,
    flags: c_ulonglong,
    driver: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = driver();
    if result == CUDA_SUCCESS && are_used() {
        // SAFETY: the driver succeeded, so `executable` is valid and holds the handle.
        let handle = unsafe { *executable } as u64;
        HANDLES.lock().graph_made(handle, needs, flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0);
    }
    result
}

macro_rules! instantiations {
    ($($name:ident: $kind:ident ($($argument:ident: $type:ty),*) $flags:expr;)*) => {$(
        /// What it allocates is learnt.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            executable: *mut CUgraphExec, graph: CUgraph, $($argument: $type),*
        ) -> CUresult {
            made(executable, &needs(graph), $flags, || {
                // SAFETY: the entry point's type, the caller's arguments.
                unsafe { real::<$kind>(index::$name)(executable, graph, $($argument),*) }
            })
        }
    )*};
}

instantiations! {
    cuGraphInstantiate: CuGraphInstantiate (node: *mut CUgraphNode, log: *mut c_char, room: usize) 0;
    cuGraphInstantiate_v2: CuGraphInstantiateV2 (node: *mut CUgraphNode, log: *mut c_char, room: usize) 0;
    cuGraphInstantiateWithFlags: CuGraphInstantiateWithFlags (flags: c_ulonglong) flags;
}

macro_rules! of_streams {
    ($($meant:ident: $upload:ident, $instantiate:ident;)*) => {$(
        /// What it allocates is charged.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $upload(graph: CUgraphExec, stream: CUstream) -> CUresult {
            behind(graph, $meant(stream), || {
                // SAFETY: the entry point's type, the caller's arguments.
                unsafe { real::<CuGraphUpload>(index::$upload)(graph, stream) }
            })
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
            let flags = unsafe { parameters.as_ref() }.map_or(0, |given| given.flags);
            // SAFETY: as above.
            let given = unsafe { parameters.as_mut() }.filter(|_| needs.each().next().is_some());
            let uploads = given.filter(|given| given.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0);
            let Some(given) = uploads else { return made(executable, &needs, flags, instantiate) };
            given.flags &= !CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
            let result = made(executable, &needs, flags, instantiate);
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
    pool_accounts::grow_older();
    // SAFETY: the entry point's type, the caller's argument.
    let result = unsafe { real::<CuDeviceGraphMemTrim>(index::cuDeviceGraphMemTrim)(device) };
    if let Some(place) = PROCESS.place() {
        pool_accounts::grow_older();
        pool_accounts::give_back(place, false);
    }
    result
}
