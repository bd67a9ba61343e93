//! Graphs that allocate: what is asked for is done step by step, and after each it is told what came of it.

use super::driver::{Driver, Graphs};
use super::{check, fail, say};
use serde_json::json;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

/// CU_MEM_ALLOCATION_TYPE_PINNED and CU_MEM_LOCATION_TYPE_DEVICE (cuda.h).
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
const RELAXED: c_int = 2;
/// CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT.
const RESERVED: c_int = 2;
/// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH and CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;

/// CUDA_MEM_ALLOC_NODE_PARAMS, with its CUmemPoolProps as words.
#[repr(C)]
pub(super) struct NodeParameters {
    pool: [u32; 22],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    address: u64,
}

/// CUDA_GRAPH_INSTANTIATE_PARAMS.
#[repr(C)]
pub(super) struct Instantiation {
    flags: u64,
    stream: *mut c_void,
    node: *mut c_void,
    result: u32,
}

struct Made {
    executable: *mut c_void,
    /// What it has allocated first.
    address: u64,
}

struct Steps<'a> {
    driver: &'a Driver,
    graphs: Graphs,
    streams: [*mut c_void; 2],
    made: HashMap<String, Made>,
    taken: Vec<u64>,
}

/// Takes the steps of `script`, which semicolons separate:
///
/// - `make NAME PIECE...`, `auto NAME PIECE...`, `build NAME PIECE...`, `upload NAME PIECE...`: a graph of these pieces, of
///   which `+MIB` allocates and `-` frees what was allocated last; captured, the second one with the flag that frees by
///   itself, the others built node by node, the last uploaded as it is instantiated;
/// - `launch NAME TIMES`, `elsewhere NAME TIMES`: into one of two streams;
/// - `free NAME`: what its launch has left; `trim`; `destroy NAME`;
/// - `take MIB`, `drop`: with cuMemAlloc, and the last of these.
pub(super) fn run(driver: &Driver, script: &str) {
    let mut streams = [null_mut(); 2];
    for stream in &mut streams {
        // SAFETY: the result goes to a live local.
        check("cuStreamCreate", unsafe { (driver.stream_create)(stream, 1) });
    }
    let mut steps = Steps { driver, graphs: Graphs::load(), streams, made: HashMap::new(), taken: Vec::new() };
    for step in script.split(';').map(str::trim) {
        let code = steps.take(step);
        let (mut free, mut total, mut reserved) = (0_usize, 0_usize, 0_u64);
        // SAFETY: results go to live locals.
        unsafe {
            check("cuStreamSynchronize", (steps.graphs.synchronize)(steps.streams[0]));
            check("cuMemGetInfo", (driver.memory_info)(&mut free, &mut total));
            let place = (&raw mut reserved).cast();
            check("cuDeviceGetGraphMemAttribute", (steps.graphs.attribute)(0, RESERVED, place));
        }
        say(&json!({"event": "graphs", "step": step, "code": code, "free": free, "reserved": reserved}));
    }
}

impl Steps<'_> {
    fn take(&mut self, step: &str) -> c_int {
        let words: Vec<&str> = step.split_whitespace().collect();
        match words[..] {
            ["make", name, ..] => self.capture(name, &words[2..], 0),
            ["auto", name, ..] => self.capture(name, &words[2..], AUTO_FREE),
            ["build", name, ..] => self.build(name, &words[2..], 0),
            ["upload", name, ..] => self.build(name, &words[2..], UPLOAD),
            ["launch", name, times] => self.launch(name, times, 0),
            ["elsewhere", name, times] => self.launch(name, times, 1),
            // SAFETY: an address that a graph has, whatever lies there.
            ["free", name] => unsafe { (self.driver.free_async)(self.found(name).address, self.streams[0]) },
            // SAFETY: takes any device.
            ["trim"] => unsafe { (self.graphs.trim)(0) },
            // SAFETY: a graph that is there, and not used again.
            ["destroy", name] => unsafe { (self.graphs.destroy)(self.found(name).executable) },
            ["take", mib] => {
                let mut address = 0;
                // SAFETY: the result goes to a live local.
                let code = unsafe { (self.driver.allocate)(&mut address, bytes(mib)) };
                if code == 0 {
                    self.taken.push(address);
                }
                code
            }
            // SAFETY: an address that was given, once.
            ["drop"] => unsafe { (self.driver.free)(self.taken.pop().unwrap_or_default()) },
            _ => fail(step, -1),
        }
    }

    fn found(&self, name: &str) -> &Made {
        self.made.get(name).unwrap_or_else(|| fail(name, -1))
    }

    fn launch(&self, name: &str, times: &str, stream: usize) -> c_int {
        let executable = self.found(name).executable;
        let count = times.parse().unwrap_or_else(|_| fail(times, -1));
        // SAFETY: a graph and a stream that are there.
        let mut launch = || unsafe { (self.driver.graph_launch)(executable, self.streams[stream]) };
        std::iter::repeat_with(&mut launch).take(count).find(|code| *code != 0).unwrap_or(0)
    }

    fn capture(&mut self, name: &str, pieces: &[&str], flags: u64) -> c_int {
        let (stream, mut graph, mut addresses) = (self.streams[0], null_mut(), Vec::new());
        // SAFETY: results go to live locals, and the stream is there.
        unsafe {
            check("cuStreamBeginCapture", (self.driver.capture_begin)(stream, RELAXED));
            for piece in pieces {
                let mut address = 0;
                if *piece == "-" {
                    check("cuMemFreeAsync", (self.driver.free_async)(addresses.pop().unwrap_or_default(), stream));
                } else {
                    check("cuMemAllocAsync", (self.driver.allocate_async)(&mut address, bytes(piece), stream));
                    addresses.push(address);
                }
            }
            check("cuStreamEndCapture", (self.driver.capture_end)(stream, &mut graph));
        }
        self.instantiate(name, graph, addresses.first().copied().unwrap_or_default(), flags)
    }

    fn build(&mut self, name: &str, pieces: &[&str], flags: u64) -> c_int {
        let (mut graph, mut node, mut addresses) = (null_mut(), null_mut::<c_void>(), Vec::new());
        // SAFETY: results go to live locals, and the structure is live and has the layout of cuda.h.
        unsafe {
            check("cuGraphCreate", (self.graphs.create)(&mut graph, 0));
            for piece in pieces {
                // Each after the one before.
                let (before, count) = if node.is_null() { (null(), 0) } else { (&raw const node, 1) };
                let mut next = null_mut();
                if *piece == "-" {
                    let address = addresses.pop().unwrap_or_default();
                    check("cuGraphAddMemFreeNode", (self.graphs.add_free)(&mut next, graph, before, count, address));
                } else {
                    let mut pool = [0; 22];
                    pool[..3].copy_from_slice(&[PINNED, 0, DEVICE]);
                    let bytes = bytes(piece);
                    let mut wanted = NodeParameters { pool, access: null(), access_count: 0, bytes, address: 0 };
                    let add = self.graphs.add_allocation;
                    check("cuGraphAddMemAllocNode", add(&mut next, graph, before, count, &mut wanted));
                    addresses.push(wanted.address);
                }
                node = next;
            }
        }
        self.instantiate(name, graph, addresses.first().copied().unwrap_or_default(), flags)
    }

    fn instantiate(&mut self, name: &str, graph: *mut c_void, address: u64, flags: u64) -> c_int {
        let mut executable = null_mut();
        let mut wanted = Instantiation { flags, stream: self.streams[0], node: null_mut(), result: 0 };
        // SAFETY: results go to live locals, and the structure is live and has the layout of cuda.h.
        let code = unsafe { (self.graphs.instantiate)(&mut executable, graph, &mut wanted) };
        if code == 0 {
            self.made.insert(name.to_owned(), Made { executable, address });
        }
        code
    }
}

fn bytes(mib: &str) -> usize {
    mib.trim_start_matches('+').parse::<usize>().unwrap_or_else(|_| fail(mib, -1)) << 20
}
