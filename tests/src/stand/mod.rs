//! A stand for the CUDA shim as it was built: in a mount namespace of its own, with a region that the stand writes and,
//! in the place of the real library, a driver that does nothing. No container, no supervisor, no simulated GPU: what is
//! counted or timed here is the shim's alone, and what crashes here is the shim.
//!
//! Rooms: `place` (the namespace and the region), `calls` and `entries` (what is called, through the shim and past it), `steps` (its
//! instructions, one by one), `instructions` (what those are), `timing` (how long it takes), `starts` (of programs), `work`
//! (threads that do a bit of everything), `crowd` (threads that meet in everything), `displays` (contexts that nothing else
//! here makes), `rare` (calls that few programs make), `callbacks` (calls from within the driver's), `green`
//! (contexts that are parts of another).

mod callbacks;
mod calls;
mod crowd;
mod displays;
mod entries;
mod graphs;
mod green;
mod instructions;
mod place;
mod rare;
mod starts;
mod steps;
mod timing;
mod work;

use crate::c_program;
use crate::failure::{Context, Failure, Result};
use crate::stage::{SHIMS, Stage};
use gpool_driver_abi::GENERATIONS;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

pub use steps::Steps;

const PROGRAM: &str = "gpool-shim-stand";
const NULL_DRIVER: &str = include_str!("../../programs/null_driver.c");
const START: &str = include_str!("../../programs/start.c");
/// What NVIDIA's libcuda needs, of 535, 550 and 555 alike: who loads it loads these too.
const NEEDED: [&str; 5] =
    ["-Wl,--no-as-needed", "-l:libm.so.6", "-l:libdl.so.2", "-l:libpthread.so.0", "-l:librt.so.1"];

/// `gpool-shim-stand SHIM DRIVER count|time|work|displays|rare|green|start PROGRAM|crowd ROUNDS|garbage SEED`.
pub fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match serve(&arguments) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{PROGRAM}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &[&str]) -> Result<Value> {
    let [shim, driver, what, rest @ ..] = arguments else {
        return Err(Failure::new(format!(
            "usage: {PROGRAM} SHIM DRIVER count|time|work|displays|rare|green|start PROGRAM|crowd ROUNDS|garbage SEED"
        )));
    };
    let files = place::Files { shim: Path::new(shim), driver: Path::new(driver) };
    match (*what, rest) {
        ("count", []) => place::enter(&files, &place::open_gate()).and_then(|()| steps::count()),
        ("time", []) => place::enter(&files, &place::open_gate()).and_then(|()| timing::measure()),
        ("work", []) => place::enter(&files, &place::open_gate()).and_then(|()| work::everything()),
        ("displays", []) => place::enter(&files, &place::open_gate()).and_then(|()| displays::contexts()),
        ("green", []) => place::enter(&files, &place::open_gate()).and_then(|()| green::contexts()),
        ("rare", []) => place::enter(&files, &place::open_gate()).and_then(|()| rare::calls()),
        ("start", [program]) => {
            let program = std::fs::read(program).context(program)?;
            place::enter(&files, &place::open_gate()).and_then(|()| starts::measure(&program))
        }
        ("crowd", [rounds]) => {
            let rounds = rounds.parse().context("the rounds")?;
            place::enter(&files, &place::open_gate()).and_then(|()| crowd::meets(rounds))
        }
        ("garbage", [seed]) => {
            let page = place::garbage(seed.parse().context("the seed")?);
            place::enter(&files, &page).map(|()| work::whatever_happens())
        }
        _ => Err(Failure::new(format!("{PROGRAM} does not know {what}"))),
    }
}

/// The stand, ready to be used: its driver is compiled.
#[derive(Debug)]
pub struct Stand {
    program: PathBuf,
    shim: PathBuf,
    driver: PathBuf,
}

impl Stand {
    /// Compiles the driver into `directory`.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn new(stage: &Stage, directory: &Path) -> Result<Self> {
        Self::of(GENERATIONS[0].name, stage, directory)
    }

    /// The stand with the shims of the newest drivers, which have names that others lack.
    ///
    /// # Errors
    /// As [`Stand::new`].
    pub fn of_newest(stage: &Stage, directory: &Path) -> Result<Self> {
        Self::of(GENERATIONS[GENERATIONS.len() - 1].name, stage, directory)
    }

    fn of(generation: &str, stage: &Stage, directory: &Path) -> Result<Self> {
        let arguments = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"];
        let arguments = [&arguments[..], &NEEDED].concat();
        let driver = c_program::compile(NULL_DRIVER, directory, "libnull.so", &arguments)?;
        Ok(Self { program: stage.program(PROGRAM), shim: stage.shim(generation, SHIMS[0]), driver })
    }

    /// The stand doing `what`, below `wrapper` if that names a program.
    pub fn command(&self, wrapper: &[&str], what: &[&str]) -> Command {
        let mut command = match wrapper {
            [] => Command::new(&self.program),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.program);
                command
            }
        };
        command.arg(&self.shim).arg(&self.driver).args(what);
        command
    }

    /// How long a program takes that loads the library and calls `cuInit`, with the shim and without, in microseconds.
    ///
    /// # Errors
    /// As [`Stand::ask`].
    pub fn starts(&self) -> Result<Value> {
        let directory = self.driver.parent().unwrap_or(Path::new("/run"));
        let program = c_program::compile(START, directory, "start", &[])?;
        self.answer(&["start", &program.to_string_lossy()])
    }

    /// What the stand says when it does `what`.
    ///
    /// # Errors
    /// When it failed.
    pub fn ask(&self, what: &str) -> Result<Value> {
        self.answer(&[what])
    }

    fn answer(&self, what: &[&str]) -> Result<Value> {
        let output: Output = self.command(&[], what).output().context(PROGRAM)?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let cause = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(format!("{PROGRAM} {what:?} ended with {}: {cause}", output.status)));
        }
        serde_json::from_str(&said).context(format!("{PROGRAM} said {said:?}"))
    }
}
