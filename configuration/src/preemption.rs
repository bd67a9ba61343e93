//! `[preemption]`: lower priorities that make room for higher ones.

use serde::{Deserialize, Serialize};

/// `[preemption]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preemption {
    /// Whether the GPUs are taken from a container of a lower priority for one of a higher priority that waits.
    pub enabled: bool,
    /// For how long that one has waited before, in seconds.
    pub after_seconds: u64,
    /// From the notice until then, in seconds.
    pub grace_seconds: u64,
    /// For how long a container has its GPUs at least before it has to go, in seconds.
    pub least_run_seconds: u64,
    /// What the programs that use the GPUs are sent with the notice.
    pub signal: NoticeSignal,
    /// What follows after that.
    pub action: PreemptionAction,
}

/// How room is made by a container of a lower priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreemptionAction {
    /// The GPUs are taken from it: its processes that use them are killed, the others live on and can open them no more.
    Revoke,
    /// What it holds of its GPUs is moved to the host's memory, and it goes on when there is room again. One that cannot be moved has them
    /// taken from it.
    Suspend,
}

/// The longest of these times, in seconds.
pub const PREEMPTION_SECONDS_MAX: u64 = 30 * 86_400;

/// A signal by which a program is told that it is about to lose its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeSignal {
    /// Ends a program that does not handle it.
    #[serde(rename = "SIGTERM")]
    Term,
    /// The same.
    #[serde(rename = "SIGINT")]
    Int,
    /// The same.
    #[serde(rename = "SIGUSR1")]
    Usr1,
    /// The same.
    #[serde(rename = "SIGUSR2")]
    Usr2,
    /// None is sent.
    #[serde(rename = "none")]
    None,
}

impl NoticeSignal {
    /// The word in the file.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            NoticeSignal::Term => "SIGTERM",
            NoticeSignal::Int => "SIGINT",
            NoticeSignal::Usr1 => "SIGUSR1",
            NoticeSignal::Usr2 => "SIGUSR2",
            NoticeSignal::None => "none",
        }
    }
}

impl Default for Preemption {
    fn default() -> Self {
        Self {
            enabled: false,
            after_seconds: 10,
            grace_seconds: 30,
            least_run_seconds: 600,
            signal: NoticeSignal::Term,
            action: PreemptionAction::Revoke,
        }
    }
}

impl Preemption {
    /// The first key that is out of range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let times = [
            ("preemption.after_seconds", self.after_seconds),
            ("preemption.grace_seconds", self.grace_seconds),
            ("preemption.least_run_seconds", self.least_run_seconds),
        ];
        let (key, seconds) = times.into_iter().find(|(_, seconds)| *seconds > PREEMPTION_SECONDS_MAX)?;
        Some((key, format!("{seconds} is out of range; write 0 to {PREEMPTION_SECONDS_MAX} seconds")))
    }
}
