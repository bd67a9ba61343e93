//! What a graph allocates, by its nodes.

use crate::entry::{index, real};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::graphs::Needs;
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::scratch::Scratch;

/// Graphs within graphs within a graph.
const DEPTH: u32 = 16;

/// What `graph` allocates, as far as it can be looked into.
pub fn needs(place: &Place, graph: CUgraph) -> Needs {
    let mut walk = Walk { place, needs: Needs::default() };
    walk.through(graph, DEPTH);
    walk.needs
}

/// What is allocated by the nodes so far.
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
