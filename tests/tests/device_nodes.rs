//! What `gpool-devices` asks of NVIDIA's `nvidia-modprobe`, in whose place stands one that writes down how it was called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/gpool-devices");
const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd");

/// Held while a program is written and run: a process that another test forks meanwhile has the file open for writing until
/// it executes its own program, and the kernel runs no such file (ETXTBSY).
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The calls, for a driver that says this of itself below `/proc/driver`.
fn calls(proc_dir: &Path, nodes: &str) -> Vec<String> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bin = tempfile::tempdir().unwrap();
    let (program, calls) = (bin.path().join("nvidia-modprobe"), bin.path().join("calls"));
    fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> {}\n", calls.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    let mut script = Command::new("sh");
    let output = script.arg(SCRIPT).arg(nodes).arg(proc_dir).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(calls).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Source of the options: nvidia-modprobe.c. With -u it makes no node but those that -c asks for, of nvidia-uvm and then
/// of no GPU; nvidiactl is the minor number 255.
#[test]
fn each_node_that_a_container_needs_is_asked_for() {
    let proc_dir = tempfile::tempdir().unwrap();
    for (bus, minor) in [("0000:01:00.0", 0), ("0000:41:00.0", 3)] {
        let information = format!("Model: \t\t a GPU\nDevice Minor: \t {minor}\n");
        write(&proc_dir.path().join("nvidia/gpus").join(bus).join("information"), &information);
    }
    assert_eq!(calls(proc_dir.path(), "/dev"), ["-c 255", "-u -c 0", "-c 0", "-c 3"]);
}

#[test]
fn the_nodes_of_mig_instances_are_asked_for_by_their_files() {
    let proc_dir = tempfile::tempdir().unwrap();
    let gpu = proc_dir.path().join("nvidia/capabilities/gpu0/mig");
    let files = ["config", "monitor", "gi9/access", "gi9/ci0/access"].map(|name| gpu.join(name));
    files.iter().for_each(|file| write(file, "DeviceFileMinor: 84\nDeviceFileMode: 292\nDeviceFileModify: 1\n"));
    let asked = calls(proc_dir.path(), "/dev");
    assert_eq!(asked[2..], [&files[2], &files[3]].map(|file| format!("-f {}", file.display())));
}

/// A oneshot of systemd has no bound of its own, and the supervisor is behind this one, with every engine behind itself.
#[test]
fn a_driver_that_hangs_holds_a_boot_up_for_a_moment_only() {
    let unit = |name: &str| fs::read_to_string(format!("{UNITS}/{name}")).unwrap();
    let (devices, supervisor) = (unit("gpool-devices.service"), unit("gpool-supervisor.service"));
    let seconds = |key: &str| {
        let value = devices.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("infinity");
        value.parse::<u64>().unwrap_or(u64::MAX)
    };
    // Stopped, killed and given up: each of the four steps has the time of a stop.
    assert!(
        seconds("TimeoutStartSec=").saturating_add(seconds("TimeoutStopSec=").saturating_mul(4)) <= 30,
        "{devices}"
    );
    assert!(supervisor.contains("Wants=gpool-devices.service") && !supervisor.contains("Requires=gpool-devices"));
    for other in ["docker", "containerd", "crio", "podman", "slurmd"].iter().chain(&KUBELETS) {
        assert!(names(&supervisor, "Before=", other), "{other} finds no supervisor");
    }
}

/// What a kubelet runs in.
const KUBELETS: [&str; 5] = ["kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"];

/// Whether lines of a unit name a service behind that key.
fn names(unit: &str, key: &str, service: &str) -> bool {
    let mut named = unit.lines().filter_map(|line| line.strip_prefix(key)).flat_map(|line| line.split(' '));
    named.any(|name| name == format!("{service}.service"))
}

/// Pods that a kubelet brings back after a boot before it knows of a plugin have failed for good.
#[test]
fn a_kubelet_finds_the_plugin_and_the_plugin_the_supervisor() {
    let plugin = fs::read_to_string(format!("{UNITS}/gpool-device-plugin.service")).unwrap();
    assert!(names(&plugin, "After=", "gpool-supervisor"), "{plugin}");
    for kubelet in KUBELETS {
        assert!(names(&plugin, "Before=", kubelet), "{kubelet} finds no plugin");
    }
}

/// The driver is loaded at each boot, and a supervisor that somebody has disabled stays off.
#[test]
fn the_driver_starts_a_supervisor_that_is_enabled_alone() {
    let read = |name: &str| fs::read_to_string(format!("{UNITS}/{name}")).unwrap();
    let (rule, unit) = (read("60-gpool.rules"), read("gpool-driver.service"));
    let wants = rule.split_once("ENV{SYSTEMD_WANTS}+=\"").unwrap().1.split('"').next().unwrap();
    assert_eq!(wants, "gpool-devices.service gpool-driver.service");
    let command = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    assert!(command("ExecCondition=").ends_with("systemctl --quiet is-enabled gpool-supervisor.service"), "{unit}");
    assert!(command("ExecStart=").ends_with("start gpool-supervisor.service"), "{unit}");
    // Where nothing but the supervisor's own start loads the driver, no event comes.
    assert!(read("gpool-supervisor.service").contains("\nOnFailure=gpool-driver.timer\n"));
    assert!(read("gpool-driver.timer").contains("PartOf=gpool-supervisor.service"), "one that was stopped stays so");
}

#[test]
fn nodes_elsewhere_are_not_nvidia_modprobes() {
    let (proc_dir, nodes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert!(calls(proc_dir.path(), nodes.path().to_str().unwrap()).is_empty());
}
