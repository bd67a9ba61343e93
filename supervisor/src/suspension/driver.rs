//! The driver's checkpoint calls, made by a process of our own: `gpool-supervisor --checkpoint suspend PID:START...` or `... resume
//! PID:START...`.
//!
//! They are in the driver's library, which the supervisor does not load: a call that does not come back, or brings its process down, must
//! not be its own. Source: cuda.h of CUDA 12.8, `cuCheckpointProcess*`; drivers from 570 on have them.

use crate::procfs::{self, ProcessName};
use gpool_driver_abi::cuda::{
    CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_FAILED, CU_PROCESS_STATE_LOCKED, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUcheckpointCheckpointArgs, CUcheckpointLockArgs,
    CUcheckpointRestoreArgs, CUcheckpointUnlockArgs, CUprocessState, CUresult, CuCheckpointProcessCheckpoint,
    CuCheckpointProcessGetState, CuCheckpointProcessLock, CuCheckpointProcessRestore, CuCheckpointProcessUnlock,
    CuDriverGetVersion, CuInit,
};
use gpool_policy::suspension::Obstacle;
use gpool_protocol::HostPid;
use libloading::Library;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::ffi::c_int;
use std::io::{self, Write};
use std::process::ExitCode;
use std::ptr::null;

/// How long work that is under way may take to end before its processes are locked, milliseconds for all of them.
const LOCK_PATIENCE_MS: u32 = 20_000;
/// CUDA 12.8, of driver 570.
const OLDEST_CUDA: c_int = 12_080;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the host's memory.
    Suspend,
    /// Back to the GPU, from whatever state.
    Resume,
}

impl Way {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            Way::Suspend => "suspend",
            Way::Resume => "resume",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it was not done; none if it was.
    pub failure: Option<String>,
    /// Processes that the driver has lost: no call of theirs would ever return.
    pub lost: Vec<ProcessName>,
    /// Whether every other one that lives goes on, or is where it was wanted: none is half-way.
    pub is_whole: bool,
}

impl Outcome {
    /// Nothing was done to anybody.
    pub fn untried(cause: impl std::fmt::Display, way: Way) -> Self {
        // Who is to come back is not back.
        Self { failure: Some(cause.to_string()), lost: Vec::new(), is_whole: way == Way::Suspend }
    }
}

/// The calls.
struct Calls {
    get_state: CuCheckpointProcessGetState,
    lock: CuCheckpointProcessLock,
    checkpoint: CuCheckpointProcessCheckpoint,
    restore: CuCheckpointProcessRestore,
    unlock: CuCheckpointProcessUnlock,
    // The functions are its.
    _library: Library,
}

/// Goes the way with all of these processes or with none, each named by its pid and its start time (`17:4711`), and prints the [`Outcome`]
/// as JSON.
pub fn main(way: &str, processes: &[String]) -> ExitCode {
    let Some(way) = [Way::Suspend, Way::Resume].into_iter().find(|its| its.text() == way) else {
        log!("{way} is no way: suspend and resume are");
        return ExitCode::FAILURE;
    };
    // A supervisor that is started anew asks each process for its state, and must not find this one at it.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        log!("{error}");
    }
    let named: Option<Vec<ProcessName>> = processes.iter().map(|text| name_in(text)).collect();
    let Some(named) = named else {
        log!("processes are named by their pid and their start time in clock ticks, as 17:4711");
        return ExitCode::FAILURE;
    };
    let outcome = match Calls::load() {
        Err(failure) => Outcome::untried(failure, way),
        Ok(calls) => match way {
            Way::Suspend => calls.suspend(&named),
            Way::Resume => calls.resume(&named),
        },
    };
    let said = serde_json::to_string(&outcome).map_err(io::Error::from);
    // Who asked may have ended.
    if let Err(error) = said.and_then(|text| writeln!(io::stdout(), "{text}")) {
        log!("{error}");
    }
    ExitCode::SUCCESS
}

/// As a process is named to this program: its pid may be another's by now.
pub fn named(process: &ProcessName) -> String {
    format!("{}:{}", process.pid, process.start_ticks)
}

fn name_in(text: &str) -> Option<ProcessName> {
    let (pid, start_ticks) = text.split_once(':')?;
    Some(ProcessName { pid: HostPid(pid.parse().ok()?), start_ticks: start_ticks.parse().ok()? })
}

/// Why one was not brought back.
struct Failure {
    text: String,
    is_lost: bool,
}

impl Calls {
    fn load() -> Result<Self, String> {
        // SAFETY: the driver's library; its initialisers are the driver's.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
        let lacks = |_| Obstacle::OldDriver.to_string();
        // SAFETY: the types that the driver's header has for these names; the version goes to a live place.
        unsafe {
            let init: CuInit = *library.get(b"cuInit").map_err(lacks)?;
            let get_version: CuDriverGetVersion = *library.get(b"cuDriverGetVersion").map_err(lacks)?;
            let mut version = 0;
            match init(0) {
                CUDA_SUCCESS => {}
                code => return Err(format!("cuInit gives {code}")),
            }
            if get_version(&raw mut version) != CUDA_SUCCESS || version < OLDEST_CUDA {
                return Err(Obstacle::OldDriver.to_string());
            }
            Ok(Self {
                get_state: *library.get(b"cuCheckpointProcessGetState").map_err(lacks)?,
                lock: *library.get(b"cuCheckpointProcessLock").map_err(lacks)?,
                checkpoint: *library.get(b"cuCheckpointProcessCheckpoint").map_err(lacks)?,
                restore: *library.get(b"cuCheckpointProcessRestore").map_err(lacks)?,
                unlock: *library.get(b"cuCheckpointProcessUnlock").map_err(lacks)?,
                _library: library,
            })
        }
    }

    /// Moves all to the host's memory, or none.
    fn suspend(&self, processes: &[ProcessName]) -> Outcome {
        let there = || processes.iter().filter(|process| is_there(process) && self.knows(process));
        let patience_ms = LOCK_PATIENCE_MS / u32::try_from(processes.len().max(1)).unwrap_or(u32::MAX);
        let ended = |outcome: Result<(), String>, process: &ProcessName| outcome.err().filter(|_| is_there(process));
        let unlocked = there().find_map(|process| ended(self.lock(process, patience_ms), process));
        let failed = unlocked.or_else(|| there().find_map(|process| ended(self.checkpoint(process), process)));
        let Some(failure) = failed else { return Outcome { is_whole: true, ..Outcome::default() } };
        Outcome { failure: Some(failure), ..self.resume(processes) }
    }

    /// Has all go on from whatever state they are in. One that cannot does not keep the others from it.
    fn resume(&self, processes: &[ProcessName]) -> Outcome {
        let mut outcome = Outcome { is_whole: true, ..Outcome::default() };
        for process in processes.iter().filter(|process| is_there(process) && self.knows(process)) {
            // Who has ended meanwhile wants nothing back.
            let Some(failure) = self.resume_one(process).err().filter(|_| is_there(process)) else { continue };
            match failure.is_lost {
                true => outcome.lost.push(*process),
                false => outcome.is_whole = false,
            }
            outcome.failure.get_or_insert(failure.text);
        }
        outcome
    }

    fn resume_one(&self, process: &ProcessName) -> Result<(), Failure> {
        let resumed = match self.state(process)? {
            CU_PROCESS_STATE_CHECKPOINTED => self.restore(process).and_then(|()| self.unlock(process)),
            CU_PROCESS_STATE_LOCKED => self.unlock(process),
            CU_PROCESS_STATE_FAILED => Err(format!("the driver has lost process {}", process.pid)),
            _ => Ok(()),
        };
        let Err(text) = resumed else { return Ok(()) };
        Err(Failure { text, is_lost: self.state(process)? == CU_PROCESS_STATE_FAILED })
    }

    /// Whether it uses the driver: one that has executed another program since it took its place may not.
    fn knows(&self, process: &ProcessName) -> bool {
        let mut state: CUprocessState = 0;
        // SAFETY: a live place for the answer.
        unsafe { (self.get_state)(number(process), &raw mut state) != CUDA_ERROR_INVALID_VALUE }
    }

    fn state(&self, process: &ProcessName) -> Result<CUprocessState, Failure> {
        let mut state: CUprocessState = 0;
        // SAFETY: a live place for the answer.
        let code = unsafe { (self.get_state)(number(process), &raw mut state) };
        let answered = told("cuCheckpointProcessGetState", code, process);
        answered.map(|()| state).map_err(|text| Failure { text, is_lost: false })
    }

    fn lock(&self, process: &ProcessName, patience_ms: u32) -> Result<(), String> {
        let mut arguments = CUcheckpointLockArgs { timeoutMs: patience_ms.max(1), ..CUcheckpointLockArgs::default() };
        // SAFETY: arguments as the driver's header has them, which live through the call; so for the three below.
        told("cuCheckpointProcessLock", unsafe { (self.lock)(number(process), &raw mut arguments) }, process)
    }

    fn checkpoint(&self, process: &ProcessName) -> Result<(), String> {
        let mut arguments = CUcheckpointCheckpointArgs::default();
        // SAFETY: see there.
        let code = unsafe { (self.checkpoint)(number(process), &raw mut arguments) };
        told("cuCheckpointProcessCheckpoint", code, process)
    }

    /// To the GPUs that it came from.
    fn restore(&self, process: &ProcessName) -> Result<(), String> {
        let mut arguments =
            CUcheckpointRestoreArgs { gpuPairs: null(), gpuPairsCount: 0, reserved: [0; 44], reserved1: 0 };
        // SAFETY: see there.
        let code = unsafe { (self.restore)(number(process), &raw mut arguments) };
        told("cuCheckpointProcessRestore", code, process)
    }

    fn unlock(&self, process: &ProcessName) -> Result<(), String> {
        let mut arguments = CUcheckpointUnlockArgs::default();
        // SAFETY: see there.
        let code = unsafe { (self.unlock)(number(process), &raw mut arguments) };
        told("cuCheckpointProcessUnlock", code, process)
    }
}

/// What the driver has answered, for people.
fn told(name: &str, code: CUresult, process: &ProcessName) -> Result<(), String> {
    let pid = process.pid;
    match code {
        CUDA_SUCCESS => Ok(()),
        CUDA_ERROR_NOT_SUPPORTED => Err(format!(
            "the driver does not move process {pid}, as one that has managed memory, or memory of other processes ({name} gives {code})"
        )),
        CUDA_ERROR_NOT_READY => Err(format!("work of process {pid} on the GPU does not end ({name} gives {code})")),
        code => Err(format!("{name} gives {code} for process {pid}")),
    }
}

fn number(process: &ProcessName) -> c_int {
    c_int::try_from(process.pid.0).unwrap_or(0)
}

/// Whether it lives: a zombie of which nobody has heard yet does not.
fn is_there(process: &ProcessName) -> bool {
    procfs::start_ticks(process.pid) == Some(process.start_ticks) && !procfs::is_dead(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_named_by_its_pid_and_when_it_began() {
        let name = ProcessName { pid: HostPid(17), start_ticks: 4711 };
        assert_eq!((named(&name).as_str(), name_in("17:4711")), ("17:4711", Some(name)));
        assert_eq!(["17", "17:", ":4711", "x:1", "-1:1"].map(name_in), [None; 5]);
    }

    #[test]
    fn a_zombie_and_another_process_with_its_pid_are_not_there() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = HostPid(child.id());
        let name = ProcessName { pid, start_ticks: procfs::start_ticks(pid).unwrap() };
        assert!(is_there(&name));
        assert!(!is_there(&ProcessName { start_ticks: name.start_ticks + 1, ..name }));
        drop(child.stdin.take());
        while !procfs::is_dead(&name) {
            std::thread::yield_now();
        }
        assert!(!is_there(&name));
        child.wait().unwrap();
    }

    #[test]
    fn what_was_not_tried_leaves_everybody_where_he_was() {
        let out = Outcome::untried("no library", Way::Suspend);
        assert!(out.is_whole && out.lost.is_empty() && out.failure.is_some());
        assert!(!Outcome::untried("no library", Way::Resume).is_whole, "it is still in the host's memory");
        let text = serde_json::to_string(&out).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), out);
    }
}
