//! The driver's ways to take device memory.

use super::check;
use super::driver::Driver;
use super::programs::{Library, text};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const OUT_OF_MEMORY: c_int = 2;
/// CU_MEM_ALLOCATION_TYPE_PINNED and CU_MEM_LOCATION_TYPE_DEVICE (cuda.h).
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_AND_WRITE: u32 = 3;
/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
const RELEASE_THRESHOLD: c_int = 4;
/// CU_AD_FORMAT_FLOAT, four of which make an element of an array.
const FLOAT: u32 = 0x20;
const ELEMENT_BYTES: usize = 16;
/// Elements in a row of an array.
const WIDTH: usize = 4096;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Allocator {
    /// cuMemAlloc.
    Alloc,
    /// cuMemCreate, mapped.
    Create,
    /// cuMemAllocAsync.
    Async,
    /// cuMemAllocFromPoolAsync, from a pool of its own that keeps what is freed.
    Pool,
    /// cuMemAllocAsync in a capture, whose graph is launched.
    Graph,
    /// cuArrayCreate.
    Array,
    /// cuModuleLoadData, of a module with a variable as large.
    Module,
    /// cuLibraryLoadData, of a library with a variable as large that the context then asks for.
    Library,
    /// All of them in turn.
    Mix,
    /// Each of them until it is refused, all of which is given back, and then cuMemAlloc.
    Refill,
}

/// Something that was granted.
enum Granted {
    Memory(u64),
    Mapping(u64, usize),
    Pooled(u64),
    Array(usize),
    Module(usize),
    Library(Library),
}

/// What is allocated on one GPU, and kept.
pub(super) struct Allocations<'a> {
    driver: &'a Driver,
    allocator: Allocator,
    gpu: c_int,
    count: usize,
    /// Made when it is first needed; kept as a number, since threads share it.
    pool: Option<usize>,
}

const IN_TURN: [Allocator; 8] = [
    Allocator::Alloc,
    Allocator::Create,
    Allocator::Async,
    Allocator::Pool,
    Allocator::Graph,
    Allocator::Array,
    Allocator::Module,
    Allocator::Library,
];

impl<'a> Allocations<'a> {
    pub(super) fn new(driver: &'a Driver, allocator: Allocator, gpu: c_int) -> Self {
        Self { driver, allocator, gpu, count: 0, pool: None }
    }

    /// Whether one more allocation was granted in the current context.
    pub(super) fn allocate(&mut self, bytes: u64) -> bool {
        let bytes = bytes as usize;
        if self.allocator == Allocator::Refill {
            for allocator in IN_TURN {
                let granted: Vec<Granted> = std::iter::from_fn(|| self.ask(allocator, bytes)).collect();
                granted.into_iter().for_each(|one| self.give_back(one));
            }
            self.allocator = Allocator::Alloc;
        }
        let allocator = match self.allocator {
            Allocator::Mix => IN_TURN[self.count % IN_TURN.len()],
            one => one,
        };
        self.count += 1;
        self.ask(allocator, bytes).is_some()
    }

    /// One allocation, unless it is refused.
    fn ask(&mut self, allocator: Allocator, bytes: usize) -> Option<Granted> {
        let mut address = 0;
        let (call, code, granted) = match allocator {
            Allocator::Create => ("cuMemCreate", self.mapped(&mut address, bytes), Granted::Mapping(address, bytes)),
            Allocator::Pool => ("cuMemAllocFromPoolAsync", self.pooled(&mut address, bytes), Granted::Pooled(address)),
            Allocator::Array => {
                let mut array = 0;
                ("cuArrayCreate", self.array(&mut array, bytes), Granted::Array(array))
            }
            Allocator::Module => {
                let mut module = 0;
                ("cuModuleLoadData", self.module(&mut module, bytes), Granted::Module(module))
            }
            Allocator::Library => {
                let mut library = Library::new();
                let code = library.load(&text(&format!(".visible .global .align 8 .b8 hog[{bytes}];")));
                if code == 0 {
                    library.global(c"hog");
                }
                ("cuLibraryLoadData", code, Granted::Library(library))
            }
            Allocator::Graph => ("cuGraphLaunch", self.in_graph(&mut address, bytes), Granted::Pooled(address)),
            Allocator::Async => {
                // SAFETY: the result goes to a live local; the default stream is meant.
                let code = unsafe { (self.driver.allocate_async)(&mut address, bytes, null_mut()) };
                ("cuMemAllocAsync", code, Granted::Pooled(address))
            }
            Allocator::Alloc | Allocator::Mix | Allocator::Refill => {
                // SAFETY: the result goes to a live local.
                let code = unsafe { (self.driver.allocate)(&mut address, bytes) };
                ("cuMemAlloc", code, Granted::Memory(address))
            }
        };
        if code == OUT_OF_MEMORY {
            return None;
        }
        check(call, code);
        Some(granted)
    }

    fn give_back(&self, granted: Granted) {
        // SAFETY: each was granted and is given back once.
        let (call, code) = unsafe {
            match granted {
                Granted::Memory(address) => ("cuMemFree", (self.driver.free)(address)),
                Granted::Mapping(address, bytes) => ("cuMemUnmap", (self.driver.memory_unmap)(address, bytes)),
                Granted::Pooled(address) => ("cuMemFreeAsync", (self.driver.free_async)(address, null_mut())),
                Granted::Module(module) => ("cuModuleUnload", (self.driver.module_unload)(module as *mut c_void)),
                Granted::Library(library) => ("cuLibraryUnload", library.unload()),
                Granted::Array(array) => ("cuArrayDestroy", (self.driver.array_destroy)(array as *mut c_void)),
            }
        };
        check(call, code);
    }

    /// Memory without an address, shown by a range of addresses, which alone keeps it.
    fn mapped(&self, address: &mut u64, bytes: usize) -> c_int {
        let mut handle = 0;
        // CUmemAllocationProp: type, exports, where it lies, Windows, flags.
        let properties: [u32; 8] = [PINNED, 0, DEVICE, self.gpu as u32, 0, 0, 0, 0];
        let access: [u32; 3] = [DEVICE, self.gpu as u32, READ_AND_WRITE];
        // SAFETY: results go to live locals; the structures are live and have the layout of cuda.h.
        unsafe {
            let code = (self.driver.memory_create)(&mut handle, bytes, properties.as_ptr().cast(), 0);
            if code != 0 {
                return code;
            }
            check("cuMemAddressReserve", (self.driver.address_reserve)(address, bytes, 0, 0, 0));
            check("cuMemMap", (self.driver.memory_map)(*address, bytes, 0, handle, 0));
            check("cuMemSetAccess", (self.driver.memory_access)(*address, bytes, access.as_ptr().cast(), 1));
            (self.driver.memory_release)(handle)
        }
    }

    fn pooled(&mut self, address: &mut u64, bytes: usize) -> c_int {
        let pool = *self.pool.get_or_insert_with(|| {
            // CUmemPoolProps: type, exports, where it lies, and zeros.
            let mut properties = [0u32; 22];
            properties[..4].copy_from_slice(&[PINNED, 0, DEVICE, self.gpu as u32]);
            let (mut pool, mut threshold) = (null_mut(), u64::MAX);
            // SAFETY: results go to live locals; the structure is live and has the layout of cuda.h.
            unsafe {
                check("cuMemPoolCreate", (self.driver.pool_create)(&mut pool, properties.as_ptr().cast()));
                let threshold = (&raw mut threshold).cast::<c_void>();
                check("cuMemPoolSetAttribute", (self.driver.pool_set)(pool, RELEASE_THRESHOLD, threshold));
            }
            pool as usize
        });
        // SAFETY: the result goes to a live place; the pool is never destroyed.
        unsafe { (self.driver.allocate_from_pool)(address, bytes, pool as *mut c_void, null_mut()) }
    }

    /// By a launch that leaves it allocated.
    fn in_graph(&self, address: &mut u64, bytes: usize) -> c_int {
        let (driver, mut stream, mut graph, mut ready) = (self.driver, null_mut(), null_mut(), null_mut());
        // SAFETY: results go to live places; handles are those that were given.
        unsafe {
            check("cuStreamCreate", (driver.stream_create)(&mut stream, 1));
            check("cuStreamBeginCapture", (driver.capture_begin)(stream, 2));
            check("cuMemAllocAsync", (driver.allocate_async)(address, bytes, stream));
            check("cuStreamEndCapture", (driver.capture_end)(stream, &mut graph));
            let (node, log) = (null_mut(), null_mut());
            check("cuGraphInstantiate", (driver.graph_instantiate)(&mut ready, graph, node, log, 0));
            (driver.graph_launch)(ready, stream)
        }
    }

    fn module(&self, module: &mut usize, bytes: usize) -> c_int {
        let text = text(&format!(".visible .global .align 8 .b8 hog[{bytes}];"));
        let module: *mut usize = module;
        // SAFETY: a handle fits the live place; the text ends with a zero.
        unsafe { (self.driver.module_load)(module.cast(), text.as_ptr().cast()) }
    }

    fn array(&self, array: &mut usize, bytes: usize) -> c_int {
        let height = bytes.div_ceil(WIDTH * ELEMENT_BYTES);
        // CUDA_ARRAY_DESCRIPTOR: width, height, and in one word format and channels.
        let descriptor = [WIDTH, height, FLOAT as usize | 4 << 32];
        let array: *mut usize = array;
        // SAFETY: a handle fits the live place; the structure is live and has the layout of cuda.h.
        unsafe { (self.driver.array_create)(array.cast(), descriptor.as_ptr().cast()) }
    }
}
