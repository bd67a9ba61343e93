//! A long-running process of a host, with its log.

use crate::failure::{Context, Failure, Result};
use crate::namespaces::spawn_bound;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LOGS: &str = "/run/gpool-logs";

/// Lines of a log that are shown when something fails.
const LOG_END_LINES: usize = 15;

/// A process that runs until it is stopped.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    process: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `command` with its output in a log of its own. Each start writes a new log.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        fs::create_dir_all(LOGS).context(LOGS)?;
        let log = PathBuf::from(LOGS).join(format!("{name}.log"));
        let output = File::create(&log).context(log.display())?;
        let also = output.try_clone().context(log.display())?;
        command.stdin(Stdio::null()).stdout(output).stderr(also);
        let process = spawn_bound(command).context(format!("{name} cannot be started"))?;
        Ok(Self { name, process, log })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).context(format!("{} is gone", self.name))
    }

    /// All it has written.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of the log, with a heading.
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let end = &lines[lines.len().saturating_sub(LOG_END_LINES)..];
        format!("--- end of the log of {}\n{}\n", self.name, end.join("\n"))
    }

    /// Waits until the log holds the line `line`.
    pub fn wait_for_line(&mut self, line: &str, patience: Duration) -> Result<()> {
        self.wait_for(&format!("the line {line:?}"), patience, |program| {
            program.log().lines().any(|l| l.trim() == line)
        })
    }

    /// Waits until `is_there`.
    ///
    /// # Errors
    /// When the process ends meanwhile or `patience` does.
    pub fn wait_for(&mut self, what: &str, patience: Duration, is_there: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !is_there(self) {
            if let Some(status) = self.process.try_wait().context(self.name)? {
                return Err(Failure::new(format!(
                    "{} ended with {status} before {what}\n{}",
                    self.name,
                    self.log_end()
                )));
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!("{}: no {what} within {patience:?}\n{}", self.name, self.log_end())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill().context(format!("{} cannot be killed", self.name))?;
        self.process.wait().context(self.name).map(drop)
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// When it does not end in time or not with status 0.
    pub fn stop(mut self, patience: Duration) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context(format!("{} is gone", self.name))?;
        let deadline = Instant::now() + patience;
        loop {
            match self.process.try_wait().context(self.name)? {
                Some(status) if ended_well(status) => return Ok(()),
                Some(status) => {
                    return Err(Failure::new(format!("{} ended with {status}\n{}", self.name, self.log_end())));
                }
                None if Instant::now() > deadline => {
                    let _ = self.process.kill();
                    let sentence =
                        format!("{} did not end within {patience:?} of SIGTERM\n{}", self.name, self.log_end());
                    return Err(Failure::new(sentence));
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// A program without a handler for SIGTERM ends by it, which is as good.
fn ended_well(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.success() || status.signal() == Some(libc::SIGTERM)
}
