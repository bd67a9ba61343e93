//! The driver's device nodes are there: one for each GPU, and those that every program needs beside them.

use super::{Outcome, Surroundings};
use crate::table::is_mig_instance;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub fn check(host: &Surroundings) -> Outcome {
    let dir = host.configuration().driver.device_dir;
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
    Outcome::ok(format!("nodes of {count} GPU(s) in {}", dir.display()))
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
