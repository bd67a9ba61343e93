//! Whether a host is short of room, and for whom.

use crate::quantity::{format_bytes, format_gpus, format_seconds};
use crate::queue::WaitingView;
use serde::{Deserialize, Serialize};

/// How a host stands: `gpool overflow show`, and what a program is told that brings more machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverflowView {
    /// Whether it is short of room.
    pub is_short: bool,
    /// Since when, or since when it is not: Unix time, milliseconds. None of one that never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// It is once somebody has waited for room for so long, in seconds; 0: nobody watches.
    pub after_seconds: u64,
    /// And is not any more once nobody has for so long.
    pub clear_seconds: u64,
    /// How long the one has waited that has for longest, in milliseconds; 0 with nobody waiting.
    pub longest_wait_ms: u64,
    /// What those who wait would have of the time of GPUs, in thousandths of one, all together: what they would be promised, and of
    /// priorities below guaranteed the fraction that they ask for.
    pub wanted_permille: u64,
    /// And of their memory, in bytes.
    pub wanted_memory_bytes: u64,
    /// Those who wait for room on GPUs, the next one first: not who waits for a quota of its own, for the host's memory, or for a moment
    /// that was planned for it.
    #[serde(default)]
    pub waiting: Vec<WaitingView>,
}

impl OverflowView {
    /// Who waits and for what, as people read it.
    #[must_use]
    pub fn text(&self) -> String {
        let count = self.waiting.len();
        if count == 0 {
            return "nobody waits for room".to_owned();
        }
        format!(
            "{count} {} for room, for {} at most so far, and would have {} GPUs' time and {} of memory",
            if count == 1 { "container waits" } else { "containers wait" },
            format_seconds(self.longest_wait_ms / 1000),
            format_gpus(self.wanted_permille),
            format_bytes(self.wanted_memory_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_and_for_what_is_a_sentence() {
        let waiting = r#"{"container_id":"c","place":1,"request":{"fraction_permille":300},"owner_uid":0,"since_unix_ms":1,"waited_ms":9,"cause":"x"}"#;
        let view = |count: usize| OverflowView {
            is_short: true,
            since_unix_ms: Some(1),
            after_seconds: 60,
            clear_seconds: 30,
            longest_wait_ms: 61_500,
            wanted_permille: 1500,
            wanted_memory_bytes: 3 << 30,
            waiting: vec![serde_json::from_str(waiting).unwrap(); count],
        };
        let want =
            "2 containers wait for room, for 1m1s at most so far, and would have 1.5 GPUs' time and 3GiB of memory";
        assert_eq!(view(2).text(), want);
        assert!(view(1).text().starts_with("1 container waits for room, for"));
        assert_eq!(view(0).text(), "nobody waits for room");
    }
}
