//! `gpool run`: commands of the host with a share, without a container engine.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{DRIVER_LIBRARIES, Host, SIMULATED_GPU, succeeded, text};
use crate::measure;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::{Inside, spawn_bound};
use crate::trace::Recorder;
use gpool_protocol::{LeaseState, LeaseView};
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// How long something may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where containers and commands find the driver's libraries.
const LIBRARY_DIR: &str = "/usr/lib/x86_64-linux-gnu";

/// Runs commands that end well, badly, by signals and not at all.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 2, "")?;
    keep_places_for_long(&host)?;
    let outcome = ends_are_the_command_s(&host)
        .and_then(|()| it_sees_its_lease_and_nothing_else(&host))
        .and_then(|()| it_stays_in_its_caller_s_directory(&host))
        .and_then(|()| what_is_no_text_is_not_lost(&host))
        .and_then(|()| it_finds_its_gpu_whichever_its_caller_uses(&host))
        .and_then(|()| what_is_mounted_beside_the_shims_stays(&host))
        .and_then(|()| it_has_a_whole_gpu(&host))
        .and_then(|()| two_of_them_share(&host))
        .and_then(|()| one_at_a_time_has_a_lock(&host))
        .and_then(|()| one_whose_terminal_goes_ends(&host))
        .and_then(|()| a_killed_one_ends(&host));
    finish(host, outcome)
}

/// For longer than this scenario takes: what ends has to end by itself.
fn keep_places_for_long(host: &Host) -> Result<()> {
    let directory = Path::new("/etc/gpool/conf.d");
    fs::create_dir_all(directory).context(directory.display())?;
    let file = directory.join("hold.toml");
    fs::write(&file, "[lease]\nhold_ms = 600000\n").context(file.display())?;
    let reloaded = host.gpool(&["config", "reload"])?;
    ensure(reloaded.status.success(), || format!("gpool config reload says {}", text(&reloaded.stderr)))
}

fn gpool_run(host: &Host, words: &[&str]) -> Result<Output> {
    host.gpool(&[&["run"], words].concat())
}

/// What a shell makes of the signal 34.
const REAL_TIME: i32 = 128 + 34;

/// Exit statuses, and what is left: nothing, and no place is kept.
fn ends_are_the_command_s(host: &Host) -> Result<()> {
    let before = traces_on_the_host();
    let share = ["--fraction", "0.9", "--memory", "1GiB"];
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -PIPE $$"], 141),
        // Real-time signals have no names. It ends with the status that a shell makes of one.
        (&["sh", "-c", "kill -34 $$"], REAL_TIME),
        (&["sh", "-c", "(sh -c 'kill -40 $$' &) ; sleep 0.3; exit 7"], 7),
        (&["nonesuch"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = gpool_run(host, &[&share[..], &["--"], command].concat())?;
        // By the signal itself, as systemd and shells' loops look at it.
        let ended = output.status.code().or(output.status.signal().map(|signal| 128 + signal));
        let is_the_signal = output.status.signal().is_some() == (status > 128 && status != REAL_TIME);
        ensure(ended == Some(status) && is_the_signal, || {
            format!("{command:?} ended with {}: {}", output.status, text(&output.stderr))
        })?;
        // Without the hold: each of the next ones needs nine tenths, too.
        wait_for("the end of its lease", || Ok(host.leases()?.is_empty())).context(format!("{command:?}"))?;
    }
    for (words, code) in [
        (&["--fraction", "1.5", "--", "true"][..], "GPOOL-E101"),
        (&["--memory", "1GiB", "--", "true"], "GPOOL-E101"),
        (&["--fraction", "0.3", "--key", "fracton=1", "--", "true"], "GPOOL-E102"),
        (&["--fraction", "0.3", "--user", "no-such-user", "--", "true"], "GPOOL-E101"),
        (&["--fraction", "0.3", "--memory", "999GiB", "--", "true"], "GPOOL-E202"),
        (&["--fraction", "0.3", "--key", "fraction=0.4", "--", "true"], "GPOOL-E101"),
        (&["--fraction", "0.3", "--", "gpool", "run", "--fraction", "0.1", "--", "true"], "GPOOL-E401"),
        (&["--fraction", "0.3", "--socket", "/run/other.sock", "--", "true"], "GPOOL-E101"),
    ] {
        is_not_started(host, words, code)?;
    }
    is_refused_where_the_configuration_is_broken(host)?;
    fails_after_it_was_granted(host)?;
    ends_where_ends_are_ignored(host)?;
    let after = traces_on_the_host();
    let left: Vec<&PathBuf> = after.difference(&before).collect();
    ensure(left.is_empty(), || format!("left on the host: {left:?}"))
}

fn is_not_started(host: &Host, words: &[&str], code: &str) -> Result<()> {
    let output = gpool_run(host, words)?;
    let said = text(&output.stderr);
    let is_refused = output.status.code() == Some(125) && said.contains(code) && said.lines().count() == 1;
    ensure(is_refused, || format!("{words:?} ended with {:?} and says {said}", output.status.code()))
}

/// With the status of everything that keeps a command from starting, not with that of other verbs.
fn is_refused_where_the_configuration_is_broken(host: &Host) -> Result<()> {
    let file = Path::new("/etc/gpool/conf.d/broken.toml");
    fs::write(file, "[lease\n").context(file.display())?;
    let outcome = is_not_started(host, &["--fraction", "0.3", "--", "true"], "GPOOL-E004");
    fs::remove_file(file).context(file.display())?;
    outcome
}

/// In a mount namespace that mounts of the host do not reach a command has no region: nothing of its lease stays, and
/// nobody waits for it.
fn fails_after_it_was_granted(host: &Host) -> Result<()> {
    let mut command = host.command_named("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(host.stage.program("gpool"));
    let output = command.args(["run", "--fraction", "0.9", "--memory", "1GiB", "--", "true"]).output();
    let output = output.context("unshare")?;
    let said = text(&output.stderr);
    let is_refused = output.status.code() == Some(125) && said.contains("cannot be reached from the mount namespace");
    ensure(is_refused, || format!("out of reach it ended with {:?} and says {said}", output.status.code()))?;
    let leases = host.leases()?;
    ensure(leases.is_empty(), || format!("what it was granted stays: {leases:?}"))
}

/// A caller that ignores SIGCHLD, as some daemons do, hands that on to what it executes.
fn ends_where_ends_are_ignored(host: &Host) -> Result<()> {
    let words = ["20", "env", "--ignore-signal=CHLD", "gpool", "run", "--fraction", "0.9", "--memory", "1GiB"];
    let command = ["--user", "root", "--", "sh", "-c", "exit 7"];
    let output = host.command_named("timeout").args(words).args(command).output().context("timeout")?;
    let ended = output.status.code();
    ensure(ended == Some(7), || format!("with SIGCHLD ignored it ended with {ended:?}: {}", text(&output.stderr)))?;
    gone(host, "an end of which no signal comes")
}

/// Names in the places that a command's namespace changes: of those nothing may be seen outside.
fn traces_on_the_host() -> BTreeSet<PathBuf> {
    let places = ["/dev", "/usr/lib/x86_64-linux-gnu", "/run/gpool/leases"].map(PathBuf::from);
    // Cgroups are the machine's: others come and go there.
    let groups = crate::cgroups::hierarchies().into_iter().flat_map(names_in);
    let groups = groups.filter(|name| name.to_string_lossy().contains("gpool-run-"));
    places.into_iter().flat_map(names_in).chain(groups).collect()
}

fn names_in(directory: PathBuf) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Each line is a question to the shell in the command and what it answers.
const QUESTIONS: [(&str, &str); 14] = [
    // The device nodes of the lease alone, of two GPUs that the host has.
    ("ls /dev | grep -c '^nvidia[0-9]'", "1"),
    ("ls /dev/null /dev/pts/ptmx", "/dev/null\n/dev/pts/ptmx"),
    // Its own processes alone.
    ("ps -e -o comm= | grep -e gpool-superv -e dockerd || echo none", "none"),
    ("ls /dev/gpool | tr '\\n' ' '", "bell control lib real report"),
    // Of other leases there is nothing, and the socket serves as on the host.
    ("ls /run/gpool", "gpool.sock"),
    ("gpool ps | tail -n +2 | wc -l", "1"),
    // What could undo it is refused.
    ("umount /usr/lib/x86_64-linux-gnu/libcuda.so.1 2>/dev/null || echo refused", "refused"),
    ("mount -t tmpfs none /mnt 2>/dev/null || echo refused", "refused"),
    ("mknod /tmp/gpool-run-node c 195 1 2>/dev/null || echo refused", "refused"),
    ("for g in /sys/fs/cgroup/*; do mkdir $g/gpool-run-test 2>/dev/null && echo made; done; true", ""),
    ("touch /run/gpool/x 2>/dev/null || echo refused", "refused"),
    // This host lacks an unversioned name there, so the directory is a layer of the command's own, where it would be lost.
    ("touch /usr/lib/x86_64-linux-gnu/gpool-run-x 2>/dev/null || echo refused", "refused"),
    ("echo $NVIDIA_VISIBLE_DEVICES $KEPT", "void kept"),
    MAKES_A_TERMINAL,
];
/// A program makes a terminal of its own and runs another on it.
const MAKES_A_TERMINAL: (&str, &str) = ("script -qec true /dev/null </dev/null >/dev/null && echo made", "made");
/// TIOCSTI, refused with EPERM before the kernel looks whether there is a terminal at all.
const TYPES_FOR_ROOT: (&str, &str) = ("perl -e 'ioctl(STDIN, 0x5412, my $key = \"x\"); print $! + 0'", "1");

fn it_sees_its_lease_and_nothing_else(host: &Host) -> Result<()> {
    for (question, answer) in QUESTIONS {
        // On a busy host those before it end a moment later.
        wait_for("leases to have ended", || Ok(host.leases()?.is_empty()))?;
        let words = ["--fraction", "0.3", "--memory", "2GiB", "--", "env", "KEPT=kept", "sh", "-c", question];
        let said = succeeded(question, gpool_run(host, &words)?)?;
        ensure(said.trim() == answer, || format!("{question} answers {said:?} instead of {answer:?}"))?;
    }
    let who = "id -un; id -Gn; echo $HOME; grep CapEff /proc/self/status";
    let said = as_nobody(host, who)?;
    let want = ["nobody", "nogroup", "/nonexistent", "CapEff:\t0000000000000000"];
    ensure(said.lines().eq(want), || format!("as nobody it is {said:?}"))?;
    for (question, answer) in [MAKES_A_TERMINAL, TYPES_FOR_ROOT] {
        let said = as_nobody(host, question)?;
        ensure(said == answer, || format!("as nobody {question} answers {said:?}"))?;
    }
    // A program that knows nothing of gpool gets its cap, as in a container.
    let tenant = ["gpool-tenant", "--chunk-mib", "64", "--seconds", "1"];
    let words = [&["--fraction", "0.3", "--memory", "2GiB", "--user", "nobody", "--"][..], &tenant].concat();
    let said = succeeded("a tenant", gpool_run(host, &words)?)?;
    ensure(!said.is_empty(), || "the tenant says nothing".into())?;
    let meter = host.meter()?.read()?;
    let peak = usage_of(&meter, "gpool-run-").bytes_peak;
    ensure((1 << 30..=2_u64 << 30).contains(&peak), || format!("a cap of 2 GiB gave {peak} bytes"))
}

/// What the shell answers that runs as nobody.
fn as_nobody(host: &Host, question: &str) -> Result<String> {
    let words = ["--fraction", "0.3", "--user", "nobody", "--", "sh", "-c", question];
    succeeded(question, gpool_run(host, &words)?)
}

/// Also where its user could not enter it: root's own home is closed to others.
fn it_stays_in_its_caller_s_directory(host: &Host) -> Result<()> {
    let private = Path::new("/run/gpool-of-root-alone");
    fs::DirBuilder::new().mode(0o700).create(private).context(private.display())?;
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.3", "--user", "nobody", "--", "pwd"]).current_dir(private);
    let said = succeeded("a command in a directory of root", command.output().context("gpool run")?)?;
    ensure(Path::new(&said) == private, || format!("in {} it is in {said:?}", private.display()))?;
    fs::remove_dir(private).context(private.display())?;
    // Not in another one, where the command would leave what it writes.
    for (directory, then) in [("/run/gpool-removed", "rmdir /run/gpool-removed &&"), ("/run/gpool-\\377", "")] {
        let line =
            format!("d=$(printf '{directory}') && mkdir $d && cd $d && {then} exec gpool run --fraction 0.3 -- pwd");
        let output = host.command_named("sh").args(["-c", &line]).output().context("sh")?;
        let said = text(&output.stderr);
        let is_refused = output.status.code() == Some(125) && said.contains("GPOOL-E511") && output.stdout.is_empty();
        ensure(is_refused, || format!("in {directory} it ends with {} and says {said}", output.status))?;
    }
    Ok(())
}

/// A variable in another encoding than UTF-8 is the command's, too, and a script without `#!` is told for what it is.
fn what_is_no_text_is_not_lost(host: &Host) -> Result<()> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.3", "--", "printenv", "LATIN"]).env("LATIN", OsStr::from_bytes(b"caf\xe9"));
    let output = command.output().context("gpool run")?;
    ensure(output.stdout == b"caf\xe9\n", || format!("LATIN is {:?} for it", text(&output.stdout)))?;
    let script = Path::new("/run/gpool-no-script");
    fs::write(script, "echo\n").context(script.display())?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).context(script.display())?;
    let output = gpool_run(host, &["--fraction", "0.3", "--", "/run/gpool-no-script"])?;
    let said = text(&output.stderr);
    ensure(output.status.code() == Some(126) && said.contains("#!"), || format!("{} and says {said}", output.status))
}

/// A caller that has chosen a GPU of the host has chosen none of the lease's, which are counted anew.
fn it_finds_its_gpu_whichever_its_caller_uses(host: &Host) -> Result<()> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.3", "--memory", "2GiB", "--", "gpool-tenant", "--seconds", "1"]);
    command.env("CUDA_VISIBLE_DEVICES", "7").env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let said = succeeded("a tenant whose caller uses another GPU", command.output().context("gpool run")?)?;
    ensure(!said.is_empty(), || "the tenant whose caller uses another GPU says nothing".into())
}

/// A file that is mounted below the directory in which room for the shims is made, as toolkits mount the driver's.
fn what_is_mounted_beside_the_shims_stays(host: &Host) -> Result<()> {
    let (source, place) = (Path::new("/etc/os-release"), Path::new(LIBRARY_DIR).join("gconv/gconv-modules"));
    mount_bind(source, &place).context(place.display())?;
    let words = ["--fraction", "0.3", "--memory", "2GiB", "--", "cat"];
    let outcome = gpool_run(host, &[&words[..], &[&place.to_string_lossy()]].concat());
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).context(place.display())?;
    let said = succeeded("gpool run beside a mounted file", outcome?)?;
    let want = std::fs::read_to_string(source).context(source.display())?;
    ensure(said.trim() == want.trim(), || format!("{} is {said:?}, not what is mounted there", place.display()))
}

/// With the driver's own libraries, on a host that has them where the command finds them: each is mounted over itself.
fn it_has_a_whole_gpu(host: &Host) -> Result<()> {
    let question =
        "grep -c 'libcuda.so.1 ro,' /proc/self/mountinfo; ls /dev/gpool 2>/dev/null; gpool-tenant --seconds 1 >&2";
    let words = ["--key", "mode=exclusive", "--", "sh", "-c", question];
    let driver = Path::new(LIBRARY_DIR);
    with_the_driver_at(driver)?;
    let outcome = succeeded("gpool run with a whole GPU", gpool_run(host, &words)?);
    // With what is mounted on it.
    rustix::mount::unmount(driver, rustix::mount::UnmountFlags::DETACH).context(driver.display())?;
    let said = outcome?;
    // Once more for containers that it makes.
    ensure(said.trim() == "2\nlib", || format!("with a whole GPU it sees {said:?}"))
}

/// In this run's own mount namespace the driver's libraries lie in `directory`, as well as where they are.
fn with_the_driver_at(directory: &Path) -> Result<()> {
    let layer = Path::new("/run/gpool-layer");
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    [&upper, &work].into_iter().try_for_each(std::fs::create_dir_all).context(layer.display())?;
    let flags = MountFlags::empty();
    let data = format!("lowerdir={},upperdir={},workdir={}", directory.display(), upper.display(), work.display());
    let data = std::ffi::CString::new(data).context("the layer's options")?;
    mount("overlay", directory, "overlay", flags, data.as_c_str()).context(directory.display())?;
    for name in DRIVER_LIBRARIES {
        let place = directory.join(name);
        std::fs::write(&place, "").context(place.display())?;
        mount_bind(Path::new(SIMULATED_GPU).join("lib").join(name), &place).context(place.display())?;
    }
    Ok(())
}

/// Starts a tenant under `gpool run` that goes on until it is stopped.
fn start(host: &Host, fraction: &str) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", fraction, "--memory", "2GiB", "--", "gpool-tenant"]);
    command.args(["--kernel-us", "500", "--allocate-mib", "256"]).stdout(Stdio::null());
    spawn_bound(&mut command).context("gpool run")
}

fn bound(host: &Host, number: usize) -> Result<Vec<LeaseView>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut leases = host.leases()?;
        leases.retain(|lease| lease.state == LeaseState::Active && lease.processes == 1);
        if leases.len() == number {
            leases.sort_by_key(|lease| lease.fraction_permille);
            return Ok(leases);
        }
        ensure(Instant::now() < deadline, || format!("{} commands run instead of {number}", leases.len()))?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_until_running(host: &Host, ids: &[String]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let runs = |id: &String| Ok(usage_of(&host.meter()?.read()?, id).kernels > 0);
    while !ids.iter().map(runs).collect::<Result<Vec<bool>>>()?.into_iter().all(|runs| runs) {
        ensure(Instant::now() < deadline, || "a command runs no kernel".into())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn two_of_them_share(host: &Host) -> Result<()> {
    let started = [start(host, "0.3")?, start(host, "0.6")?];
    let leases = bound(host, 2)?;
    ensure(leases.iter().all(|lease| lease.enforcement == "co-operative"), || {
        format!("they are shown as {}", leases[0].enforcement)
    })?;
    let ids: Vec<String> = leases.iter().map(|lease| lease.container_id.0.clone()).collect();
    wait_until_running(host, &ids)?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from_ns = now_ns();
    std::thread::sleep(Duration::from_secs(4));
    let to_ns = now_ns();
    let trace = recorder.stop()?;
    let shares = [(ids[0].as_str(), 1.0 / 3.0), (ids[1].as_str(), 2.0 / 3.0)];
    let error = measure::worst_proportion_error_points(&trace, &shares, from_ns, to_ns);
    ensure(error <= 6.0, || format!("two commands are {error:.2} points off their shares"))?;
    host.nothing_found_by_the_guard()?;
    // The signal is the command's, and so is the end.
    for mut child in started {
        signal(&child, Signal::TERM)?;
        let status = child.wait().context("gpool run")?;
        ensure(status.signal() == Some(15), || format!("after SIGTERM gpool run ends with {status}"))?;
    }
    gone(host, "SIGTERM to gpool run")
}

/// `gpool run --lock`: while a command goes on another one with the same file is not started; and its id begins as `--name` says.
fn one_at_a_time_has_a_lock(host: &Host) -> Result<()> {
    const WORDS: [&str; 8] =
        ["run", "--fraction", "0.3", "--name", "job-7", "--lock", "/run/gpool-run-command.lock", "--"];
    let mut command = host.command("gpool");
    command.args(WORDS).args(["sleep", "600"]);
    let mut first = spawn_bound(&mut command).context("gpool run")?;
    let is_named = || {
        let leases = host.leases()?;
        Ok(leases.iter().any(|its| its.state == LeaseState::Active && its.container_id.0.starts_with("job-7-")))
    };
    wait_for("a command with a name", is_named)?;
    is_not_started(host, &[&WORDS[1..], &["true"]].concat(), "GPOOL-E511")?;
    signal(&first, Signal::TERM)?;
    first.wait().context("gpool run")?;
    succeeded("the next one", host.gpool(&[&WORDS[..], &["true"]].concat())?)?;
    is_not_started(host, &["--fraction", "0.3", "--name", "a b", "--", "true"], "GPOOL-E101")?;
    gone(host, "a lock")
}

/// A terminal that hangs up tells the leader of its session alone, and that is `gpool run` here.
fn one_whose_terminal_goes_ends(host: &Host) -> Result<()> {
    // Where this test runs under nohup the command would go on.
    let mut command = host.command_named("env");
    command.args([
        "--default-signal=HUP",
        "script",
        "-qc",
        "exec gpool run --fraction 0.9 --memory 1GiB -- sleep 600",
        "/dev/null",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut terminal = spawn_bound(&mut command).context("script")?;
    let is_bound = || Ok(host.leases()?.iter().any(|lease| lease.state == LeaseState::Active));
    wait_for("a command on a terminal", is_bound)?;
    terminal.kill().context("script")?;
    terminal.wait().context("script")?;
    gone(host, "the end of its terminal")
}

/// SIGKILL to `gpool run` ends the command; the supervisor removes its cgroup with the lease.
fn a_killed_one_ends(host: &Host) -> Result<()> {
    // Another run of the tests may have left some, whose pids are somebody else's here.
    let before = groups_on_the_host();
    let mut killed = start(host, "0.9")?;
    bound(host, 1)?;
    signal(&killed, Signal::KILL)?;
    killed.wait().context("gpool run")?;
    gone(host, "SIGKILL to gpool run")?;
    let left = || groups_on_the_host().into_iter().filter(|path| !before.contains(path)).collect::<Vec<PathBuf>>();
    ensure(left().is_empty(), || format!("left of the killed one: {:?}", left()))?;
    succeeded("the next one", gpool_run(host, &["--fraction", "0.9", "--", "true"])?)?;
    ensure(left().is_empty(), || format!("left of the next one: {:?}", left()))
}

fn groups_on_the_host() -> Vec<PathBuf> {
    traces_on_the_host().into_iter().filter(|path| path.to_string_lossy().contains("gpool-run-")).collect()
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(child), signal).context("gpool run is gone")
}

fn gone(host: &Host, why: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !host.leases().context(why)?.is_empty() {
        if Instant::now() > deadline {
            return Err(Failure::new(format!("after {why} a lease is left")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
