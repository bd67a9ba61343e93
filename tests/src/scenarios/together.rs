//! Which scenarios may run beside another one.

/// Those that judge no times, and shares only roughly and over long, the longest first. All others have the machine to
/// themselves.
pub const TOGETHER: [&str; 80] = [
    "booted-systemd",
    "real-driver",
    "mps-daemons",
    "packages",
    "bare-machine",
    "shared-memory",
    "without-shims",
    "cuda-programs",
    "podman",
    "real-bundles",
    "gpu-suite",
    "slurm",
    "kill-matrix",
    "budget",
    "prometheus",
    "current-engines",
    "ledger",
    "cgroup-v2",
    "random-kills",
    "memory-cap",
    "run-time",
    "reservation",
    "docker",
    "preemption",
    "static-data",
    "idle",
    "pods",
    "whole-images",
    "user-namespaces",
    "driver-replaced",
    "mig-instances",
    "rootless",
    "placed-pods",
    "lost-gpu",
    "audit",
    "monitoring-programs",
    "garbage-report",
    "odd-images",
    "crun",
    "nvidia-smi",
    "health",
    "containerd",
    "kill-storm",
    "run-signals",
    "stats-and-wait",
    "refusals",
    "preemption-beside-others",
    "quota",
    "room-given-back",
    "evicted",
    "bypass",
    "cgroup-v2-guard",
    "upgrade",
    "cgroup-v2-evicted",
    "copies",
    "truncated-report",
    "documentation",
    "mps-engines",
    "toolkit-stand-in",
    "every-verb",
    "memory-beside",
    "queue",
    "conmon-killed",
    "doctor",
    "drained",
    "short-jobs",
    "reserved-memory",
    "places-taken",
    "gpus-left-out",
    "loader-matrix",
    "executed-anew",
    "graph-memory",
    "file-leases",
    "killed-half-way",
    "host-containerd",
    "garbage-control",
    "engine-alone",
    "rare-calls",
    "pass-through",
    "forbidden-gpu",
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
