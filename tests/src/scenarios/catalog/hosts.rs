//! Scenarios about hosts and engines: how containers come, live and end.

use super::super::*;

/// In the order in which they run.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "engine-alone",
        what: "the private engine runs a plain container and leaves nothing",
        limit_s: 60,
        run: Place::Inside(engine_alone::run),
    },
    Scenario {
        name: "killed-half-way",
        what: "a run killed with SIGKILL, its container frozen, leaves nothing and the next run works",
        limit_s: 120,
        run: Place::Outside(killed_half_way::run),
    },
    Scenario {
        name: "frozen",
        what: "the run that killed-half-way kills",
        limit_s: 60,
        run: Place::PartOfAnother(killed_half_way::freeze_and_wait),
    },
    Scenario {
        name: "simulated-gpu",
        what: "two plain containers use the simulated GPU without gpool, its meter sees them",
        limit_s: 60,
        run: Place::Inside(simulated_gpu::run),
    },
    Scenario {
        name: "two-simulated-gpus",
        what: "programs on two simulated GPUs, without engine and gpool: copies, graphs, utilisation, tenants",
        limit_s: 60,
        run: Place::Inside(simulated_gpus::run),
    },
    Scenario {
        name: "shims",
        what: "the shims as they were built export each their driver's names and no others, and are small",
        limit_s: 20,
        run: Place::Inside(shims::run),
    },
    Scenario {
        name: "call-steps",
        what: "calls through the shim have few instructions, and a launch locks no cache line",
        limit_s: 60,
        run: Place::Inside(call_steps::run),
    },
    Scenario {
        name: "garbage-control",
        what: "no program dies of a control page that no supervisor would write",
        limit_s: 60,
        run: Place::Inside(garbage_control::run),
    },
    Scenario {
        name: "host-containerd",
        what: "a containerd of the host is left alone",
        limit_s: 60,
        run: Place::Inside(host_containerd::run),
    },
    Scenario {
        name: "pass-through",
        what: "a container without a request runs as under plain runc, with the supervisor stopped",
        limit_s: 60,
        run: Place::Inside(pass_through::run),
    },
    Scenario {
        name: "every-verb",
        what: "all verbs of runc and crun say the same with gpool in front, and 1,000 exec probes leave no trace",
        limit_s: 120,
        run: Place::Inside(every_verb::run),
    },
    Scenario {
        name: "packages",
        what: "the packages are those that cargo-deb and cargo-generate-rpm make of the same manifest",
        limit_s: 180,
        run: Place::Outside(packages::run),
    },
    Scenario {
        name: "playground",
        what: "a shell on a private host with everything running, for a person",
        limit_s: 3600,
        run: Place::PartOfAnother(playground::run),
    },
    Scenario {
        name: "main-job",
        what: "three containers share one GPU: the demo, judged",
        limit_s: 240,
        run: Place::Inside(main_job::run),
    },
    Scenario {
        name: "docker",
        what: "restarts on a full GPU, pauses, changes, options, a compose file and an image from a leased container",
        limit_s: 120,
        run: Place::Inside(engines::docker::run),
    },
    Scenario {
        name: "podman",
        what: "podman with gpool-runtime in front of runc and crun, and with the precreate hook under its own runtimes",
        limit_s: 120,
        run: Place::Inside(engines::podman::run),
    },
    Scenario {
        name: "crun",
        what: "docker with crun behind gpool-runtime: shares, device rules, lives, and what passes through",
        limit_s: 90,
        run: Place::Inside(engines::crun::run),
    },
    Scenario {
        name: "containerd",
        what: "containerd through ctr, with the annotations that its plugin for Kubernetes sets",
        limit_s: 90,
        run: Place::Inside(engines::containerd::run),
    },
    Scenario {
        name: "run-command",
        what: "gpool run: commands of the host with a share, their ends, what they see, and what is left",
        limit_s: 120,
        run: Place::Inside(run_command::run),
    },
    Scenario {
        name: "gpu-suite",
        what: "the suite for a real GPU, dry on the simulated one: its stages that judge no share",
        limit_s: 120,
        run: Place::Inside(gpu_suite::run),
    },
    Scenario {
        name: "gpu-suite-long",
        what: "all its stages",
        limit_s: 600,
        run: Place::PartOfAnother(gpu_suite::run_all),
    },
    Scenario {
        name: "pods",
        what: "pods through containerd's CRI: shares of each container, exec, refusal, end; the sandbox has none",
        limit_s: 90,
        run: Place::Inside(engines::pods::run),
    },
    Scenario {
        name: "current-engines",
        what: "docker with --annotation, podman and containerd's CRI of a newer Debian, with its runc and crun",
        limit_s: 420,
        run: Place::Outside(engines::current::run),
    },
    Scenario {
        name: "current-engines-inside",
        what: "the part of current-engines that has no network",
        limit_s: 150,
        run: Place::PartOfAnother(engines::current::inside),
    },
    Scenario {
        name: "rootless",
        what: "podman run by an ordinary user: leave, shares, cap, end, and what the user may not do to others",
        limit_s: 180,
        run: Place::Inside(engines::rootless::run),
    },
    Scenario {
        name: "cgroup-v2",
        what: "version 2 of cgroups alone, under docker and podman: device rules, lives, shares",
        limit_s: 150,
        run: Place::Inside(engines::cgroup_v2::run),
    },
    Scenario {
        name: "cgroup-v2-guard",
        what: "the guard where version 2 of cgroups is alone: it freezes and kills by class",
        limit_s: 90,
        run: Place::Inside(engines::cgroup_v2::guard),
    },
    Scenario {
        name: "evicted",
        what: "the GPU taken from a running container: denied, its programs ended, its share free, a restart asks anew",
        limit_s: 90,
        run: Place::Inside(evicted::run),
    },
    Scenario {
        name: "cgroup-v2-evicted",
        what: "the same where version 2 of cgroups is alone and the kernel asks a program",
        limit_s: 90,
        run: Place::Inside(evicted::on_version_2),
    },
    Scenario {
        name: "toolkit-stand-in",
        what: "beside a stand-in for NVIDIA's toolkit, before gpool and behind it, gpool alone brings the driver",
        limit_s: 90,
        run: Place::Inside(engines::toolkit::run),
    },
    Scenario {
        name: "user-namespaces",
        what: "containers of root's engines whose ids are mapped: docker with userns-remap, podman with --uidmap",
        limit_s: 120,
        run: Place::Inside(engines::user_namespaces::run),
    },
    Scenario {
        name: "refusals",
        what: "docker, podman and ctr show why gpool refuses a start, in gpool's own words",
        limit_s: 90,
        run: Place::Inside(engines::refusals::run),
    },
];
