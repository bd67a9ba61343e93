//! Threads that meet in everything that the shim keeps: accounts, handles, pools, contexts, streams, bursts. For whoever
//! watches its memory and its threads meanwhile.

use super::calls::{Call, Calls};
use super::entries::entry_points;
use super::place::{CONTEXT_BYTES, Pacing, SHIM};
use crate::failure::{Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::*;
use serde_json::{Value, json};
use std::ffi::CStr;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: usize = 4;
const MIB: usize = 1 << 20;
/// What a module of the crowd's has on the device, as the shim reads it.
const IMAGE: &CStr = c".version 7.0\n.target sm_70\n.address_size 64\n.global .u64 x[1024];\n";

entry_points! {
    context_create: CuCtxCreateV2 = c"cuGLCtxCreate_v2";
    context_destroy: CuCtxDestroyV2 = c"cuCtxDestroy_v2";
    context_wait: CuCtxSynchronize = c"cuCtxSynchronize";
    stream_create: CuStreamCreate = c"cuStreamCreate";
    stream_wait: CuStreamSynchronize = c"cuStreamSynchronize";
    stream_destroy: CuStreamDestroyV2 = c"cuStreamDestroy_v2";
    launch: CuLaunchKernel = c"cuLaunchKernel";
    graph_destroy: CuGraphExecDestroy = c"cuGraphExecDestroy";
    load: CuModuleLoadData = c"cuModuleLoadData";
    unload: CuModuleUnload = c"cuModuleUnload";
    create: CuMemCreate = c"cuMemCreate";
    release: CuMemRelease = c"cuMemRelease";
    map: CuMemMap = c"cuMemMap";
    unmap: CuMemUnmap = c"cuMemUnmap";
    retain: CuMemRetainAllocationHandle = c"cuMemRetainAllocationHandle";
    pool_create: CuMemPoolCreate = c"cuMemPoolCreate";
    pool_destroy: CuMemPoolDestroy = c"cuMemPoolDestroy";
    pool_default: CuDeviceGetDefaultMemPool = c"cuDeviceGetDefaultMemPool";
    pool_trim: CuMemPoolTrimTo = c"cuMemPoolTrimTo";
    allocate: CuMemAllocAsync = c"cuMemAllocAsync";
    allocate_from: CuMemAllocFromPoolAsync = c"cuMemAllocFromPoolAsync";
    free: CuMemFreeAsync = c"cuMemFreeAsync";
}

/// Memory that whoever comes by next frees.
static PASSED_ON: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// One thread of the crowd.
#[derive(Clone, Copy)]
struct Member {
    entries: Entries,
    calls: Calls,
}

/// A piece of work that leaves nothing behind; whether all of it succeeded.
type Step = fn(&Member, usize) -> bool;

const STEPS: [Step; 12] = [
    |member, turn| (0..20).all(|more| member.calls.make(Call::Mixed, turn + more)),
    |member, turn| member.calls.make(Call::Graph, turn),
    |member, turn| member.calls.make(Call::Copy, turn),
    |member, turn| member.calls.make(Call::Pair, turn),
    Member::pass_on,
    Member::context,
    Member::stream,
    Member::module,
    Member::physical,
    Member::default_pool,
    Member::own_pool,
    Member::look,
];

/// With no divisor in common with the number of steps, so that each thread takes them all.
const STRIDES: [usize; THREADS] = [1, 5, 7, 11];

// SAFETY of the calls below: the entry points have these types, handles are the driver's own and used while they live,
// there are places for the answers, and the driver behind the stand follows no address.
impl Member {
    fn pass_on(&self, turn: usize) -> bool {
        let Some(pointer) = self.calls.allocate((1 + turn % 3) * MIB) else { return false };
        let found = PASSED_ON[turn % PASSED_ON.len()].swap(pointer, Ordering::AcqRel);
        found == 0 || self.calls.free(found)
    }

    fn context(&self, _turn: usize) -> bool {
        let mut context = null_mut();
        // SAFETY: see above.
        unsafe {
            (self.entries.context_create)(&mut context, 0, 0) == 0 && (self.entries.context_destroy)(context) == 0
        }
    }

    fn stream(&self, turn: usize) -> bool {
        let function = without_provenance_mut(0x20_0000 + turn % 4 * 256);
        let mut stream = null_mut();
        // SAFETY: see above.
        unsafe {
            (self.entries.stream_create)(&mut stream, 0) == 0
                && (self.entries.launch)(function, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) == 0
                && (!turn.is_multiple_of(2) || (self.entries.stream_wait)(stream) == 0)
                && (self.entries.stream_destroy)(stream) == 0
        }
    }

    fn module(&self, _turn: usize) -> bool {
        let mut module = null_mut();
        // SAFETY: see above; the image is a terminated text.
        unsafe { (self.entries.load)(&mut module, IMAGE.as_ptr().cast()) == 0 && (self.entries.unload)(module) == 0 }
    }

    fn physical(&self, turn: usize) -> bool {
        let properties = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: 0,
            location: DEVICE,
            win32HandleMetaData: null_mut(),
            allocFlags: [0; 8],
        };
        let (mut handle, mut again) = (0, 0);
        let (bytes, address) = ((1 + turn % 2) * 2 * MIB, place());
        // SAFETY: see above.
        unsafe {
            (self.entries.create)(&mut handle, bytes, &properties, 0) == 0
                && (self.entries.map)(address, bytes, 0, handle, 0) == 0
                && (self.entries.release)(handle) == 0
                && (self.entries.retain)(&mut again, (address + 1) as *mut _) == 0
                && (self.entries.unmap)(address, bytes) == 0
                && (self.entries.release)(again) == 0
        }
    }

    fn default_pool(&self, turn: usize) -> bool {
        let mut pointer = 0;
        // SAFETY: see above.
        unsafe {
            (self.entries.allocate)(&mut pointer, (1 + turn % 5) * 10 * MIB, null_mut()) == 0
                && (self.entries.free)(pointer, null_mut()) == 0
                && (self.entries.context_wait)() == 0
        }
    }

    fn own_pool(&self, _turn: usize) -> bool {
        let properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: 0,
            location: DEVICE,
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            reserved: [0; 56],
        };
        let (mut pool, mut pointer) = (null_mut(), 0);
        // SAFETY: see above.
        unsafe {
            (self.entries.pool_create)(&mut pool, &properties) == 0
                && (self.entries.allocate_from)(&mut pointer, MIB, pool, null_mut()) == 0
                && (self.entries.free)(pointer, null_mut()) == 0
                && (self.entries.pool_destroy)(pool) == 0
        }
    }

    /// What the others hold shows here, and a graph's estimate is forgotten, which the others may be learning.
    fn look(&self, _turn: usize) -> bool {
        let room = self.calls.room();
        // SAFETY: see above; the graph is that of `Call::Graph`.
        room.is_some() && unsafe { (self.entries.graph_destroy)(without_provenance_mut(0x9000)) == 0 }
    }

    /// How many steps succeeded.
    fn rounds(&self, count: usize, first: usize) -> usize {
        let turns = (0..count * STEPS.len()).map(|turn| first + turn);
        // Each thread begins elsewhere and goes on in strides of its own, so that they meet in other pairs each time.
        let stride = STRIDES[first % STRIDES.len()];
        turns.filter(|turn| STEPS[turn * stride % STEPS.len()](self, *turn)).count()
    }

    /// Frees what is left over, and has the pool give back what it keeps.
    fn clear(&self) -> bool {
        let mut pool = null_mut();
        let left = PASSED_ON.iter().map(|passed| passed.swap(0, Ordering::AcqRel)).filter(|pointer| *pointer != 0);
        let is_freed = left.filter(|pointer| !self.calls.free(*pointer)).count() == 0;
        // SAFETY: see above.
        is_freed && unsafe { (self.entries.pool_default)(&mut pool, 0) == 0 && (self.entries.pool_trim)(pool, 0) == 0 }
    }
}

/// A range of addresses at which the driver behind the stand shows memory, this thread's own.
fn place() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! { static OWN: u64 = LAST.fetch_add(1, Ordering::Relaxed); }
    OWN.with(|own| (1 << 44) + own * (16 << 20))
}

const DEVICE: CUmemLocation = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };

/// Several threads that do everything `rounds` times, behind a gate that opens and closes meanwhile. Every call must
/// succeed, and afterwards nothing may be charged but the contexts that are left.
pub fn meets(rounds: usize) -> Result<Value> {
    let library = Library::open(SHIM)?;
    let entries = Entries::of(&library)?;
    let calls: Vec<_> = (0..THREADS).map(|_| Calls::of_shim()).collect::<Result<_>>()?;
    let members = calls.iter().map(|calls| Member { entries, calls: *calls });
    let (first, pacing, is_over) = (Member { entries, calls: calls[0] }, Pacing::new()?, AtomicBool::new(false));
    let mut done = 0;
    std::thread::scope(|scope| {
        let pacer = scope.spawn(|| pacing.until(&is_over));
        let start = |(index, member): (usize, Member)| scope.spawn(move || member.rounds(rounds, index));
        let running: Vec<_> = members.enumerate().map(start).collect();
        for thread in running {
            done += thread.join().map_err(|_| Failure::new("a thread broke"))?;
        }
        is_over.store(true, Ordering::Release);
        pacer.join().map_err(|_| Failure::new("the pacer broke"))
    })?;
    ensure(done == THREADS * rounds * STEPS.len(), || format!("only {done} steps succeeded"))?;
    ensure(first.clear(), || "what was left over could not be freed".into())?;
    let (free, total) = first.calls.room().ok_or_else(|| Failure::new("cuMemGetInfo failed"))?;
    let (left, contexts) = (total - free, THREADS * CONTEXT_BYTES);
    ensure(left == contexts, || format!("{left} bytes are charged, and {contexts} are held"))?;
    Ok(json!({ "steps": done }))
}
