//! The messages of the supervisor's socket. HTTP/1.1 with JSON bodies.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `POST /v1/leases` | [`LeaseRequest`] | [`LeaseAnswer`](crate::LeaseAnswer) |
//! | `POST /v1/leases/ID/bind` | [`BindRequest`] | [`LeaseView`] |
//! | `POST /v1/leases/ID/ended` | nothing | [`LeaseView`]; a hint, the supervisor looks for itself |
//! | `GET /v1/leases`, `GET /v1/leases/ID` | | `[LeaseView]`, [`LeaseView`] |
//! | `PATCH /v1/leases/ID` | [`LeaseUpdate`](crate::LeaseUpdate) | [`LeaseView`] |
//! | `POST /v1/leases/ID/pause`, `.../resume` | nothing | [`LeaseView`] |
//! | `POST /v1/leases/ID/suspend`, `.../evict` | nothing | [`LeaseView`] |
//! | `GET /v1/leases/ID/explain` | | [`LeaseExplanation`](crate::LeaseExplanation) |
//! | `GET /v1/queue` | | `[WaitingView]` |
//! | `POST /v1/queue/ID/cancel`, `/hold`, `/release`, `/first` | nothing | [`WaitingView`](crate::WaitingView) |
//! | `GET /v1/quota` | | [`QuotaView`](crate::QuotaView), one for each |
//! | `GET /v1/reservations` | | `[ReservationView]` |
//! | `GET /v1/counts` | | [`Counts`](crate::Counts) |
//! | `GET /v1/usage?by=WHAT&since=..` | | [`Usage`](crate::Usage) |
//! | `GET /v1/charges?since=..` | | [`Charges`](crate::Charges) |
//! | `GET /v1/history?since=..` | | [`History`](crate::History) |
//! | `GET /v1/gpus` | | `[GpuView]` |
//! | `GET /v1/gpus/silent` | | `[SilentGpu]` |
//! | `GET /v1/gpus/drained` | | `[DrainedGpu]` |
//! | `POST /v1/gpus/GPU/drain` | [`DrainRequest`](crate::DrainRequest) | [`DrainedGpu`](crate::DrainedGpu) |
//! | `POST /v1/gpus/GPU/undrain` | [`UndrainRequest`](crate::UndrainRequest) | [`DrainedGpu`](crate::DrainedGpu), as it was |
//! | `GET /v1/driver` | | [`DriverView`](crate::DriverView) |
//! | `GET /v1/guard` | | `[GuardedProcess]` |
//! | `GET /v1/guard/outside` | | `[OutsideProcess]` |
//! | `GET /v1/events?after=SEQ&life=STARTED&follow=1` | | one [`Event`] a line |
//! | `GET /v1/info` | | [`SupervisorInfo`] |
//!
//! `ID` is a lease id or container id, or a unique prefix of one. Every refusal is an
//! [`ErrorBody`](crate::ErrorBody) with a 4xx or 5xx status.

use crate::class::{Class, Priority};
use crate::counted::CountedResource;
use crate::drain::Drain;
use crate::health::HealthFinding;
use crate::identity::{ContainerId, GpuUuid, HostPid, LeaseId, PodName, PodPlace};
use crate::latency::RequestFigures;
use crate::lease_state::{LeaseFault, LeaseState, SuspensionView};
use crate::mechanism::Mechanism;
use crate::memory_limits::MemoryLimits;
use crate::request::Request;
use serde::{Deserialize, Serialize};

/// Sent by the OCI runtime wrapper, or by podman's precreate hook, before it edits config.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The container's id, from the engine's command line.
    pub container_id: ContainerId,
    /// What it asks for.
    pub request: Request,
    /// Whether the parent of the process that asks makes the container, and the asking one ends before: the lease
    /// then waits for the container as long as the parent lives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_for_parent: bool,
    /// Whether nothing starts again under this id: its place is then free at once when it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starts_once: bool,
    /// Whether its memory is counted in all that NVML shows of a GPU, of which the driver keeps a part that nobody can have: it is
    /// made smaller by that part.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_of_all: bool,
    /// Whether the container is so little confined that its share cannot be enforced. An older wrapper refuses some
    /// such containers and does not see the others.
    #[serde(default)]
    pub unenforced: bool,
    /// The user that the container's first process has on the host. None from an older wrapper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_uid: Option<u32>,
    /// Which container of a pod it is, if it is one: its place is then kept for the next attempt at that, which has another
    /// id. None from an older wrapper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_pod: Option<PodPlace>,
    /// How people call that. None from an older wrapper, and of one in no pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// The folder on the host that its engine keeps for it until it is removed: without that nobody comes back to its place. None from an
    /// older wrapper, and where config.json names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_dir: Option<String>,
}

/// The answer to a [`LeaseRequest`] for which there is room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGranted {
    /// The new lease.
    pub lease_id: LeaseId,
    /// The first GPU that the share lies on.
    pub gpu_uuid: GpuUuid,
    /// All GPUs of a lease on several, in the order in which the container sees them; empty for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_uuids: Vec<GpuUuid>,
    /// What it is. A supervisor that knows of slices alone does not say.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// What must change in config.json, in this order.
    pub edits: Vec<Edit>,
}

impl LeaseGranted {
    /// Its GPUs, one or several.
    #[must_use]
    pub fn gpus(&self) -> &[GpuUuid] {
        if self.gpu_uuids.is_empty() { std::slice::from_ref(&self.gpu_uuid) } else { &self.gpu_uuids }
    }
}

/// One change of config.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Edit {
    /// A character device, with its cgroup rule.
    Device {
        /// Path in the container.
        path: String,
        /// Path on the host, for containers into which a node can only be mounted; empty from an older supervisor: the same.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        source: String,
        /// Major number.
        major: i64,
        /// Minor number.
        minor: i64,
        /// Cgroup access, `rw` for GPUs (`m` would let the container make more nodes).
        access: String,
    },
    /// A bind mount.
    Mount {
        /// Path on the host.
        source: String,
        /// Path in the container.
        destination: String,
        /// Mount options, `bind` among them.
        options: Vec<String>,
    },
    /// A library that goes where the image's loader looks, and over every copy that the image brings.
    Library {
        /// Path on the host.
        source: String,
        /// Its name in the image's library directory, for example `libcuda.so.1`.
        file_name: String,
    },
    /// An environment variable of the container's process, replacing every earlier one of that name.
    Env {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// A `createRuntime` hook.
    Hook {
        /// Absolute path on the host.
        path: String,
        /// Arguments, the program's name first.
        args: Vec<String>,
        /// Fixed, never empty: a hook without env may be handed the image's.
        env: Vec<String>,
    },
}

/// Sent by the `createRuntime` hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindRequest {
    /// The container's init, from the OCI state; the supervisor checks it against /proc.
    pub init_pid: HostPid,
}

/// A lease as `gpool ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its container.
    pub container_id: ContainerId,
    /// Which container of which pod that is; none of one in no pod, or from an older supervisor or wrapper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Where it stands.
    pub state: LeaseState,
    /// Its GPU; of several, the first.
    pub gpu_uuid: GpuUuid,
    /// Each of its GPUs, in the order in which the container sees them. Empty from an older supervisor.
    #[serde(default)]
    pub gpus: Vec<LeaseGpuView>,
    /// Share of each GPU, permille.
    pub fraction_permille: u16,
    /// How it has that.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// What its processes cannot recover from, if that has happened: its container has to be started anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<LeaseFault>,
    /// The profile of its MIG instance, whose UUID `gpu_uuid` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// The most that it may have of each GPU, permille.
    #[serde(default)]
    pub limit_permille: Option<u16>,
    /// How it uses the GPU.
    #[serde(default)]
    pub class: Class,
    /// How long 99 of 100 of its requests are to take at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// How long they take, of class latency; none where nobody can tell, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestFigures>,
    /// For whose sake its gate is kept closed: the requests of that container take longer than is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_for: Option<ContainerId>,
    /// Before whom it is served.
    #[serde(default)]
    pub priority: Priority,
    /// Whether that is less than it asked for, because a budget of its team or its user is spent.
    #[serde(default)]
    pub beyond_budget: bool,
    /// Who pays.
    #[serde(default)]
    pub team: Option<String>,
    /// For which project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// On whose bill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_center: Option<String>,
    /// What a cluster has counted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<CountedResource>,
    /// Whether its gate is kept closed until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// Its way out of the GPU's memory and back, while it is there; none of one that is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<SuspensionView>,
    /// GPU time that the supervisor charged over about the last ten seconds, in permille of that time; of several
    /// GPUs, their mean.
    pub received_permille: u16,
    /// All GPU time charged so far, from the tenant's own measured bursts; of several GPUs, their sum.
    pub charged_gpu_ns: u64,
    /// When the charges were counted last, in nanoseconds of this host's CLOCK_MONOTONIC: once a second. 0 before the first time.
    #[serde(default)]
    pub charged_at_ns: u64,
    /// Memory cap on each GPU, contexts included.
    pub memory_cap_bytes: u64,
    /// Memory held now, contexts included, as the interposer accounts for it; of several GPUs, on the one where it is
    /// most.
    pub memory_used_bytes: u64,
    /// The most that it has held so, since it was granted. 0 from an older supervisor.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// How much of what it allocates beyond the cap may lie in the host's memory, of all its GPUs together; 0: nothing.
    #[serde(default)]
    pub spill_bytes: u64,
    /// What lies there now.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Allocations that have gone there.
    #[serde(default)]
    pub allocations_spilled: u64,
    /// Processes that have lost their work on a GPU for good, by the driver's answer: those that are there and those that have ended.
    #[serde(default)]
    pub program_faults: u64,
    /// Allocations refused, because of the cap or because the GPU had no memory left.
    pub allocations_refused: u64,
    /// Look-ups by name refused because the container's shim does not know that version of a function.
    #[serde(default)]
    pub unknown_versions: u64,
    /// Time that the container's threads stood at a closed gate.
    pub gate_wait_ns: u64,
    /// Kernel launches and the like.
    pub launches: u64,
    /// How long one of its kernels or graphs takes, in the mean of a second: the longest of the last ten to twenty in which it was at work,
    /// nanoseconds. 0 where that is not known, or from an older supervisor.
    #[serde(default)]
    pub kernel_ns: u64,
    /// For how long it has made no use of its GPUs, in whole seconds: 0 or 1 while it does. None where nobody knows, as with
    /// mode=mig and mps, of one without a running container, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// In how many seconds its run time is over and its GPUs are taken from it. None of one without, or without a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_left_seconds: Option<u64>,
    /// When its GPUs are taken, once it was told so: because its run time is over, or for a container of a higher priority that waits,
    /// if that still does then. Unix time, milliseconds; none while it was not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves_unix_ms: Option<u64>,
    /// Registered processes, alive.
    pub processes: u32,
    /// The container's init, once bound.
    pub init_pid: Option<HostPid>,
    /// Its cgroup on the host, once bound.
    pub cgroup: Option<String>,
    /// When these figures were read, in nanoseconds of this host's CLOCK_MONOTONIC: whoever wants a rate divides by the time
    /// between two of these. 0 where there are none to read, or from an older supervisor.
    #[serde(default)]
    pub read_at_ns: u64,
    /// How strongly the share is enforced: `hardware` for whole GPUs and MIG instances; `none` for the driver's time slices; `co-operative`, under an MPS server too; `bypassed` while a process of it uses a GPU past the shims;
    /// `unenforced` for a container that is not confined.
    pub enforcement: String,
    /// Entry points of the container's driver that count and that its shims do not answer: calls of them are not
    /// enforced.
    #[serde(default)]
    pub uncounted_calls: u32,
    /// The user who started it.
    pub owner_uid: u32,
    /// Unix time of the grant, milliseconds.
    pub created_unix_ms: u64,
}

/// What a lease has and uses of one of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGpuView {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// GPU time charged over about the last ten seconds, in permille of that time.
    pub received_permille: u16,
    /// All GPU time charged so far.
    pub charged_gpu_ns: u64,
    /// What the scheduler owes it in nanoseconds of this GPU's time, or below zero what it has had too much.
    #[serde(default)]
    pub lag_ns: i64,
    /// Memory held now, contexts included.
    pub memory_used_bytes: u64,
    /// What the driver itself lets the container's processes have of this GPU, shims or none: the cap, or more where it rounds, where
    /// leases share a cgroup, and while more is held than a cap that was lowered. None where it keeps no such limit, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Its part of what the GPU has drawn since this supervisor looks, millijoules. 0 from an older supervisor, and of a GPU that
    /// does not count it.
    #[serde(default)]
    pub energy_millijoules: u64,
}

/// A GPU as `gpool gpu ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// NVML's index now.
    pub index: u32,
    /// Stable identity.
    pub uuid: GpuUuid,
    /// Product name.
    pub name: String,
    /// Driver version.
    pub driver_version: String,
    /// All memory that leases can have.
    pub memory_total_bytes: u64,
    /// What is sold to nobody besides: as much may be in use that is no process's. 0 from an older supervisor.
    #[serde(default, skip_serializing_if = "crate::usage::is_zero")]
    pub memory_headroom_bytes: u64,
    /// Memory held by anybody, from NVML.
    pub memory_used_bytes: u64,
    /// What of it is within no lease's promise, beyond what is sold to nobody: of processes without a lease, of leases above
    /// their caps, or of no process at all. It is sold to nobody while it is in use. 0 from an older supervisor.
    #[serde(default, skip_serializing_if = "crate::usage::is_zero")]
    pub memory_outside_bytes: u64,
    /// Memory promised to leases.
    pub memory_leased_bytes: u64,
    /// Share promised to guaranteed leases, permille.
    pub fraction_leased_permille: u16,
    /// Leases on it.
    pub leases: u32,
    /// Whether it is divided with MIG and serves nobody as a whole; its instances are in this list, too.
    #[serde(default)]
    pub divided: bool,
    /// How the leases on it have it; none while there are none, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<Mechanism>,
    /// Whether its hardware keeps shares by the lengths of time slices; none where that is not wanted, has not been tried
    /// yet, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slices: Option<TimeSlices>,
    /// Whether the driver itself keeps memory caps on it; none where that is not wanted, of an instance, or from an older
    /// supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limits: Option<MemoryLimits>,
    /// Its compute mode, as `nvidia-smi -c` writes it; none if that is `DEFAULT`, or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
    /// A number that the GPUs have which reach each other over NVLink, straight or by others; none of one that reaches no other,
    /// or from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_island: Option<u16>,
    /// A number that the GPUs have between which a path stays with one processor; none where NVML does not say, or from an older
    /// supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<u16>,
    /// Since when it takes no new leases, and who said so; of an instance, its board. None of one that does, or from an older
    /// supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Drain>,
    /// The container for whose sake it takes no new leases: its requests take longer than is promised because of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_for: Option<ContainerId>,
    /// NVML does not answer for it, and it takes no new leases; what is said of its memory is what NVML said last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// What its own figures show to be wrong with it, of an instance its board's; none where they are not read or NVML has none, or
    /// from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Vec<HealthFinding>>,
    /// [`LeaseView::kernel_ns`] of those on it, the longest.
    #[serde(default)]
    pub kernel_ns: u64,
}

/// A GPU for which NVML does not answer, as one that has fallen off its bus: it takes no new leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentGpu {
    /// NVML's index.
    pub index: u32,
    /// Stable identity; none of one that did not answer when the supervisor started, and is among no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<GpuUuid>,
    /// What NVML was asked, and its own words.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

/// What trying the time slices of a GPU has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSlices {
    /// Whether they came to shares.
    pub kept: bool,
    /// Whether it is not tried again before the next boot or another driver.
    pub is_final: bool,
    /// What was seen, for people.
    pub told: String,
}

/// The supervisor about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorInfo {
    /// Package version.
    pub version: String,
    /// Its process id on the host.
    pub pid: HostPid,
    /// Unix time of its start, milliseconds.
    pub started_unix_ms: u64,
    /// Version of the shared region's layout.
    pub region_version: u32,
    /// Mean time from the decision to open a gate to the first launch behind it.
    pub handoff_ns: u64,
    /// Length of a slice, derived from the hand-off.
    pub slice_ns: u64,
    /// Hand-offs of the last 5 to 10 s; the percentiles are of these. None from a supervisor older than this field.
    #[serde(default)]
    pub handoff_count: Option<u64>,
    /// The middle one of these hand-offs, at most a sixteenth above what was measured; none when there was none.
    #[serde(default)]
    pub handoff_p50_ns: Option<u64>,
    /// Their 99th percentile, just so.
    #[serde(default)]
    pub handoff_p99_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_an_older_supervisor_is_read() {
        let old = r#"{"lease_id":"01","container_id":"c","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
            "received_permille":1,"charged_gpu_ns":2,"memory_cap_bytes":3,"memory_used_bytes":4,"allocations_refused":5,
            "gate_wait_ns":6,"launches":7,"processes":8,"init_pid":null,"cgroup":null,"enforcement":"co-operative",
            "owner_uid":0,"created_unix_ms":9}"#;
        let lease: LeaseView = serde_json::from_str(old).unwrap();
        assert_eq!((lease.limit_permille, lease.class, lease.paused), (None, Class::Batch, false));
        let granted: LeaseGranted = serde_json::from_str(r#"{"lease_id":"01","gpu_uuid":"GPU-1","edits":[]}"#).unwrap();
        assert!(granted.gpu_uuids.is_empty());
    }

    #[test]
    fn an_older_supervisor_about_itself_is_read() {
        let old = r#"{"version":"0.1.0","pid":81,"started_unix_ms":1,"region_version":1,"handoff_ns":2,"slice_ns":3}"#;
        let info: SupervisorInfo = serde_json::from_str(old).unwrap();
        assert_eq!((info.handoff_count, info.handoff_p50_ns, info.handoff_p99_ns), (None, None, None));
        assert_eq!((info.handoff_ns, info.slice_ns), (2, 3));
    }
}
