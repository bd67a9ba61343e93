//! Graphs that allocate, see `graphs` of the logic: what they allocate is learnt where they are made ready for launches, and
//! charged before those.

use crate::entry::{index, real};
use crate::touched::touch;
use crate::work_exports::{legacy, per_thread};
use crate::{HANDLES, PROCESS, graph_accounts, graph_nodes, pool_accounts};
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::contexts;
use gpool_interposer_logic::graphs::{Launch, Needs};

/// Some graph of this process may allocate. In most none does, and nobody looks.
static ARE_USED: AtomicBool = AtomicBool::new(false);
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
        graph_accounts::enter_graphs(place);
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
        Ok(Ready::AsItIs) => driver(),
        Ok(Ready::Kept { age }) => {
            let result = driver();
            // What streams kept may have gone meanwhile.
            if age != Some(pool_accounts::age())
                && let Some(place) = PROCESS.place()
            {
                let _relaxed = place.driver.relaxed_capture();
                graph_accounts::look_at_graphs(place);
            }
            result
        }
    }
}

/// How a graph stands that is about to be launched.
enum Ready {
    /// It allocates nothing, or is not launched but captured.
    AsItIs,
    /// What it allocates is charged.
    Kept {
        /// The age of what streams keep then. None where the launch may find less than there was, and take more.
        age: Option<u32>,
    },
}

/// Sees to it that what `graph` allocates in `stream` is there and charged; or what to answer.
#[cold]
#[inline(never)]
fn ready(graph: CUgraphExec, stream: CUstream) -> Result<Ready, CUresult> {
    if !are_used() {
        return Ok(Ready::AsItIs);
    }
    let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    let (handle, gpus) = (graph as u64, contexts::gpus(place.region.control()));
    let Some(known) = HANDLES.lock().graph_needs(handle, gpus) else { return Ok(Ready::AsItIs) };
    let _relaxed = place.driver.relaxed_capture();
    if stream as usize > CU_STREAM_LEGACY && place.driver.is_capturing(stream) {
        return Ok(Ready::AsItIs);
    }
    let mut launch = Launch { stream: identity(stream), age: pool_accounts::age() };
    let is_kept = HANDLES.lock().is_graph_kept(handle, &known.needs, launch);
    // What it has left may be there still: it is freed by the launch, which takes it again, and not by an upload.
    let has_its_own = known.was_launched && known.frees_itself && known.needs.leave();
    // Now and then as well: who launches and never waits.
    if !is_kept || LAUNCHES.fetch_add(1, Ordering::Relaxed).is_multiple_of(LAUNCHES_PER_LOOK) {
        graph_accounts::look_at_graphs(place);
    }
    if is_kept || has_its_own {
        return Ok(Ready::Kept { age: is_kept.then_some(launch.age) });
    }
    place.note_inexact();
    let upload = || {
        // SAFETY: see above; the driver checks graph and stream.
        unsafe { real::<CuGraphUpload>(index::cuGraphUpload)(graph, stream) }
    };
    let Some(age) = graph_accounts::mapped(place, &known, (stream, launch.stream), &upload)? else {
        return Ok(Ready::Kept { age: None });
    };
    launch.age = age;
    if known.needs.leave() {
        // What it leaves lies where others had their memory.
        pool_accounts::grow_older();
        // By this alone: what else has happened meanwhile is not to be passed over.
        launch.age = launch.age.wrapping_add(1);
        graph_accounts::leave(&known);
    }
    HANDLES.lock().graph_kept(handle, &known.needs, launch);
    Ok(Ready::Kept { age: Some(launch.age) })
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
    let place = PROCESS.place().filter(|_| are_used());
    place.map_or_else(Needs::default, |place| graph_nodes::needs(place, graph))
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
            touch();
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
            touch();
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
            touch();
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
    touch();
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
            touch();
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
    touch();
    pool_accounts::grow_older();
    // SAFETY: the entry point's type, the caller's argument.
    let result = unsafe { real::<CuDeviceGraphMemTrim>(index::cuDeviceGraphMemTrim)(device) };
    if let Some(place) = PROCESS.place() {
        pool_accounts::grow_older();
        pool_accounts::give_back(place, false);
    }
    result
}
