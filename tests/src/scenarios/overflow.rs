//! A host that is short of room tells a program so, once when it begins and once when it is over, whoever is restarted meanwhile.

use super::{finish, reload_with, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{EventKind, OverflowView, WaitingView};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

const CONFIGURATION: &str = "\
[policy.env]
allow = [\"fraction\", \"memory\", \"team\"]
[lease]
hold_ms = 0
[overflow]
after_seconds = 2
clear_seconds = 2
[quota]
team.vision.leases = 1
";
const DIRECTORY: &str = "/run/overflow";
/// Fails the first time, as if what it calls were not there yet, and writes down what it is told.
const PROGRAM: &str = "\
#!/bin/sh
[ -e /run/overflow/failed ] || { : > /run/overflow/failed; echo 'not yet' >&2; exit 3; }
echo \"$1 $OVERFLOW_WAITING $OVERFLOW_GPUS $OVERFLOW_BYTES\" >> /run/overflow/told
cat > /run/overflow/document
";

/// Has one GPU taken, and somebody wait for it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    fs::create_dir_all(DIRECTORY).context(DIRECTORY)?;
    let program = path("program");
    said(&host.gpool(&["overflow", "watch", "--", &program])?, 2, &["cannot be run", "name a program"])?;
    fs::write(&program, PROGRAM).context(&program)?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).context(&program)?;
    let absent = host.gpool(&["overflow", "watch", "--state", "/nonexistent/told", "--", &program])?;
    said(&absent, 1, &["--state", "a directory that is there"])?;

    let of_team = [("GPOOL_TEAM", "vision"), ("GPOOL_FRACTION", "0.7"), ("GPOOL_MEMORY", "4GiB")];
    let holder = host.run_container("holder", &of_team, &[], &["sleep", "600"])?;
    let watch = watching(host, "first")?;
    // Who waits for a quota of its own is helped by no other machine.
    let over_quota = waiting(host, &["--team", "vision", "--fraction", "0.1"])?;
    wait_for("one to wait for its quota", || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.len() == 1))?;
    std::thread::sleep(Duration::from_secs(5));
    said(&host.gpool(&["overflow", "show"])?, 0, &["is not short of room\n", "nobody waits for room"])?;

    let waiter = waiting(host, &["--fraction", "0.6"])?;
    wait_for("the program to be told that the host is short of room", || Ok(!told()?.is_empty()))?;
    wait_for("that to be written down", || {
        Ok(fs::read_to_string(path("state.json")).context("state.json")?.contains("\"short\""))
    })?;
    let heard = told()?;
    ensure(heard == ["began 1 0.600 1073741824"], || format!("it was told {heard:?}"))?;
    let document: serde_json::Value =
        serde_json::from_slice(&fs::read(path("document")).context("document")?).context("document")?;
    let view: OverflowView = serde_json::from_value(document["overflow"].clone()).context("document")?;
    ensure(view.is_short && view.waiting.len() == 1 && view.longest_wait_ms >= 2000, || format!("it read {view:?}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    ensure(metrics.contains("\ngpool_overflow 1\n") && metrics.contains("\ngpool_overflow_wanted_gpus 0.6\n"), || {
        "the metrics say something else".to_owned()
    })?;

    // Neither has to hear it again after a restart of its own.
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let log = ended(watch)?;
    ensure(log.contains("has ended with exit status: 3; it is run again in 5s"), || format!("it has said {log}"))?;
    let watch = watching(host, "second")?;
    std::thread::sleep(Duration::from_secs(4));
    said(&host.gpool(&["overflow", "show"])?, 0, &["is short of room since", "1 container waits for room"])?;
    let heard = told()?;
    ensure(heard.len() == 1, || format!("it was told again: {heard:?}"))?;
    ended(watch)?;

    // What is over while nobody watches is told to who comes back.
    holder.kill_init()?;
    for child in [waiter, over_quota] {
        succeeded("gpool run of one that waited", child.wait_with_output().context("gpool run")?)?;
    }
    wait_for("the host not to be short of room", || Ok(!host.client().get::<OverflowView>("/v1/overflow")?.is_short))?;
    let watch = watching(host, "third")?;
    wait_for("the program to be told that it is over", || Ok(told()?.len() == 2))?;
    let heard = told()?;
    ensure(heard[1] == "ended 0 0.000 0", || format!("it was told {heard:?}"))?;
    ended(watch)?;

    // What is missing is told also where it is a GPU that is out of service.
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0"])?)?;
    let drained = waiting(host, &["--fraction", "0.2"])?;
    wait_for("what it would have to be known", || {
        let view: OverflowView = host.client().get("/v1/overflow")?;
        Ok((view.waiting.len(), view.wanted_permille, view.wanted_memory_bytes) == (1, 200, 1 << 30))
    })?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0"])?)?;
    succeeded("gpool run of one that waited", drained.wait_with_output().context("gpool run")?)?;

    ensure(host.events_of(EventKind::Overflow)?.len() == 1, || {
        "this supervisor has told more than the end".to_owned()
    })?;
    let trail = text(&host.gpool(&["audit", "show"])?.stdout);
    let count = |sentence: &str| trail.lines().filter(|line| line.contains(sentence)).count();
    let counts =
        [count("the host is short of room: 1 container waits"), count("the host is not short of room any more")];
    ensure(counts == [1, 1], || format!("the audit has {counts:?} of begin and end"))
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// What the program was told so far, a line each.
fn told() -> Result<Vec<String>> {
    let file = path("told");
    if !Path::new(&file).exists() {
        return Ok(Vec::new());
    }
    Ok(fs::read_to_string(&file).context(&file)?.lines().map(str::to_owned).collect())
}

/// The command that watches, with a log of its own.
fn watching(host: &Host, name: &str) -> Result<(Child, String)> {
    let log = path(&format!("{name}.log"));
    let file = fs::File::create(&log).context(&log)?;
    let mut command = host.command("gpool");
    command.args(["overflow", "watch", "--state", &path("state.json"), "--", &path("program")]);
    Ok((spawn_bound(command.stdout(Stdio::null()).stderr(file)).context("gpool overflow watch")?, log))
}

/// Ends it as a power cut would; what it has said.
fn ended((mut watch, log): (Child, String)) -> Result<String> {
    watch.kill().context("gpool overflow watch")?;
    watch.wait().context("gpool overflow watch")?;
    fs::read_to_string(&log).context(&log)
}

/// A command that waits for room.
fn waiting(host: &Host, asks: &[&str]) -> Result<Child> {
    let mut command = host.command("gpool");
    command.arg("run").args(asks).args(["--memory", "1GiB", "--wait", "5m", "--", "/bin/true"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}
