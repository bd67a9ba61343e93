//! `[audit]`: what happened, written down for good.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The longest time for which it is kept, in days.
pub const AUDIT_DAYS_MAX: u32 = 36_500;
/// Less room than for a few files is none, in MiB.
pub const AUDIT_MIB_MIN: u32 = 64;

/// `[audit]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// The directory; empty: nothing is written.
    pub directory: PathBuf,
    /// For how many days.
    pub keep_days: u32,
    /// The most that it may take of the disk, in MiB.
    pub most_mib: u32,
}

impl Audit {
    /// Whether this host keeps one.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.directory.as_os_str().is_empty()
    }

    /// The first key whose value is out of its range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        if !(1..=AUDIT_DAYS_MAX).contains(&self.keep_days) {
            let days = self.keep_days;
            return Some(("audit.keep_days", format!("{days} is out of range; write 1 to {AUDIT_DAYS_MAX} days")));
        }
        let mib = self.most_mib;
        (mib < AUDIT_MIB_MIN)
            .then(|| ("audit.most_mib", format!("{mib} is out of range; write {AUDIT_MIB_MIN} or more")))
    }
}

impl Default for Audit {
    fn default() -> Self {
        Self { directory: "/var/lib/gpool/audit".into(), keep_days: 400, most_mib: 1024 }
    }
}
