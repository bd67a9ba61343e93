//! The queue for room: what who waits is told, and what others see of it.

use crate::identity::{ContainerId, GpuUuid, PodName};
use crate::messages::LeaseGranted;
use crate::request::Request;
use serde::{Deserialize, Serialize};

/// The answer to a [`LeaseRequest`](crate::LeaseRequest) that is not refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LeaseAnswer {
    /// There is room.
    Granted(LeaseGranted),
    /// There is none yet, and the request says how long to wait for it.
    Waiting(Box<LeaseWaiting>),
}

/// A request waits for room. Its place is kept as long as the same request is made again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseWaiting {
    /// How it stands.
    pub waiting: WaitingView,
    /// After so many milliseconds the request is to be made again. Who is silent for much longer loses the place.
    pub retry_ms: u64,
}

/// A request that waits, as `gpool queue ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingView {
    /// Its container.
    pub container_id: ContainerId,
    /// Which container of which pod that is; none of one in no pod, or from an older supervisor or wrapper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Its place in the queue, from 1.
    pub place: u32,
    /// What it asks for, and for how long it waits.
    pub request: Request,
    /// The user who starts it.
    pub owner_uid: u32,
    /// Since when it waits: Unix time, milliseconds.
    pub since_unix_ms: u64,
    /// For how long, in milliseconds.
    pub waited_ms: u64,
    /// Why it has no room now: what it was told when it asked last.
    pub cause: String,
    /// GPUs of which room is kept for it: nobody behind it takes what it needs of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_on: Vec<GpuUuid>,
    /// When it can begin there at the latest, by the run times of those before it: Unix time, milliseconds. None where nothing is kept
    /// for it, those who have what it needs have no end, or it is for a part under an MPS server or in an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_ms: Option<u64>,
    /// By when it has to be through, if it says so: Unix time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_ms: Option<u64>,
    /// Whether room was planned for it in time, and is not any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_at_risk: bool,
    /// What its team, or its user where none is named, has had of GPUs' time for each of its shares, as far as that counts, and is expected to
    /// have by what runs: who has less is before it. None where it does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_had_gpu_seconds: Option<u64>,
    /// The user who holds it back, if somebody does: it is behind all others then, and does not begin before it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<u32>,
    /// Whether somebody has put it before the others of its priority.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_first: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_and_what_is_granted_are_told_apart() {
        let granted = r#"{"lease_id":"01","gpu_uuid":"GPU-1","edits":[]}"#;
        assert!(matches!(serde_json::from_str(granted).unwrap(), LeaseAnswer::Granted(_)));
        let waiting = r#"{"waiting":{"container_id":"c","place":1,"request":{"fraction_permille":300,"wait_seconds":60},
            "owner_uid":0,"since_unix_ms":1,"waited_ms":9,"cause":"no room"},"retry_ms":200}"#;
        let LeaseAnswer::Waiting(waiting) = serde_json::from_str(waiting).unwrap() else { panic!("it waits") };
        assert_eq!((waiting.waiting.request.wait_seconds, waiting.retry_ms), (Some(60), 200));
    }
}
