//! The private table through which nvidia-smi asks for what NVML's public functions do not tell. What is known of it was
//! observed at nvidia-smi 535.261.03, 550.163.01 and 555.58.02: the table's identity, its length in bytes in its first
//! word, and the calls that they make through it. What is not known is answered as not supported, which they show as N/A.

use crate::device::nvmlDeviceGetHandleByIndex_v2;
use crate::library::{code, initialised, put};
use crate::processes::{Present, present};
use crate::system::process_name;
use crate::target::minor;
use gpool_driver_abi::nvml::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The table's identity, as nvidia-smi names it.
const IDENTITY: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];
/// Words in the table, more than any of those programs reads.
const WORDS: usize = 512;
/// A line for a log that is not kept.
const TRACE: usize = 26;
/// A device's handle by its index.
const DEVICE_BY_INDEX: usize = 81;
/// Processes with compute contexts, with graphics contexts and of MPS.
const COMPUTE_PROCESSES: usize = 213;
const GRAPHICS_PROCESSES: usize = 214;
const MPS_PROCESSES: usize = 215;

const NAME_BYTES: usize = 4096;

/// An element of those lists: 4128 bytes.
#[repr(C)]
struct NamedProcess {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    protected_bytes: u64,
    name: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<NamedProcess>() == 4128);

impl NamedProcess {
    fn new(process: Present) -> Self {
        let (pid, used_bytes) = (process.pid, process.bytes);
        let mut name = [0; NAME_BYTES];
        let text = process_name(pid).unwrap_or_default();
        // The last byte stays the zero that ends it.
        for (place, byte) in name[..NAME_BYTES - 1].iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        let (gpu_instance, compute_instance) = process.instances();
        Self { pid, used_bytes, gpu_instance, compute_instance, protected_bytes: 0, name }
    }
}

/// A table of functions. The first word is its length.
#[repr(transparent)]
struct Table([*const c_void; WORDS]);

// SAFETY: a number and addresses of functions, never written.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut words = [unknown as *const c_void; WORDS];
    words[0] = std::ptr::without_provenance(size_of::<Table>());
    words[TRACE] = trace as *const c_void;
    words[DEVICE_BY_INDEX] = device_by_index as *const c_void;
    words[COMPUTE_PROCESSES] = compute_processes as *const c_void;
    words[GRAPHICS_PROCESSES] = other_processes as *const c_void;
    words[MPS_PROCESSES] = other_processes as *const c_void;
    Table(words)
};

/// Refuses every table but that one, as NVIDIA's library does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInternalGetExportTable(
    table: *mut *const c_void,
    identity: *const [u8; 16],
) -> nvmlReturn_t {
    code(|| {
        // SAFETY: NULL or valid, as it is demanded of the caller.
        if unsafe { identity.as_ref() } != Some(&IDENTITY) {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: as above.
        unsafe { put(table, (&raw const TABLE).cast()) }
    })
}

extern "C" fn unknown() -> c_int {
    NVML_ERROR_NOT_SUPPORTED
}

extern "C" fn trace() -> c_int {
    NVML_SUCCESS
}

/// The third argument was 0x22 in each call that was seen.
unsafe extern "C" fn device_by_index(index: c_uint, device: *mut nvmlDevice_t, _unknown: usize) -> nvmlReturn_t {
    // SAFETY: the same contract as of that function.
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, device) }
}

/// The processes of the caller's PID namespace. `count` holds the room in `list` first, and their number afterwards.
unsafe extern "C" fn compute_processes(device: nvmlDevice_t, count: *mut c_uint, list: *mut c_char) -> nvmlReturn_t {
    code(|| {
        let found = present(device)?;
        if count.is_null() || list.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and so valid as is demanded of the caller.
        let room = unsafe { count.replace(found.len() as c_uint) } as usize;
        for (index, process) in found.iter().take(room).enumerate() {
            // SAFETY: `list` is not NULL and `index` is below the number of elements that the caller gave.
            unsafe { list.cast::<NamedProcess>().add(index).write_unaligned(NamedProcess::new(*process)) };
        }
        if found.len() > room { Err(NVML_ERROR_INSUFFICIENT_SIZE) } else { Ok(()) }
    })
}

/// Nothing draws on a simulated device, and there is no MPS.
unsafe extern "C" fn other_processes(device: nvmlDevice_t, count: *mut c_uint, _list: *mut c_char) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as it is demanded of the caller.
    code(|| initialised().and_then(|()| minor(device)).and_then(|_| unsafe { put(count, 0) }))
}
