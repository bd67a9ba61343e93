//! `gpool exec`: one more command under the share of a command of `gpool run`.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::measure;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::{Inside, spawn_bound};
use crate::trace::Recorder;
use gpool_protocol::{LeaseState, LeaseView};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// How the command begins beside which the others are started.
const NAME: &str = "job-7";
/// What a shell makes of the signal 34.
const REAL_TIME: i32 = 128 + 34;
/// No other program of this host sleeps for so long.
const LONG: &str = "86397";

/// Says which signals it sees, and ends of one of them.
const COUNTING: &str = r#"
$| = 1;
$SIG{$_} = sub { print "$_[0]\n" } for qw(USR1 TERM);
$SIG{INT} = sub { exit 3 };
print "ready\n";
sleep 1 while 1;
"#;
/// After this long everything has been handed on.
const HANDED_ON: Duration = Duration::from_millis(400);

/// Starts commands beside tenants and beside one that only sleeps.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = two_have_one_share(&host).and_then(|()| beside_one_that_sleeps(&host));
    finish(host, outcome)
}

/// `gpool run` with these words, which goes on until it is stopped, and its lease.
fn start(host: &Host, words: &[&str]) -> Result<(Child, LeaseView)> {
    let before: Vec<LeaseView> = host.leases()?;
    let mut command = host.command("gpool");
    // Of the first two the program sees what it was started with, and not what the second one is in the caller.
    command.arg("run").args(words).env("MARK", "its").env("PYTHONPATH", "/nonexistent").stdout(Stdio::null());
    let started = spawn_bound(&mut command).context("gpool run")?;
    let is_new = |lease: &LeaseView| before.iter().all(|known| known.lease_id != lease.lease_id);
    let mut found = None;
    wait_for("a command to run", || {
        found = host.leases()?.into_iter().find(|lease| is_new(lease) && lease.state == LeaseState::Active);
        Ok(found.is_some())
    })?;
    Ok((started, found.ok_or_else(|| Failure::new("no lease"))?))
}

fn gpool_exec(host: &Host, words: &[&str]) -> Command {
    let mut command = host.command("gpool");
    command.arg("exec").args(words).env("MARK", "the caller's");
    command
}

fn output(host: &Host, words: &[&str]) -> Result<Output> {
    gpool_exec(host, words).stdin(Stdio::null()).output().context("gpool exec")
}

fn end(mut child: Child, what: &str) -> Result<()> {
    kill_process(Pid::from_child(&child), Signal::TERM).context(format!("{what} is gone"))?;
    let status = child.wait().context(format!("{what} is gone"))?;
    ensure(status.signal() == Some(15), || format!("after SIGTERM {what} ends with {status}"))
}

fn two_have_one_share(host: &Host) -> Result<()> {
    // The first one leaves room below the cap for the context of the second, which then takes all the rest.
    let tenant = ["gpool-tenant", "--kernel-us", "500", "--allocate-mib", "1024"];
    let twofold = ["--fraction", "0.4", "--memory", "4GiB", "--user", "nobody", "--"];
    let (first, its) = start(host, &[&twofold[..], &tenant].concat())?;
    let single = ["--fraction", "0.6", "--memory", "4GiB", "--"];
    let (other, others) = start(host, &[&single[..], &tenant].concat())?;
    let (id, other_id) = (its.container_id.0.as_str(), others.container_id.0.as_str());
    let mut second = gpool_exec(host, &[id, "--", "gpool-tenant", "--kernel-us", "700", "--chunk-mib", "16"]);
    let second = spawn_bound(second.stdout(Stdio::null())).context("gpool exec")?;
    let path = format!("/v1/leases/{}", its.lease_id);
    let processes = || -> Result<u32> { Ok(host.client().get::<LeaseView>(&path)?.processes) };
    wait_for("the lease to know both processes", || Ok(processes()? == 2))?;
    let works = |id: &str| -> Result<bool> { Ok(usage_of(&host.meter()?.read()?, id).kernels > 0) };
    wait_for("both commands to work", || Ok(works(id)? && works(other_id)?))?;
    // The guard looks once a second.
    wait_for("gpool ps --processes to show both", || {
        let listed = succeeded("gpool ps", host.gpool(&["ps", "--processes", "--format", "json"])?)?;
        let listed: Value = serde_json::from_str(&listed).context("gpool ps")?;
        let of_it = listed["processes"].as_array().into_iter().flatten().filter(|one| one["container_id"] == id);
        Ok(of_it.count() == 2)
    })?;

    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from_ns = now_ns();
    std::thread::sleep(Duration::from_secs(5));
    let to_ns = now_ns();
    let trace = recorder.stop()?;
    let error = measure::worst_proportion_error_points(&trace, &[(id, 0.4), (other_id, 0.6)], from_ns, to_ns);
    ensure(error <= 6.0, || format!("two commands under one share shift it by {error:.2} points"))?;
    let peak = usage_of(&host.meter()?.read()?, id).bytes_peak;
    ensure((3 << 30..=4_u64 << 30).contains(&peak), || format!("both together held {peak} bytes of a cap of 4 GiB"))?;
    host.nothing_found_by_the_guard()?;

    end(second, "gpool exec")?;
    wait_for("the second one to be forgotten", || Ok(processes()? == 1))?;
    end(first, "gpool run")?;
    end(other, "gpool run")?;
    wait_for("the ends of the leases", || Ok(host.leases()?.is_empty()))
}

fn beside_one_that_sleeps(host: &Host) -> Result<()> {
    let line = "export MARK=changed; exec sleep 600";
    let (job, lease) = start(host, &["--fraction", "0.3", "--name", NAME, "--user", "nobody", "--", "sh", "-c", line])?;
    ends_are_the_command_s(host)?;
    each_signal_is_seen_once(host)?;
    it_is_where_the_other_one_is(host, &lease)?;
    another_user_has_nothing_of_this_one_s(host)?;
    what_cannot_be_is_refused(host)?;
    a_killed_one_ends_its_command(host)?;
    all_end_with_the_first(host, job)
}

fn ends_are_the_command_s(host: &Host) -> Result<()> {
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -PIPE $$"], 141),
        (&["sh", "-c", "kill -34 $$"], REAL_TIME),
        (&["nonesuch"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = output(host, &[&[NAME, "--"], command].concat())?;
        let ended = output.status.code().or(output.status.signal().map(|signal| 128 + signal));
        let is_the_signal = output.status.signal().is_some() == (status > 128 && status != REAL_TIME);
        ensure(ended == Some(status) && is_the_signal, || {
            format!("{command:?} ended with {}: {}", output.status, text(&output.stderr))
        })?;
    }
    Ok(())
}

/// Whether it is sent to `gpool exec` alone or to its process group, which the command is in.
fn each_signal_is_seen_once(host: &Host) -> Result<()> {
    let mut command = gpool_exec(host, &[NAME, "--", "perl", "-e", COUNTING]);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut counter = spawn_bound(&mut command).context("gpool exec")?;
    let group = Pid::from_child(&counter);
    let mut said = BufReader::new(counter.stdout.take().ok_or_else(|| Failure::new("no pipe"))?);
    let mut ready = String::new();
    said.read_line(&mut ready).context("a command that counts")?;
    kill_process(group, Signal::USR1).context("gpool exec is gone")?;
    std::thread::sleep(HANDED_ON);
    kill_process_group(group, Signal::TERM).context("gpool exec is gone")?;
    std::thread::sleep(HANDED_ON);
    kill_process_group(group, Signal::INT).context("gpool exec is gone")?;
    let status = counter.wait().context("gpool exec")?;
    let mut seen = String::new();
    said.read_to_string(&mut seen).context("a command that counts")?;
    ensure(status.code() == Some(3) && seen == "USR1\nTERM\n", || format!("it saw {seen:?} and ended with {status}"))
}

/// Namespaces, cgroups, user and environment, and the directory of its own caller.
fn it_is_where_the_other_one_is(host: &Host, lease: &LeaseView) -> Result<()> {
    let init = lease.init_pid.ok_or_else(|| Failure::new("the lease has no init"))?;
    let groups = fs::read_to_string(format!("/proc/{init}/cgroup")).context("its cgroups")?;
    for (question, answer) in [
        ("id -un; id -Gn; grep CapEff /proc/self/status", "nobody\nnogroup\nCapEff:\t0000000000000000"),
        ("echo $MARK $NVIDIA_VISIBLE_DEVICES $PYTHONPATH $HOME", "its void /nonexistent /nonexistent"),
        ("cat /proc/self/cgroup", groups.trim()),
        ("ps -o comm= -p 1,2", "share-init\nsleep"),
        ("ls /dev/gpool | tr '\\n' ' '", "bell control lib real report"),
        ("ls /run/gpool", "gpool.sock"),
        ("perl -e 'ioctl(STDIN, 0x5412, my $key = \"x\"); print $! + 0'", "1"),
        ("pwd", "/run"),
    ] {
        let mut command = gpool_exec(host, &[NAME, "--", "sh", "-c", question]);
        command.stdin(Stdio::null()).current_dir("/run");
        let said = succeeded(question, command.output().context("gpool exec")?)?;
        ensure(said.trim() == answer, || format!("{question} answers {said:?} instead of {answer:?}"))?;
    }
    // By the lease's own id as well.
    succeeded("gpool exec of a lease", output(host, &[&lease.lease_id.0, "true"])?).map(drop)
}

/// What a user has put into the environment of his command does not run as root.
fn another_user_has_nothing_of_this_one_s(host: &Host) -> Result<()> {
    let question = "id -un; echo $MARK $NVIDIA_VISIBLE_DEVICES [$PYTHONPATH]; umount /dev/gpool/control 2>/dev/null || echo refused";
    let said = succeeded(question, output(host, &["--user", "root", NAME, "--", "sh", "-c", question])?)?;
    let want = ["root", "the caller's void []", "refused"];
    ensure(said.trim().lines().eq(want), || format!("as root it answers {said:?}"))
}

fn what_cannot_be_is_refused(host: &Host) -> Result<()> {
    let web = host.run_container("web", &[("GPOOL_FRACTION", "0.2")], &[], &["sleep", "600"])?;
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "gpool", "exec", NAME, "--", "true"];
    for (output, code, says) in [
        (output(host, &["nonesuch", "--", "true"])?, "GPOOL-E301", "nonesuch"),
        (output(host, &[&web.id[..12], "--", "true"])?, "GPOOL-E302", "docker exec"),
        (output(host, &[&web.id, "--", "true"])?, "GPOOL-E302", "kubectl exec"),
        (output(host, &["--user", "no-such-user", NAME, "--", "true"])?, "GPOOL-E101", "no-such-user"),
        (output(host, &["--socket", "/run/other.sock", NAME, "--", "true"])?, "GPOOL-E101", "--socket"),
        // As root of the share, and as its user.
        (output(host, &["--user", "root", NAME, "--", "gpool", "exec", NAME, "--", "true"])?, "GPOOL-E401", "within"),
        (output(host, &[NAME, "--", "gpool", "exec", NAME, "--", "true"])?, "GPOOL-E401", "within"),
        (host.command_named("setpriv").args(nobody).output().context("setpriv")?, "GPOOL-E401", "only root"),
    ] {
        let said = text(&output.stderr);
        let is_refused = output.status.code() == Some(125) && said.contains(code) && said.contains(says);
        ensure(is_refused, || format!("for {code} it ends with {} and says {said}", output.status))?;
    }
    host.engine.remove_all_containers()
}

/// Whether there is a program that sleeps for so long.
fn sleeps(how_long: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let command_lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    command_lines.into_iter().any(|line| line == format!("sleep\0{how_long}\0").as_bytes())
}

/// Starts one that sleeps beside the other one, and waits until it does.
fn start_sleeping(host: &Host) -> Result<Child> {
    let mut command = gpool_exec(host, &[NAME, "--", "sleep", LONG]);
    let started = spawn_bound(command.stdin(Stdio::null()).stderr(Stdio::piped())).context("gpool exec")?;
    wait_for("the command of gpool exec", || Ok(sleeps(LONG)))?;
    Ok(started)
}

fn a_killed_one_ends_its_command(host: &Host) -> Result<()> {
    let mut killed = start_sleeping(host)?;
    kill_process(Pid::from_child(&killed), Signal::KILL).context("gpool exec is gone")?;
    killed.wait().context("gpool exec")?;
    wait_for("the command of a killed gpool exec to end", || Ok(!sleeps(LONG)))?;
    // The other one has not noticed.
    succeeded("gpool exec", output(host, &[NAME, "--", "true"])?).map(drop)
}

/// And nobody waits for a `gpool exec` that is stopped.
fn all_end_with_the_first(host: &Host, job: Child) -> Result<()> {
    let beside = start_sleeping(host)?;
    let stopped = Pid::from_child(&beside);
    kill_process(stopped, Signal::STOP).context("gpool exec is gone")?;
    end(job, "gpool run")?;
    wait_for("the end of the lease", || Ok(host.leases()?.is_empty()))?;
    ensure(!sleeps(LONG), || "a command of gpool exec has outlived the share".into())?;
    let stat = Path::new("/proc").join(stopped.as_raw_nonzero().to_string()).join("stat");
    let is_there = fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
    ensure(is_there, || "gpool exec was not stopped meanwhile".into())?;
    kill_process(stopped, Signal::CONT).context("gpool exec is gone")?;
    let ended = beside.wait_with_output().context("gpool exec")?;
    let said = text(&ended.stderr);
    ensure(ended.status.signal() == Some(9) && said.contains("has ended"), || {
        format!("with the end of gpool run gpool exec ends with {} and says {said}", ended.status)
    })
}
