//! Others who share GPUs out on this host, two of which know nothing of each other, and programs that use a GPU without a lease.

use super::{Outcome, Surroundings, first_of};
use crate::commands::gpu::called;
use gpool_protocol::{GpuView, OutsideProcess, format_bytes};

/// Parts of the names of libraries that stand before libcuda in every process of the host or its containers.
const PRELOADED: [(&str, &str); 4] = [
    ("libvgpu", "HAMi-core"),
    ("libcuda-control", "vcuda-controller"),
    ("libnvshare", "nvshare"),
    ("libgemhook", "Gemini"),
];
/// Names of processes, cut off at fifteen letters as the kernel does.
const DAEMONS: [&str; 2] = ["nvidia-cuda-mps", "nvidia-cuda-mps-control"];

/// Whether an MPS daemon or server is one that gpool has started: its pipes are among gpool's files. Whoever may not look
/// takes it for one where the configuration lets gpool start some.
fn is_own(host: &Surroundings, pid: &str) -> bool {
    let configuration = host.configuration();
    match std::fs::read(host.path(&format!("/proc/{pid}/environ"))) {
        Ok(environment) => {
            let own = format!("CUDA_MPS_PIPE_DIRECTORY={}/mps/", configuration.paths.run_dir.display());
            environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(own.as_bytes()))
        }
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied && configuration.policy.mps,
    }
}

pub fn check(host: &Surroundings) -> Outcome {
    let preload = std::fs::read_to_string(host.path("/etc/ld.so.preload")).unwrap_or_default();
    let named = |(part, name): &(&str, &str)| {
        preload.split([' ', '\n', ':']).find(|path| path.contains(part)).map(|path| format!("{path} of {name}"))
    };
    if let Some(found) = PRELOADED.iter().find_map(named) {
        return Outcome::warn(
            format!("/etc/ld.so.preload loads {found} into every process"),
            "take the line out: both would count the same allocations, and the other one does not know gpool's caps",
        );
    }
    let processes = std::fs::read_dir(host.path("/proc")).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = processes.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    let mps = numbered
        .filter_map(|entry| Some((entry.file_name(), std::fs::read_to_string(entry.path().join("comm")).ok()?)))
        .filter(|(_, name)| DAEMONS.iter().any(|daemon| name.trim() == *daemon))
        .find(|(pid, _)| !is_own(host, &pid.to_string_lossy()));
    match mps {
        Some((pid, _)) => Outcome::warn(
            format!("an MPS daemon runs (process {})", pid.to_string_lossy()),
            "stop it with: echo quit | nvidia-cuda-mps-control; work of its clients is merged into one process, which \
             gpool sees as one that has no lease",
        ),
        None => match host.outside.as_deref().unwrap_or_default() {
            [] => of_nobody(host.gpus.as_deref().unwrap_or_default()),
            outside => without_a_lease(outside),
        },
    }
}

/// Memory that is in use where no process is without a lease: what has died has left it, or the driver itself takes more of
/// an idle GPU than is sold to nobody. What an older supervisor does not tell is nothing.
fn of_nobody(gpus: &[GpuView]) -> Outcome {
    let told = gpus.iter().filter(|gpu| gpu.memory_outside_bytes >> 20 > 0 && !gpu.silent && !gpu.divided);
    let told: Vec<String> = told
        .map(|gpu| {
            let [outside, kept] = [gpu.memory_outside_bytes, gpu.memory_headroom_bytes].map(format_bytes);
            format!(
                "{outside} of {} beside the {kept} that are kept for the driver",
                called(Some(gpu.index), &gpu.uuid)
            )
        })
        .collect();
    if told.is_empty() {
        return Outcome::ok("nobody else shares GPUs out here, and no process uses one without a lease");
    }
    Outcome::warn(
        format!("memory is in use that no lease has, and cannot be leased: {}", first_of(&told)),
        "lower to its cap what a lease has beyond it (gpool ps); if it stays where nothing runs, reset the GPU, or, where the \
         driver takes it itself, set [driver] headroom_bytes to what it takes, so that shares of all of a GPU can be had",
    )
}

/// Who they are.
fn without_a_lease(outside: &[OutsideProcess]) -> Outcome {
    let asks = |its: &OutsideProcess| match &its.asks {
        Some(asks) => format!(", whose container asks for {asks} and was not started with gpool's runtime"),
        None => String::new(),
    };
    let named = |its: &OutsideProcess| format!("{} ({}, of the cgroup {}{})", its.pid, its.name, its.cgroup, asks(its));
    let add = match outside.iter().any(|its| its.asks.is_some()) {
        true => "add --runtime=gpool to the start of a container that asks for a share; else ",
        false => "",
    };
    let names: Vec<String> = outside.iter().map(named).collect();
    Outcome::warn(
        format!(
            "without a lease a GPU is used by process {}: nothing paces that, and all shares are of the rest",
            first_of(&names)
        ),
        format!("{add}end it, or start it with a share, by gpool run or --runtime gpool; a desktop's own may stay"),
    )
}
