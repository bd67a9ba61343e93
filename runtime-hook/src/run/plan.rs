//! What the outer process tells the inner one: read out of the description once the lease's edits are in it.

use super::description::Person;
use crate::libraries::is_of_driver;
use gpool_protocol::{ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Everything that the inner process does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Device nodes of the lease.
    pub nodes: Vec<Node>,
    /// Bind mounts, in their order.
    pub mounts: Vec<Mount>,
    /// gpool's own places, which the command shall see and not change.
    pub guarded: Vec<PathBuf>,
    /// Where leases have their files; the command sees none of it but the socket.
    pub run_dir: PathBuf,
    /// The supervisor's socket.
    pub socket: PathBuf,
    /// The command with its arguments. Its environment is that of the inner process.
    pub command: Vec<String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Who runs it; who called, if absent.
    pub person: Option<Person>,
}

/// A character device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where it is to be.
    pub path: PathBuf,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What is mounted.
    pub source: PathBuf,
    /// Where.
    pub destination: PathBuf,
    /// Options of config.json.
    pub options: Vec<String>,
}

impl Mount {
    /// Whether `option` is among the options.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|had| had == option)
    }
}

/// Where the lease's libraries are a second time, all in one folder below `/dev`: what makes containers itself without an OCI runtime, as
/// programs for clusters do, gives them the `/dev` of its caller and not the folders of libraries.
pub const NESTED: &str = "/dev/gpool/lib";

/// The lease's libraries once more, for containers that the command makes.
pub fn for_nested_containers(mounts: &[Mount]) -> Vec<Mount> {
    let mut nested: Vec<Mount> = Vec::new();
    for mount in mounts.iter().filter(|mount| !mount.destination.starts_with("/dev")) {
        let name = mount.destination.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let destination = Path::new(NESTED).join(name);
        if is_of_driver(name) && !nested.iter().any(|its| its.destination == destination) {
            nested.push(Mount { destination, ..mount.clone() });
        }
    }
    nested
}

/// The device nodes and mounts of `spec`.
///
/// # Errors
/// A field that is not as [`edits`](crate::edits) writes it.
pub fn nodes_and_mounts(spec: &Value) -> Result<(Vec<Node>, Vec<Mount>), ErrorBody> {
    let of = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let nodes = of(&spec["linux"]["devices"]).into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    let mounts = of(&spec["mounts"]).into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    let unusable = |error: serde_json::Error| {
        ErrorBody::new(
            ErrorCode::SupervisorFailed,
            format!("an edit from the supervisor cannot be used for a command ({error})"),
            "update gpool-run and gpool-supervisor to the same release",
        )
    };
    Ok((nodes.map_err(unusable)?, mounts.map_err(unusable)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_library_is_in_one_folder_too_and_nothing_else_is() {
        let mount = |source: &str, destination: &str| Mount {
            source: source.into(),
            destination: destination.into(),
            options: vec!["ro".into()],
        };
        let mounts = [
            mount("/lib/gpool-cuda.so", "/usr/lib/libcuda.so.1"),
            mount("/lib/gpool-cuda.so", "/usr/lib/libcuda.so"),
            mount("/lib/gpool-cuda.so", "/usr/lib64/libcuda.so.1"),
            mount("/lib/libnvidia-ptxjitcompiler.so.1", "/usr/lib/libnvidia-ptxjitcompiler.so.1"),
            mount("/lib/libcuda.so.580", "/dev/gpool/real/libcuda.so.1"),
            mount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ];
        let of = |mount: &Mount| (mount.source.display().to_string(), mount.destination.display().to_string());
        let nested: Vec<_> = for_nested_containers(&mounts).iter().map(of).collect();
        let want = [
            ("/lib/gpool-cuda.so", "/dev/gpool/lib/libcuda.so.1"),
            ("/lib/gpool-cuda.so", "/dev/gpool/lib/libcuda.so"),
            ("/lib/libnvidia-ptxjitcompiler.so.1", "/dev/gpool/lib/libnvidia-ptxjitcompiler.so.1"),
        ];
        assert_eq!(nested, want.map(|(source, destination)| (source.to_owned(), destination.to_owned())));
    }

    #[test]
    fn what_the_edits_wrote_is_read_back() {
        let spec = json!({
            "linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438}]},
            "mounts": [{"destination": "/a", "type": "bind", "source": "/b", "options": ["rbind", "ro"]}]
        });
        let (nodes, mounts) = nodes_and_mounts(&spec).unwrap();
        assert_eq!(nodes, [Node { path: "/dev/nvidia0".into(), major: 195, minor: 0 }]);
        assert_eq!((mounts[0].source.as_path(), mounts[0].has("ro")), (std::path::Path::new("/b"), true));
        assert_eq!(nodes_and_mounts(&json!({})), Ok((Vec::new(), Vec::new())));
        crate::report::assert_presentable(&nodes_and_mounts(&json!({"mounts": [{"source": 3}]})).unwrap_err());
    }
}
