//! What the guard has seen of processes that use GPUs, in leased containers and without a lease.

use crate::identity::{BuildId, ContainerId, HostPid, LeaseId};
use serde::{Deserialize, Serialize};

/// One of the answer to `GET /v1/guard`: a process of a leased container that uses a GPU, as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedProcess {
    /// Its lease.
    pub lease_id: LeaseId,
    /// Its container.
    pub container_id: ContainerId,
    /// Its pid on the host.
    pub pid: HostPid,
    /// Its name, as it calls itself.
    pub name: String,
    /// Whether it has registered, as a shim does before anything else.
    pub is_registered: bool,
    /// The driver's libraries and shims that it has mapped.
    pub libraries: Vec<MappedLibrary>,
    /// In which way it goes past the shims; none if it does not.
    #[serde(default)]
    pub finding: Option<String>,
    /// What its lease is charged for it now, contexts included, on all GPUs together: its own word. What several processes hold
    /// together is with each of them. None where it has not registered, and from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_charged_bytes: Option<u64>,
    /// What NVML lists for it, as nvidia-smi shows on the host, on all GPUs together; none where it lists nothing,
    /// and from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_nvml_bytes: Option<u64>,
}

/// One of the answer to `GET /v1/guard/outside`: a process that has a context on a GPU and belongs to no lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideProcess {
    /// Its pid on the host.
    pub pid: HostPid,
    /// Its name, as it called itself when it was seen.
    pub name: String,
    /// Its cgroup then, which says of which container or service it is.
    pub cgroup: String,
    /// The share that its container asks for, in gpool's keys, if it asks for one and was not started with gpool's runtime. None from an
    /// older supervisor, and where its environment could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// What NVML lists for it on all GPUs together; none where it lists nothing, and from an older supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_nvml_bytes: Option<u64>,
}

/// A library that a process has mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedLibrary {
    /// Its path in the container.
    pub path: String,
    /// Which build it is; none if its linker has not written that down.
    pub build_id: Option<BuildId>,
    /// Whether it is a shim that the container was started with.
    pub is_shim: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_supervisor_says_nothing_of_memory_and_an_older_program_is_told_nothing_that_is_not_known() {
        let text = r#"{"lease_id":"01","container_id":"c","pid":7,"name":"a","is_registered":true,"libraries":[],"finding":null}"#;
        let process: GuardedProcess = serde_json::from_str(text).unwrap();
        assert_eq!((process.memory_charged_bytes, process.memory_nvml_bytes), (None, None));
        assert_eq!(serde_json::to_string(&process).unwrap(), text);
        let text = r#"{"pid":7,"name":"a","cgroup":"/"}"#;
        let process: OutsideProcess = serde_json::from_str(text).unwrap();
        assert_eq!(process.memory_nvml_bytes, None);
        assert_eq!(serde_json::to_string(&process).unwrap(), text);
    }
}
