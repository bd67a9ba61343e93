//! The keys of the configuration file.

use crate::audit::Audit;
use crate::default_request::DefaultRequest;
use crate::gpus::Gpus;
use crate::health::Health;
use crate::latency::Latency;
use crate::overflow::Overflow;
use crate::policy::Policy;
use crate::preemption::Preemption;
use crate::quantity::MemoryAmount;
use crate::quota::Quota;
use crate::rates::{Rates, Team};
use crate::reservation::Reservation;
use crate::run_time::RunTime;
use crate::spill::Spill;
use crate::windows::Window;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Configuration {
    /// Where gpool's own files lie.
    pub paths: Paths,
    /// The supervisor's socket.
    pub socket: Socket,
    /// The NVIDIA driver of this host.
    pub driver: Driver,
    /// What the OCI wrapper puts itself in front of.
    pub runtime: Runtime,
    /// Who may ask for what.
    pub policy: Policy,
    /// What containers have that name no share themselves.
    pub default_request: DefaultRequest,
    /// What holds for the containers of each class.
    pub class: Classes,
    /// The life of leases.
    pub lease: Lease,
    /// The host's memory that containers may have beside that of their GPUs.
    pub spill: Spill,
    /// Waiting for room.
    pub queue: Queue,
    /// When the host counts as short of room.
    pub overflow: Overflow,
    /// Making room by taking GPUs from lower priorities.
    pub preemption: Preemption,
    /// What follows where requests take longer than is promised.
    pub latency: Latency,
    /// How the end of run times is told.
    pub run_time: RunTime,
    /// How much teams and users may reserve.
    pub quota: Quota,
    /// What is kept free for whom, by name.
    pub reservation: BTreeMap<String, Reservation>,
    /// Dividing GPUs with MIG.
    pub mig: Mig,
    /// What is written down of who had what.
    pub ledger: Ledger,
    /// What happened, written down for good.
    pub audit: Audit,
    /// Faults of GPUs.
    pub health: Health,
    /// What is known of teams, by name.
    pub team: BTreeMap<String, Team>,
    /// What GPU time costs.
    pub rates: Rates,
}

/// `[ledger]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ledger {
    /// The file; empty: none is kept.
    pub path: PathBuf,
    /// For how many days it is known by the minute.
    pub minute_days: u32,
    /// For how many days it is known by the hour.
    pub hour_days: u32,
}

/// The longest time for which a ledger is kept, in days.
pub const LEDGER_DAYS_MAX: u32 = 3650;

impl Ledger {
    /// Whether this host keeps one.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self { path: "/var/lib/gpool/ledger.db".into(), minute_days: 35, hour_days: 400 }
    }
}

/// `[paths]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Run-time state: leases and their regions. Must not outlive a boot.
    pub run_dir: PathBuf,
    /// The shims: a directory for each generation of the driver, with `libgpool-cuda.so` and `libgpool-nvml.so`.
    pub shim_dir: PathBuf,
    /// The OCI hook.
    pub hook: PathBuf,
    /// What outlives a boot: which GPUs are drained, and which were opened again in spite of what they show.
    pub state_dir: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            run_dir: "/run/gpool".into(),
            shim_dir: "/usr/lib/gpool".into(),
            hook: "/usr/libexec/gpool/gpool-hook".into(),
            state_dir: "/var/lib/gpool".into(),
        }
    }
}

/// `[socket]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Socket {
    /// Where the supervisor listens.
    pub path: PathBuf,
    /// Members of this group may change any lease, as root may.
    pub group: String,
}

impl Default for Socket {
    fn default() -> Self {
        Self { path: "/run/gpool/gpool.sock".into(), group: "gpool".into() }
    }
}

/// `[driver]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    /// The host's NVML. A plain name is looked up by the loader.
    pub nvml: PathBuf,
    /// The GPUs that gpool serves; empty: all.
    pub gpus: Gpus,
    /// Of the others those with less memory than this are not served either; absent: all are.
    pub min_memory: Option<MemoryAmount>,
    /// Memory of each GPU that is sold to nobody, because what is in use of it is no process's.
    pub headroom_bytes: u64,
    /// Directories searched for the driver's libraries, first match wins.
    pub library_dirs: Vec<PathBuf>,
    /// Whose libcuda is behind the shim, or in its place without shims, where an image brings one for CUDA forward compatibility.
    pub compat: Compat,
    /// Directories searched for the driver's programs, of which containers get nvidia-smi; first match wins.
    pub program_dirs: Vec<PathBuf>,
    /// Where the host's GPU device nodes are; in a container they are always in /dev.
    pub device_dir: PathBuf,
    /// Where the driver says which capability of MIG has which minor number, in nvidia-caps/mig-minors.
    pub proc_dir: PathBuf,
    /// Memory that one CUDA context is taken to cost until it has been measured on this host, in bytes.
    pub context_bytes: u64,
    /// Have the driver itself keep memory caps, beside the shims, where it can: drivers from 615 on, with cgroup version 2.
    pub memory_limits: bool,
    /// Further host paths that the driver's libraries need in a container.
    #[serde(rename = "mount")]
    pub mounts: Vec<DriverMount>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            nvml: "libnvidia-ml.so.1".into(),
            gpus: Gpus::default(),
            min_memory: None,
            headroom_bytes: 64 << 20,
            library_dirs: ["/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib64"]
                .map(PathBuf::from)
                .to_vec(),
            compat: Compat::Host,
            program_dirs: vec!["/usr/bin".into()],
            device_dir: "/dev".into(),
            proc_dir: "/proc/driver".into(),
            context_bytes: 512 << 20,
            memory_limits: true,
            mounts: Vec::new(),
        }
    }
}

/// Which libcuda a container runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compat {
    /// The host's, always.
    Host,
    /// The newest in the image's `/usr/local/cuda*/compat`, if that is newer than the host's.
    Image,
}

/// `[[driver.mount]]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the container; absent: the same.
    pub destination: Option<PathBuf>,
    /// Whether the container may only read it.
    #[serde(default)]
    pub read_only: bool,
}

/// `[runtime]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Runtime {
    /// Candidates for the low-level runtime, absolute, first existing one wins.
    pub low_level: Vec<PathBuf>,
    /// How long a start waits for the supervisor's answer.
    pub supervisor_patience_seconds: u64,
}

/// The shortest time that a start may wait for the supervisor's answer, in seconds: it may take that long to grant a lease, as where the
/// processes of the container's last run are just going.
pub const SUPERVISOR_PATIENCE_SECONDS_MIN: u64 = 4;
/// The longest time that a start may wait for the supervisor's answer, in seconds: whoever makes a container gives it up some day.
pub const SUPERVISOR_PATIENCE_SECONDS_MAX: u64 = 60;
/// The most of each GPU's memory that `[driver] headroom_bytes` may keep from being sold.
pub const HEADROOM_BYTES_MAX: u64 = 8 << 30;

impl Default for Runtime {
    fn default() -> Self {
        // Where distributions, their own builds and CRI-O's packages put them. crun is what most hosts of podman have alone.
        let runc = ["/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc"];
        let crun = ["/usr/bin/crun", "/usr/local/bin/crun"];
        let of_crio = ["/usr/libexec/crio/runc", "/usr/bin/crio-runc", "/usr/libexec/crio/crun", "/usr/bin/crio-crun"];
        let low_level = runc.into_iter().chain(crun).chain(of_crio).map(PathBuf::from).collect();
        // A person hears of a hung one within five seconds.
        Self { low_level, supervisor_patience_seconds: 4 }
    }
}

/// A class as the file writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassName {
    /// Short requests that somebody waits for.
    Latency,
    /// Works for as long as it gets.
    Batch,
    /// Works when a person has pressed a key.
    Notebook,
    /// A training job.
    Train,
}

impl ClassName {
    /// In the file, and in requests.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            ClassName::Latency => "latency",
            ClassName::Batch => "batch",
            ClassName::Notebook => "notebook",
            ClassName::Train => "train",
        }
    }
}

/// `[class]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Classes {
    /// `[class.latency]`
    pub latency: ClassPolicy,
    /// `[class.batch]`
    pub batch: ClassPolicy,
    /// `[class.notebook]`
    pub notebook: ClassPolicy,
    /// `[class.train]`
    pub train: ClassPolicy,
}

impl Classes {
    /// All of them, with their names in the file.
    pub fn all(&self) -> [(&'static str, &ClassPolicy); 4] {
        [("latency", &self.latency), ("batch", &self.batch), ("notebook", &self.notebook), ("train", &self.train)]
    }

    /// What holds for a class.
    pub fn of(&self, class: ClassName) -> &ClassPolicy {
        match class {
            ClassName::Latency => &self.latency,
            ClassName::Batch => &self.batch,
            ClassName::Notebook => &self.notebook,
            ClassName::Train => &self.train,
        }
    }
}

/// One class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassPolicy {
    /// Whether its containers run unpaced once the supervisor has been away for 2 s; else they stand still until it is
    /// back. Memory caps hold in both cases.
    pub fail_open: bool,
    /// What follows when the device was busy for longer than a container has reported.
    pub liar_action: LiarAction,
    /// What follows when a process of a container uses a GPU past the shims, or a container holds more than its cap.
    pub bypass_action: BypassAction,
    /// What follows when a container has work on the GPU of which nothing ends.
    pub hang_action: HangAction,
    /// How long nothing of its work may end before that, in seconds: 1 to [`HANG_SECONDS_MAX`].
    pub hang_seconds: u64,
    /// The same while a latency container waits for the GPU, at most as long; absent: no shorter.
    pub hang_seconds_latency_waits: Option<u64>,
    /// What follows when a GPU of a container has failed as a whole.
    pub failed_action: FailedAction,
    /// What follows when a container makes no use of its GPUs.
    pub idle_action: IdleAction,
    /// For how long it must not, in seconds: 1 to [`IDLE_SECONDS_MAX`].
    pub idle_seconds: u64,
    /// How long after that has been told anything else follows, in seconds: at most [`IDLE_SECONDS_MAX`].
    pub idle_grace_seconds: u64,
    /// The longest run time that its containers may ask for, and the one of those that ask for none, in seconds: 1 to
    /// [`RUN_SECONDS_MAX`](crate::RUN_SECONDS_MAX); absent: they run for as long as they like.
    pub longest_run_seconds: Option<u64>,
}

/// The longest time after which a container may count as idle, and the longest grace then, in seconds: a month.
pub const IDLE_SECONDS_MAX: u64 = 31 * 86_400;

/// The longest time after which a container may count as hung, in seconds.
pub const HANG_SECONDS_MAX: u64 = 3600;

impl ClassPolicy {
    /// How long nothing of a container's work may end while a latency container waits, in seconds.
    #[must_use]
    pub fn hang_seconds_while_latency_waits(&self) -> u64 {
        self.hang_seconds_latency_waits.unwrap_or(self.hang_seconds)
    }
}

impl Default for ClassPolicy {
    fn default() -> Self {
        Self {
            fail_open: true,
            liar_action: LiarAction::Debt,
            bypass_action: BypassAction::Event,
            hang_action: HangAction::Event,
            failed_action: FailedAction::Event,
            hang_seconds: 30,
            hang_seconds_latency_waits: None,
            idle_action: IdleAction::Event,
            idle_seconds: 3600,
            idle_grace_seconds: 600,
            longest_run_seconds: None,
        }
    }
}

/// What follows when a container's reports fall short of the device's own figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiarAction {
    /// An event and nothing else.
    Event,
    /// An event, and the difference as a debt.
    Debt,
}

/// What follows when a container is found to use a GPU past the shims, or to hold more than its cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BypassAction {
    /// An event and nothing else.
    Event,
    /// An event, and the container is frozen: what it has launched ends, and nothing more begins.
    Freeze,
    /// An event, and the GPUs are taken from the container: its processes that use them are killed, the others live on
    /// and can open them no more.
    Revoke,
    /// An event, and all processes of the container are killed.
    Kill,
}

/// What follows when nothing of a container's work on the GPU ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangAction {
    /// An event and nothing else.
    Event,
    /// An event, and its processes are killed: nothing else ends a kernel that never does.
    Stop,
}

/// What follows when a GPU of a container has failed as a whole, so that its work there is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailedAction {
    /// An event and nothing else.
    Event,
    /// An event, and its processes are killed, so that whoever starts it again gives it another GPU.
    Stop,
}

/// What follows when a container makes no use of its GPUs for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleAction {
    /// An event and nothing else.
    Event,
    /// An event, and after the grace the GPUs are taken from the container once somebody waits for room that it has.
    Yield,
    /// An event, and after the grace what the container holds of its GPUs is moved to the host's memory once somebody waits for room that
    /// it has. It comes back when its programs want the GPU and there is room.
    Suspend,
    /// An event, and after the grace the GPUs are taken from the container: its processes that use them are killed, the others
    /// live on and can open them no more.
    Revoke,
}

/// `[lease]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lease {
    /// How long an ended container's place is kept for a restart of the same container, in milliseconds.
    pub hold_ms: u64,
}

impl Default for Lease {
    fn default() -> Self {
        Self { hold_ms: 10_000 }
    }
}

/// The most that may wait for room at once: each of them is looked at for each of those behind it.
pub const QUEUE_PLACES_MAX: usize = 256;

/// The longest half-life, in days: what was had is known of about twice as many.
pub const HALF_LIFE_DAYS_MAX: u32 = 16;

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// How many may wait at once; 0: nobody.
    pub places: usize,
    /// The longest time for which anybody may wait, in seconds.
    pub longest_wait_seconds: u64,
    /// For how long room is kept for the first one that does not fit, in seconds; 0: never.
    pub keep_seconds: u64,
    /// Whether that room is lent to those whose run time is over before that one can begin.
    pub backfill: bool,
    /// After how many days what an owner has had counts half in the order of the queue; 0: it counts nothing, and owners take turns.
    pub half_life_days: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { places: 128, longest_wait_seconds: 7 * 86_400, keep_seconds: 1800, backfill: true, half_life_days: 0 }
    }
}

/// `[mig]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mig {
    /// A file of layouts of which one is made again after a boot.
    pub layout: Option<PathBuf>,
    /// Which of them, if the file has several.
    pub config: Option<String>,
    /// When `gpool mig apply` drains without being told to.
    pub windows: Vec<Window>,
}
