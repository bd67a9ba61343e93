//! A thousand exec probes, as Kubernetes and docker's health checks make them: nothing grows.

use super::life::{Bundle, ID};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const PROBES: usize = 1000;
/// At a time, on a machine of two cores.
const AT_ONCE: usize = 4;
const LOG: &str = "/run/gpool-verbs/probe-log";

/// With the supervisor running, whose logs are looked at.
pub fn leave_no_trace(host: &mut Host, bundle: &Bundle, low_level: &str) -> Result<()> {
    host.start_supervisor()?;
    let runtime = host.stage.program("gpool-runtime");
    for words in [&["create", "--bundle", "BUNDLE", ID][..], &["start", ID]] {
        let answer = bundle.call(&runtime, words)?;
        ensure(answer.status == Some(0), || format!("{answer:?}"))?;
    }
    let before = Traces::of(host)?;
    let probed = probe(&runtime);
    let after = Traces::of(host)?;
    let removed = bundle.call(Path::new(low_level), &["delete", "--force", ID])?;
    probed?;
    ensure(removed.status == Some(0), || format!("{removed:?}"))?;
    ensure(before == after, || format!("{PROBES} probes changed {before:?} to {after:?}"))?;
    let log = fs::read_to_string(LOG).unwrap_or_default();
    ensure(log.is_empty(), || format!("the engine's log has {log}"))
}

fn probe(runtime: &Path) -> Result<()> {
    let one = || -> Result<()> {
        let mut command = Command::new(runtime);
        command.args(["--log", LOG, "--log-format", "json", "exec", ID, "true"]);
        let output = command.stdin(Stdio::null()).output().context("gpool-runtime exec")?;
        let is_silent = output.status.success() && output.stdout.is_empty() && output.stderr.is_empty();
        ensure(is_silent, || format!("a probe says {output:?}"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..AT_ONCE).map(|_| scope.spawn(|| (0..PROBES / AT_ONCE).try_for_each(|_| one()))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Failure::new("a probe"))?)
    })
}

/// What could grow.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    supervisors_log: String,
    events: usize,
    leases: usize,
    run_directory: Vec<String>,
    state_directory: Vec<String>,
}

impl Traces {
    fn of(host: &Host) -> Result<Self> {
        let names = |directory: &str| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
            names.sort();
            names
        };
        Ok(Self {
            supervisors_log: host.supervisor_log(),
            events: host.events()?.len(),
            leases: host.leases()?.len(),
            run_directory: names("/run/gpool"),
            state_directory: names("/var/lib/gpool"),
        })
    }
}
