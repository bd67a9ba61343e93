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
    /// cuMemAlloc and cuIpcGetMemHandle.
    Ipc,
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
            handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
        }
        Way::Mapped | Way::Unmapped | Way::External => exported(driver, bytes).to_string(),
    };
    let program = std::env::current_exe().unwrap_or_else(|_| fail("current_exe", -1));
    let mib = options.chunk_mib.to_string();
    let other = Command::new(program).args(["--open", &way.name(), "--from", &from, "--chunk-mib", &mib]).spawn();
    let Ok(other) = other else { fail("spawn", -1) };
    say(&json!({"event": "shared", "bytes": bytes, "other": other.id()}));
    stay()
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
        Way::Mapped | Way::Unmapped => imported(driver, from, bytes, way == Way::Mapped),
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

fn imported(driver: &Driver, from: &str, bytes: usize, is_mapped: bool) -> c_int {
    let (mut handle, mut address) = (0, 0);
    // SAFETY: results go to live locals; the driver takes the descriptor as a pointer.
    unsafe {
        let code = (driver.memory_import)(&mut handle, descriptor(from) as usize as *mut c_void, DESCRIPTOR);
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
    let mut handle = IpcHandle([0; 64]);
    for (place, digits) in handle.0.iter_mut().zip(from.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *place = u8::from_str_radix(digits, 16).unwrap_or_else(|_| fail("--from", -1));
    }
    let mut address = 0;
    // SAFETY: the result goes to a live local. 1 is CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is.
    unsafe { (driver.ipc_open)(&mut address, handle, 1) }
}

fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
