//! `[overflow]`: when a host counts as short of room.

use serde::{Deserialize, Serialize};

/// `[overflow]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overflow {
    /// The host is short of room once somebody has waited for it for so long, in seconds; 0: nobody watches.
    pub after_seconds: u64,
    /// It is not any more once nobody has for so long, in seconds.
    pub clear_seconds: u64,
}

/// The longest of these times, in seconds: a week, as containers wait by default.
pub const OVERFLOW_SECONDS_MAX: u64 = 7 * 86_400;

impl Default for Overflow {
    fn default() -> Self {
        Self { after_seconds: 600, clear_seconds: 600 }
    }
}

impl Overflow {
    /// The first key that is out of range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let keys = [("overflow.after_seconds", self.after_seconds), ("overflow.clear_seconds", self.clear_seconds)];
        let (key, seconds) = keys.into_iter().find(|(_, seconds)| *seconds > OVERFLOW_SECONDS_MAX)?;
        Some((key, format!("{seconds} is out of range; write 0 to {OVERFLOW_SECONDS_MAX} seconds")))
    }
}
