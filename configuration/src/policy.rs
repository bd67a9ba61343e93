//! `[policy]`: what containers may ask for, and who may ask.

use super::keys::ClassName;
use serde::{Deserialize, Serialize};

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Classes that a container may have.
    pub classes: Vec<ClassName>,
    /// Whether containers may start whose share cannot be enforced: privileged ones and the like.
    pub unenforced: bool,
    /// The group whose members may start leased containers without root, as podman does for them; empty: nobody. They may
    /// ask for what `env` may.
    pub rootless_group: String,
    /// Whether containers may ask for `mode=timeslice`: the driver's own time slices, with neither share nor cap.
    pub timeslice: bool,
    /// Whether `mode=timeslice` takes a fraction, which the hardware keeps by the lengths of its time slices.
    pub timeslice_shares: bool,
    /// Whether containers may ask for `mode=mps`: side by side under an MPS server with others of their team, whose faults
    /// they share.
    pub mps: bool,
    /// Whether the team of a container in a pod of Kubernetes is the pod's namespace, by its engine's word.
    pub namespace_teams: bool,
    /// Whether a container in a pod of Kubernetes has only what its cluster has counted for it.
    pub counted_pods: bool,
    /// The most memory that goes with what was counted for a container, in per cent of the same part of the GPU's; 0: any.
    pub counted_memory_percent: u16,
    /// Who says on which GPU a container in a pod of Kubernetes is, and with which part of it.
    pub placed_by: Placer,
    /// What a container's environment may ask for.
    pub env: EnvPolicy,
}

impl Policy {
    /// The first value out of range: its key, and what to write.
    #[must_use]
    pub fn out_of_range(&self) -> Option<(&'static str, String)> {
        // Who says nothing has the share's part of the memory, which is 100 of it.
        let percent = self.counted_memory_percent;
        (1..100).contains(&percent).then(|| {
            let cause = format!("{percent} is out of range; write 100 or more, or 0 for as much as anybody asks for");
            ("policy.counted_memory_percent", cause)
        })
    }
}

impl Default for Policy {
    fn default() -> Self {
        use ClassName::{Batch, Latency, Notebook, Train};
        Self {
            classes: vec![Latency, Batch, Notebook, Train],
            unenforced: false,
            timeslice: false,
            timeslice_shares: false,
            mps: false,
            namespace_teams: false,
            counted_pods: false,
            counted_memory_percent: 0,
            placed_by: Placer::Gpool,
            rootless_group: String::new(),
            env: EnvPolicy::default(),
        }
    }
}

/// Who gives GPUs of this host to the pods of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placer {
    /// gpool itself, of what its device plugin has offered or annotations ask for.
    #[default]
    Gpool,
    /// KAI Scheduler, or Run:ai, of which it was a part.
    Kai,
    /// HAMi, or another one with a device plugin that is made from its own, such as Volcano.
    Hami,
}

impl Placer {
    /// As people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Placer::Gpool => "gpool",
            Placer::Kai => "KAI",
            Placer::Hami => "HAMi",
        }
    }
}

/// What `[policy.env] allow` may name: the keys of gpool-protocol, which this package does not depend on. A test holds the two
/// against each other.
pub const REQUEST_KEYS: [&str; 20] = [
    "fraction",
    "limit",
    "memory",
    "spill",
    "gpus",
    "device",
    "model",
    "min-memory",
    "mode",
    "mig-profile",
    "isolation",
    "class",
    "p99",
    "priority",
    "team",
    "project",
    "cost-center",
    "wait",
    "run-time",
    "deadline",
];

/// `[policy.env]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvPolicy {
    /// Request keys that env may set; env may come from an image that somebody else made.
    pub allow: Vec<String>,
}

impl Default for EnvPolicy {
    fn default() -> Self {
        let keys = [
            "fraction",
            "limit",
            "memory",
            "spill",
            "gpus",
            "device",
            "model",
            "min-memory",
            "class",
            "p99",
            "wait",
            "run-time",
        ];
        Self { allow: keys.map(String::from).to_vec() }
    }
}
