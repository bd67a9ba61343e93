//! What NVML shows.

use super::driver::open_library;
use super::{check, fail, say};
use serde_json::json;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::time::Duration;

/// NVML_ERROR_NOT_FOUND: no process was busy.
const NOT_FOUND: c_int = 6;

/// NVML, initialised, and its first device.
struct Nvml {
    library: *mut c_void,
    device: *mut c_void,
}

impl Nvml {
    fn open() -> Self {
        let mut nvml = Self { library: open_library(c"libnvidia-ml.so.1"), device: null_mut() };
        // SAFETY: NVML's functions of these names have these types, and the result goes to a live local.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = transmute_copy(&nvml.find("nvmlInit_v2"));
            let handle: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int =
                transmute_copy(&nvml.find("nvmlDeviceGetHandleByIndex_v2"));
            check("nvmlInit_v2", init());
            check("nvmlDeviceGetHandleByIndex_v2", handle(0, &mut nvml.device));
            // In a container with a MIG instance the GPU itself says nothing of memory.
            let instance: unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> c_int =
                transmute_copy(&nvml.find("nvmlDeviceGetMigDeviceHandleByIndex"));
            let mut part = null_mut();
            if instance(nvml.device, 0, &mut part) == 0 {
                nvml.device = part;
            }
        }
        nvml
    }

    /// The GPU instance and the compute instance that NVML says this process is in; none if it does not list it.
    fn own_instance(&self) -> Option<[c_uint; 2]> {
        let (mut count, mut processes) = (32, [Process::default(); 32]);
        // SAFETY: NVML's function of this name has this type, and the array is as long as its count says.
        let result = unsafe {
            let list: unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut Process) -> c_int =
                transmute_copy(&self.find("nvmlDeviceGetComputeRunningProcesses_v3"));
            list(self.device, &mut count, processes.as_mut_ptr())
        };
        let listed = processes.iter().take(count as usize).filter(|_| result == 0);
        listed.into_iter().find(|process| process.pid == std::process::id()).map(|process| process.instances)
    }

    fn find(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the name ends with a zero.
        let address = unsafe { libc::dlsym(self.library, text.as_ptr()) };
        if address.is_null() {
            fail(name, -1);
        }
        address
    }
}

/// Says what NVML shows of the first device's memory.
pub(super) fn report() {
    let nvml = Nvml::open();
    let mut memory = [0_u64; 3];
    // SAFETY: as above.
    unsafe {
        let information: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int =
            transmute_copy(&nvml.find("nvmlDeviceGetMemoryInfo"));
        check("nvmlDeviceGetMemoryInfo", information(nvml.device, memory.as_mut_ptr()));
    }
    let [total, _, used] = memory;
    say(&json!({"event": "nvml", "total": total, "used": used, "instance": nvml.own_instance()}));
}

/// As nvmlProcessInfo_v2_t: pid, bytes, GPU instance, compute instance.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: c_uint,
    bytes: u64,
    instances: [c_uint; 2],
}

/// As nvmlProcessUtilizationSample_t: pid, time, and percent of multiprocessors, memory, encoder, decoder.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    pid: c_uint,
    time_us: u64,
    percent: [c_uint; 4],
}

/// Says `times` times what NVML shows of the first device's processes and of how busy it is, as monitoring programs ask.
pub(super) fn monitor(times: u32) {
    let nvml = Nvml::open();
    let device = nvml.device;
    // SAFETY: NVML's functions of these names have these types.
    let (list, rates, samples) = unsafe {
        let list: unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut Process) -> c_int =
            transmute_copy(&nvml.find("nvmlDeviceGetComputeRunningProcesses_v3"));
        let rates: unsafe extern "C" fn(*mut c_void, *mut [c_uint; 2]) -> c_int =
            transmute_copy(&nvml.find("nvmlDeviceGetUtilizationRates"));
        let samples: unsafe extern "C" fn(*mut c_void, *mut Sample, *mut c_uint, u64) -> c_int =
            transmute_copy(&nvml.find("nvmlDeviceGetProcessUtilization"));
        (list, rates, samples)
    };
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(200));
        let (mut count, mut processes) = (32, [Process::default(); 32]);
        let mut busy = [0; 2];
        let (mut sample_count, mut sampled) = (32, [Sample::default(); 32]);
        // SAFETY: as above; the arrays are as long as their counts say.
        let result = unsafe {
            check("nvmlDeviceGetComputeRunningProcesses_v3", list(device, &mut count, processes.as_mut_ptr()));
            check("nvmlDeviceGetUtilizationRates", rates(device, &mut busy));
            samples(device, sampled.as_mut_ptr(), &mut sample_count, 0)
        };
        match result {
            NOT_FOUND => sample_count = 0,
            other => check("nvmlDeviceGetProcessUtilization", other),
        }
        let processes: Vec<_> =
            processes[..count as usize].iter().map(|process| json!([process.pid, process.bytes])).collect();
        let sampled: Vec<_> =
            sampled[..sample_count as usize].iter().map(|sample| json!([sample.pid, sample.percent[0]])).collect();
        say(&json!({"event": "monitor", "processes": processes, "percent": busy[0], "sampled": sampled}));
    }
}
