//! Others who share GPUs out on this host, two of which know nothing of each other, and programs that use a GPU without a lease.

use super::surroundings::text;
use super::{Outcome, State, Surroundings, first_of};
use crate::commands::gpu::called;
use gpool_protocol::{GpuView, OutsideProcess, format_bytes};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Parts of the names of libraries that stand before libcuda in every process of the host or its containers.
const PRELOADED: [(&str, &str); 4] = [
    ("libvgpu", "HAMi-core"),
    ("libcuda-control", "vcuda-controller"),
    ("libnvshare", "nvshare"),
    ("libgemhook", "Gemini"),
];
/// How the names of the programs of MPS begin: of a process the kernel keeps fifteen letters.
const MPS: &str = "nvidia-cuda-mps";

pub fn check(host: &Surroundings) -> Outcome {
    let of_lease = match host.outside.as_deref().unwrap_or_default() {
        [] => of_nobody(host.gpus.as_deref().unwrap_or_default()),
        outside => without_a_lease(outside),
    };
    // None hides another: who has a lease can give his processes any name.
    let others = [preloaded(host), of_mps(host)].into_iter().flatten();
    let found = others.chain((of_lease.state != State::Ok).then(|| of_lease.clone()));
    found.reduce(both).unwrap_or(of_lease)
}

fn both(one: Outcome, other: Outcome) -> Outcome {
    let remedies: Vec<String> = [one.remedy, other.remedy].into_iter().flatten().collect();
    Outcome::warn(format!("{}; and {}", one.found, other.found), remedies.join("; "))
}

fn preloaded(host: &Surroundings) -> Option<Outcome> {
    let preload = std::fs::read_to_string(host.path("/etc/ld.so.preload")).unwrap_or_default();
    let named = |(part, name): &(&str, &str)| {
        preload.split([' ', '\n', ':']).find(|path| path.contains(part)).map(|path| format!("{path} of {name}"))
    };
    let found = PRELOADED.iter().find_map(named)?;
    Some(Outcome::warn(
        format!("/etc/ld.so.preload loads {found} into every process"),
        "take the line out: both would count the same allocations, and the other one does not know gpool's caps",
    ))
}

fn of_mps(host: &Surroundings) -> Option<Outcome> {
    let entries = std::fs::read_dir(host.path("/proc")).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    let mut others = pids.filter(|pid| is_mps(host, *pid)).peekable();
    others.peek()?;
    let own = started_by_gpool(host)?;
    let pid = others.find(|pid| !own.contains(pid) && !parent_of(host, *pid).is_some_and(|its| own.contains(&its)))?;
    Some(Outcome::warn(
        format!("an MPS daemon runs (process {pid})"),
        "stop it with: echo quit | nvidia-cuda-mps-control; work of its clients is merged into one process, which \
         gpool sees as one that has no lease",
    ))
}

/// Whether a process is a daemon or server of MPS, by its name and, where that may be seen, its program, among the processes
/// that this one is among: any process may name itself so. Its memory, with its environment and command line, is not read: it can
/// lie in a file whose reader waits for as long as its owner likes.
fn is_mps(host: &Surroundings, pid: u64) -> bool {
    let link = |of: &str, name: &str| std::fs::read_link(host.path(&format!("/proc/{of}/{name}")));
    let process = pid.to_string();
    if !text(&host.path(&format!("/proc/{process}/comm"))).starts_with(MPS) {
        return false;
    }
    let is_named = |program: &Path| program.file_name().is_some_and(|name| name.as_bytes().starts_with(MPS.as_bytes()));
    match (link(&process, "exe"), link(&process, "ns/pid")) {
        (Ok(program), namespace) => is_named(&program) && namespace.ok() == link("self", "ns/pid").ok(),
        (Err(error), _) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// The daemons and servers of MPS that gpool has started, by what the supervisor has written down. None where that may not be
/// looked at and gpool may start some: all may be those.
fn started_by_gpool(host: &Surroundings) -> Option<BTreeSet<u64>> {
    let configuration = host.configuration();
    let groups = match std::fs::read_dir(host.path(&format!("{}/mps", configuration.paths.run_dir.display()))) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && configuration.policy.mps => return None,
        entries => entries.into_iter().flatten().flatten(),
    };
    let record = |group: DirEntry| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(group.path().join("group.json")).ok()?).ok()
    };
    let pids = |record: Value| ["daemon", "server"].map(|name| record[name]["pid"].as_u64());
    Some(groups.filter_map(record).flat_map(pids).flatten().collect())
}

/// A server is its daemon's child before it is written down.
fn parent_of(host: &Surroundings, pid: u64) -> Option<u64> {
    let stat = text(&host.path(&format!("/proc/{pid}/stat")));
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
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
