//! One container, as its engine names it.

use super::engine::Engine;
use crate::failure::{Context, Failure, Result};
use std::fs;

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The name that the test gave.
    pub name: String,
    /// The engine's id, in full.
    pub id: String,
    /// Its first process, in the run's own PID namespace.
    pub init_pid: u32,
}

impl Container {
    /// Asks the engine.
    pub fn inspect(engine: &Engine, name: &str) -> Result<Self> {
        let answer = engine.docker_text(&["inspect", "-f", "{{.Id}} {{.State.Pid}}", name])?;
        let parsed = answer.split_once(' ').and_then(|(id, pid)| Some((id.to_owned(), pid.parse().ok()?)));
        let (id, init_pid) =
            parsed.ok_or_else(|| Failure::new(format!("docker inspect {name} answered {answer:?}")))?;
        Ok(Self { name: name.to_owned(), id, init_pid })
    }

    /// Kills the container's first process with SIGKILL, past the engine.
    pub fn kill_init(&self) -> Result<()> {
        let pid = i32::try_from(self.init_pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new(format!("{} has no process", self.name)))?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).context(format!("kill {}", self.name))
    }

    /// Whether its first process lives.
    pub fn is_alive(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.init_pid)).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Everything that its first process has written, errors last.
    pub fn log(&self, engine: &Engine) -> Result<String> {
        let output = engine.docker(&["logs", &self.id])?;
        Ok([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
    }
}
