//! The driver's device nodes are there: one for each GPU, and those that every program needs beside them.

use super::{Outcome, Surroundings};
use crate::table::is_mig_instance;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub fn check(host: &Surroundings) -> Outcome {
    let configuration = host.configuration();
    let dir = &configuration.driver.device_dir;
    let is_node = |name: &str| {
        let metadata = std::fs::metadata(host.path(&dir.join(name).display().to_string()));
        metadata.is_ok_and(|metadata| metadata.file_type().is_char_device())
    };
    if !is_node("nvidiactl") {
        return Outcome::fail(
            format!("{} is no character device (driver.device_dir)", dir.join("nvidiactl").display()),
            "load the NVIDIA driver (modprobe nvidia), and run nvidia-modprobe -c 255 as root",
        );
    }
    let count = gpu_nodes(&host.path(&dir.display().to_string()));
    let known = host.gpus.as_ref().map_or(count, |gpus| gpus.iter().filter(|gpu| !is_mig_instance(gpu)).count());
    if count < known {
        return Outcome::fail(
            format!("{} has nodes of {count} GPUs, and NVML shows {known}", dir.display()),
            "run nvidia-smi once as root, which makes the missing nodes",
        );
    }
    if !is_node("nvidia-uvm") {
        return Outcome::fail(
            format!("{count} GPU(s), without {}, so that no container is started", dir.join("nvidia-uvm").display()),
            "run nvidia-modprobe -u -c 0 as root, which loads nvidia-uvm and makes its nodes",
        );
    }
    for (file, minor) in instance_capabilities(&host.path(&configuration.driver.proc_dir.display().to_string())) {
        let node = format!("nvidia-caps/nvidia-cap{minor}");
        if !is_node(&node) {
            return Outcome::fail(
                format!("{} is missing, so that a MIG instance cannot be used", dir.join(node).display()),
                format!("run systemctl start gpool-devices, or nvidia-modprobe -f {} as root", file.display()),
            );
        }
    }
    Outcome::ok(format!("nodes of {count} GPU(s) in {}", dir.display()))
}

/// The files that stand for the MIG instances that there are, and the minor numbers of their nodes. Source: NVIDIA's MIG
/// user guide, "/proc based nvidia-capabilities".
fn instance_capabilities(proc_dir: &Path) -> Vec<(PathBuf, u32)> {
    let gpus = below(&[proc_dir.join("nvidia/capabilities")], "gpu").into_iter().map(|gpu| gpu.join("mig"));
    let instances = below(&gpus.collect::<Vec<_>>(), "gi");
    let computing = below(&instances, "ci");
    let files = instances.iter().chain(&computing).map(|instance| instance.join("access"));
    let minor_of = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).ok()?;
        let minor = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"))?.trim().parse().ok()?;
        Some((file, minor))
    };
    files.filter_map(minor_of).collect()
}

/// What lies in these directories under a name that begins so, in the order of names.
fn below(directories: &[PathBuf], start: &str) -> Vec<PathBuf> {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(start.as_bytes()));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// How many nodes are named nvidiaN.
fn gpu_nodes(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.filter(|entry| is_gpu(&entry.file_name().to_string_lossy())).count()
}
