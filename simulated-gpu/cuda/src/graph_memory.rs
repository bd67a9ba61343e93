//! Memory that graphs allocate: each stream sets aside what the graphs need that it has launched, and keeps it until it is
//! trimmed. Source: cuda.h and the programming guide's chapter on graph memory nodes, from CUDA 11.4 on.
//!
//! What a graph frees can be had again by what comes later in it; what it leaves stays until it is freed. Addresses stay
//! the program's until it ends.

use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::memory;
use crate::objects::{Allocation, Executable, Objects, Target};
use crate::pool::{GRANULARITY_BYTES, PIECE_BYTES};
use gpool_driver_abi::cuda::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ptr::null;

/// A node of a graph that allocates or frees.
#[derive(Clone, Copy)]
pub(crate) struct MemoryNode {
    pub(crate) handle: usize,
    pub(crate) step: Step,
}

/// What it does, by address.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Allocate(CUdeviceptr),
    Free(CUdeviceptr),
}

/// What some node allocates.
struct Allocated {
    bytes: u64,
    device: CUdevice,
    /// A launch has allocated it, and nothing has freed it since.
    is_live: bool,
}

/// What graphs hold of one device, in bytes.
#[derive(Default)]
struct Reserve {
    /// By context and stream.
    cached: HashMap<(usize, Option<usize>), u64>,
    /// What launches have left allocated.
    live: u64,
    /// What was freed of that.
    spare: u64,
}

impl Reserve {
    fn bytes(&self) -> u64 {
        self.cached.values().sum::<u64>() + self.live + self.spare
    }
}

/// What the graphs of a process allocate.
#[derive(Default)]
pub(crate) struct GraphMemory {
    allocations: HashMap<CUdeviceptr, Allocated>,
    reserves: HashMap<CUdevice, Reserve>,
}

/// The stream that a handle means, if it captures.
pub(crate) fn capturing(objects: &Objects, stream: CUstream) -> Outcome<Option<usize>> {
    let captures = |handle: &usize| objects.streams.get(handle).is_some_and(|stream| stream.capture.is_some());
    Ok(objects.target(stream)?.stream.filter(captures))
}

/// Addresses for `bytes` that a graph will allocate on `device`.
fn reserve(objects: &mut Objects, device: CUdevice, bytes: usize) -> Outcome<CUdeviceptr> {
    let context = objects.current()?.0;
    let taken = (bytes as u64).checked_next_multiple_of(GRANULARITY_BYTES).filter(|taken| *taken > 0);
    let taken = taken.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let address = memory::map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    objects
        .allocations
        .insert(address, Allocation { bytes, context, pool: None, share: None, is_view: true, _managed: None });
    objects.graph_memory.allocations.insert(address, Allocated { bytes: taken, device, is_live: false });
    Ok(address)
}

/// A capturing stream was asked for memory from `pool`: its address at each launch.
pub(crate) fn captured(objects: &mut Objects, stream: usize, pool: usize, bytes: usize) -> Outcome<CUdeviceptr> {
    let device = objects.pools.get(&pool).ok_or(CUDA_ERROR_INVALID_VALUE)?.device;
    let address = reserve(objects, device, bytes)?;
    write_down(objects, stream, Step::Allocate(address))?;
    Ok(address)
}

/// A capturing stream was asked to free what it or an earlier graph allocates.
pub(crate) fn captured_free(objects: &mut Objects, stream: usize, address: CUdeviceptr) -> Outcome {
    objects.graph_memory.allocations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    write_down(objects, stream, Step::Free(address))
}

fn write_down(objects: &mut Objects, stream: usize, step: Step) -> Outcome {
    let handle = objects.new_handle();
    let capture = objects.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut());
    capture.ok_or(CUDA_ERROR_INVALID_HANDLE)?.record_memory(handle, step)
}

/// Frees what a launch has left at `address`; none if no graph allocates there.
pub(crate) fn free(objects: &mut Objects, address: CUdeviceptr) -> Option<Outcome> {
    let memory = &mut objects.graph_memory;
    memory.allocations.contains_key(&address).then(|| {
        if !memory.allocations[&address].is_live {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        memory.settle(address, false);
        Ok(())
    })
}

impl GraphMemory {
    /// What lies at `address` is there from now on, or no more: of what its stream has set aside, or spare.
    fn settle(&mut self, address: CUdeviceptr, is_live: bool) {
        let Some(allocated) = self.allocations.get_mut(&address).filter(|found| found.is_live != is_live) else {
            return;
        };
        allocated.is_live = is_live;
        let reserve = self.reserves.entry(allocated.device).or_default();
        let (from, to) = match is_live {
            true => (&mut reserve.spare, &mut reserve.live),
            false => (&mut reserve.live, &mut reserve.spare),
        };
        *from -= allocated.bytes;
        *to += allocated.bytes;
    }

    /// The most that a launch holds of each device, above what there is before.
    fn peaks(&self, executable: &Executable) -> BTreeMap<CUdevice, u64> {
        let (mut now, mut peaks) = (BTreeMap::<CUdevice, i64>::new(), BTreeMap::new());
        for node in &executable.graph.memory {
            let (address, sign) = match node.step {
                Step::Allocate(address) => (address, 1),
                Step::Free(address) => (address, -1),
            };
            let Some(allocated) = self.allocations.get(&address) else { continue };
            let held = now.entry(allocated.device).or_default();
            *held += sign * allocated.bytes as i64;
            let peak = peaks.entry(allocated.device).or_insert(0);
            *peak = (*held).max(*peak as i64) as u64;
        }
        peaks
    }
}

/// The stream sets aside what a launch of the graph needs.
pub(crate) fn map(driver: &Driver, objects: &mut Objects, target: Target, executable: &Executable) -> Outcome {
    let (identity, stream) = (driver.identity(), (target.context, target.stream));
    for (device, peak) in objects.graph_memory.peaks(executable) {
        let reserve = objects.graph_memory.reserves.entry(device).or_default();
        let wanted = peak.next_multiple_of(PIECE_BYTES);
        let missing = wanted.saturating_sub(reserve.cached.get(&stream).copied().unwrap_or(0));
        let spare = missing.min(reserve.spare);
        let growth = missing - spare;
        if growth > 0 {
            let take = |device: &mut gpool_device_model::Device, now_ns| {
                device.allocate_physical(now_ns, identity.host_pid, &identity.owner, growth)
            };
            let grown = driver.gpu(device)?.store.update(take).map_err(lost)?;
            grown.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        reserve.spare -= spare;
        *reserve.cached.entry(stream).or_default() += missing;
    }
    Ok(())
}

/// A launch allocates, and frees, before its work: not in its order.
pub(crate) fn launch(driver: &Driver, stream: CUstream, executable: &Executable) -> Outcome {
    let mut objects = driver.objects();
    let target = objects.target(stream)?;
    if capturing(&objects, stream)?.is_some() {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    for node in &executable.graph.memory {
        if let Step::Allocate(address) = node.step
            && objects.graph_memory.allocations.get(&address).is_some_and(|allocated| allocated.is_live)
        {
            if !executable.frees_itself {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            objects.graph_memory.settle(address, false);
        }
    }
    map(driver, &mut objects, target, executable)?;
    let (memory, stream) = (&mut objects.graph_memory, (target.context, target.stream));
    for node in &executable.graph.memory {
        let (address, is_live) = match node.step {
            Step::Allocate(address) => (address, true),
            Step::Free(address) => (address, false),
        };
        let Some(allocated) = memory.allocations.get(&address) else { continue };
        let (bytes, was_live) = (allocated.bytes, allocated.is_live);
        let reserve = memory.reserves.entry(allocated.device).or_default();
        let cached = reserve.cached.entry(stream).or_default();
        if is_live && !was_live {
            *cached -= bytes;
            reserve.spare += bytes;
        }
        memory.settle(address, is_live);
        if !is_live && was_live {
            let reserve = memory.reserves.entry(memory.allocations[&address].device).or_default();
            reserve.spare -= bytes;
            *reserve.cached.entry(stream).or_default() += bytes;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let wanted = unsafe { parameters.as_mut() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let location = wanted.poolProps.location;
        if location.kind != CU_MEM_LOCATION_TYPE_DEVICE || wanted.poolProps.handleTypes != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.gpu(location.id)?;
        let mut objects = driver.objects();
        objects.graphs.get(&(graph as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let address = reserve(&mut objects, location.id, wanted.bytesize)?;
        wanted.dptr = address;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(node, add(&mut objects, graph, Step::Allocate(address))) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemFreeNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    address: CUdeviceptr,
) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        objects.graphs.get(&(graph as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        objects.graph_memory.allocations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(node, add(&mut objects, graph, Step::Free(address))) }
    })
}

/// Adds a node to a graph that is there: its handle.
fn add(objects: &mut Objects, graph: CUgraph, step: Step) -> CUgraphNode {
    let handle = objects.new_handle();
    if let Some(graph) = objects.graphs.get_mut(&(graph as usize)) {
        graph.memory.push(MemoryNode { handle, step });
    }
    handle as CUgraphNode
}

/// Those that allocate and free; others have no handles here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult {
    code(|| {
        let objects = driver()?.objects();
        let found = &objects.graphs.get(&(graph as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?.memory;
        // SAFETY: NULL or valid, as the API demands of its caller; so for the places behind `nodes`.
        let room = unsafe { count.as_mut() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if nodes.is_null() {
            *room = found.len();
            return Ok(());
        }
        for index in 0..*room {
            let handle = found.get(index).map_or(null(), |node| node.handle as *const c_void);
            // SAFETY: as above.
            unsafe { nodes.add(index).write(handle.cast_mut()) };
        }
        *room = found.len().min(*room);
        Ok(())
    })
}

/// The node with this handle, of any graph.
fn found(objects: &Objects, node: CUgraphNode) -> Outcome<MemoryNode> {
    let mut all = objects.graphs.values().flat_map(|graph| &graph.memory);
    all.find(|known| known.handle == node as usize).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) -> CUresult {
    code(|| {
        let is = match found(&driver()?.objects(), node)?.step {
            Step::Allocate(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Step::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(kind, is) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphMemAllocNodeGetParams(
    node: CUgraphNode,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    code(|| {
        let objects = driver()?.objects();
        let Step::Allocate(dptr) = found(&objects, node)?.step else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let allocated = objects.graph_memory.allocations.get(&dptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let poolProps = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: 0,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: allocated.device },
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            reserved: [0; 56],
        };
        let bytesize = allocated.bytes as usize;
        let said = CUDA_MEM_ALLOC_NODE_PARAMS { poolProps, accessDescs: null(), accessDescCount: 0, bytesize, dptr };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(parameters, said) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut CUdeviceptr) -> CUresult {
    code(|| {
        let Step::Free(freed) = found(&driver()?.objects(), node)?.step else { return Err(CUDA_ERROR_INVALID_VALUE) };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(address, freed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        driver.gpu(device)?;
        let objects = driver.objects();
        let reserve = objects.graph_memory.reserves.get(&device);
        let answer = match attribute {
            // What is spare is mapped by none.
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => reserve.map_or(0, |reserve| reserve.bytes() - reserve.spare),
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => reserve.map_or(0, Reserve::bytes),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: NULL or valid for these attributes' eight bytes, as the API demands of its caller.
        unsafe { put(value.cast(), answer) }
    })
}

/// Streams that have nothing to do give back what they have set aside.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        driver.gpu(device)?;
        let mut objects = driver.objects();
        let Objects { graph_memory, streams, contexts, .. } = &mut *objects;
        let Some(reserve) = graph_memory.reserves.get_mut(&device) else { return Ok(()) };
        let mut bytes = std::mem::take(&mut reserve.spare);
        reserve.cached.retain(|(context, stream), cached| {
            let last = match stream {
                None => contexts.get(context).map(|context| context.last),
                Some(stream) => streams.get(stream).map(|stream| stream.last),
            };
            let place = contexts.get(context).map(|context| context.place);
            // Of a stream or a context that has gone nothing runs.
            let is_busy = last
                .zip(place)
                .is_some_and(|(last, place)| driver.last_completed(place).is_ok_and(|completed| completed < last));
            bytes += if is_busy { 0 } else { *cached };
            is_busy
        });
        let process = driver.identity().host_pid;
        let give_back = |device: &mut gpool_device_model::Device, now_ns| device.free_physical(now_ns, process, bytes);
        driver.gpu(device)?.store.update(give_back).map_err(lost)
    })
}
