//! A virtual machine with a Debian of its own, kernel included: where a test needs all controllers of cgroup version 2 and
//! a systemd that owns them. It is emulated by QEMU, so it runs also where the processor lends nothing to virtual machines,
//! some twenty times slower than the machine.

mod disk;

pub use disk::File;

use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Program, succeeded};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("../../programs/virtual_machine.sh");
/// The release that QEMU and the kernel are of, and the name of their files.
const SUITE: &str = "trixie";
const TREE: &str = "trixie-virtual-machine";
const PACKAGES: [&str; 2] = ["qemu-system-x86", "linux-image-cloud-amd64"];
/// Where the machine's disk and its ends on this side are made: memory of the run alone, which goes with it.
const HOME: &str = "/run/gpool-virtual-machine";
/// How long QEMU may take to start.
const START: Duration = Duration::from_secs(20);
/// How long the machine may take to boot, or a command in it to end.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running virtual machine.
#[derive(Debug)]
pub struct VirtualMachine {
    qemu: Program,
    answers: BufReader<UnixStream>,
}

/// Lays QEMU and the kernel out, unless they are here: about 250 MB.
///
/// # Errors
/// When they cannot be reached; the sentence is mmdebstrap's.
pub fn fetch(downloads: &Downloads) -> Result<()> {
    downloads.fetch_tree(TREE, SUITE, &PACKAGES)
}

impl VirtualMachine {
    /// Boots a copy of the `system`, which stays as it is, with `files` added.
    ///
    /// # Errors
    /// When QEMU is not here, or the system does not come up; with what it said.
    pub fn boot(downloads: &Downloads, system: &Path, files: &[File]) -> Result<Self> {
        let tree = downloads.tree(TREE).ok_or_else(|| Failure::new(format!("{TREE} is not here")))?;
        let home = Path::new(HOME);
        fs::create_dir_all(home).context(HOME)?;
        let disk = disk::make(system, files, home)?;
        let script = home.join("start.sh");
        fs::write(&script, SCRIPT).context(script.display())?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh"]).arg(&script).arg(&tree).arg(&disk).arg(home);
        let mut qemu = Program::start("qemu", &mut command)?;
        let socket = home.join("answers.sock");
        qemu.wait_for("a socket for answers", START, |_| socket.exists())?;
        // It boots when somebody listens, so that nothing that it says is lost.
        let stream = connected(&socket)?;
        stream.set_read_timeout(Some(PATIENCE)).context("the socket's patience")?;
        let mut machine = Self { qemu, answers: BufReader::new(stream) };
        let greeting = machine.line().map_err(|failure| Failure::new(format!("{failure}\n{}", machine.said())))?;
        ensure(greeting == "ready", || format!("the machine said {greeting:?}"))?;
        Ok(machine)
    }

    /// Runs a command line in it, as root and in root's home.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn run(&mut self, line: &str) -> Result<Output> {
        ensure(!line.contains('\n'), || format!("more than one line: {line:?}"))?;
        writeln!(self.answers.get_mut(), "{line}").context(line)?;
        let head = self.line().context(line)?;
        let figures: Vec<usize> = head.split(' ').filter_map(|figure| figure.parse().ok()).collect();
        let [status, stdout, stderr] = figures[..] else {
            return Err(Failure::new(format!("{line}: the answer begins with {head:?}")));
        };
        let status = ExitStatus::from_raw((status as i32) << 8);
        Ok(Output { status, stdout: self.bytes(stdout).context(line)?, stderr: self.bytes(stderr).context(line)? })
    }

    /// The same, and returns what it printed.
    ///
    /// # Errors
    /// What it said on stderr, unless it ended well.
    pub fn sh(&mut self, line: &str) -> Result<String> {
        let output = self.run(line)?;
        succeeded(line, output)
    }

    /// Waits until a command line ends well.
    ///
    /// # Errors
    /// What it said the last time.
    pub fn wait_until(&mut self, line: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.sh(line) {
                Ok(_) => return Ok(()),
                Err(last) if Instant::now() > deadline => return Err(last).context(format!("not within {PATIENCE:?}")),
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    /// The end of its journal and of what it and QEMU said, for a person who looks for a cause.
    pub fn journal(&mut self) -> String {
        let journal = self.sh("journalctl --boot --no-pager --lines 60").unwrap_or_else(|failure| failure.to_string());
        format!("{journal}\n{}", self.said())
    }

    /// Ends it, at once.
    pub fn stop(self) -> Result<()> {
        self.qemu.kill()
    }

    fn said(&self) -> String {
        let console = fs::read(Path::new(HOME).join("console.log")).unwrap_or_default();
        format!("--- its console\n{}\n{}", String::from_utf8_lossy(&console), self.qemu.log_end())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).context(format!("no answer within {PATIENCE:?}"))?;
        ensure(length > 0, || "the machine has ended".to_owned())?;
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.answers.read_exact(&mut bytes).context("a whole answer")?;
        Ok(bytes)
    }
}

/// The socket is there a moment before anybody listens at it.
fn connected(socket: &PathBuf) -> Result<UnixStream> {
    let deadline = Instant::now() + START;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(failure) if Instant::now() > deadline => return Err(failure).context(socket.display()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
