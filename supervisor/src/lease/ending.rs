//! How a lease ended, for the ledger.

use super::book::Lease;
use super::record::Record;
use super::taken::Taking;

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its container ended by itself, or was stopped by its engine.
    Ended,
    /// Its container never began.
    NotStarted,
    /// What its programs held on a GPU was lost before that, as the GPU had failed or their MPS server.
    Fault,
    /// The supervisor killed its container: as hung, for a GPU that had failed, or past the shims.
    Killed,
    /// Its GPUs had been taken from it.
    Taken(Taking),
    /// It was over when a supervisor looked again.
    Unseen,
}

impl Ending {
    /// That of a lease which ends now. Who was told to go and went has ended for that.
    pub fn of(lease: &Lease) -> Self {
        let was_told = lease.makes_room.notice.until_ns().map(|_| Taking::MadeRoom);
        let is_over = || lease.end_notice.until_ns(lease.record.ends_ns).map(|_| Taking::RunTime);
        Self::from(&lease.record, lease.stopped.is_some(), was_told.or_else(is_over))
    }

    fn from(record: &Record, is_stopped: bool, was_told: Option<Taking>) -> Self {
        match record.revocation.as_ref().map(|its| its.by).or(was_told) {
            _ if record.init.is_none() => Ending::NotStarted,
            _ if is_stopped => Ending::Killed,
            Some(by) => Ending::Taken(by),
            None if record.fault.is_some() => Ending::Fault,
            None => Ending::Ended,
        }
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Ending::Ended => "ended",
            Ending::NotStarted => "not-started",
            Ending::Fault => "fault",
            Ending::Killed => "killed",
            Ending::Taken(Taking::Asked) => "evicted",
            Ending::Taken(Taking::Idle) => "idle",
            Ending::Taken(Taking::MadeRoom) => "preempted",
            Ending::Taken(Taking::RunTime) => "run-time",
            Ending::Taken(Taking::Bypass) => "bypass",
            Ending::Unseen => "unseen",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::super::taken::RevocationRecord;
    use super::*;
    use crate::procfs::ProcessName;
    use gpool_protocol::{HostPid, LeaseFault};

    #[test]
    fn a_lease_ends_as_the_gravest_that_happened_to_it() {
        let never = sample();
        let init = Some(ProcessName { pid: HostPid(7), start_ticks: 8 });
        let began = Record { init, ..sample() };
        let lost = |by| {
            let revocation = RevocationRecord { devices: [(195, 0)].into(), is_denied: true, is_settled: true, by };
            Record { revocation: Some(revocation), ..began.clone() }
        };
        let failed = Record { fault: Some(LeaseFault::GpuFailed), ..began.clone() };
        let word = |record: &Record, is_stopped, told| Ending::from(record, is_stopped, told).word();
        assert_eq!([word(&never, false, None), word(&began, false, None)], ["not-started", "ended"]);
        assert_eq!([word(&failed, false, None), word(&failed, true, None)], ["fault", "killed"]);
        assert_eq!(word(&failed, false, Some(Taking::MadeRoom)), "preempted", "it was told to go, and went");
        assert_eq!(word(&lost(Taking::Idle), false, Some(Taking::RunTime)), "idle");
        assert_eq!(word(&lost(Taking::Bypass), true, None), "killed");
    }
}
