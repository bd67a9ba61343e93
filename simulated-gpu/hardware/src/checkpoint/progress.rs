//! How far the suspension of one process is, and its next step.

use super::devices::{Devices, Place};
use super::{ProcessState, Refusal, Verb};
use crate::gate::Gate;
use crate::store::StoreError;
use std::fs;

/// One process.
#[derive(Debug)]
pub(crate) struct Progress {
    gate: Gate,
    state: ProcessState,
    /// Where it is to come back.
    places: Vec<Place>,
}

fn failed(_: StoreError) -> Refusal {
    Refusal::Failed
}

impl Progress {
    /// A process that runs.
    pub(crate) fn new(gate: Gate) -> Self {
        Self { gate, state: ProcessState::Running, places: Vec::new() }
    }

    /// Does what is asked of the process, whose pid this is; none if it cannot be done yet.
    pub(crate) fn attempt(
        &mut self,
        pid: u32,
        verb: Verb,
        devices: Devices<'_>,
    ) -> Option<Result<ProcessState, Refusal>> {
        let from = match verb {
            Verb::State => return Some(Ok(self.state)),
            Verb::Lock { .. } => ProcessState::Running,
            Verb::Checkpoint | Verb::Unlock => ProcessState::Locked,
            Verb::Restore => ProcessState::Checkpointed,
        };
        if self.state != from {
            return Some(Err(Refusal::WrongState));
        }
        if self.gate.is_barred() {
            return Some(Err(Refusal::NotSupported));
        }
        // The real driver has a thread of the process do each of these, which it cannot while it is stopped.
        if is_stopped(pid) {
            return None;
        }
        let done = match verb {
            Verb::State => Ok(()),
            Verb::Lock { .. } => match self.has_come_to_rest(pid, devices) {
                Ok(false) => return None,
                has_come => has_come.map(|_| self.state = ProcessState::Locked),
            },
            Verb::Checkpoint => self.leave(pid, devices),
            Verb::Restore => self.come_back(pid, devices),
            Verb::Unlock => {
                self.state = ProcessState::Running;
                Ok(())
            }
        };
        Some(done.map(|()| self.state))
    }

    /// Opens the gate of a process that runs, unless somebody `is_wanted` to lock it still.
    pub(crate) fn settle(&self, is_wanted: bool) {
        if self.state == ProcessState::Running && !is_wanted {
            self.gate.set_closed(false);
        }
    }

    /// From now on calls wait: whether none is under way any more, and no work.
    fn has_come_to_rest(&self, pid: u32, devices: Devices<'_>) -> Result<bool, Refusal> {
        self.gate.set_closed(true);
        if !self.gate.is_empty() {
            return Ok(false);
        }
        let working = devices.each(|store| store.read(|device| device.has_work(pid))).map_err(failed)?;
        Ok(working.iter().all(|(_, has_work)| !has_work))
    }

    fn leave(&mut self, pid: u32, devices: Devices<'_>) -> Result<(), Refusal> {
        let sharing = devices.each(|store| store.read(|device| device.has_shares(pid))).map_err(failed)?;
        if self.gate.has_unmovable() || sharing.iter().any(|(_, has_shares)| *has_shares) {
            return Err(Refusal::NotSupported);
        }
        let left = devices.each(|store| store.update(|device, now_ns| device.suspend(now_ns, pid)));
        let left = left.map_err(|error| {
            self.state = ProcessState::Failed;
            failed(error)
        })?;
        self.places = left.into_iter().filter(|(_, held)| *held).map(|(place, _)| place).collect();
        self.state = ProcessState::Checkpointed;
        Ok(())
    }

    /// Either all of it comes back or nothing, and then it holds nothing of any device for ever.
    fn come_back(&mut self, pid: u32, devices: Devices<'_>) -> Result<(), Refusal> {
        let resume = |place: &Place| {
            let resumed = devices.one(*place, |store| store.update(|device, now_ns| device.resume(now_ns, pid)));
            match resumed {
                Some(Ok(true)) => Ok(()),
                Some(Err(_)) => Err(Refusal::OutOfMemory),
                // The instance is gone, or another one by now.
                Some(Ok(false)) | None => Err(Refusal::Failed),
            }
        };
        let resumed = self.places.iter().try_for_each(resume);
        self.state = if resumed.is_ok() { ProcessState::Locked } else { ProcessState::Failed };
        if resumed.is_err() {
            devices.each(|store| store.update(|device, now_ns| device.reap_process(now_ns, pid))).map_err(failed)?;
        }
        resumed
    }
}

/// Whether a process is stopped, by a signal or a debugger, or frozen with its cgroup. Format: proc(5), and "cgroup.events" of
/// the kernel's documentation of control groups, version 2.
pub(super) fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let is_stopped = status.lines().any(|line| line.strip_prefix("State:").is_some_and(says_stopped));
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let unified = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let is_frozen = |path: &str| {
        let events = fs::read_to_string(format!("/sys/fs/cgroup{path}/cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "frozen 1")
    };
    is_stopped || unified.is_some_and(is_frozen)
}

fn says_stopped(state: &str) -> bool {
    state.trim_start().starts_with(['T', 't'])
}
