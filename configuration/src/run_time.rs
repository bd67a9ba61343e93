//! How programs hear of it that the run time of their container is about to be over.

use crate::preemption::NoticeSignal;
use serde::{Deserialize, Serialize};

/// `[run_time]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunTime {
    /// From the notice until the GPUs are taken, in seconds; of a container whose run time is shorter than ten times that, a tenth of it.
    pub notice_seconds: u64,
    /// What the programs that use the GPUs are sent with it.
    pub signal: NoticeSignal,
}

/// The longest time to give notice in, in seconds: a day.
pub const NOTICE_SECONDS_MAX: u64 = 86_400;

/// The longest time that a container may have GPUs for, in seconds: a year. What has no end at all needs no key.
pub const RUN_SECONDS_MAX: u64 = 365 * 86_400;

impl Default for RunTime {
    fn default() -> Self {
        Self { notice_seconds: 60, signal: NoticeSignal::Term }
    }
}

impl RunTime {
    /// The first key that is out of range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let seconds = self.notice_seconds;
        let is_in = seconds <= NOTICE_SECONDS_MAX;
        (!is_in).then(|| {
            ("run_time.notice_seconds", format!("{seconds} is out of range; write 0 to {NOTICE_SECONDS_MAX} seconds"))
        })
    }
}
