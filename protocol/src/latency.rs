//! How long the requests of a container take, and whether that is what was promised.

use serde::{Deserialize, Serialize};

/// How long the requests of a container take on its GPUs: each from when it comes to them with nothing to do there to the end of its
/// last work. Lengths are in nanoseconds and rounded up by at most a sixteenth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFigures {
    /// All that were measured since the supervisor has it.
    pub all: u64,
    /// Those of them that took longer than was promised then.
    pub all_late: u64,
    /// Recent ones, of which the rest is: of the last 10 s at least, and of as much longer as it takes until there are 100, up to some
    /// minutes.
    pub count: u64,
    /// The middle one; none where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// The 99th percentile; none of fewer than 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// What that would be if the container had its GPUs to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_alone_ns: Option<u64>,
    /// Recent ones that took longer than is promised.
    pub late: u64,
    /// What became of the promise; none without one, while there are fewer than 100, and when none has come for half a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<PromiseState>,
}

/// What became of the promise of a 99th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseState {
    /// It is kept.
    Kept,
    /// It is missed, and would be without anybody else on the GPUs.
    MissedItself,
    /// It is missed because the container wants more than its share, and waits while others have theirs.
    MissedShare,
    /// It is missed because of others, within its share.
    MissedOthers,
}

impl PromiseState {
    /// As it is written.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::MissedItself => "missed-itself",
            Self::MissedShare => "missed-share",
            Self::MissedOthers => "missed-others",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_written_as_it_goes_over_the_socket() {
        for state in
            [PromiseState::Kept, PromiseState::MissedItself, PromiseState::MissedShare, PromiseState::MissedOthers]
        {
            assert_eq!(serde_json::to_value(state).unwrap(), state.text());
        }
    }
}
