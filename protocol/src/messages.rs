//! The messages of the supervisor's socket. HTTP/1.1 with JSON bodies.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `POST /v1/leases` | [`LeaseRequest`] | [`LeaseGranted`] |
//! | `POST /v1/leases/ID/bind` | [`BindRequest`] | [`LeaseView`] |
//! | `POST /v1/leases/ID/ended` | nothing | [`LeaseView`]; a hint, the supervisor looks for itself |
//! | `GET /v1/leases`, `GET /v1/leases/ID` | | `[LeaseView]`, [`LeaseView`] |
//! | `PATCH /v1/leases/ID` | [`LeaseUpdate`] | [`LeaseView`] |
//! | `GET /v1/gpus` | | `[GpuView]` |
//! | `GET /v1/events?after=SEQ&follow=1` | | one [`Event`] a line |
//! | `GET /v1/info` | | [`SupervisorInfo`] |
//!
//! `ID` is a lease id or container id, or a unique prefix of one. Every refusal is an
//! [`ErrorBody`](crate::ErrorBody) with a 4xx or 5xx status.

use crate::identity::{ContainerId, GpuUuid, HostPid, LeaseId};
use crate::request::Request;
use serde::{Deserialize, Serialize};

/// Sent by the OCI runtime wrapper before it edits the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The container's id, from the engine's command line.
    pub container_id: ContainerId,
    /// What it asks for.
    pub request: Request,
}

/// The answer to a [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGranted {
    /// The new lease.
    pub lease_id: LeaseId,
    /// The GPU that the share lies on.
    pub gpu_uuid: GpuUuid,
    /// What must change in config.json, in this order.
    pub edits: Vec<Edit>,
}

/// One change of config.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Edit {
    /// A character device, with its cgroup rule.
    Device {
        /// Path in the container.
        path: String,
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

/// A live change of a lease; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseUpdate {
    /// New guaranteed share in permille.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction_permille: Option<u16>,
    /// New memory cap in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Where a lease stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Granted; the container is being made.
    Pending,
    /// Bound to a running container.
    Active,
    /// The container's init has ended; other processes of its cgroup have not.
    Ending,
    /// The container is gone; its place is kept a while for a restart of the same container.
    Held,
}

/// A lease as `gpool ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its container.
    pub container_id: ContainerId,
    /// Where it stands.
    pub state: LeaseState,
    /// Its GPU.
    pub gpu_uuid: GpuUuid,
    /// Guaranteed share, permille.
    pub fraction_permille: u16,
    /// GPU time that the supervisor charged over about the last ten seconds, in permille of that time.
    pub received_permille: u16,
    /// All GPU time charged so far, from the tenant's own measured bursts.
    pub charged_gpu_ns: u64,
    /// Memory cap, contexts included.
    pub memory_cap_bytes: u64,
    /// Memory held now, contexts included, as the interposer accounts for it.
    pub memory_used_bytes: u64,
    /// Allocations refused because of the cap.
    pub allocations_refused: u64,
    /// Time that the container's threads stood at a closed gate.
    pub gate_wait_ns: u64,
    /// Kernel launches and the like.
    pub launches: u64,
    /// Registered processes, alive.
    pub processes: u32,
    /// The container's init, once bound.
    pub init_pid: Option<HostPid>,
    /// Its cgroup on the host, once bound.
    pub cgroup: Option<String>,
    /// How strongly the share is enforced: `co-operative` for now.
    pub enforcement: String,
    /// The user who started it.
    pub owner_uid: u32,
    /// Unix time of the grant, milliseconds.
    pub created_unix_ms: u64,
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
    /// All memory.
    pub memory_total_bytes: u64,
    /// Memory held by anybody, from NVML.
    pub memory_used_bytes: u64,
    /// Memory promised to leases.
    pub memory_leased_bytes: u64,
    /// Share promised to leases, permille.
    pub fraction_leased_permille: u16,
    /// Leases on it.
    pub leases: u32,
}

/// What happened, for `gpool events` and for audits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up by one within one life of the supervisor.
    pub sequence: u64,
    /// Unix time, milliseconds.
    pub unix_ms: u64,
    /// What kind of thing happened.
    pub kind: EventKind,
    /// The lease it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// The container it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<ContainerId>,
    /// The user who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// One sentence.
    pub message: String,
}

/// The kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The supervisor started.
    SupervisorStarted,
    /// A lease was granted.
    LeaseGranted,
    /// A request was refused.
    LeaseRefused,
    /// A lease was bound to its container.
    LeaseBound,
    /// A lease was taken over after a restart of the supervisor.
    LeaseTakenOver,
    /// A share or cap was changed.
    LeaseUpdated,
    /// A lease ended.
    LeaseEnded,
    /// An allocation was refused because of the cap.
    AllocationRefused,
    /// A tenant broke the rules of its region.
    Breach,
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
}
