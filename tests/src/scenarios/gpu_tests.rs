//! Tests of GPUs: one that computes wrong, or loses a bit of its memory, says nothing of it, and its test finds it. It takes nobody in
//! then, until somebody opens it or a test passes. A test gives way to whoever comes, holds nobody's room, and ends with who has
//! begun it. What DCGM says is judged, of a `dcgmi` that is played.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, GpuTestView, GpuView};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n[health]\npoll_seconds = 1\n";
const ASKED: [(&str, &str); 3] = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_DEVICE", "0")];
/// More than is free beside what a test would hold of the same GPU, were that not given back at once.
const LARGE: [(&str, &str); 3] = [("GPOOL_FRACTION", "1"), ("GPOOL_MEMORY", "23GiB"), ("GPOOL_DEVICE", "0")];
/// As short as can be: kernels are executed on a processor here.
const SHORT: [&str; 4] = ["--seconds", "1", "--memory", "8MiB"];
const LONG: [&str; 4] = ["--seconds", "300", "--memory", "8MiB"];
/// The number of the check "GPU health".
const CHECK: &str = "25";

/// Tests two GPUs, of which the first becomes faulty.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    both_pass(host)?;
    computes_wrong(host)?;
    is_opened_in_spite_of_it(host)?;
    gives_way(host)?;
    goes_on_over_a_restart(host)?;
    fails_and_gives_way(host)?;
    ends_with_who_began_it(host)?;
    loses_a_bit(host)?;
    is_diagnosed_by_dcgm(host)
}

fn both_pass(host: &Host) -> Result<()> {
    let said = succeeded("gpool gpu test", test(host, &["--all"], &SHORT)?)?;
    for part in ["GPU 0", "GPU 1", "answers of 80 of 80 multiprocessors are right", "keep what was written"] {
        ensure(said.contains(part), || format!("{part:?} is not said: {said}"))?;
    }
    ensure(told(host, EventKind::GpuTested)? == 2, || "two tests are not told".to_owned())?;
    let wide = text(&host.gpool(&["gpu", "ls", "--format", "wide"])?.stdout);
    ensure(wide.matches("passed").count() == 2, || format!("gpool gpu ls says {wide}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let line = format!("gpool_gpu_tests_total{{gpu_uuid=\"{}\",outcome=\"passed\"}} 1", uuid(host)?);
    ensure(metrics.contains(&line), || format!("gpool metrics lacks {line}"))?;
    let said = succeeded("gpool gpu test --due", test(host, &["--all", "--due", "1h"], &SHORT)?)?;
    ensure(said.matches("was tested in that time").count() == 2, || format!("it says {said}"))?;
    ensure(told(host, EventKind::GpuTested)? == 2, || "a GPU was tested again before it was due".to_owned())
}

/// Nobody hears of it but by a test.
fn computes_wrong(host: &mut Host) -> Result<()> {
    says(host, &["--wrong-multiprocessor", "7"])?;
    fails(host, &["0"], "wrong: ", "of multiprocessor 7")?;
    ensure(told(host, EventKind::GpuTestFailed)? == 1, || "a test that failed is not told".to_owned())?;
    is_closed(host)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    is_closed(host)?;
    let examined = text(&host.gpool(&["doctor"])?.stdout);
    let is_found = |line: &str| line.contains(CHECK) && line.contains("warn") && line.contains("test-failed");
    ensure(examined.lines().any(is_found), || format!("gpool doctor says {examined}"))
}

/// Who opens it knows of it. One that is in use is not tested.
fn is_opened_in_spite_of_it(host: &Host) -> Result<()> {
    let said = succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?)?;
    ensure(said.contains("although it shows test-failed"), || format!("gpool gpu undrain says {said}"))?;
    let tenant = Tenant::greedy(500).run(host, "tenant", &ASKED)?;
    let refused = test(host, &["0"], &SHORT)?;
    let said = text(&refused.stderr);
    ensure(refused.status.code() == Some(4) && said.contains("cannot be tested: 1 lease is on it"), || said.clone())?;
    let said = succeeded("gpool gpu test --due", test(host, &["--all", "--due", "0"], &SHORT)?)?;
    for part in ["is left out: 1 lease is on it", "GPU 1"] {
        ensure(said.contains(part), || format!("{part:?} is not said: {said}"))?;
    }
    host.engine.docker_text(&["rm", "-f", &tenant.id])?;
    let refused = test(host, &["7", "--due", "0"], &SHORT)?;
    ensure(refused.status.code() == Some(2), || format!("a GPU that is not there is tested: {:?}", refused.status))?;
    // Drained for it once more when it fails again.
    wait_for("an empty GPU", || Ok(in_the_way(host)?.is_none()))?;
    fails(host, &["0"], "wrong: ", "of multiprocessor 7")?;
    is_closed(host)?;
    says(host, &[])?;
    let said = succeeded("gpool gpu test", test(host, &["0"], &SHORT)?)?;
    ensure(said.contains("takes no new leases: drained by the supervisor"), || {
        format!("what to do is not said: {said}")
    })?;
    wait_for("a GPU that is healthy again", || Ok(health(host)? == "ok"))?;
    is_refused(host, &ASKED, &["GPOOL-E201", "by the supervisor: test-failed"])?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?).map(drop)
}

/// A container that wants nearly all memory starts while a test has the GPU, and has it to itself.
fn gives_way(host: &Host) -> Result<()> {
    let tester = begin(host, &LONG)?;
    let container = host.run_container("large", &LARGE, &[], &["sleep", "600"])?;
    let output = tester.wait_with_output().context("gpool gpu test")?;
    let said = text(&output.stdout);
    ensure(output.status.code() == Some(1) && said.contains("it gave way: 1 lease is on it"), || {
        format!("the test ended with {:?} and said {said}{}", output.status, text(&output.stderr))
    })?;
    host.engine.docker_text(&["rm", "-f", &container.id])?;
    wait_for("an empty GPU", || Ok(in_the_way(host)?.is_none()))
}

/// The supervisor that comes back hears of it, and does not take it for somebody's work.
fn goes_on_over_a_restart(host: &mut Host) -> Result<()> {
    let tester = begin(host, &LONG)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("the test to be known again", || Ok(view(host)?.under_way && in_the_way(host)?.is_none()))?;
    let container = host.run_container("after", &ASKED, &[], &["sleep", "600"])?;
    let said = text(&tester.wait_with_output().context("gpool gpu test")?.stdout);
    ensure(said.contains("it gave way: 1 lease is on it"), || format!("the test says {said}"))?;
    host.engine.docker_text(&["rm", "-f", &container.id])?;
    wait_for("an empty GPU", || Ok(in_the_way(host)?.is_none()))
}

/// What is wrong is known, whenever the test ends.
fn fails_and_gives_way(host: &Host) -> Result<()> {
    says(host, &["--wrong-multiprocessor", "7"])?;
    let tester = begin(host, &["--seconds", "300", "--memory", "8GiB"])?;
    // Arithmetic and products have ended when there are pieces of memory.
    wait_for("memory that is tried", || {
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        Ok(gpus[0].memory_used_bytes > 512 << 20)
    })?;
    let container = host.run_container("unlucky", &ASKED, &[], &["sleep", "600"])?;
    let output = tester.wait_with_output().context("gpool gpu test")?;
    let said = text(&output.stdout);
    for part in ["has FAILED", "wrong: ", "it gave way: 1 lease is on it"] {
        ensure(output.status.code() == Some(1) && said.contains(part), || format!("{part:?} is not said: {said}"))?;
    }
    host.engine.docker_text(&["rm", "-f", &container.id])?;
    is_closed(host)?;
    says(host, &[])?;
    succeeded("gpool gpu test", test(host, &["0"], &SHORT)?)?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?).map(drop)
}

/// By force: what it has started ends as well, and the next test may begin.
fn ends_with_who_began_it(host: &Host) -> Result<()> {
    let mut tester = begin(host, &LONG)?;
    let second = test(host, &["0"], &SHORT)?;
    let said = text(&second.stderr);
    ensure(second.status.code() == Some(4) && said.contains("tests it"), || format!("a second test says {said}"))?;
    tester.kill().context("kill")?;
    tester.wait().context("wait")?;
    wait_for("the program of the test to end", || Ok(testing_programs()? == 0))?;
    wait_for("an empty GPU", || Ok(in_the_way(host)?.is_none()))?;
    succeeded("gpool gpu test", test(host, &["0"], &SHORT)?).map(drop)
}

fn loses_a_bit(host: &Host) -> Result<()> {
    says(host, &["--bad-memory", "1048576"])?;
    fails(host, &["0"], "memory", "in bits 0x0000000000020000, the last at byte 0x100000")?;
    is_closed(host)?;
    says(host, &[])?;
    succeeded("gpool gpu test", test(host, &["0"], &SHORT)?)?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?).map(drop)
}

/// Of a GPU that is drained alone. Settings of the host are told and fail nothing.
fn is_diagnosed_by_dcgm(host: &Host) -> Result<()> {
    let refused = test(host, &["0", "--dcgm", "2"], &SHORT)?;
    let said = text(&refused.stderr);
    ensure(refused.status.code() == Some(4) && said.contains("gpool gpu drain"), || format!("it says {said}"))?;
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0", "--reason", "diagnosis"])?)?;
    fails(host, &["0", "--dcgm", "2"], "was not tested", "dcgmi is not installed")?;
    let program = Path::new("/run/dcgm/dcgmi");
    let play = |severity: u32, warning: &str| -> Result<()> {
        let answer = format!(
            r#"{{"DCGM Diagnostic":{{"test_categories":[{{"category":"Hardware","tests":[{{"name":"memory","results":[
            {{"entity_group":"GPU","entity_id":4,"status":"Fail","warnings":[{{"warning":"{warning}","error_severity":{severity}}}]}}]}}]}}]}}}}"#
        );
        let listed = format!("| 4 | Name: a GPU |\n| | Device UUID: {} |", uuid(host)?);
        // The number is DCGM's own.
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = discovery ] && {{ echo '{listed}'; exit 0; }}\n\
             [ \"$*\" = 'diag -r 2 -i 4 -j' ] || exit 3\necho '{answer}'\nexit 226\n"
        );
        fs::create_dir_all("/run/dcgm").and_then(|()| fs::write(program, script)).context("dcgmi")?;
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).context("dcgmi")
    };
    play(5, "Persistence mode is disabled")?;
    let said = succeeded("gpool gpu test --dcgm", test(host, &["0", "--dcgm", "2"], &SHORT)?)?;
    ensure(said.contains("of the host: memory: Persistence mode is disabled"), || format!("it says {said}"))?;
    play(2, "a bit is stuck")?;
    fails(host, &["0", "--dcgm", "2"], "dcgm", "memory: a bit is stuck")?;
    wait_for("what DCGM found", || Ok(health(host)? == "test-failed"))?;
    // A test without it takes nothing of that back.
    succeeded("gpool gpu test", test(host, &["0"], &SHORT)?)?;
    ensure(health(host)? == "test-failed" && view(host)?.failed == ["dcgm"], || format!("{:?}", view(host)))
}

/// Begins a long test of the first GPU, and comes back when it is under way and has memory.
fn begin(host: &Host, how: &[&str]) -> Result<std::process::Child> {
    let mut command = command(host, &["0"], how);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("gpool gpu test")?;
    wait_for("a test that is under way", || {
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        Ok(view(host)?.under_way && gpus[0].memory_used_bytes > 0)
    })?;
    ensure(in_the_way(host)?.is_none(), || "a test is in its own way".to_owned())?;
    Ok(child)
}

fn command(host: &Host, what: &[&str], how: &[&str]) -> Command {
    let mut command = host.command("gpool");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/run/dcgm:{path}")).args(["gpu", "test"]).args(what).args(how);
    command
}

fn test(host: &Host, what: &[&str], how: &[&str]) -> Result<Output> {
    command(host, what, how).output().context("gpool gpu test")
}

/// A test that fails and says both.
fn fails(host: &Host, what: &[&str], first: &str, second: &str) -> Result<()> {
    let output = test(host, what, &SHORT)?;
    let said = text(&output.stdout);
    ensure(output.status.code() == Some(1) && said.contains(first) && said.contains(second), || {
        format!("a test that is to say {first:?} and {second:?} says {said}{}", text(&output.stderr))
    })
}

/// It shows that it has failed, and takes nobody in for it.
fn is_closed(host: &Host) -> Result<()> {
    wait_for("a GPU that shows its test", || Ok(health(host)? == "test-failed"))?;
    is_refused(host, &ASKED, &["GPOOL-E201", "by the supervisor: test-failed, it has failed a test"])
}

/// Has the first GPU be so.
fn says(host: &Host, what: &[&str]) -> Result<()> {
    let mut command = host.command("gpool-simgpu");
    let output = command.arg("health").args(what).output().context("gpool-simgpu")?;
    succeeded("gpool-simgpu health", output).map(drop)
}

fn told(host: &Host, kind: EventKind) -> Result<usize> {
    Ok(host.events_of(kind)?.len())
}

fn view(host: &Host) -> Result<GpuTestView> {
    let views: Vec<GpuTestView> = host.client().get("/v1/gpus/tests")?;
    views.into_iter().next().ok_or_else(|| Failure::new("no GPU is there"))
}

fn in_the_way(host: &Host) -> Result<Option<String>> {
    Ok(view(host)?.in_the_way)
}

fn uuid(host: &Host) -> Result<String> {
    Ok(view(host)?.uuid.0)
}

fn health(host: &Host) -> Result<String> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    Ok(gpool_protocol::health_words(gpus[0].health.as_deref()))
}

/// How many programs that test a GPU run.
fn testing_programs() -> Result<usize> {
    let processes = fs::read_dir("/proc").context("/proc")?.flatten();
    // Names of processes are cut short.
    Ok(processes
        .filter(|entry| fs::read(entry.path().join("comm")).is_ok_and(|name| name == b"gpool-gpu-test\n"))
        .count())
}
