//! Runs the integration scenarios, each in namespaces of its own.

use crate::failure::{Failure, Result};
use crate::janitor;
use crate::last_words::LastWords;
use crate::namespaces::{self, Ended, Inside};
use crate::processor_time::ProcessorTime;
use crate::scenarios::{Place, Scenario, TOGETHER, fetch_systems, scenarios};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What this program is called with to run one scenario where the runner is, in a process that can be killed.
const OUTSIDE: &str = "--outside";

/// Where a supervisor of the host's own keeps its ledger. Namespaces of a run share it with the host.
const STATE: &str = "/var/lib/gpool";

/// How often a scenario may run when it fails while the processors are busy with other things.
const ATTEMPTS: u32 = 3;

/// `gpool-integration [--list | --fetch | --alone | --together | FILTER]`: runs the scenarios whose name contains FILTER, or
/// those that need the machine for themselves, or those that do not; lists them; or downloads what takes some of them
/// long.
pub fn run() -> ExitCode {
    if let Some(code) = janitor::serve_if_asked() {
        return code;
    }
    let argument = std::env::args().nth(1).unwrap_or_default();
    if let Some(code) = namespaces::serve_if_inside(|inside| one(&argument, inside)) {
        return code;
    }
    if argument == OUTSIDE {
        return outside(&std::env::args().nth(2).unwrap_or_default());
    }
    if argument == "--list" {
        scenarios().filter(is_own).for_each(|scenario| println!("{:32}{}", scenario.name, scenario.what));
        return ExitCode::SUCCESS;
    }
    let may_meet = |scenario: &&Scenario| TOGETHER.contains(&scenario.name);
    match argument.as_str() {
        "--alone" => return all(scenarios().filter(is_own).filter(|scenario| !may_meet(scenario))),
        "--together" => return all(scenarios().filter(is_own).filter(may_meet)),
        _ => {}
    }
    if argument == "--fetch" {
        fetch_systems();
        return ExitCode::SUCCESS;
    }
    // What is no scenario of every run, such as a part of another, runs only when it is asked for by its whole name.
    let is_asked_for =
        |scenario: &&Scenario| scenario.name == argument || (scenario.name.contains(&argument) && is_own(scenario));
    all(scenarios().filter(is_asked_for))
}

fn is_own(scenario: &&Scenario) -> bool {
    matches!(scenario.run, Place::Inside(_) | Place::Outside(_))
}

fn outside(name: &str) -> ExitCode {
    let scenario = scenarios().find(|scenario| scenario.name == name);
    let outcome = match scenario.map(|scenario| scenario.run) {
        Some(Place::Outside(run) | Place::OutsideWhenAsked(run)) => run(),
        _ => Err(Failure::new(format!("no scenario outside is called {name}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("    {failure}");
            ExitCode::FAILURE
        }
    }
}

fn one(name: &str, inside: &Inside) -> Result<ExitCode> {
    let scenario = scenarios().find(|scenario| scenario.name == name);
    let scenario = scenario.ok_or_else(|| Failure::new(format!("no scenario is called {name}")))?;
    match scenario.run {
        Place::Inside(run) | Place::PartOfAnother(run) => run(inside).map(|()| ExitCode::SUCCESS),
        Place::Outside(_) | Place::OutsideWhenAsked(_) => Err(Failure::new(format!("{name} runs outside"))),
    }
}

/// How many scenarios run together: they mostly wait.
const LANES: usize = 5;

/// Scenarios that measure run first, each alone; the others then a few at a time.
fn all<'a>(scenarios: impl Iterator<Item = &'a Scenario>) -> ExitCode {
    let (mut others, alone): (Vec<&Scenario>, Vec<&Scenario>) =
        scenarios.partition(|scenario| TOGETHER.contains(&scenario.name));
    others.sort_by_key(|scenario| TOGETHER.iter().position(|name| *name == scenario.name));
    let mut verdicts: Vec<Verdict> = alone.into_iter().map(judged).collect();
    let (queue, mut beside) = (Mutex::new(others.into_iter()), Vec::new());
    let beside_others = |scenario| (scenario, judged(scenario));
    let lane = || std::iter::from_fn(|| queue.lock().ok()?.next()).map(beside_others).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let lanes = [(); LANES].map(|()| scope.spawn(lane));
        // A lane that panicked has judged nothing well.
        let lost = || vec![Verdict { name: "a lane of this runner", passed: false, tries: 1, last_words: Vec::new() }];
        for lane in lanes {
            match lane.join() {
                Ok(judgements) => beside.extend(judgements),
                Err(_) => verdicts.extend(lost()),
            }
        }
    });
    verdicts.extend(beside.into_iter().map(|(scenario, verdict)| confirmed(scenario, verdict)));
    let passed = verdicts.iter().filter(|verdict| verdict.passed).count();
    // Last, where it is seen.
    for verdict in verdicts.iter().filter(|verdict| !verdict.passed) {
        println!("failed: {}", verdict.name);
        verdict.last_words.iter().for_each(|line| println!("    {}", line.trim_start()));
    }
    for verdict in verdicts.iter().filter(|verdict| verdict.passed && verdict.tries > 1) {
        println!("unsteady: {} passed at try {}; why it failed stands above", verdict.name, verdict.tries);
    }
    println!("{passed} passed, {} failed", verdicts.len() - passed);
    // A filter that matches nothing is a mistake, not a success.
    if passed > 0 && passed == verdicts.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One that failed beside others runs once more with the processors for itself: those take them as a compiler does.
fn confirmed(scenario: &Scenario, verdict: Verdict) -> Verdict {
    if verdict.passed {
        return verdict;
    }
    println!("    once more: {} ran beside others", scenario.name);
    let again = judged(scenario);
    Verdict { tries: verdict.tries + again.tries, ..again }
}

/// How a scenario ended.
struct Verdict {
    name: &'static str,
    passed: bool,
    /// How often it ran.
    tries: u32,
    /// The end of what it said on its standard error.
    last_words: Vec<String>,
}

/// Runs one scenario and says how it ended. Once more when it failed on processors that were away or compiled, since that says
/// nothing; a failure on a machine that had its processors for itself is one at once.
fn judged(scenario: &Scenario) -> Verdict {
    for tries in 1..ATTEMPTS {
        let before = ProcessorTime::now();
        let verdict = attempted(scenario, tries);
        let times = before.zip(ProcessorTime::now());
        match times.and_then(|(before, after)| after.elsewhere_since(before)) {
            Some(whose) if !verdict.passed => println!("    once more: {whose} meanwhile"),
            _ => return verdict,
        }
    }
    attempted(scenario, ATTEMPTS)
}

fn attempted(scenario: &Scenario, tries: u32) -> Verdict {
    let (start, limit) = (Instant::now(), Duration::from_secs(scenario.limit_s));
    let had_state = Path::new(STATE).exists();
    let (ended, mut last_words) = match LastWords::listen() {
        Ok((errors, words)) => (started(scenario, limit, errors), words.said()),
        Err(error) => (Err(error.into()), Vec::new()),
    };
    let failed = match ended {
        Ok(Ended::With(status)) if status.success() => (!had_state && Path::new(STATE).exists())
            .then(|| format!("left behind: {STATE}, by this scenario or one beside it")),
        Ok(Ended::With(status)) => Some(status.to_string()),
        Ok(Ended::TimedOut) => Some(format!("still running after {} s", scenario.limit_s)),
        Err(failure) => Some(failure.to_string()),
    };
    let verdict = failed.as_ref().map_or_else(|| "ok".to_owned(), |how| format!("FAILED ({how})"));
    println!("{:32}{verdict}  {:.1} s", scenario.name, start.elapsed().as_secs_f64());
    last_words.extend(failed.clone());
    Verdict { name: scenario.name, passed: failed.is_none(), tries, last_words }
}

fn started(scenario: &Scenario, limit: Duration, errors: Stdio) -> Result<Ended> {
    match scenario.run {
        Place::Outside(_) | Place::OutsideWhenAsked(_) => {
            namespaces::run_outside(&[OUTSIDE, scenario.name], limit, errors)
        }
        _ => namespaces::run(&[scenario.name.to_owned()], limit, errors),
    }
}
