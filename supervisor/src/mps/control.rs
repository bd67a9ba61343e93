//! The driver's program by which a control daemon is told what to do: commands on its standard input.

use super::group::folder_of;
use gpool_policy::mechanism::MpsLimits;
use gpool_protocol::HostPid;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program, which is also the daemon.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// How long a command may take; a server is started within some.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one may take while leases wait for it.
const HASTE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(2);
/// How long the end of one that was killed is waited for.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// The longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 10;

/// One daemon, to be told things.
#[derive(Debug, Clone)]
pub struct Control {
    program: PathBuf,
    pipe: PathBuf,
    patience: Duration,
}

impl Control {
    /// The daemon of the group `id`.
    pub fn of(program: &Path, run_dir: &Path, id: &str) -> Self {
        Self { program: program.to_owned(), pipe: folder_of(run_dir, id, "pipe"), patience: PATIENCE }
    }

    /// For whoever keeps others waiting meanwhile: a daemon that is silent for that long is taken for one that does not
    /// answer.
    pub fn hasty(self) -> Self {
        Self { patience: HASTE, ..self }
    }

    /// Whether it answers.
    pub fn answers(&self) -> bool {
        self.ask().is_ok()
    }

    /// Asks it something that changes nothing.
    ///
    /// # Errors
    /// The daemon does not answer, or it could not be asked, which [`was_not_asked`] tells apart.
    pub fn ask(&self) -> io::Result<()> {
        self.tell("get_default_active_thread_percentage").map(drop)
    }

    /// Starts its server for the user `uid` if none runs, and says who that is; none if there is none yet.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn server_of(&self, uid: u32) -> io::Result<Option<HostPid>> {
        if let Some(server) = self.server()? {
            return Ok(Some(server));
        }
        self.tell(&format!("start_server -uid {uid}"))?;
        self.server()
    }

    fn server(&self) -> io::Result<Option<HostPid>> {
        Ok(pids_in(&self.tell("get_server_list")?).first().copied())
    }

    /// How a server is; none if its daemon says something that is not known.
    ///
    /// # Errors
    /// The daemon does not answer, or does not know the question.
    pub fn state_of(&self, server: HostPid) -> io::Result<Option<ServerState>> {
        Ok(ServerState::of_answer(&self.tell(&format!("get_server_status {server}"))?))
    }

    /// How its server is when it is not about to be ready, which is waited for until `deadline`; none if it has none yet.
    ///
    /// # Errors
    /// As [`Control::state_of`].
    pub fn settled_state(&self, deadline: Instant) -> io::Result<Option<ServerState>> {
        loop {
            let Some(server) = self.server()? else { return Ok(None) };
            let state = self.state_of(server)?;
            if state != Some(ServerState::Initializing) || Instant::now() >= deadline {
                return Ok(state);
            }
            std::thread::sleep(POLL);
        }
    }

    /// The clients of a server.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn clients_of(&self, server: HostPid) -> io::Result<Vec<HostPid>> {
        Ok(pids_in(&self.tell(&format!("get_client_list {server}"))?))
    }

    /// Has a server end the work of these clients, and of nobody else.
    ///
    /// # Errors
    /// The daemon does not answer, or does not do it.
    pub fn terminate(&self, server: HostPid, clients: &BTreeSet<HostPid>) -> io::Result<()> {
        if clients.is_empty() {
            return Ok(());
        }
        let commands: Vec<String> = clients.iter().map(|pid| format!("terminate_client {server} {pid}")).collect();
        self.tell(&commands.join("\n")).map(drop)
    }

    /// Sets what servers give their clients at most on each of so many GPUs: the one that runs, whose clients so far keep what
    /// they have, and those that start from now on.
    ///
    /// # Errors
    /// The daemon does not answer, or does not do it.
    pub fn set_limits(&self, limits: MpsLimits, gpus: usize) -> io::Result<()> {
        let mut commands = vec![format!("set_default_active_thread_percentage {}", limits.percent)];
        commands.extend((0..gpus).map(|gpu| format!("set_default_device_pinned_mem_limit {gpu} {}", mib(limits))));
        self.tell(&commands.join("\n"))?;
        // Asked for now: a client may have had it started a moment ago. One that starts later has the new limits.
        let Some(server) = self.server()? else { return Ok(()) };
        let mut commands = vec![format!("set_active_thread_percentage {server} {}", limits.percent)];
        commands.extend((0..gpus).map(|gpu| format!("set_device_pinned_mem_limit {server} {gpu} {}", mib(limits))));
        self.tell(&commands.join("\n")).map(drop)
    }

    /// Ends the daemon and its server, within a second if clients are left.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn quit(&self) -> io::Result<()> {
        self.tell("quit -t 1").map(drop)
    }

    fn tell(&self, commands: &str) -> io::Result<String> {
        let mut command = Command::new(&self.program);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|cause| not_asked(&cause))?;
        if let Some(mut input) = process.stdin.take() {
            // One that has ended without reading says why by its status.
            let _ = input.write_all(format!("{commands}\n").as_bytes());
        }
        let status = ended_within(&mut process, self.patience)?;
        let status =
            status.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, format!("{commands:?} is not answered")))?;
        let mut answer = String::new();
        if let Some(output) = process.stdout.take() {
            output.take(ANSWER_BYTES).read_to_string(&mut answer)?;
        }
        match status.code() {
            Some(0) => Ok(answer),
            // For want of memory, for example.
            None => Err(not_asked(&"its program was killed")),
            Some(_) => Err(io::Error::other(format!("{commands:?} is answered with {:?}", answer.trim()))),
        }
    }
}

/// What a server says of itself: INITIALIZING, ACTIVE or FAULT, as nvidia-cuda-mps-control(1) has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It will take clients in.
    Initializing,
    /// It does.
    Active,
    /// A client has had a fatal fault, and those that it has reached have not all ended: nobody is taken in.
    Fault,
}

impl ServerState {
    /// None of a word that is not known.
    fn of_answer(answer: &str) -> Option<Self> {
        match answer.trim() {
            "INITIALIZING" => Some(Self::Initializing),
            "ACTIVE" => Some(Self::Active),
            "FAULT" => Some(Self::Fault),
            _ => None,
        }
    }
}

/// The driver's program could not be run to its end, which says nothing of the daemon.
#[derive(Debug)]
struct NotAsked(String);

impl fmt::Display for NotAsked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PROGRAM} could not be run ({})", self.0)
    }
}

impl std::error::Error for NotAsked {}

fn not_asked(cause: &dyn fmt::Display) -> io::Error {
    io::Error::other(NotAsked(cause.to_string()))
}

/// Whether a failure is of this host and not the daemon's silence.
pub fn was_not_asked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NotAsked>())
}

/// How a child ended; none when it had to be killed because its time was up.
///
/// # Errors
/// It cannot be waited for.
pub fn ended_within(process: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            end(process)?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Kills a child. One that a container keeps waiting in the kernel, at what they share, ends when it is let go: a thread waits
/// for that.
fn end(process: &mut Child) -> io::Result<()> {
    process.kill()?;
    let deadline = Instant::now() + END_PATIENCE;
    while process.try_wait()?.is_none() {
        if Instant::now() > deadline {
            let pid = Pid::from_child(process);
            let wait = move || waitpid(Some(pid), WaitOptions::empty()).map_or((), |_| ());
            return std::thread::Builder::new().name("child-ends".into()).spawn(wait).map(drop);
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// In whole MiB, as the program reads it: rounded down.
pub fn mib(limits: MpsLimits) -> String {
    format!("{}M", limits.memory_bytes >> 20)
}

fn pids_in(answer: &str) -> Vec<HostPid> {
    answer.split_whitespace().filter_map(|word| word.parse().ok().map(HostPid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs;
    use crate::region::Holder;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;

    fn program(dir: &Path, script: &str) -> Control {
        let path = dir.join("control");
        // By another process: a child that another test starts meanwhile would have this one's descriptor until it executes,
        // and a file that somebody may write cannot be executed.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let mut writer = Command::new("sh");
        assert!(writer.args(["-c", write, "sh"]).arg(&path).arg(script).status().unwrap().success());
        Control { program: path, pipe: dir.join("pipe"), patience: PATIENCE }
    }

    #[test]
    fn a_child_that_does_not_end_with_a_signal_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let open = || fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let mut child = Command::new("sleep").arg("600").stdout(open()).spawn().unwrap();
        let Some(holder) = Holder::of_pipe(&pipe) else {
            return child.kill().and_then(|()| child.wait()).map(drop).unwrap();
        };
        assert!(ended_within(&mut child, Duration::ZERO).unwrap().is_none());
        let pid = HostPid(child.id());
        assert!(procfs::start_ticks(pid).is_some(), "it has ended after all");
        drop(holder);
        let is_over = || procfs::start_ticks(pid).is_none();
        let mut looks = std::iter::repeat_with(|| (std::thread::sleep(POLL), is_over()).1).take(10_000);
        assert!(looks.any(|is_over| is_over), "nobody has waited for it");
    }

    #[test]
    fn a_daemon_is_told_line_by_line_and_what_it_does_not_do_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let control = program(dir.path(), &format!("cat >> {}; echo 41; echo 42", said.display()));
        let limits = MpsLimits { percent: 36, memory_bytes: (4 << 30) + 1 };
        control.set_limits(limits, 2).unwrap();
        let lines: Vec<String> = fs::read_to_string(&said).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert_eq!(lines[2], "set_default_device_pinned_mem_limit 1 4096M");
        assert_eq!(lines[3..5], ["get_server_list", "set_active_thread_percentage 41 36"]);
        assert_eq!(control.server_of(0).unwrap(), Some(HostPid(41)));
        assert_eq!(control.clients_of(HostPid(41)).unwrap(), [HostPid(41), HostPid(42)]);
        let without = program(dir.path(), &format!("cat >> {}", said.display()));
        without.set_limits(limits, 1).unwrap();
        assert!(fs::read_to_string(&said).unwrap().ends_with("get_server_list\n"), "there is no server to tell");
        let none = BTreeSet::new();
        without.terminate(HostPid(41), &none).unwrap();
        assert!(fs::read_to_string(&said).unwrap().ends_with("get_server_list\n"), "nobody is to be ended");
        without.terminate(HostPid(41), &BTreeSet::from([HostPid(7), HostPid(8)])).unwrap();
        assert!(fs::read_to_string(&said).unwrap().ends_with("terminate_client 41 7\nterminate_client 41 8\n"));
        let deaf = program(dir.path(), "echo 'Cannot find MPS control daemon process'; exit 1");
        assert!(!deaf.answers() && deaf.quit().unwrap_err().to_string().contains("Cannot find"));
        let silent = program(dir.path(), "exec sleep 60").hasty().quit().unwrap_err();
        assert!(silent.kind() == io::ErrorKind::TimedOut && !was_not_asked(&silent));
    }

    #[test]
    fn a_server_that_initialises_is_waited_for_and_a_word_that_is_not_known_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let script = format!(
            "read what; case $what in get_server_list) echo 41;; *) echo >> {0}\n\
             [ $(wc -l < {0}) -lt 3 ] && echo INITIALIZING || echo FAULT;; esac",
            count.display()
        );
        let control = program(dir.path(), &script);
        assert_eq!(control.settled_state(Instant::now()).unwrap(), Some(ServerState::Initializing));
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(control.settled_state(later).unwrap(), Some(ServerState::Fault));
        assert_eq!(fs::read_to_string(&count).unwrap().len(), 3, "it was asked again");
        assert_eq!(program(dir.path(), "echo ACTIVE").state_of(HostPid(41)).unwrap(), Some(ServerState::Active));
        assert_eq!(program(dir.path(), "echo RESTING").state_of(HostPid(41)).unwrap(), None);
        assert_eq!(program(dir.path(), "true").settled_state(later).unwrap(), None, "there is no server");
        assert!(program(dir.path(), "exit 1").state_of(HostPid(41)).is_err());
    }

    #[test]
    fn a_program_that_does_not_run_says_nothing_of_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        assert!(was_not_asked(&program(dir.path(), "kill -9 $$").ask().unwrap_err()));
        assert!(!was_not_asked(&program(dir.path(), "exit 1").ask().unwrap_err()));
        let absent = Control { program: dir.path().join("nothing"), ..program(dir.path(), "") };
        let error = absent.ask().unwrap_err();
        assert!(was_not_asked(&error) && error.to_string().contains("could not be run"), "{error}");
    }
}
