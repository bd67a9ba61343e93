//! Clears up after a run, also after one that was killed with SIGKILL: a small process of a session of its own that
//! holds the read end of a pipe. The pipe ends when the run's outermost process is gone, however it went.

use crate::cgroups;
use crate::failure::{Context, Result};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Set in the janitor's environment: the cgroup parent that it looks after.
const ROLE: &str = "GPOOL_TEST_JANITOR";

/// After the namespaces' first process is gone its containers need a moment to die.
const PATIENCE: Duration = Duration::from_secs(20);

/// The janitor of one run, seen from the run.
#[derive(Debug)]
pub struct Janitor {
    process: Child,
}

impl Janitor {
    /// Starts one for the cgroup parent `name`.
    pub fn start(name: &str) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.env_clear().env(ROLE, name).arg0("gpool-test-janitor");
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: setsid is async-signal-safe and the closure touches no memory of the parent.
        unsafe {
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
        }
        Ok(Self { process: command.spawn().context("the janitor cannot be started")? })
    }

    /// Ends the run: the janitor clears up and leaves.
    pub fn finish(mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs as the janitor if this process was started as one.
pub fn serve_if_asked() -> Option<ExitCode> {
    let name = std::env::var(ROLE).ok()?;
    // Nobody writes; the read ends when the last holder of the other end is gone.
    let _ = std::io::stdin().read(&mut [0]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        cgroups::thaw(&name);
        if cgroups::remove(&name) {
            return Some(ExitCode::SUCCESS);
        }
        if Instant::now() > deadline {
            return Some(ExitCode::FAILURE);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
