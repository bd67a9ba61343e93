//! Namespaces that a container shares with the host.

use gpool_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

/// This process is in the host's own, as the engine is.
const OWN: &str = "/proc/self/ns/pid";

/// Refuses a container that sees the host's processes: engines leave it the capability to signal any of them, so
/// its root could stop the supervisor and every neighbour.
pub fn refuse_host_processes(spec: &Value) -> Result<(), ErrorBody> {
    let namespaces = spec["linux"]["namespaces"].as_array().into_iter().flatten();
    let own =
        namespaces.filter(|namespace| namespace["type"] == "pid").any(|namespace| match namespace["path"].as_str() {
            None | Some("") => true,
            Some(path) => !is_the_hosts(path),
        });
    if own {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::BundleInvalid,
        "a container with the host's processes (--pid=host) could stop the supervisor and its neighbours",
        "start it without --pid=host, without a share, or set [policy] unenforced = true on a host of trusted users",
    ))
}

/// A path that cannot be looked at is left to the low-level runtime, which cannot join it either.
fn is_the_hosts(path: &str) -> bool {
    let identity = |path: &str| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    identity(path).is_some_and(|joined| Some(joined) == identity(OWN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;

    fn judge(namespaces: Value) -> Result<(), ErrorBody> {
        refuse_host_processes(&json!({"linux": {"namespaces": namespaces}}))
    }

    #[test]
    fn only_the_hosts_own_processes_are_refused() {
        for own in [
            json!([{"type": "pid"}]),
            json!([{"type": "pid", "path": ""}]),
            json!([{"type": "pid", "path": "/proc/no/ns"}]),
        ] {
            assert_eq!(judge(own), Ok(()));
        }
        for shared in [json!(null), json!([]), json!([{"type": "mount"}]), json!([{"type": "pid", "path": OWN}])] {
            assert_presentable(&judge(shared).unwrap_err());
        }
    }
}
