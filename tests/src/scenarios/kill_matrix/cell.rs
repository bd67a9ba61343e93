//! One victim killed at one stage.

use super::stop::{Armed, Stage, Standing, parent_of};
use crate::failure::{Context, Failure, Result};
use crate::host::{Container, Host};
use crate::image;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// `gpool-runtime`, or the low-level runtime that it has become.
    Runtime,
    /// The process that the low-level runtime runs as hook.
    Hook,
    /// containerd's shim.
    Shim,
    /// The container's init.
    Init,
    /// The supervisor, started again at once as systemd would.
    Supervisor,
}

/// One kill.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Also the container's name.
    pub name: String,
    stage: Stage,
    victim: Victim,
}

/// A kill that has been done.
#[derive(Debug)]
pub struct Killed {
    /// The cell.
    pub cell: Cell,
    /// The engine's id of the container, if it made one.
    pub container_id: String,
    /// When.
    pub at: Instant,
    engine_call: Child,
}

/// Every victim that is there at a stage; the supervisor's last, because its restart ends what is on its way.
pub fn cells() -> Vec<Cell> {
    use Stage::*;
    use Victim::*;
    let victims: [(Stage, &[Victim]); 8] = [
        (BeforeTheRequest, &[Runtime, Shim, Supervisor]),
        (InTheRequest, &[Runtime, Shim, Supervisor]),
        (BeforeRunc, &[Runtime, Shim, Supervisor]),
        (BeforeTheBinding, &[Runtime, Hook, Shim, Init, Supervisor]),
        (AfterTheBinding, &[Runtime, Hook, Shim, Init, Supervisor]),
        (Running, &[Shim, Init, Supervisor]),
        (AtTheSignal, &[Runtime, Shim, Init, Supervisor]),
        (AtTheDeletion, &[Runtime, Shim, Supervisor]),
    ];
    let all = victims.iter().flat_map(|(stage, victims)| victims.iter().map(move |victim| (*stage, *victim)));
    let cell = |(stage, victim)| Cell { name: format!("{stage:?}-{victim:?}").to_lowercase(), stage, victim };
    let (last, first): (Vec<Cell>, Vec<Cell>) = all.map(cell).partition(|cell| cell.victim == Supervisor);
    first.into_iter().chain(last).collect()
}

impl Cell {
    /// Whether the supervisor dies.
    pub fn kills_the_supervisor(&self) -> bool {
        self.victim == Victim::Supervisor
    }

    /// Brings a container to the stage and kills.
    pub fn run(&self, host: &mut Host) -> Result<Killed> {
        // Before anything stands still: the engine answers no question about a container that it is starting.
        let container_id = self.create(host)?;
        let mut of_container = Standing::default();
        if self.stage == Stage::Running || self.stage.is_of_the_stop() {
            host.engine.docker_text(&["start", &self.name])?;
            let container = Container::inspect(&host.engine, &self.name)?;
            of_container.init = Some(container.init_pid);
            of_container.shim = parent_of(container.init_pid);
        }
        let armed = Armed::new(host, self.stage)?;
        let engine_call = match self.stage {
            Stage::Running => host.engine.start_docker(&["version"])?,
            stage if stage.is_of_the_stop() => host.engine.start_docker(&["stop", "-t", "1", &self.name])?,
            _ => host.engine.start_docker(&["start", &self.name])?,
        };
        let reached = match self.stage {
            Stage::Running => of_container,
            _ => armed.reached().map_err(|failure| Failure::new(format!("{}: {failure}", self.name)))?,
        };
        let (shim, init) = (reached.shim.or(of_container.shim), reached.init.or(of_container.init));
        let at = Instant::now();
        match self.victim {
            Victim::Runtime => kill(reached.runtime)?,
            Victim::Hook => kill(reached.hook)?,
            Victim::Shim => kill(shim)?,
            Victim::Init => kill(init)?,
            Victim::Supervisor => host.kill_supervisor()?,
        }
        let is_configuration_away = self.stage == Stage::BeforeTheRequest;
        if is_configuration_away {
            armed.release()?;
            self.start_supervisor_again(host)?;
        } else {
            self.start_supervisor_again(host)?;
            armed.release()?;
        }
        Ok(Killed { cell: self.clone(), container_id, at, engine_call })
    }

    fn start_supervisor_again(&self, host: &mut Host) -> Result<()> {
        if self.kills_the_supervisor() { host.start_supervisor() } else { Ok(()) }
    }

    /// Makes the container and does not start it; its id.
    fn create(&self, host: &Host) -> Result<String> {
        let request = ["-e", "GPOOL_FRACTION=0.02", "-e", "GPOOL_MEMORY=600MiB"];
        let mut arguments = vec!["create", "--runtime=gpool", "--name", &self.name];
        arguments.extend(request.iter().chain(&[image::NAME]));
        // Those that run hold memory of the GPU, which has to come back as well.
        arguments.extend(["gpool-tenant", "--kernel-us", "500", "--allocate-mib", "8"]);
        host.engine.docker_text(&arguments)
    }
}

impl Killed {
    /// Waits until the engine has given up or gone on. An engine that hangs on a shim that was killed is let go.
    pub fn wait_for_engine(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.engine_call.try_wait().context("docker")?.is_none() {
            if Instant::now() > deadline {
                let _ = self.engine_call.kill();
                self.engine_call.wait().context("docker")?;
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// A start whose wrapper, or what it has become, is killed so long after it has read its configuration.
pub fn kill_somewhere(host: &Host, name: &str, after: Duration) -> Result<Killed> {
    let cell = Cell { name: name.to_owned(), stage: Stage::BeforeTheRequest, victim: Victim::Runtime };
    let container_id = cell.create(host)?;
    let armed = Armed::new(host, cell.stage)?;
    let engine_call = host.engine.start_docker(&["start", name])?;
    let wrapper = armed.reached()?.runtime;
    armed.release()?;
    std::thread::sleep(after);
    let at = Instant::now();
    // It may be done already, which is a kill too late and no failure.
    let _ = kill(wrapper);
    Ok(Killed { cell, container_id, at, engine_call })
}

fn kill(pid: Option<u32>) -> Result<()> {
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or_else(|| Failure::new("the victim is not there"))?;
    kill_process(pid, Signal::KILL).context("kill")
}
