//! Which scenarios may run beside another one.

/// Those that judge no times, and shares only roughly and over long, the longest first. All others have the machine to
/// themselves.
pub const TOGETHER: [&str; 73] = [
    "booted-systemd",
    "mps-daemons",
    "whole-images",
    "real-driver",
    "cuda-programs",
    "monitoring-programs",
    "real-bundles",
    "podman",
    "bare-machine",
    "current-engines",
    "rootless",
    "user-namespaces",
    "driver-replaced",
    "pods",
    "placed-pods",
    "without-shims",
    "cgroup-v2",
    "memory-cap",
    "shared-memory",
    "kill-matrix",
    "static-data",
    "docker",
    "ledger",
    "audit",
    "queue",
    "mig-instances",
    "nvidia-smi",
    "containerd",
    "crun",
    "odd-images",
    "slurm",
    "refusals",
    "gpu-suite",
    "room-given-back",
    "every-verb",
    "loader-matrix",
    "documentation",
    "doctor",
    "idle",
    "preemption",
    "preemption-beside-others",
    "places-taken",
    "conmon-killed",
    "evicted",
    "stats-and-wait",
    "toolkit-stand-in",
    "cgroup-v2-evicted",
    "cgroup-v2-guard",
    "upgrade",
    "random-kills",
    "kill-storm",
    "memory-beside",
    "reserved-memory",
    "short-jobs",
    "truncated-report",
    "killed-half-way",
    "host-containerd",
    "mps-engines",
    "lost-gpu",
    "drained",
    "health",
    "quota",
    "budget",
    "reservation",
    "prometheus",
    "executed-anew",
    "file-leases",
    "gpus-left-out",
    "graph-memory",
    "forbidden-gpu",
    "rare-calls",
    "pass-through",
    "packages",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::scenarios;

    #[test]
    fn each_name_is_a_scenario_s() {
        for name in TOGETHER {
            assert!(scenarios().any(|scenario| scenario.name == name), "{name}");
        }
    }
}
