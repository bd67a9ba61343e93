//! The suite for a real GPU, from its bundle, on machines that have a driver and nothing else of use, dry on the simulated
//! GPU: with no cgroups, with the driver mounted file by file, and with a kernel that makes no overlays. Each begins with
//! what a run that was killed has left. Then two runs that do not come to their end: one has too little time, one is stopped.
//! What they have brought up here is their own, the supervisor too, and must all be gone.

use super::wait_for;
use crate::failure::{Context, Result, ensure};
use crate::host::{succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use crate::stage::Stage;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// See the script.
const KINDS: [&str; 3] = ["no-cgroups", "mounted-driver", "no-layers"];
const SCRIPT: &str = include_str!("../../programs/bare_machine.sh");
/// Where the script lies in a run.
const SCRIPT_FILE: &str = "/run/bare-machine.sh";
const MAKE_BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/bundle.sh");
const BUNDLE: &str = "/run/gpool-bundle";

/// What a run is given that does not come to its end: `told` has a figure at once, its last one after some 15 s of waiting, and
/// is planned for less, so that it is begun.
const UNENDED: [&str; 3] = ["--stages", "told,graphs", "--brief"];
/// Of these seconds the suite keeps 25 for its end.
const BUDGET_S: u64 = 38;
/// What stands in the command line of the suite, and in those of the processes that it starts and has to end.
const SUITE: &str = "suite.main";
const STARTED: [&str; 4] = [SUITE, "suite.worker", "gpool-supervisor", "gpool-run"];
/// What it has put on the machine, or had others put there.
const PLACED: [&str; 2] = ["/etc/gpool", "/run/gpool"];

/// Runs it on each of them, and twice not to its end.
pub fn run(_: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    fs::write(SCRIPT_FILE, SCRIPT).context(SCRIPT_FILE)?;
    let mut bundle = Command::new("/bin/sh");
    succeeded(
        "the bundle",
        bundle.arg(MAKE_BUNDLE).args([stage.root(), Path::new(BUNDLE)]).output().context(MAKE_BUNDLE)?,
    )?;
    KINDS.iter().try_for_each(|kind| on_machine(&stage, kind).context(*kind))?;
    its_time_is_up(&stage).context("with too little time")?;
    it_is_stopped(&stage).context("stopped in the middle of a stage")
}

/// A machine on which the suite runs with these options.
fn machine(stage: &Stage, kind: &str, results: &str, options: &[&str]) -> Command {
    let mut machine = Command::new("/usr/bin/unshare");
    machine.args(["--mount", "--propagation", "private", "/bin/sh", SCRIPT_FILE]).arg(stage.root());
    machine.args([BUNDLE, kind, results]).args(options).stdin(Stdio::null());
    machine
}

fn on_machine(stage: &Stage, kind: &str) -> Result<()> {
    let results = format!("/run/bare-{kind}");
    let mut machine = machine(stage, kind, &results, &["--stages", "environment,memory"]);
    let said = succeeded(kind, machine.output().context("unshare")?)?;
    let found = figures_and_all(&results)?;
    for (name, want) in [
        ("environment.driver", Value::from("same")),
        ("environment.exports_missing", 0.into()),
        ("environment.container", "same".into()),
        ("memory.cuMemAlloc.pieces", 3.into()),
    ] {
        let value = &found["figures"][name]["value"];
        ensure(*value == want, || format!("{name} is {value} instead of {want}; the suite said\n{said}"))?;
    }
    let over = found["figures"]["memory.cuMemAlloc.over_cap"]["value"].as_i64();
    ensure(over.is_some_and(|bytes| bytes <= 0), || format!("{over:?} bytes above the cap; the suite said\n{said}"))?;
    Ok(())
}

fn figures_and_all(results: &str) -> Result<Value> {
    let text = fs::read(format!("{results}/gpu.json")).context("gpu.json")?;
    serde_json::from_slice(&text).context("gpu.json")
}

/// Its budget ends in the middle of a stage.
fn its_time_is_up(stage: &Stage) -> Result<()> {
    let (results, budget) = ("/run/bare-too-short", BUDGET_S.to_string());
    let options = [UNENDED.as_slice(), &["--budget", &budget]].concat();
    let begun = Instant::now();
    let ended = machine(stage, KINDS[0], results, &options).output().context("unshare")?;
    // Longer than the suite itself ran.
    let took = begun.elapsed();
    let said = format!("{}\n{}", text(&ended.stdout), text(&ended.stderr));
    ensure(took < Duration::from_secs(BUDGET_S), || format!("it took {took:?} of {BUDGET_S} s; it said\n{said}"))?;
    is_cut_short(results, "the time was up", ended.status.code(), &said)
}

/// SIGTERM, once tenants of a stage that has a figure are there.
fn it_is_stopped(stage: &Stage) -> Result<()> {
    let (results, log) = ("/run/bare-stopped", "/run/bare-stopped.log");
    let output = File::create(log).context(log)?;
    let also = output.try_clone().context(log)?;
    let mut command = machine(stage, KINDS[0], results, &UNENDED);
    let mut machine = spawn_bound(command.stdout(output).stderr(also)).context("unshare")?;
    let has_begun = || figures_and_all(results).is_ok_and(|found| found["figures"]["told.health"].is_object());
    wait_for("tenants in the middle of a stage", || Ok(has_begun() && !running("suite.worker").is_empty()))?;
    for pid in running(SUITE) {
        kill_process(pid, Signal::TERM).context("SIGTERM to the suite")?;
    }
    let ended = machine.wait().context("the machine")?;
    let said = fs::read_to_string(log).context(log)?;
    is_cut_short(results, "SIGTERM", ended.code(), &said)
}

/// Whether a run that ended with this status has what was measured until then, says what was not and why, and has left nothing.
fn is_cut_short(results: &str, why: &str, status: Option<i32>, said: &str) -> Result<()> {
    ensure(status == Some(1), || format!("it ended with {status:?}, not with 1; it said\n{said}"))?;
    let (found, stopped) = (figures_and_all(results)?, format!("stopped: {why}"));
    for (what, value, want) in [
        ("cut_short", &found["about"]["cut_short"], why),
        ("the stage that was begun", &found["stages"]["told"]["outcome"], stopped.as_str()),
        ("the one after it", &found["stages"]["graphs"]["outcome"], "not begun"),
        ("the stage of its first figure", &found["figures"]["told.health"]["stage"], "told"),
    ] {
        ensure(value == want, || format!("{what} is {value} instead of {want:?}; the suite said\n{said}"))?;
    }
    let last = &found["figures"]["told.peak"];
    ensure(last.is_null(), || format!("the stage came to its end: told.peak is {last}"))?;
    for part in STARTED {
        let left = running(part);
        ensure(left.is_empty(), || format!("of {part} these are left running: {left:?}; the suite said\n{said}"))?;
    }
    let left: Vec<&str> = PLACED.into_iter().filter(|place| Path::new(place).exists()).collect();
    ensure(left.is_empty(), || format!("left behind: {left:?}; the suite said\n{said}"))
}

/// The processes of this namespace whose command line has that in it.
fn running(part: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_it = |number: &i32| {
        let words = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(part)
    };
    numbers.filter(has_it).filter_map(Pid::from_raw).collect()
}
