//! An ordinary program of the CUDA driver API: allocates memory, launches kernels, and says on stdout, as lines of
//! JSON, what happened to it. It knows nothing of gpool and runs the same on a real and on a simulated GPU.

use clap::Parser;
use serde_json::{Value, json};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::mem::transmute_copy;
use std::path::PathBuf;
use std::process::exit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Spins until %globaltimer has advanced by `ns`.
const PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns)
{
    .reg .pred %p;
    .reg .u64 %start, %now, %end;
    ld.param.u64 %end, [ns];
    mov.u64 %start, %globaltimer;
    add.u64 %end, %end, %start;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra again;
    ret;
}
";

const OUT_OF_MEMORY: c_int = 2;
const MIB: u64 = 1 << 20;
/// At most this many launches between two synchronisations of a thread.
const OUTSTANDING: u64 = 1000;

/// Allocate memory on a GPU, launch kernels, and report on stdout.
#[derive(Debug, Parser)]
struct Arguments {
    /// How long each kernel runs.
    #[arg(long, default_value_t = 500)]
    kernel_us: u64,
    /// The size of one allocation.
    #[arg(long, default_value_t = 64)]
    chunk_mib: u64,
    /// How much to allocate; absent: until it is refused.
    #[arg(long)]
    allocate_mib: Option<u64>,
    /// Threads that launch.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Synchronise after so many launches; absent: only to keep at most 1000 outstanding.
    #[arg(long)]
    launch_batch: Option<u64>,
    /// While this file exists, launch nothing.
    #[arg(long)]
    pause_file: Option<PathBuf>,
    /// How long to run; 0: for ever.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Try one more allocation so often after a refusal.
    #[arg(long, default_value_t = 1000)]
    retry_allocation_ms: u64,
    /// Say what NVML shows of the device's memory.
    #[arg(long)]
    nvml: bool,
}

macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*);)*) => {
        /// The driver's functions, found through its own look-up.
        struct Driver { $($field: unsafe extern "C" fn($($argument),*) -> c_int),* }

        impl Driver {
            fn load() -> Self {
                let find = Lookup::open();
                Self { $($field: {
                    let address = find.function($name);
                    // SAFETY: the driver's function of this name has this type.
                    unsafe { transmute_copy(&address) }
                }),* }
            }
        }
    };
}

functions! {
    init c"cuInit" (c_uint);
    device_get c"cuDeviceGet" (*mut c_int, c_int);
    context_create c"cuCtxCreate" (*mut *mut c_void, c_uint, c_int);
    context_set c"cuCtxSetCurrent" (*mut c_void);
    synchronize c"cuCtxSynchronize" ();
    memory_info c"cuMemGetInfo" (*mut usize, *mut usize);
    allocate c"cuMemAlloc" (*mut u64, usize);
    module_load c"cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_function c"cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    launch c"cuLaunchKernel" (
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void,
        *mut *mut c_void
    );
}

/// The API version that is asked for: cuCtxCreate with three arguments is the variant before 11.4.
const VERSION: c_int = 11030;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

enum Lookup {
    First(GetProcAddress),
    Second(GetProcAddressV2),
}

impl Lookup {
    fn open() -> Self {
        let library = open_library(c"libcuda.so.1");
        // SAFETY: the driver's functions of these names have these types.
        unsafe {
            let second = libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr());
            if !second.is_null() {
                return Self::Second(transmute_copy(&second));
            }
            let first = libc::dlsym(library, c"cuGetProcAddress".as_ptr());
            if first.is_null() {
                fail("dlsym cuGetProcAddress", -1);
            }
            Self::First(transmute_copy(&first))
        }
    }

    fn function(&self, name: &CStr) -> *mut c_void {
        let mut address = null_mut();
        // SAFETY: the name ends with a zero, and the address is written to a live local.
        let code = unsafe {
            match self {
                Self::First(find) => find(name.as_ptr(), &mut address, VERSION, 0),
                Self::Second(find) => find(name.as_ptr(), &mut address, VERSION, 0, null_mut()),
            }
        };
        check(&name.to_string_lossy(), code);
        if address.is_null() {
            fail(&name.to_string_lossy(), 500);
        }
        address
    }
}

fn open_library(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; loading the driver has no preconditions.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        fail(&format!("dlopen {}", name.to_string_lossy()), -1);
    }
    library
}

/// Prints one line. A reader who is gone ends the program.
fn say(line: &Value) {
    let mut output = std::io::stdout().lock();
    if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
        exit(1);
    }
}

fn fail(call: &str, code: c_int) -> ! {
    say(&json!({"event": "error", "call": call, "code": code}));
    exit(1)
}

fn check(call: &str, code: c_int) {
    if code != 0 {
        fail(call, code);
    }
}

/// What all threads share.
struct Tenant {
    driver: Driver,
    context: usize,
    kernel: usize,
    launched: AtomicU64,
    stopping: AtomicBool,
}

impl Tenant {
    fn start() -> Self {
        let driver = Driver::load();
        let (mut device, mut context, mut module, mut kernel) = (0, null_mut(), null_mut(), null_mut());
        // SAFETY: all results go to live locals, and the PTX and the name end with a zero.
        unsafe {
            check("cuInit", (driver.init)(0));
            check("cuDeviceGet", (driver.device_get)(&mut device, 0));
            check("cuCtxCreate", (driver.context_create)(&mut context, 0, device));
            check("cuModuleLoadData", (driver.module_load)(&mut module, PTX.as_ptr().cast()));
            check("cuModuleGetFunction", (driver.module_function)(&mut kernel, module, c"spin_ns".as_ptr()));
        }
        let (launched, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { driver, context: context as usize, kernel: kernel as usize, launched, stopping }
    }

    fn report_memory(&self) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both results go to live locals.
        check("cuMemGetInfo", unsafe { (self.driver.memory_info)(&mut free, &mut total) });
        say(&json!({"event": "memory", "total": total, "free": free}));
    }

    /// Whether one more allocation was granted.
    fn allocate(&self, bytes: u64) -> bool {
        let mut address = 0;
        // SAFETY: the result goes to a live local.
        match unsafe { (self.driver.allocate)(&mut address, bytes as usize) } {
            OUT_OF_MEMORY => false,
            code => {
                check("cuMemAlloc", code);
                true
            }
        }
    }

    fn synchronize(&self) {
        // SAFETY: no arguments; a context is current to this thread.
        check("cuCtxSynchronize", unsafe { (self.driver.synchronize)() });
    }

    /// Launches until the program stops.
    fn work(&self, arguments: &Arguments) {
        // SAFETY: the context is never destroyed.
        check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context as *mut c_void) });
        let batch = arguments.launch_batch.unwrap_or(OUTSTANDING).max(1);
        let mut duration_ns = arguments.kernel_us * 1000;
        let mut parameters = [(&raw mut duration_ns).cast::<c_void>()];
        let mut since_synchronised = 0;
        let paused = || arguments.pause_file.as_ref().is_some_and(|path| path.exists());
        while !self.stopping.load(Relaxed) {
            if paused() {
                self.synchronize();
                while paused() && !self.stopping.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                continue;
            }
            let (kernel, list) = (self.kernel as *mut c_void, parameters.as_mut_ptr());
            // SAFETY: the kernel takes one u64, which outlives the call.
            let code = unsafe { (self.driver.launch)(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), list, null_mut()) };
            check("cuLaunchKernel", code);
            self.launched.fetch_add(1, Relaxed);
            since_synchronised += 1;
            if since_synchronised >= batch {
                self.synchronize();
                since_synchronised = 0;
            }
        }
    }

    /// Allocates what was asked for, then reports every second and tries again what was refused.
    fn watch(&self, arguments: &Arguments) {
        let chunk_bytes = arguments.chunk_mib * MIB;
        let wanted_bytes = arguments.allocate_mib.map_or(u64::MAX, |mib| mib * MIB);
        let (mut allocated, mut refused) = (0, 0_u64);
        while allocated < wanted_bytes && refused == 0 {
            let bytes = chunk_bytes.min(wanted_bytes - allocated);
            if self.allocate(bytes) { allocated += bytes } else { refused += 1 }
        }
        say(&json!({"event": "allocated", "bytes": allocated, "refused": refused}));
        let started = Instant::now();
        let mut retry_at = started + Duration::from_millis(arguments.retry_allocation_ms);
        let mut report_at = started + Duration::from_secs(1);
        loop {
            std::thread::sleep(retry_at.min(report_at).saturating_duration_since(Instant::now()));
            let now = Instant::now();
            if now >= retry_at {
                retry_at = now + Duration::from_millis(arguments.retry_allocation_ms.max(1));
                let bytes = chunk_bytes.min(wanted_bytes - allocated);
                if bytes > 0 {
                    if self.allocate(bytes) { allocated += bytes } else { refused += 1 }
                }
            }
            if now >= report_at {
                report_at += Duration::from_secs(1);
                let launched = self.launched.load(Relaxed);
                say(&json!({"event": "progress", "launched": launched, "allocated": allocated, "refused": refused}));
                if arguments.seconds > 0 && started.elapsed().as_secs() >= arguments.seconds {
                    return;
                }
            }
        }
    }
}

/// Says what NVML shows of the first device's memory.
fn report_nvml() {
    let library = open_library(c"libnvidia-ml.so.1");
    let find = |name: &str| {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the name ends with a zero.
        let address = unsafe { libc::dlsym(library, text.as_ptr()) };
        if address.is_null() {
            fail(name, -1);
        }
        address
    };
    let mut device: *mut c_void = null_mut();
    let mut memory = [0_u64; 3];
    // SAFETY: NVML's functions of these names have these types, and all results go to live locals.
    unsafe {
        let init: unsafe extern "C" fn() -> c_int = transmute_copy(&find("nvmlInit_v2"));
        let handle: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int =
            transmute_copy(&find("nvmlDeviceGetHandleByIndex_v2"));
        let information: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int =
            transmute_copy(&find("nvmlDeviceGetMemoryInfo"));
        check("nvmlInit_v2", init());
        check("nvmlDeviceGetHandleByIndex_v2", handle(0, &mut device));
        check("nvmlDeviceGetMemoryInfo", information(device, memory.as_mut_ptr()));
    }
    let [total, _, used] = memory;
    say(&json!({"event": "nvml", "total": total, "used": used}));
}

fn main() {
    let arguments = Arguments::parse();
    let tenant = Tenant::start();
    tenant.report_memory();
    if arguments.nvml {
        report_nvml();
    }
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| tenant.work(&arguments));
        }
        tenant.watch(&arguments);
        tenant.stopping.store(true, Relaxed);
    });
    tenant.synchronize();
}
