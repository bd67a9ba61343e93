//! `gpool run`: how often its command sees a signal, however that is sent.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, spawn_bound};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What a program may count on, with the names that perl has for them.
const SIGNALS: [(Signal, &str); 7] = [
    (Signal::TERM, "TERM"),
    (Signal::INT, "INT"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
    (Signal::CONT, "CONT"),
];
/// Writes down each signal that it sees, and ends of none.
const COUNTING: &str = r#"
open my $log, '>>', '/run/gpool-counted.log' or die;
for my $name (qw(TERM INT HUP QUIT USR1 USR2 CONT)) {
    $SIG{$name} = sub { syswrite $log, "$_[0]\n" };
}
syswrite $log, "ready\n";
sleep 1 while 1;
"#;
const PROGRAM: &str = "/run/gpool-counter.pl";
const LOG: &str = "/run/gpool-counted.log";
/// Stops itself, as editors do, together with its process group as far as it may.
const STOPPING: &str = r#"
open my $log, '>>', '/run/gpool-counted.log' or die;
syswrite $log, "ready\n";
kill $ARGV[0] => 0;
syswrite $log, "back\n";
sleep 1 while 1;
"#;
const STOPPER: &str = "/run/gpool-stopper.pl";
const COUNTER: [&str; 2] = ["perl", PROGRAM];
const SHARE: [&str; 3] = ["run", "--fraction", "0.3"];
/// After this long everything has been handed on.
const HANDED_ON: Duration = Duration::from_millis(400);
/// What systemd and Slurm may need from one process to the next.
const NEXT: Duration = Duration::from_millis(5);

/// Sends signals in all the ways in which people and programs do.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    fs::write(PROGRAM, COUNTING).context(PROGRAM)?;
    fs::write(STOPPER, STOPPING).context(STOPPER)?;
    let outcome = it_counts_what_it_is_sent(&host)
        .and_then(|()| it_counts_in_a_session_of_its_own(&host))
        .and_then(|()| it_counts_what_timeout_sends(&host))
        .and_then(|()| it_counts_keys_and_the_end_of_its_terminal(&host))
        .and_then(|()| it_is_a_job_of_its_shell(&host))
        .and_then(|()| one_that_stops_itself_gives_the_terminal_back(&host))
        .and_then(|()| one_that_is_stopped_alone_stops_nobody(&host));
    finish(host, outcome)
}

/// A command that counts.
struct Counter {
    started: Child,
    /// `gpool run`, its inner half and the command, in the order in which they started.
    processes: Vec<Pid>,
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy)]
enum To {
    /// `kill PID`, or a unit with `KillMode=mixed`.
    One,
    /// `kill -- -PGID`, as shells and `timeout` do.
    Group,
    /// One after the other, as systemd and Slurm do.
    Each,
    /// The same, should the kernel list them in another order.
    EachBackwards,
}

impl Counter {
    /// Starts `command`, which is to end in a counter, and waits until that counts. Of the process that is started, of
    /// its first child and so on there are so many around `gpool run`.
    fn start(command: &mut Command, around: usize, also: impl FnOnce(&mut Child) -> Result<()>) -> Result<Self> {
        // Everybody's: also a command that is nobody's writes there.
        fs::write(LOG, "").context(LOG)?;
        fs::set_permissions(LOG, Permissions::from_mode(0o666)).context(LOG)?;
        let mut started = spawn_bound(command).context("a command that counts")?;
        also(&mut started)?;
        wait_for("a command that counts", || Ok(count("ready")? == 1))?;
        let outer = (0..around).try_fold(Pid::from_child(&started), |at, _| child_of(at))?;
        let inner = child_of(outer)?;
        Ok(Self { started, processes: vec![outer, inner, child_of(inner)?] })
    }

    /// A counter behind `words` of `gpool run`, with a process group of its own.
    fn plain(host: &Host, words: &[&str]) -> Result<Self> {
        Self::start(host.command("gpool").args(SHARE).args(words).args(COUNTER).process_group(0), 0, |_| Ok(()))
    }

    fn send(&self, signal: Signal, to: To) -> Result<()> {
        let one_by_one = |pid: &Pid| {
            std::thread::sleep(NEXT);
            kill_process(*pid, signal)
        };
        match to {
            To::One => kill_process(self.processes[0], signal),
            To::Group => kill_process_group(self.processes[0], signal),
            To::Each => self.processes.iter().try_for_each(one_by_one),
            To::EachBackwards => self.processes.iter().rev().try_for_each(one_by_one),
        }
        .context(format!("{signal:?} to {to:?}"))
    }

    /// Sends one of each and counts.
    fn counts_one_of_each(&self, to: To) -> Result<()> {
        let counted = || SIGNALS.into_iter().map(|(_, name)| count(name)).collect::<Result<Vec<usize>>>();
        let before = counted()?;
        for (signal, _) in SIGNALS {
            self.send(signal, to)?;
        }
        std::thread::sleep(HANDED_ON);
        let seen: Vec<usize> = counted()?.iter().zip(before).map(|(after, before)| after - before).collect();
        ensure(seen == [1; SIGNALS.len()], || {
            let names = SIGNALS.map(|(_, name)| name);
            format!("of one each of {names:?} to {to:?} it saw {seen:?}")
        })
    }

    /// Ends it, whatever is around it, and with it all that it started.
    fn end(mut self) -> Result<()> {
        kill_process(self.processes[0], Signal::KILL).context("gpool run is gone")?;
        self.started.kill().and_then(|()| self.started.wait()).context("a command that counts")?;
        let is_gone = |pid: &Pid| !Path::new("/proc").join(pid.as_raw_nonzero().to_string()).exists();
        // The next one has the same log.
        wait_for("the end of a command that counts", || Ok(self.processes.iter().all(is_gone)))
    }
}

/// How often the command of this moment wrote `word`.
fn count(word: &str) -> Result<usize> {
    let said = fs::read_to_string(LOG).context(LOG)?;
    Ok(said.lines().filter(|line| *line == word).count())
}

fn is_seen_once(name: &str, how: &str) -> Result<()> {
    std::thread::sleep(HANDED_ON);
    let seen = count(name)?;
    ensure(seen == 1, || format!("{how} it saw {name} {seen} times"))
}

fn child_of(pid: Pid) -> Result<Pid> {
    let pid = pid.as_raw_nonzero();
    let file = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&file).context(&file)?;
    let first = children.split_whitespace().next().and_then(|child| child.parse().ok()).and_then(Pid::from_raw);
    first.ok_or_else(|| Failure::new(format!("{pid} has no child")))
}

/// `T` for one that is stopped.
fn state(pid: Pid) -> Result<String> {
    let file = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let said = fs::read_to_string(&file).context(&file)?;
    let behind_the_name = said.rsplit(") ").next().unwrap_or_default();
    Ok(behind_the_name.chars().take(1).collect())
}

fn it_counts_what_it_is_sent(host: &Host) -> Result<()> {
    for words in [&["--"][..], &["--user", "nobody", "--"]] {
        let counter = Counter::plain(host, words)?;
        for to in [To::One, To::Group, To::Each, To::EachBackwards] {
            counter.counts_one_of_each(to).context(words.join(" "))?;
        }
        it_counts_what_names_it(host).context(words.join(" "))?;
        counter.end()?;
    }
    Ok(())
}

/// Who looks for a name finds `gpool run` alone, or all of them.
fn it_counts_what_names_it(host: &Host) -> Result<()> {
    for words in [&["gpool-run"][..], &["-f", "gpool-run"], &["-f", PROGRAM], &["perl"]] {
        let before = count("USR1")?;
        let sent = host.command_named("pkill").arg("-USR1").args(words).status().context("pkill")?;
        std::thread::sleep(HANDED_ON);
        let seen = count("USR1")? - before;
        ensure(sent.success() && seen == 1, || format!("of pkill {words:?} it saw USR1 {seen} times"))?;
    }
    Ok(())
}

/// What is sent to the group of `gpool run` does not reach it, and it shall not be left behind.
fn it_counts_in_a_session_of_its_own(host: &Host) -> Result<()> {
    let counter = Counter::plain(host, &["--", "setsid"])?;
    for to in [To::One, To::Group] {
        counter.counts_one_of_each(to).context("in a session of its own")?;
    }
    counter.end()
}

/// It sends to its child and to the group, and SIGCONT besides.
fn it_counts_what_timeout_sends(host: &Host) -> Result<()> {
    let mut command = host.command_named("timeout");
    command.args(["-s", "USR1", "2", "gpool"]).args(SHARE).arg("--").args(COUNTER);
    let counter = Counter::start(&mut command, 1, |_| Ok(()))?;
    wait_for("the end of its time", || Ok(count("USR1")? > 0))?;
    is_seen_once("USR1", "of timeout")?;
    is_seen_once("CONT", "of timeout")?;
    counter.end()
}

/// Runs `line` on a terminal.
fn on_a_terminal(host: &Host, line: &str) -> Command {
    let mut command = host.command_named("script");
    command.args(["-qc", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn type_into(terminal: &mut Child, keys: &str) -> Result<()> {
    let keyboard = terminal.stdin.as_mut().ok_or_else(|| Failure::new("no keyboard"))?;
    keyboard.write_all(keys.as_bytes()).and_then(|()| keyboard.flush()).context("typing")
}

fn it_counts_keys_and_the_end_of_its_terminal(host: &Host) -> Result<()> {
    let line = format!("exec gpool {} -- {}", SHARE.join(" "), COUNTER.join(" "));
    let mut counter = Counter::start(&mut on_a_terminal(host, &line), 1, |_| Ok(()))?;
    for (key, name) in [("\x03", "INT"), ("\x1c", "QUIT")] {
        type_into(&mut counter.started, key)?;
        is_seen_once(name, "of a key")?;
    }
    // `gpool run` leads the session, so nobody else is told.
    counter.started.kill().context("script")?;
    is_seen_once("HUP", "of the end of its terminal")?;
    counter.end()
}

/// Ctrl-Z, `fg` and Ctrl-C under a shell with job control.
fn it_is_a_job_of_its_shell(host: &Host) -> Result<()> {
    let line = format!("gpool {} -- {}\n", SHARE.join(" "), COUNTER.join(" "));
    let mut terminal = on_a_terminal(host, "exec bash --norc --noprofile -i");
    let mut counter = Counter::start(&mut terminal, 2, |terminal| type_into(terminal, &line))?;
    let (outer, command) = (counter.processes[0], counter.processes[2]);
    type_into(&mut counter.started, "\x1a")?;
    wait_for("both to be stopped", || Ok([state(outer)?, state(command)?] == ["T", "T"]))?;
    type_into(&mut counter.started, "fg\n")?;
    wait_for("both to go on", || Ok([state(outer)?, state(command)?] == ["S", "S"]))?;
    is_seen_once("CONT", "of fg")?;
    type_into(&mut counter.started, "\x03")?;
    is_seen_once("INT", "of a key under a shell")?;
    counter.end()
}

/// Under another user it can stop no process of root's.
fn one_that_stops_itself_gives_the_terminal_back(host: &Host) -> Result<()> {
    for (user, signal) in [("root", "TSTP"), ("nobody", "TSTP"), ("root", "STOP"), ("nobody", "STOP")] {
        let line = format!("gpool {} --user {user} -- perl {STOPPER} {signal}\n", SHARE.join(" "));
        let mut terminal = on_a_terminal(host, "exec bash --norc --noprofile -i");
        let mut counter = Counter::start(&mut terminal, 2, |terminal| type_into(terminal, &line))?;
        let outer = counter.processes[0];
        wait_for("gpool run to stop with its command", || Ok(state(outer)? == "T")).context(user)?;
        type_into(&mut counter.started, "fg\n")?;
        wait_for("its command to go on", || Ok(count("back")? == 1)).context(user)?;
        wait_for("gpool run to go on", || Ok(state(outer)? == "S")).context(user)?;
        counter.end()?;
    }
    Ok(())
}

/// No shell waits for it, and whoever continues the command would not continue `gpool run`.
fn one_that_is_stopped_alone_stops_nobody(host: &Host) -> Result<()> {
    let counter = Counter::plain(host, &["--"])?;
    let (outer, command) = (counter.processes[0], counter.processes[2]);
    kill_process(command, Signal::TSTP).context("the command is gone")?;
    wait_for("the command to be stopped", || Ok(state(command)? == "T"))?;
    std::thread::sleep(HANDED_ON);
    let seen = state(outer)?;
    ensure(seen == "S", || format!("gpool run is {seen} while its command is stopped alone"))?;
    counter.end()
}
