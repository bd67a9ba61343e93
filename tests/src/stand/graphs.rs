//! Graphs that allocate within graphs.

use super::calls::Calls;
use super::place::CAP_BYTES;
use crate::failure::{Context, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, CUgraphExec,
    CuDeviceGraphMemTrim, CuGraphAddMemAllocNode, CuGraphExecDestroy, CuGraphInstantiateWithFlags, CuGraphLaunch,
};
use std::ptr::{null, null_mut};

const MIB: usize = 1 << 20;

/// A node as the driver of the stand has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Node {
    kind: u32,
    /// What an upload sets aside for it.
    bytes: usize,
    inner: *mut Graph,
}

/// A graph of that driver.
#[repr(C)]
struct Graph {
    count: usize,
    nodes: [Node; 4],
}

impl Graph {
    fn of(nodes: &[Node]) -> Self {
        let mut all = [Node { kind: 0, bytes: 0, inner: null_mut() }; 4];
        all[..nodes.len()].copy_from_slice(nodes);
        Self { count: nodes.len(), nodes: all }
    }
}

fn allocation(bytes: usize) -> Node {
    Node { kind: CU_GRAPH_NODE_TYPE_MEM_ALLOC, bytes, inner: null_mut() }
}

/// What lies within is charged before the launch, or refused; a graph within itself, which no driver has, ends nothing.
pub fn within_graphs(calls: &Calls, shim: &Library) -> Result<()> {
    let instantiate: CuGraphInstantiateWithFlags = shim.function(c"cuGraphInstantiateWithFlags")?;
    let (launch, destroy): (CuGraphLaunch, CuGraphExecDestroy) =
        (shim.function(c"cuGraphLaunch")?, shim.function(c"cuGraphExecDestroy")?);
    let trim: CuDeviceGraphMemTrim = shim.function(c"cuDeviceGraphMemTrim")?;
    let add: CuGraphAddMemAllocNode = shim.function(c"cuGraphAddMemAllocNode")?;
    let held = || calls.room().map(|(free, total)| total - free).context("cuMemGetInfo");
    // SAFETY: the driver of the stand looks at none of it.
    ensure(unsafe { add(null_mut(), null_mut(), null(), 0, null_mut()) } == 0, || "no node was added".to_owned())?;
    let before = held()?;
    // The innermost of three allocates `innermost`, and the driver sets aside what the outer one does.
    let launched = |innermost: usize, outer: usize, is_in_itself: bool| -> Result<(i32, usize)> {
        let within = |inner: *mut Graph| Node { kind: CU_GRAPH_NODE_TYPE_GRAPH, bytes: 0, inner };
        let mut third = Graph::of(&[allocation(innermost)]);
        let mut second = Graph::of(&[allocation(32 * MIB), within(&raw mut third)]);
        let mut first = Graph::of(&[within(&raw mut second), allocation(outer)]);
        let (graph, mut executable): (*mut Graph, CUgraphExec) = (&raw mut first, null_mut());
        // SAFETY: graphs of that driver, which live as long as they are used.
        unsafe {
            if is_in_itself {
                (*graph).nodes[0].inner = graph;
            }
            ensure(instantiate(&mut executable, graph.cast(), 0) == 0, || "cuGraphInstantiate failed".to_owned())?;
            let result = launch(executable, null_mut());
            let charged = held()? - before;
            let ended = [trim(0), destroy(executable)];
            ensure(ended == [0; 2] && held()? == before, || format!("{ended:?}, {} bytes stay", held().unwrap_or(0)))?;
            Ok((result, charged))
        }
    };
    let refused = launched(CAP_BYTES as usize, 64 * MIB, false)?;
    ensure(refused == (CUDA_ERROR_OUT_OF_MEMORY, 0), || format!("too much within: {refused:?}"))?;
    let fitting = launched(32 * MIB, 96 * MIB, false)?;
    ensure(fitting == (0, 96 * MIB), || format!("what fits within: {fitting:?}"))?;
    let endless = launched(0, 96 * MIB, true)?;
    ensure(endless == (0, 96 * MIB), || format!("a graph within itself: {endless:?}"))
}
