//! The driver's checkpoint calls, made by a process of our own: `gpool-supervisor --checkpoint suspend PID...` or `... resume PID...`.
//!
//! They are in the driver's library, which the supervisor does not load: a call that does not come back, or brings its process down, must
//! not be its own. Source: cuda.h of CUDA 12.8, `cuCheckpointProcess*`; drivers from 570 on have them.

use gpool_driver_abi::cuda::{
    CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_FAILED, CU_PROCESS_STATE_LOCKED, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUcheckpointCheckpointArgs, CUcheckpointLockArgs, CUcheckpointRestoreArgs,
    CUcheckpointUnlockArgs, CUprocessState, CUresult, CuCheckpointProcessCheckpoint, CuCheckpointProcessGetState,
    CuCheckpointProcessLock, CuCheckpointProcessRestore, CuCheckpointProcessUnlock, CuDriverGetVersion, CuInit,
};
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::ffi::c_int;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::null;

/// How long work that is under way may take to end before its process is locked, milliseconds.
const LOCK_PATIENCE_MS: u32 = 20_000;
/// CUDA 12.8, of driver 570.
const OLDEST_CUDA: c_int = 12_080;
const LACKS: &str = "the driver has no checkpoint calls, which 570 and newer have";

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it was not done; none if it was.
    pub failure: Option<String>,
    /// Whether every process that lives is as it was before, or as it was wanted: none is left locked, in the host's memory, or lost.
    pub is_whole: bool,
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

/// Goes the way with all of these processes or with none, and prints the [`Outcome`] as JSON.
pub fn main(way: &str, pids: &[String]) -> ExitCode {
    let Some(way) = [Way::Suspend, Way::Resume].into_iter().find(|its| its.text() == way) else {
        log!("{way} is no way: suspend and resume are");
        return ExitCode::FAILURE;
    };
    let pids: Vec<c_int> = pids.iter().filter_map(|pid| pid.parse().ok()).collect();
    let outcome = match Calls::load() {
        Err(failure) => Outcome { failure: Some(failure), is_whole: way == Way::Suspend },
        Ok(calls) => match way {
            Way::Suspend => calls.suspend(&pids),
            Way::Resume => calls.resume(&pids),
        },
    };
    match serde_json::to_string(&outcome) {
        Ok(text) => println!("{text}"),
        Err(error) => log!("{error}"),
    }
    ExitCode::SUCCESS
}

impl Calls {
    fn load() -> Result<Self, String> {
        // SAFETY: the driver's library; its initialisers are the driver's.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
        let lacks = |_| LACKS.to_owned();
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
                return Err(LACKS.to_owned());
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
    fn suspend(&self, pids: &[c_int]) -> Outcome {
        let failed = pids.iter().filter(is_there).map(|pid| self.lock(*pid)).find_map(Result::err);
        let moved = || pids.iter().filter(is_there).map(|pid| self.checkpoint(*pid)).find_map(Result::err);
        let Some(failure) = failed.or_else(moved) else { return Outcome { failure: None, is_whole: true } };
        Outcome { failure: Some(failure), is_whole: self.resume(pids).is_whole }
    }

    /// Has all go on from whatever state they are in. One that cannot does not keep the others from it.
    fn resume(&self, pids: &[c_int]) -> Outcome {
        let results: Vec<Result<(), String>> = pids.iter().filter(is_there).map(|pid| self.resume_one(*pid)).collect();
        let lost = results.into_iter().find_map(Result::err);
        Outcome { is_whole: lost.is_none(), failure: lost }
    }

    fn resume_one(&self, pid: c_int) -> Result<(), String> {
        let mut state: CUprocessState = 0;
        // SAFETY: a live place for the answer.
        let result = unsafe { (self.get_state)(pid, &raw mut state) };
        let resumed = match (result, state) {
            (CUDA_SUCCESS, CU_PROCESS_STATE_CHECKPOINTED) => self.restore(pid).and_then(|()| self.unlock(pid)),
            (CUDA_SUCCESS, CU_PROCESS_STATE_LOCKED) => self.unlock(pid),
            (CUDA_SUCCESS, CU_PROCESS_STATE_FAILED) => Err(format!("the driver has lost process {pid}")),
            (CUDA_SUCCESS, _) => Ok(()),
            (code, _) => told("cuCheckpointProcessGetState", code, pid),
        };
        // Who has ended meanwhile wants nothing back.
        resumed.or_else(|failure| if is_there(&&pid) { Err(failure) } else { Ok(()) })
    }

    fn lock(&self, pid: c_int) -> Result<(), String> {
        let mut arguments = CUcheckpointLockArgs { timeoutMs: LOCK_PATIENCE_MS, ..CUcheckpointLockArgs::default() };
        // SAFETY: arguments as the driver's header has them, which live through the call; so for the three below.
        told("cuCheckpointProcessLock", unsafe { (self.lock)(pid, &raw mut arguments) }, pid)
    }

    fn checkpoint(&self, pid: c_int) -> Result<(), String> {
        let mut arguments = CUcheckpointCheckpointArgs::default();
        // SAFETY: see there.
        told("cuCheckpointProcessCheckpoint", unsafe { (self.checkpoint)(pid, &raw mut arguments) }, pid)
    }

    /// To the GPUs that it came from.
    fn restore(&self, pid: c_int) -> Result<(), String> {
        let mut arguments =
            CUcheckpointRestoreArgs { gpuPairs: null(), gpuPairsCount: 0, reserved: [0; 44], reserved1: 0 };
        // SAFETY: see there.
        told("cuCheckpointProcessRestore", unsafe { (self.restore)(pid, &raw mut arguments) }, pid)
    }

    fn unlock(&self, pid: c_int) -> Result<(), String> {
        let mut arguments = CUcheckpointUnlockArgs::default();
        // SAFETY: see there.
        told("cuCheckpointProcessUnlock", unsafe { (self.unlock)(pid, &raw mut arguments) }, pid)
    }
}

/// What the driver has answered, for people.
fn told(name: &str, code: CUresult, pid: c_int) -> Result<(), String> {
    match code {
        CUDA_SUCCESS => Ok(()),
        CUDA_ERROR_NOT_SUPPORTED => Err(format!(
            "the driver does not move process {pid}, as one that has managed memory, or memory of other processes ({name} gives {code})"
        )),
        CUDA_ERROR_NOT_READY => Err(format!("work of process {pid} on the GPU does not end ({name} gives {code})")),
        code => Err(format!("{name} gives {code} for process {pid}")),
    }
}

fn is_there(pid: &&c_int) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
