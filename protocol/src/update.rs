//! What of a lease can be changed while its container runs.

use crate::class::{Class, Priority};
use serde::{Deserialize, Serialize};

/// A live change of a lease; absent fields stay as they are. A field that is not known is an error: what somebody wants changed
/// must not be passed over in silence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseUpdate {
    /// New share in permille.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction_permille: Option<u16>,
    /// New ceiling in permille, not below the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_permille: Option<u16>,
    /// Takes the ceiling away; not together with a new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_limit: bool,
    /// New memory cap on each GPU, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How much of what it allocates beyond that may lie in the host's memory from now on, in bytes; 0: nothing more. What lies there
    /// stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_bytes: Option<u64>,
    /// New class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// How long 99 of 100 of its requests are to take at most from now on, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// Takes that away; not together with a new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_p99: bool,
    /// New priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// New run time in seconds, all of it, from when the lease was granted. Who is not root, nor of the socket's group, may only shorten
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seconds: Option<u64>,
    /// Takes the run time away; not together with a new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_run_time: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_says_only_what_changes() {
        let update = LeaseUpdate { fraction_permille: Some(200), ..LeaseUpdate::default() };
        assert_eq!(serde_json::to_string(&update).unwrap(), r#"{"fraction_permille":200}"#);
        let unlimited: LeaseUpdate = serde_json::from_str(r#"{"no_limit":true,"class":"train"}"#).unwrap();
        assert_eq!((unlimited.no_limit, unlimited.class), (true, Some(Class::Train)));
        let mistyped = serde_json::from_str::<LeaseUpdate>(r#"{"fraction":0.3}"#).unwrap_err().to_string();
        assert!(mistyped.contains("`fraction`") && mistyped.contains("`fraction_permille`"), "{mistyped}");
    }
}
