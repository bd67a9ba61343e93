//! Processes that have mapped the shim of their container and have not registered, as workers are that a program has forked with the GPU's
//! device open. Nothing comes of that without a context, and who has one is always looked at: so what these have open and mapped, which
//! takes milliseconds, is not read at each look.

use crate::procfs::{self, ProgramMark};
use gpool_protocol::{GuardedProcess, HostPid, LeaseId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// For so long it is taken for what it was: it may have unmapped the shim since.
const HOLDS: Duration = Duration::from_secs(10);

/// One that was read.
#[derive(Debug)]
struct Known {
    start_ticks: u64,
    program: ProgramMark,
    process: GuardedProcess,
    read: Instant,
}

/// Those that are known.
#[derive(Debug, Default)]
pub struct Unregistered {
    by_pid: BTreeMap<HostPid, Known>,
}

impl Unregistered {
    /// A look begins at `now`: those that were read long ago are to be read again, if they are still there.
    pub fn begin(&mut self, now: Instant) {
        self.by_pid.retain(|_, known| now.saturating_duration_since(known.read) < HOLDS);
    }

    /// One was read at `now`, while it ran this program. Of one of which that cannot be told nothing is remembered.
    pub fn note(&mut self, process: &GuardedProcess, program: Option<ProgramMark>, now: Instant) {
        if let (Some(program), Some(start_ticks)) = (program, procfs::start_ticks(process.pid)) {
            self.by_pid.insert(process.pid, Known { start_ticks, program, process: process.clone(), read: now });
        }
    }

    /// What is known of the process of this lease that has `pid` now and runs this program.
    pub fn get(&self, pid: HostPid, program: Option<ProgramMark>, lease: &LeaseId) -> Option<GuardedProcess> {
        let known = self.by_pid.get(&pid)?;
        let is_it = Some(known.program) == program && known.process.lease_id == *lease;
        (is_it && procfs::start_ticks(pid) == Some(known.start_ticks)).then(|| known.process.clone())
    }
}
