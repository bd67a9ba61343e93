//! Two processes that hold one piece of memory: one makes and exports it, the other, which it starts, opens it. Both then
//! stay until they are killed.

use super::driver::{BufferPart, Driver, ExternalMemory, IpcHandle};
use super::options::Options;
use super::{check, fail, say};
use serde_json::json;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

/// CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and
/// CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD (cuda.h).
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const DESCRIPTOR: u32 = 1;
const OPAQUE_DESCRIPTOR: u32 = 1;
const OUT_OF_MEMORY: c_int = 2;

/// By which of the driver's ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Way {
    /// cuMemCreate and a descriptor; mapped by the other process.
    Mapped,
    /// The same, never mapped.
    Unmapped,
    /// cuMemCreate and a descriptor, as memory of another API, with a buffer of it.
    External,
    /// cuMemCreate and a descriptor of which the other process opens the file anew, so that nothing tells whose it is;
    /// never mapped. The simulated driver alone takes that.
    Unnamed,
    /// cuMemAlloc and cuIpcGetMemHandle.
    Ipc,
    /// cuMemAllocFromPoolAsync, a descriptor of the pool and the data of the pointer.
    Pool,
}

impl Way {
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Makes the memory, starts the other process, and stays.
pub(super) fn share(options: &Options, driver: &Driver, way: Way) -> ! {
    let bytes = (options.chunk_mib as usize) << 20;
    let from = match way {
        Way::Ipc => {
            let (mut address, mut handle) = (0, IpcHandle([0; 64]));
            // SAFETY: results go to live locals.
            unsafe {
                check("cuMemAlloc", (driver.allocate)(&mut address, bytes));
                check("cuIpcGetMemHandle", (driver.ipc_get)(&mut handle, address));
            }
            text_of(&handle)
        }
        Way::Pool => of_pool(driver, bytes),
        Way::Mapped | Way::Unmapped | Way::External | Way::Unnamed => exported(driver, bytes).to_string(),
    };
    let program = std::env::current_exe().unwrap_or_else(|_| fail("current_exe", -1));
    let mib = options.chunk_mib.to_string();
    let other = Command::new(program).args(["--open", &way.name(), "--from", &from, "--chunk-mib", &mib]).spawn();
    let Ok(other) = other else { fail("spawn", -1) };
    say(&json!({"event": "shared", "bytes": bytes, "other": other.id()}));
    stay()
}

fn text_of(handle: &IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle_of(text: &str) -> IpcHandle {
    let mut handle = IpcHandle([0; 64]);
    for (place, digits) in handle.0.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *place = u8::from_str_radix(digits, 16).unwrap_or_else(|_| fail("--from", -1));
    }
    handle
}

/// A descriptor of a new pool, which children inherit, and what names an allocation of it.
fn of_pool(driver: &Driver, bytes: usize) -> String {
    // CUmemPoolProps: type, exports, where it lies, and zeros.
    let mut properties = [0u32; 22];
    properties[..4].copy_from_slice(&[PINNED, DESCRIPTOR, DEVICE, 0]);
    let (mut pool, mut address, mut descriptor, mut handle) = (null_mut(), 0, -1, IpcHandle([0; 64]));
    // SAFETY: results go to live locals; the structure is live and has the layout of cuda.h; the descriptor is ours.
    unsafe {
        check("cuMemPoolCreate", (driver.pool_create)(&mut pool, properties.as_ptr().cast()));
        check("cuMemAllocFromPoolAsync", (driver.allocate_from_pool)(&mut address, bytes, pool, null_mut()));
        let place = (&raw mut descriptor).cast();
        check("cuMemPoolExportToShareableHandle", (driver.pool_export)(place, pool, DESCRIPTOR, 0));
        check("cuMemPoolExportPointer", (driver.pool_export_pointer)(&mut handle, address));
        check("fcntl", libc::fcntl(descriptor, libc::F_SETFD, 0));
    }
    format!("{descriptor}:{}", text_of(&handle))
}

/// A descriptor of new memory, which children inherit.
fn exported(driver: &Driver, bytes: usize) -> c_int {
    // CUmemAllocationProp: type, exports, where it lies, Windows, flags.
    let properties: [u32; 8] = [PINNED, DESCRIPTOR, DEVICE, 0, 0, 0, 0, 0];
    let (mut handle, mut descriptor) = (0, -1);
    // SAFETY: results go to live locals; the structure is live and has the layout of cuda.h; the descriptor is ours.
    unsafe {
        check("cuMemCreate", (driver.memory_create)(&mut handle, bytes, properties.as_ptr().cast(), 0));
        let place = (&raw mut descriptor).cast();
        check("cuMemExportToShareableHandle", (driver.memory_export)(place, handle, DESCRIPTOR, 0));
        check("fcntl", libc::fcntl(descriptor, libc::F_SETFD, 0));
    }
    descriptor
}

/// Opens what the other process has made, says so or that it was refused, and stays.
pub(super) fn open(options: &Options, driver: &Driver, way: Way) -> ! {
    let from = options.from.as_deref().unwrap_or_default();
    let bytes = (options.chunk_mib as usize) << 20;
    let code = match way {
        Way::Ipc => opened(driver, from),
        Way::External => external(driver, from, bytes),
        Way::Pool => from_pool(driver, from),
        Way::Mapped | Way::Unmapped => imported(driver, descriptor(from), bytes, way == Way::Mapped),
        Way::Unnamed => imported(driver, opened_anew(descriptor(from)), bytes, false),
    };
    match code {
        0 => say(&json!({"event": "opened", "bytes": bytes})),
        OUT_OF_MEMORY => say(&json!({"event": "refused"})),
        code => fail("open", code),
    }
    stay()
}

fn descriptor(from: &str) -> c_int {
    from.parse().unwrap_or_else(|_| fail("--from", -1))
}

/// The same file, as somebody has it who was not given the descriptor.
fn opened_anew(descriptor: c_int) -> c_int {
    let file = std::fs::File::open(format!("/proc/self/fd/{descriptor}")).unwrap_or_else(|_| fail("--from", -1));
    std::os::fd::IntoRawFd::into_raw_fd(file)
}

fn from_pool(driver: &Driver, from: &str) -> c_int {
    let (pool, pointer) = from.split_once(':').unwrap_or_else(|| fail("--from", -1));
    let (shareable, mut handle) = (descriptor(pool) as usize as *mut c_void, handle_of(pointer));
    let (mut pool, mut address) = (null_mut(), 0);
    // SAFETY: results go to live locals; the driver takes the descriptor as a pointer.
    unsafe {
        check("cuMemPoolImportFromShareableHandle", (driver.pool_import)(&mut pool, shareable, DESCRIPTOR, 0));
        (driver.pool_import_pointer)(&mut address, pool, &mut handle)
    }
}

fn imported(driver: &Driver, descriptor: c_int, bytes: usize, is_mapped: bool) -> c_int {
    let (mut handle, mut address) = (0, 0);
    // SAFETY: results go to live locals; the driver takes the descriptor as a pointer.
    unsafe {
        let code = (driver.memory_import)(&mut handle, descriptor as usize as *mut c_void, DESCRIPTOR);
        if code != 0 || !is_mapped {
            return code;
        }
        check("cuMemAddressReserve", (driver.address_reserve)(&mut address, bytes, 0, 0, 0));
        check("cuMemMap", (driver.memory_map)(address, bytes, 0, handle, 0));
        (driver.memory_release)(handle)
    }
}

fn external(driver: &Driver, from: &str, bytes: usize) -> c_int {
    let handle = [descriptor(from) as u64, 0];
    let description =
        ExternalMemory { kind: OPAQUE_DESCRIPTOR, handle, bytes: bytes as u64, flags: 0, reserved: [0; 16] };
    let part = BufferPart { offset: 0, bytes: bytes as u64, flags: 0, reserved: [0; 16] };
    let (mut memory, mut address) = (null_mut(), 0);
    // SAFETY: results go to live locals; the structures are live and have the layout of cuda.h.
    unsafe {
        let code = (driver.external_import)(&mut memory, (&raw const description).cast());
        if code != 0 {
            return code;
        }
        check("cuExternalMemoryGetMappedBuffer", {
            (driver.external_buffer)(&mut address, memory, (&raw const part).cast())
        });
        // What only shows memory gives none back.
        (driver.free)(address)
    }
}

fn opened(driver: &Driver, from: &str) -> c_int {
    let mut address = 0;
    // SAFETY: the result goes to a live local. 1 is CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is.
    unsafe { (driver.ipc_open)(&mut address, handle_of(from), 1) }
}

fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
