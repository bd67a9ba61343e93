//! A containerd of the run's own that no engine stands in front of: people use it through `ctr`.

use super::{Engine, Program, succeeded};
use crate::failure::{Context, Failure, Result};
use crate::image;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const HOME: &str = "/run/gpool-containerd";
const CTR: &str = "/usr/bin/ctr";
const CONTAINERD: &str = "/usr/bin/containerd";

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    process: Program,
    runtime: PathBuf,
    cgroup_parent: String,
}

impl Containerd {
    /// Starts it and gives it the engine's image. Containers get `runtime` instead of runc.
    pub fn start(engine: &Engine, runtime: PathBuf, cgroup_parent: &str) -> Result<Self> {
        let file = settings()?;
        let mut command = Command::new(CONTAINERD);
        let mut process = Program::start("containerd", command.args(["--config", &file]))?;
        process.wait_for("an answer of containerd", Duration::from_secs(20), |_| {
            ctr(&["version"]).output().is_ok_and(|output| output.status.success())
        })?;
        let containerd = Self { process, runtime, cgroup_parent: cgroup_parent.to_owned() };
        let archive = format!("{HOME}/image.tar");
        engine.docker_text(&["save", "-o", &archive, image::NAME])?;
        containerd.text(&["images", "import", &archive])?;
        Ok(containerd)
    }

    /// Starts the container `name`, detached.
    pub fn try_run(&self, name: &str, options: &[&str], command: &[&str]) -> Result<Output> {
        let runtime = self.runtime.display().to_string();
        let cgroup = format!("/{}/{name}", self.cgroup_parent);
        let mut arguments = vec!["run", "-d", "--runtime", "io.containerd.runc.v2", "--runc-binary", &runtime];
        arguments.extend(["--cgroup", &cgroup]);
        let image = format!("docker.io/library/{}", image::NAME);
        arguments.extend(options.iter().chain(&[image.as_str(), name]).chain(command));
        ctr(&arguments).output().context(CTR)
    }

    /// The first process of a running container.
    pub fn init_pid(&self, name: &str) -> Result<u32> {
        let tasks = self.text(&["tasks", "ls"])?;
        let of_it =
            tasks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| words[0] == name);
        let pid = of_it.and_then(|words| words.get(1)?.parse().ok());
        pid.ok_or_else(|| Failure::new(format!("{name} is no task: {tasks}")))
    }

    /// Runs `ctr` and returns its stdout.
    ///
    /// # Errors
    /// Its own sentence.
    pub fn text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("ctr {}", arguments.join(" ")), ctr(arguments).output().context(CTR)?)
    }

    /// Kills and removes the container.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.text(&["tasks", "rm", "-f", name])?;
        self.text(&["containers", "rm", name]).map(drop)
    }

    /// Stops containerd.
    pub fn stop(self) -> Result<()> {
        self.process.stop(Duration::from_secs(10))
    }
}

fn ctr(arguments: &[&str]) -> Command {
    let mut command = Command::new(CTR);
    command.args(["--address", &format!("{HOME}/containerd.sock")]).args(arguments).stdin(Stdio::null());
    command
}

fn settings() -> Result<String> {
    fs::create_dir_all(HOME).context(HOME)?;
    let file = format!("{HOME}/config.toml");
    // Running the CRI plugin takes Kubernetes.
    let text = format!(
        "version = 2\nroot = \"{HOME}/root\"\nstate = \"{HOME}/state\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\n\
         [grpc]\naddress = \"{HOME}/containerd.sock\"\n\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{HOME}/opt\"\n"
    );
    fs::write(&file, text).context(&file)?;
    Ok(file)
}
