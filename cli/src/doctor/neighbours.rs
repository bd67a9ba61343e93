//! Others who share GPUs out on this host, two of which know nothing of each other, and programs that use a GPU without a lease.

use super::{Outcome, Surroundings, first_of};
use gpool_protocol::OutsideProcess;

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
        None => without_a_lease(host.outside.as_deref().unwrap_or_default()),
    }
}

/// What an older supervisor does not tell is nobody.
fn without_a_lease(outside: &[OutsideProcess]) -> Outcome {
    if outside.is_empty() {
        return Outcome::ok("nobody else shares GPUs out here, and no process uses one without a lease");
    }
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
