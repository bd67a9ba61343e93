//! The integration scenarios. Each starts what it needs and must leave nothing.

mod booted_systemd;
mod bypass;
mod call_steps;
mod conmon_killed;
mod copies;
mod cuda_programs;
mod display_contexts;
mod doctor;
mod documentation;
mod engine_alone;
mod engines;
mod every_verb;
mod frozen_holder;
mod garbage_control;
mod garbage_report;
mod gpu_suite;
mod host_containerd;
mod hostile;
mod hung_container;
mod kill_matrix;
mod kill_storm;
mod killed_half_way;
mod latency_class;
mod limits;
mod loader_matrix;
mod main_job;
mod memory_beside;
mod memory_cap;
mod monitoring_programs;
mod nvidia_smi;
mod odd_images;
mod one_slice_two_processes;
mod pass_through;
mod paused;
mod playground;
mod random_kills;
mod real_bundles;
mod real_driver;
mod run_command;
mod scenario;
pub(crate) mod seven_tenants;
mod several_gpus;
mod shared_memory;
mod shims;
mod silent_tenant;
mod simulated_gpu;
mod simulated_gpus;
mod steps;
mod supervisor_hung;
mod supervisor_restart;
mod together;
mod truncated_report;
mod upgrade;
mod whole_images;
mod without_shims;

pub use scenario::{Place, Scenario};
pub use together::TOGETHER;

pub use steps::wait_until_running;
use steps::{finish, finish_found, start_tenants, wait_until_account_agrees};

/// All scenarios, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
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
    Scenario {
        name: "one-slice-two-processes",
        what: "two processes of one container share its slice and its memory cap",
        limit_s: 60,
        run: Place::Inside(one_slice_two_processes::run),
    },
    Scenario {
        name: "memory-cap",
        what: "a tenant gets its cap and no byte more, whichever of the driver's allocators it asks",
        limit_s: 120,
        run: Place::Inside(memory_cap::run),
    },
    Scenario {
        name: "kill-storm",
        what: "300 processes that allocate by every way, killed at random: no byte over the cap, none lost",
        limit_s: 180,
        run: Place::Inside(kill_storm::run),
    },
    Scenario {
        name: "kill-storm-long",
        what: "the same with 10,000",
        limit_s: 3600,
        run: Place::PartOfAnother(kill_storm::run_long),
    },
    Scenario {
        name: "shared-memory",
        what: "memory that two processes hold stays charged and below the cap, whoever is killed first",
        limit_s: 180,
        run: Place::Inside(shared_memory::run),
    },
    Scenario {
        name: "display-contexts",
        what: "contexts for OpenGL and VDPAU are charged and given back",
        limit_s: 60,
        run: Place::Inside(display_contexts::run),
    },
    Scenario {
        name: "memory-beside",
        what: "memory taken past the shim counts against the cap of a program that uses it",
        limit_s: 90,
        run: Place::Inside(memory_beside::run),
    },
    Scenario {
        name: "supervisor-restart",
        what: "the supervisor killed and started again takes running containers over",
        limit_s: 90,
        run: Place::Inside(supervisor_restart::run),
    },
    Scenario {
        name: "upgrade",
        what: "another build installed over the running one: tenants keep their shims, new ones get the new one",
        limit_s: 90,
        run: Place::Inside(upgrade::run),
    },
    Scenario {
        name: "doctor",
        what: "gpool doctor finds nothing on a healthy host and each of thirty faults by its number; its archive has no secret",
        limit_s: 90,
        run: Place::Inside(doctor::run),
    },
    Scenario {
        name: "documentation",
        what: "what the manual tells to type is typed, and the supervisor answers as the socket's document says",
        limit_s: 90,
        run: Place::Inside(documentation::run),
    },
    Scenario {
        name: "silent-tenant",
        what: "a tenant that falls silent with its gate open does not keep the GPU",
        limit_s: 90,
        run: Place::Inside(silent_tenant::run),
    },
    Scenario {
        name: "frozen-holder",
        what: "a container that is frozen with its gate open does not keep the GPU",
        limit_s: 90,
        run: Place::Inside(frozen_holder::run),
    },
    Scenario {
        name: "hung-container",
        what: "a container whose kernel does not end is stopped where its class says so, and no other",
        limit_s: 90,
        run: Place::Inside(hung_container::run),
    },
    Scenario {
        name: "limits",
        what: "limits, pauses and explanations on live containers, one of which launches graphs",
        limit_s: 120,
        run: Place::Inside(limits::run),
    },
    Scenario {
        name: "copies",
        what: "a tenant that only copies rows and between contexts stands at its gate like one with kernels",
        limit_s: 60,
        run: Place::Inside(copies::run),
    },
    Scenario {
        name: "latency-class",
        what: "a latency tenant keeps its short answers beside two busy batch tenants",
        limit_s: 90,
        run: Place::Inside(latency_class::run),
    },
    Scenario {
        name: "seven-tenants",
        what: "seven tenants of 5 to 40 % share one GPU",
        limit_s: 90,
        run: Place::Inside(seven_tenants::run),
    },
    Scenario {
        name: "without-shims",
        what: "whole GPUs and the driver's time slices: the driver itself, metered by NVML, beside nobody whom it harms",
        limit_s: 120,
        run: Place::Inside(without_shims::run),
    },
    Scenario {
        name: "several-gpus",
        what: "sixteen GPUs: a container with two of them beside containers with one each",
        limit_s: 120,
        run: Place::Inside(several_gpus::run),
    },
    Scenario {
        name: "supervisor-hung",
        what: "a supervisor that is stopped for seconds: classes that fail open run on, others wait",
        limit_s: 90,
        run: Place::Inside(supervisor_hung::run),
    },
    Scenario {
        name: "paused",
        what: "a paused container gets nothing, also across a restart of the supervisor, until it is resumed",
        limit_s: 90,
        run: Place::Inside(paused::run),
    },
    Scenario {
        name: "garbage-report",
        what: "a tenant that writes garbage over its report harms nobody, and one that hides its work is found",
        limit_s: 120,
        run: Place::Inside(garbage_report::run),
    },
    Scenario {
        name: "loader-matrix",
        what: "programs find the shim in whichever way they load the driver",
        limit_s: 60,
        run: Place::Inside(loader_matrix::run),
    },
    Scenario {
        name: "whole-images",
        what: "the same in whole images with other C libraries: glibc 2.31 and 2.41, musl",
        limit_s: 420,
        run: Place::Outside(whole_images::run),
    },
    Scenario {
        name: "whole-images-inside",
        what: "the part of whole-images that has no network",
        limit_s: 240,
        run: Place::PartOfAnother(whole_images::inside),
    },
    Scenario {
        name: "booted-systemd",
        what: "packages in a Debian booted by its own systemd: first hour, restarts, upgrade, downgrade, removal",
        limit_s: 900,
        run: Place::Outside(booted_systemd::run),
    },
    Scenario {
        name: "first-hour-inside",
        what: "the part of booted-systemd that types the README's commands",
        limit_s: 120,
        run: Place::PartOfAnother(booted_systemd::first_hour),
    },
    Scenario {
        name: "booted-systemd-inside",
        what: "the part of booted-systemd that lives for long",
        limit_s: 300,
        run: Place::PartOfAnother(booted_systemd::life),
    },
    Scenario {
        name: "odd-images",
        what: "images with links, other library directories and drivers of their own: the shim is on top, or refused",
        limit_s: 120,
        run: Place::Inside(odd_images::run),
    },
    Scenario {
        name: "real-driver",
        what: "NVIDIA's own libraries behind the shims answer as without them, with old and new glibcs",
        limit_s: 300,
        run: Place::Outside(real_driver::run),
    },
    Scenario {
        name: "real-driver-compared",
        what: "the part of real-driver that has no network",
        limit_s: 90,
        run: Place::PartOfAnother(real_driver::compare),
    },
    Scenario {
        name: "monitoring-programs",
        what: "nvidia-ml-py, gpustat, nvitop and nvtop in a container show its slice and its processes alone",
        limit_s: 180,
        run: Place::Outside(monitoring_programs::run),
    },
    Scenario {
        name: "monitoring-programs-inside",
        what: "the part of monitoring-programs that has no network",
        limit_s: 90,
        run: Place::PartOfAnother(monitoring_programs::inside),
    },
    Scenario {
        name: "nvidia-smi",
        what: "NVIDIA's own nvidia-smi of three drivers in a container shows its slice and its processes",
        limit_s: 180,
        run: Place::Outside(nvidia_smi::run),
    },
    Scenario {
        name: "nvidia-smi-inside",
        what: "the part of nvidia-smi that has no network",
        limit_s: 90,
        run: Place::PartOfAnother(nvidia_smi::inside),
    },
    Scenario {
        name: "cuda-programs",
        what: "numba, cuda.bindings and cuda.core in a container see its slice, stand at its gate and meet its cap",
        limit_s: 300,
        run: Place::Outside(cuda_programs::run),
    },
    Scenario {
        name: "cuda-programs-inside",
        what: "the part of cuda-programs that has no network",
        limit_s: 120,
        run: Place::PartOfAnother(cuda_programs::inside),
    },
    Scenario {
        name: "random-kills",
        what: "tenants that are pid 1, killed at random for a minute: all accounts stay right",
        limit_s: 180,
        run: Place::Inside(random_kills::run),
    },
    Scenario {
        name: "bypass",
        what: "tenants that load the driver past the shim are found, frozen or killed by class, and no others",
        limit_s: 90,
        run: Place::Inside(bypass::run),
    },
    Scenario {
        name: "hostile-tenants",
        what: "tenants that flood, fork, preload and ask for more harm neither a neighbour nor the supervisor",
        limit_s: 180,
        run: Place::Inside(hostile::run),
    },
    Scenario {
        name: "real-bundles",
        what: "two hundred config.json of real engines: untouched without a request, nothing lost with one",
        limit_s: 240,
        run: Place::Inside(real_bundles::run),
    },
    Scenario {
        name: "conmon-killed",
        what: "podman's monitor killed while a start waits and while its container runs: no lease is lost or leaked",
        limit_s: 90,
        run: Place::Inside(conmon_killed::run),
    },
    Scenario {
        name: "kill-matrix",
        what: "wrapper, hook, runc, shim, init and supervisor killed at every stage: every lease comes back, once",
        limit_s: 240,
        run: Place::Inside(kill_matrix::run),
    },
    Scenario {
        name: "truncated-report",
        what: "a tenant that truncates its report harms nobody else",
        limit_s: 60,
        run: Place::Inside(truncated_report::run),
    },
];
