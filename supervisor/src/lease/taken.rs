//! That the GPUs of a lease were taken from its container, as written down.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// On whose word the GPUs were taken. What a newer supervisor wrote and this one does not know was somebody's word, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Taking {
    /// Its class's, as it made no use of them.
    Idle,
    /// Of one who comes before it.
    MadeRoom,
    /// Its run time was over.
    RunTime,
    /// Its class's, as it went past the shims.
    Bypass,
    /// Its owner's or an administrator's.
    #[default]
    #[serde(other)]
    Asked,
}

/// The GPUs of a lease were taken from its container, which runs on without them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationRecord {
    /// Major and minor numbers of the nodes.
    pub devices: BTreeSet<(u32, u32)>,
    /// Whether the container's cgroup may not open them any more.
    pub is_denied: bool,
    /// Whether nothing of the container is left on them, so that others may have its share.
    pub is_settled: bool,
    /// Why. An older supervisor did not write it down.
    #[serde(default)]
    pub by: Taking,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_and_a_newer_supervisor_wrote_is_read() {
        let by = |field: &str| {
            let text = format!(r#"{{"devices":[[195,0]],"is_denied":true,"is_settled":true{field}}}"#);
            serde_json::from_str::<RevocationRecord>(&text).unwrap().by
        };
        assert_eq!(
            [by(""), by(r#","by":"run-time""#), by(r#","by":"later""#)],
            [Taking::Asked, Taking::RunTime, Taking::Asked]
        );
    }
}
