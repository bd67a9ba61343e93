//! What `gpool doctor` looks at: one file a check, in the order in which they are printed. A check is added as a file, a
//! line at the end of [`CHECKS`] and a section of `docs/reference/doctor.md`: its number stays.

mod builds;
mod bundle;
mod calls;
mod cgroup;
mod clock;
mod compute_mode;
mod configuration;
mod devices;
mod drained;
mod driver;
mod driver_notes;
mod driver_version;
mod engines;
mod fix;
mod health;
mod hook;
mod kernel;
mod kubelet;
mod leases;
mod leftovers;
mod low_level;
mod memory_limits;
mod neighbours;
mod owners;
mod pages;
mod redact;
mod reservations;
mod shims;
mod silent;
mod socket;
mod space;
mod spill;
mod supervisor;
mod surroundings;
mod survivors;
mod suspending;
mod tar;
mod time_slices;

pub use bundle::{contents, write as write_bundle};
pub use fix::Fix;
pub use pages::page;
pub use surroundings::Surroundings;

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, and somebody should know.
    Warn,
    /// Does not work.
    Fail,
    /// Cannot be told, because of something else.
    Skip,
}

impl State {
    /// As it is printed.
    pub fn text(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "fail",
            State::Skip => "skip",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// How it came out.
    pub state: State,
    /// What was found, in one sentence without a full stop.
    pub found: String,
    /// What to do about it; none where nothing is to be done.
    pub remedy: Option<String>,
    /// What `--fix` does about it.
    #[serde(skip)]
    pub fixes: Vec<Fix>,
}

impl Outcome {
    fn ok(found: impl Into<String>) -> Self {
        Self { state: State::Ok, found: found.into(), remedy: None, fixes: Vec::new() }
    }

    fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Warn, found: found.into(), remedy: Some(remedy.into()), fixes: Vec::new() }
    }

    fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Fail, found: found.into(), remedy: Some(remedy.into()), fixes: Vec::new() }
    }

    /// Because of what another check tells of.
    fn skip(because: impl Into<String>) -> Self {
        Self { state: State::Skip, found: because.into(), remedy: None, fixes: Vec::new() }
    }

    fn with_fix(mut self, fix: Fix) -> Self {
        self.fixes.push(fix);
        self
    }
}

/// A check: its name, and what it does.
struct Check {
    name: &'static str,
    run: fn(&Surroundings) -> Outcome,
}

/// All checks.
const CHECKS: [Check; 30] = [
    Check { name: "configuration", run: configuration::check },
    Check { name: "low-level runtime", run: low_level::check },
    Check { name: "cgroups", run: cgroup::check },
    Check { name: "device nodes", run: devices::check },
    Check { name: "supervisor", run: supervisor::check },
    Check { name: "driver", run: driver::check },
    Check { name: "shims", run: shims::check },
    Check { name: "uncounted calls", run: calls::check },
    Check { name: "mapped builds", run: builds::check },
    Check { name: "leases", run: leases::check },
    Check { name: "leftovers", run: leftovers::check },
    Check { name: "kernel", run: kernel::check },
    Check { name: "engines", run: engines::check },
    Check { name: "hook", run: hook::check },
    Check { name: "socket", run: socket::check },
    Check { name: "owners", run: owners::check },
    Check { name: "driver version", run: driver_version::check },
    Check { name: "clock", run: clock::check },
    Check { name: "space", run: space::check },
    Check { name: "neighbours", run: neighbours::check },
    Check { name: "time slices", run: time_slices::check },
    Check { name: "silent GPUs", run: silent::check },
    Check { name: "compute mode", run: compute_mode::check },
    Check { name: "drained GPUs", run: drained::check },
    Check { name: "GPU health", run: health::check },
    Check { name: "reservations", run: reservations::check },
    Check { name: "kubelet", run: kubelet::check },
    Check { name: "memory limits", run: memory_limits::check },
    Check { name: "suspending", run: suspending::check },
    Check { name: "spill", run: spill::check },
];

/// Their names; the first is number 1.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|check| check.name)
}

/// A check that has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Its number, from 1.
    pub number: usize,
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs all checks.
pub fn check_all(surroundings: &Surroundings) -> Vec<Checked> {
    let run = |(index, check): (usize, &Check)| Checked {
        number: index + 1,
        name: check.name,
        outcome: (check.run)(surroundings),
    };
    CHECKS.iter().enumerate().map(run).collect()
}

/// The first few of `names`, and how many more there are.
fn first_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
