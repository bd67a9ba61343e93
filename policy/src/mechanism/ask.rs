//! What a container wants, and what is known of it.

use super::{Mechanism, Suitable};
use crate::mig::{Model, Profile};
use std::collections::BTreeSet;

/// Declares an enumeration with the words that people write for it.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As it is written.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Reads one.
            ///
            /// # Errors
            /// The words there are.
            pub fn parse(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|one| one.word() == text.trim()).ok_or_else(|| {
                    let words: Vec<&str> = Self::ALL.iter().map(|one| one.word()).collect();
                    format!("it is one of {}", words.join(", "))
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
pub(super) use words;

words!(
    /// What has to keep neighbours apart, the least first.
    Isolation {
        /// Anything will do, one fate for a group included.
        Shared = "shared",
        /// Limits that programs keep to, and a fate of one's own.
        Software = "software",
        /// The hardware.
        Hardware = "hardware",
        /// No neighbours at all.
        Exclusive = "exclusive",
    }
);

words!(
    /// Which mechanism is asked for.
    Mode {
        /// The first row of the table that serves.
        Auto = "auto",
        /// Slices.
        Slice = "slice",
        /// An MPS group.
        Mps = "mps",
        /// A MIG instance.
        Mig = "mig",
        /// Whole GPUs.
        Exclusive = "exclusive",
        /// The driver's time slices.
        TimeSlice = "timeslice",
    }
);

words!(
    /// Who the neighbours are, the nearest first.
    Trust {
        /// People of the same team.
        SameTeam = "same-team",
        /// People of the same organisation.
        SameOrganisation = "same-org",
        /// Others, of whom the worst is to be expected.
        DifferentDomain = "different-domain",
        /// Rules forbid sharing what the hardware does not keep apart.
        Regulated = "regulated",
    }
);

words!(
    /// What the container does.
    Workload {
        /// Training that fills whole GPUs.
        TrainLarge = "train-large",
        /// Training.
        Train = "train",
        /// Training that adapts something trained.
        Finetune = "finetune",
        /// Answers requests that somebody waits for.
        InferOnline = "infer-online",
        /// Answers that nobody waits for.
        BatchInfer = "batch-infer",
        /// Works when a person has pressed a key.
        Notebook = "notebook",
        /// Computes something else.
        Hpc = "hpc",
    }
);

words!(
    /// What is known of a container beside its share.
    Fact {
        /// It is privileged or may administer the system.
        Privileged = "privileged",
        /// It sees the host's processes.
        HostPid = "host-pid",
        /// It can change what its programs load first.
        WritablePreload = "writable-preload",
        /// It reaches CUDA past the shims: linked statically, or by calls that they do not know.
        UnsupportedCuda = "unsupported-cuda",
        /// A fault of a neighbour must not end it.
        NeedsFaultIsolation = "needs-fault-isolation",
        /// Its processes must not open memory of others.
        NeedsIpcIsolation = "needs-ipc-isolation",
        /// It is saved and restored with cuda-checkpoint.
        Checkpoint = "checkpoint",
        /// A debugger or a profiler is attached.
        Debugger = "debugger",
        /// It uses managed memory.
        Uvm = "uvm",
        /// Its processes open each other's memory, as NCCL does.
        Ipc = "ipc",
        /// It launches CUDA graphs.
        Graphs = "graphs",
        /// It is to be suspended while it is idle.
        Suspend = "suspend",
        /// It is to be ended when it has been idle.
        IdleReaping = "idle-reaping",
        /// Memory beyond the GPU's may go to the host.
        Spill = "spill",
        /// More memory is to be promised than there is.
        OvercommitMemory = "overcommit-memory",
        /// The ranks of a job are containers of their own.
        SeparateRanks = "separate-ranks",
        /// Instances are exported under Kubernetes' strategy `single`.
        SingleStrategy = "single-strategy",
        /// Slurm suspends jobs for others.
        SlurmSuspend = "slurm-suspend",
    }
);

/// A request, and what is known of who makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Share of each GPU's compute, 1 to 1000.
    pub fraction_permille: u16,
    /// The most of it that it may have.
    pub limit_permille: Option<u16>,
    /// Memory on each GPU, in bytes; absent: the fraction of the GPU's.
    pub memory_bytes: Option<u64>,
    /// The same in thousandths of the GPU's.
    pub memory_permille: Option<u16>,
    /// Nothing of the share is promised: it is what those leave to whom something is.
    pub is_best_effort: bool,
    /// How many GPUs.
    pub gpus: u16,
    /// Which of them will do.
    pub suitable: Suitable,
    /// Which mechanism.
    pub mode: Mode,
    /// What has to keep neighbours apart.
    pub isolation: Isolation,
    /// Who the neighbours are.
    pub trust: Trust,
    /// Whose it is.
    pub team: Option<String>,
    /// What it does.
    pub workload: Workload,
    /// The 99th percentile of its answers that is promised to somebody, in milliseconds.
    pub p99_ms: Option<u32>,
    /// Whether that promise is made to customers.
    pub in_production: bool,
    /// How many alike run beside each other.
    pub replicas: u16,
    /// The 95th percentile of its kernels' length, in microseconds.
    pub burst_us: Option<u64>,
    /// How busy it keeps its GPUs, as measured.
    pub duty_permille: Option<u16>,
    /// A MIG profile.
    pub profile: Option<String>,
    /// A layout that the GPU is to be divided into first.
    pub geometry: Vec<String>,
    /// Replicas that a device plugin is told to make of a GPU.
    pub plugin_replicas: Option<u16>,
    /// Shared replicas that are asked for at once.
    pub shared_replicas: Option<u16>,
    /// A share of memory in place of one of compute, as some schedulers have it.
    pub memory_share_permille: Option<u16>,
    /// What else is known.
    pub facts: BTreeSet<Fact>,
}

impl Ask {
    /// A share of one GPU, with nothing else known.
    #[must_use]
    pub fn of(fraction_permille: u16) -> Self {
        Self {
            fraction_permille,
            limit_permille: None,
            memory_bytes: None,
            memory_permille: None,
            is_best_effort: false,
            gpus: 1,
            suitable: Suitable::default(),
            mode: Mode::Auto,
            isolation: Isolation::Shared,
            trust: Trust::SameOrganisation,
            team: None,
            workload: Workload::BatchInfer,
            p99_ms: None,
            in_production: false,
            replicas: 1,
            burst_us: None,
            duty_permille: None,
            profile: None,
            geometry: Vec::new(),
            plugin_replicas: None,
            shared_replicas: None,
            memory_share_permille: None,
            facts: BTreeSet::new(),
        }
    }

    /// Whether this is known of it.
    #[must_use]
    pub fn is(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }

    /// Memory that it needs of a GPU with so much, in bytes.
    #[must_use]
    pub fn memory_on(&self, memory_bytes: u64) -> u64 {
        let part = u128::from(memory_bytes) * u128::from(self.memory_permille.unwrap_or(self.fraction_permille)) / 1000;
        self.memory_bytes.unwrap_or(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// What `permille` of its share or its ceiling are of an instance: the same of one that is asked for by its profile,
    /// else as much of it as they are of the GPU, rounded up. Above 1000 where an instance has not so much.
    #[must_use]
    pub fn within(&self, permille: u16, model: &Model, profile: &Profile) -> u32 {
        match self.profile {
            Some(_) => permille.into(),
            None => {
                (u32::from(permille) * u32::from(model.compute_slices)).div_ceil(profile.compute_slices.max(1).into())
            }
        }
    }

    /// The weakest mechanism that keeps neighbours as far apart as is asked for.
    #[must_use]
    pub fn floor(&self) -> Mechanism {
        let by_isolation = match self.isolation {
            Isolation::Shared => Mechanism::TimeSlice,
            Isolation::Software => Mechanism::Slices,
            Isolation::Hardware => Mechanism::Mig,
            Isolation::Exclusive => Mechanism::Exclusive,
        };
        let by_trust = match self.trust {
            Trust::SameTeam | Trust::SameOrganisation => Mechanism::TimeSlice,
            Trust::DifferentDomain | Trust::Regulated => Mechanism::Mig,
        };
        by_isolation.max(by_trust)
    }

    /// The first thing known of it that makes limits in software worthless.
    #[must_use]
    pub fn escapes_shims(&self) -> Option<Fact> {
        use Fact::{HostPid, Privileged, UnsupportedCuda, WritablePreload};
        [Privileged, HostPid, WritablePreload, UnsupportedCuda].into_iter().find(|fact| self.is(*fact))
    }
}
