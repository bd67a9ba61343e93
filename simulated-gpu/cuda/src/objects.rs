//! What this process has made: handles are names in tables, never addresses, so that a wrong one is told.

use crate::capture::Capture;
use crate::context::current;
use crate::driver::Outcome;
use crate::function::Settings;
use crate::graph_memory::{GraphMemory, MemoryNode};
use crate::host_memory::{self, HostMemory};
use crate::library::Libraries;
use crate::linker::Links;
use crate::program::Programs;
use crate::static_data::{Placed, Static};
use crate::transfer::Transfer;
use gpool_device_model::{ContextId, ShareId, Ticket};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::Unmovable;
use gpool_simulated_ptx::Program;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A context on its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The device's ordinal.
    pub(crate) device: CUdevice,
    pub(crate) id: ContextId,
}

pub(crate) struct Context {
    pub(crate) place: Place,
    /// The newest ticket of the context.
    pub(crate) last: Ticket,
}

pub(crate) struct Stream {
    /// The handle of its context.
    pub(crate) context: usize,
    pub(crate) flags: u32,
    /// The newest ticket of the stream.
    pub(crate) last: Ticket,
    pub(crate) capture: Option<Capture>,
}

/// Where an event was last recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Nowhere,
    Queue {
        place: Place,
        ticket: Ticket,
    },
    /// In a stream that was capturing.
    Capture {
        stream: usize,
    },
}

pub(crate) struct Event {
    pub(crate) flags: u32,
    /// The handle of its context.
    pub(crate) context: usize,
    pub(crate) record: Record,
}

pub(crate) struct Function {
    pub(crate) module: usize,
    /// Whether the first parameter says how long it runs.
    pub(crate) spins: bool,
    /// What it computes, if it is executed.
    pub(crate) program: Option<Arc<Program>>,
}

pub(crate) struct Module {
    pub(crate) context: usize,
    pub(crate) kernels: Vec<String>,
    /// Those that are executed.
    pub(crate) programs: Programs,
    /// Its variables.
    pub(crate) data: Placed,
}

pub(crate) struct Allocation {
    pub(crate) bytes: usize,
    pub(crate) context: usize,
    /// The handle of the pool that it came from.
    pub(crate) pool: Option<usize>,
    /// What others may hold too, and where.
    pub(crate) share: Option<Shared>,
    /// It shows memory that something else holds.
    pub(crate) is_view: bool,
    /// Set if it is managed memory, which cannot be suspended.
    pub(crate) _managed: Option<Unmovable>,
}

/// Memory that several processes may hold.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) device: CUdevice,
    pub(crate) id: ShareId,
}

/// Memory without an address.
pub(crate) struct Physical {
    pub(crate) bytes: usize,
    pub(crate) location: CUmemLocation,
    /// References that have not been released.
    pub(crate) references: u32,
    pub(crate) mappings: u32,
    /// Set once it has been exported, and if it was imported.
    pub(crate) share: Option<Shared>,
}

/// Memory of another API.
pub(crate) struct External {
    pub(crate) bytes: u64,
    pub(crate) share: Shared,
}

/// Where such memory shows.
pub(crate) struct Mapping {
    pub(crate) bytes: usize,
    /// The handle of the memory.
    pub(crate) physical: usize,
}

/// An array, mipmapped or not.
pub(crate) struct Array {
    pub(crate) bytes: u64,
    pub(crate) context: usize,
    pub(crate) is_mipmapped: bool,
}

/// A pool of stream-ordered memory.
pub(crate) struct Pool {
    pub(crate) device: CUdevice,
    /// What it holds of the device, in bytes.
    pub(crate) reserved: u64,
    /// The part of it that is allocated.
    pub(crate) used: u64,
    /// What it keeps at a synchronisation.
    pub(crate) threshold: u64,
    /// It goes with what is still allocated of it.
    pub(crate) is_destroyed: bool,
    /// It is another process's: what that has exported of it can be opened, and nothing allocated.
    pub(crate) is_imported: bool,
}

/// A piece of work: a kernel, a copy or a memset.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    /// How long it occupies the multiprocessors; None if it only takes its place in the order of work.
    pub(crate) gpu_time_ns: Option<u64>,
    /// What it does to memory; nothing if it is a kernel.
    pub(crate) transfer: Option<Transfer>,
}

/// The work of a graph, in order.
pub(crate) type Nodes = Arc<[Node]>;

/// A graph.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Nodes,
    /// What of it allocates and frees, in order.
    pub(crate) memory: Vec<MemoryNode>,
}

/// A graph that can be launched.
#[derive(Clone)]
pub(crate) struct Executable {
    pub(crate) graph: Graph,
    /// Each launch frees what the one before has left.
    pub(crate) frees_itself: bool,
}

/// How a device's primary context is used.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) users: u32,
    pub(crate) flags: u32,
}

#[derive(Default)]
pub(crate) struct Objects {
    handles: usize,
    pub(crate) contexts: HashMap<usize, Context>,
    /// By the device's ordinal.
    pub(crate) primaries: HashMap<CUdevice, Primary>,
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) modules: HashMap<usize, Module>,
    pub(crate) functions: HashMap<usize, Function>,
    pub(crate) libraries: Libraries,
    pub(crate) links: Links,
    pub(crate) host_memory: HostMemory,
    pub(crate) settings: Settings,
    pub(crate) graphs: HashMap<usize, Graph>,
    pub(crate) executables: HashMap<usize, Executable>,
    pub(crate) graph_memory: GraphMemory,
    /// By address.
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Variables of modules and libraries, by address.
    pub(crate) statics: BTreeMap<u64, Static>,
    pub(crate) physical: HashMap<usize, Physical>,
    /// Ranges of addresses without memory, by address.
    pub(crate) reservations: BTreeMap<u64, usize>,
    /// By address.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) arrays: HashMap<usize, Array>,
    pub(crate) externals: HashMap<usize, External>,
    pub(crate) pools: HashMap<usize, Pool>,
    /// The pool that a device's allocations come from where none is named; absent: its default one.
    pub(crate) current_pools: HashMap<CUdevice, usize>,
    /// Completion times of markers that an event was recorded as; None until complete.
    pub(crate) times: HashMap<(Place, Ticket), Option<u64>>,
}

/// What a stream handle means.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The handle of the context.
    pub(crate) context: usize,
    pub(crate) place: Place,
    /// The handle of the stream; None for the default stream.
    pub(crate) stream: Option<usize>,
}

impl Objects {
    /// A handle never given before.
    pub(crate) fn new_handle(&mut self) -> usize {
        self.handles += 1;
        0x7000_0000 + self.handles * 16
    }

    /// The context that is current to this thread.
    pub(crate) fn current(&self) -> Outcome<(usize, &Context)> {
        let handle = current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        Ok((handle, self.contexts.get(&handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?))
    }

    /// The context and stream that a handle stands for.
    pub(crate) fn target(&self, stream: CUstream) -> Outcome<Target> {
        match stream as usize {
            0 | CU_STREAM_LEGACY | CU_STREAM_PER_THREAD => {
                let (context, found) = self.current()?;
                Ok(Target { context, place: found.place, stream: None })
            }
            handle => {
                let context = self.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?.context;
                let place = self.contexts.get(&context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.place;
                Ok(Target { context, place, stream: Some(handle) })
            }
        }
    }

    /// The allocation, mapping or variable that holds an address: where it starts and how long it is.
    pub(crate) fn holding(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, usize)> {
        let allocation = self.allocations.range(..=address).next_back().map(|(base, found)| (*base, found.bytes));
        let mapping = self.mappings.range(..=address).next_back().map(|(base, found)| (*base, found.bytes));
        let variable = self.statics.range(..=address).next_back().map(|(base, found)| (*base, found.bytes));
        let holds = |(base, bytes): &(CUdeviceptr, usize)| address - base < *bytes as u64;
        allocation.filter(holds).or_else(|| mapping.filter(holds)).or_else(|| variable.filter(holds))
    }

    /// What a program on the device may read and write at an address: that, or page-locked memory of the host.
    pub(crate) fn reachable(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, usize)> {
        let of_host = || host_memory::holding(&self.host_memory, address as usize);
        self.holding(address).or_else(|| of_host().map(|(first, bytes)| (first as CUdeviceptr, bytes)))
    }

    /// Notes the newest ticket of a stream and its context.
    pub(crate) fn issued(&mut self, target: Target, ticket: Ticket) {
        if let Some(context) = self.contexts.get_mut(&target.context) {
            context.last = ticket;
        }
        if let Some(stream) = target.stream.and_then(|handle| self.streams.get_mut(&handle)) {
            stream.last = ticket;
        }
    }

    /// Keeps the times of markers that an event still refers to.
    pub(crate) fn completed(&mut self, place: Place, times: Vec<(Ticket, u64)>) {
        for (ticket, time_ns) in times {
            if let Some(time) = self.times.get_mut(&(place, ticket)) {
                *time = Some(time_ns);
            }
        }
    }

    /// Forgets everything of a context that is destroyed and returns the addresses and sizes to unmap, with what others
    /// may hold of it.
    pub(crate) fn forget(&mut self, handle: usize) -> Vec<(u64, usize, Option<Shared>)> {
        if let Some(context) = self.contexts.remove(&handle) {
            self.times.retain(|(place, _), _| *place != context.place);
        }
        self.streams.retain(|_, stream| stream.context != handle);
        self.events.retain(|_, event| event.context != handle);
        let modules = self.modules.extract_if(|_, module| module.context == handle);
        let mut data: Vec<Placed> = modules.map(|(_, module)| module.data).collect();
        data.extend(self.libraries.forget_context(handle));
        self.functions.retain(|_, function| self.modules.contains_key(&function.module));
        self.arrays.retain(|_, array| array.context != handle);
        let mut unmapped = Vec::new();
        for (address, bytes) in data.iter().flat_map(Placed::ranges) {
            self.statics.remove(&address);
            unmapped.push((address, bytes, None));
        }
        self.allocations.retain(|address, allocation| {
            let goes = allocation.context == handle && allocation.pool.is_none();
            if goes {
                unmapped.push((*address, allocation.bytes, allocation.share));
            }
            !goes
        });
        let of_host = host_memory::leave(&mut self.host_memory, handle);
        unmapped.extend(of_host.into_iter().map(|(first, bytes)| (first as u64, bytes, None)));
        unmapped
    }
}
