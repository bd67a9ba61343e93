//! `gpool doctor` on a host on which everything is as it should be, and on the same host with one fault after the other:
//! each is found by its number, with its remedy, and gone when the fault is.

mod archive;
mod faults;
mod mischief;

use super::{finish_found, start_tenants, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::Inside;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the supervisor may need to see what has just happened.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts a host with a tenant and makes mischief.
pub fn run(inside: &Inside) -> Result<()> {
    archive::name_this_host()?;
    let mut host = Host::start(inside)?;
    let outcome = examine(&mut host);
    // One of the faults is a container that goes past the shims.
    finish_found(host, outcome)
}

fn examine(host: &mut Host) -> Result<()> {
    set_up(host)?;
    let tenants = start_tenants(host, &[("honest", "0.3", "4GiB", 500)])?;
    wait_until_running(host, &tenants)?;
    healthy(host)?;
    let found = faults::one_after_the_other(host)?;
    ensure(found >= 20, || format!("only {found} faults were made"))?;
    println!("doctor: {found} faults found, each with its remedy");
    archive::holds_no_secret(host, &tenants[0])?;
    past_the_shims(host)?;
    faults::of_the_supervisor(host)?;
    healthy(host)
}

/// What an administrator would have done: the group, an engine that knows gpool, everything owned by root.
fn set_up(host: &Host) -> Result<()> {
    let groups = fs::read_to_string("/etc/group").context("/etc/group")?;
    fs::write("/etc/group", groups + "gpool:x:64990:\n").context("/etc/group")?;
    let stage = host.stage.program("").parent().map(|bin| bin.display().to_string()).unwrap_or_default();
    for (program, argument) in [("chown", "0:0"), ("chmod", "go-w")] {
        let status = Command::new(program).args(["-R", argument, &stage]).status().context(program)?;
        ensure(status.success(), || format!("{program} ended with {status}"))?;
    }
    let runtime = host.stage.program("gpool-runtime").display().to_string();
    // Named, because the dockerd that runs here reads another one.
    let output = host.gpool(&[
        "runtime",
        "configure",
        "--runtime",
        "docker",
        "--config",
        faults::DAEMON,
        "--runtime-path",
        &runtime,
    ])?;
    ensure(output.status.success(), || format!("runtime configure: {output:?}"))
}

/// A run of `gpool doctor`.
struct Examined {
    status: Option<i32>,
    checks: Vec<Value>,
}

impl Examined {
    fn of(host: &Host, options: &[&str]) -> Result<Self> {
        let output = host.gpool(&[&["doctor", "--json"], options].concat())?;
        let said: Value = serde_json::from_slice(&output.stdout).context("what gpool doctor says")?;
        Ok(Self { status: output.status.code(), checks: said["checks"].as_array().cloned().unwrap_or_default() })
    }

    /// State and words of a check.
    fn check(&self, number: usize) -> (String, String) {
        let check = self.checks.iter().find(|check| check["number"] == number).unwrap_or(&Value::Null);
        let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
        (text("state"), format!("{}; {}", text("found"), text("remedy")))
    }
}

/// Every check is `ok`, and the exit code is 0.
fn healthy(host: &Host) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let examined = Examined::of(host, &[])?;
        let wrong: Vec<&Value> = examined.checks.iter().filter(|check| check["state"] != "ok").collect();
        if wrong.is_empty() && examined.checks.len() >= 20 && examined.status == Some(0) {
            return Ok(());
        }
        // What has just ended may be seen for a moment.
        let waits = Instant::now() < deadline;
        ensure(waits, || format!("on a healthy host gpool doctor ends with {:?}: {wrong:#?}", examined.status))?;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A container whose loader finds the driver's own library: the guard sees it within seconds.
fn past_the_shims(host: &Host) -> Result<()> {
    const REAL: &str = "/dev/gpool/real/libcuda.so.1";
    let script =
        format!("mkdir /tmp/past && ln -s {REAL} /tmp/past/ && exec gpool-tenant --kernel-us 500 --launch-batch 10");
    let env = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB"), ("LD_LIBRARY_PATH", "/tmp/past")];
    let past: Container = host.run_container("past", &env, &[], &["sh", "-c", &script])?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (state, words) = Examined::of(host, &[])?.check(9);
        if state == "fail" {
            ensure(words.contains("gpool-tenant") && words.contains("bypass_action"), || words)?;
            break;
        }
        ensure(Instant::now() < deadline, || format!("check 9 is {state} beside a bypass: {words}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    host.engine.docker_text(&["rm", "-f", &past.id]).map(drop)
}
