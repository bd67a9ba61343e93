//! What NVML shows, asked by the crate nvml-wrapper as Rust programs do.

use super::{fail, say};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use serde_json::json;
use std::time::Duration;

/// A call's answer; a failure ends the program.
fn answered<T>(call: &str, answer: Result<T, NvmlError>) -> T {
    answer.unwrap_or_else(|cause| {
        eprintln!("{call}: {cause}");
        fail(call, -1)
    })
}

/// Says what NVML shows of the first device's memory and, `times` times, of its processes and of how busy it is.
pub(super) fn monitor(times: u32) {
    let nvml = answered("init", Nvml::init());
    let device = answered("device_by_index", nvml.device_by_index(0));
    let memory = answered("memory_info", device.memory_info());
    say(&json!({"event": "nvml", "total": memory.total, "used": memory.used}));
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(200));
        let listed = answered("running_compute_processes", device.running_compute_processes());
        let bytes = |memory: &UsedGpuMemory| match memory {
            UsedGpuMemory::Used(bytes) => *bytes,
            UsedGpuMemory::Unavailable => 0,
        };
        let processes: Vec<_> =
            listed.iter().map(|process| json!([process.pid, bytes(&process.used_gpu_memory)])).collect();
        let samples = match device.process_utilization_stats(None) {
            // No process was busy.
            Err(NvmlError::NotFound) => Vec::new(),
            other => answered("process_utilization_stats", other),
        };
        let sampled: Vec<_> = samples.iter().map(|sample| json!([sample.pid, sample.sm_util])).collect();
        let percent = answered("utilization_rates", device.utilization_rates()).gpu;
        say(&json!({"event": "monitor", "processes": processes, "percent": percent, "sampled": sampled}));
    }
}
