//! A bundle for the low-level runtime and for the runtime in front of it, and their verbs as whole processes.

use crate::failure::{Context, Failure, Result};
use crate::host::{Host, succeeded};
use crate::image;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The low-level runtime of most measurements.
pub const RUNC: &str = "/usr/sbin/runc";
/// The other one.
pub const CRUN: &str = "/usr/bin/crun";
const HOME: &str = "/run/gpool-bench-bundles";

/// A root file system with a config.json, and the program that is to run it.
#[derive(Debug)]
pub struct Bundle {
    /// The runtime: runc, or gpool-runtime in front of it.
    pub runtime: PathBuf,
    /// The low-level runtime that it is, or has behind it.
    low_level: PathBuf,
    directory: PathBuf,
    config: Value,
    cgroup_parent: String,
}

impl Bundle {
    /// Lays one out, called `name`, whose process has `env` besides the usual.
    pub fn new(
        host: &Host,
        name: &str,
        runtime: &Path,
        low_level: &Path,
        cgroup_parent: &str,
        env: &[&str],
    ) -> Result<Self> {
        let directory = Path::new(HOME).join(name);
        // Of an earlier round; the root is laid out anew so that no mount point of then is there already.
        if directory.exists() {
            fs::remove_dir_all(&directory).context(directory.display())?;
        }
        image::lay_out(&host.stage, &directory.join("rootfs"))?;
        let spec = Command::new(RUNC).arg("spec").current_dir(&directory).output().context("runc spec")?;
        succeeded("runc spec", spec)?;
        let text = fs::read_to_string(directory.join("config.json")).context("config.json")?;
        let mut config: Value = serde_json::from_str(&text).context("config.json")?;
        config["process"]["terminal"] = false.into();
        // Runtimes make mount points in the root.
        config["root"]["readonly"] = false.into();
        let all_env = config["process"]["env"].as_array_mut().ok_or_else(|| Failure::new("runc spec has no env"))?;
        all_env.extend(env.iter().map(|entry| json!(entry)));
        let (runtime, low_level) = (runtime.to_owned(), low_level.to_owned());
        Ok(Self { runtime, low_level, directory, config, cgroup_parent: cgroup_parent.to_owned() })
    }

    /// Writes config.json as an engine would, for a new container `id` that executes `command`.
    pub fn renew(&self, id: &str, command: &[&str]) -> Result<()> {
        let mut config = self.config.clone();
        config["process"]["args"] = json!(command);
        config["linux"]["cgroupsPath"] = format!("/{}/{id}", self.cgroup_parent).into();
        fs::write(self.directory.join("config.json"), config.to_string()).context("config.json")
    }

    /// Runs `create` or `run`, and says how long that took.
    pub fn time(&self, verb: &str, id: &str) -> Result<Duration> {
        let mut command = Command::new(&self.runtime);
        command.arg(verb).arg("--bundle").arg(&self.directory).arg(id);
        timed(&mut command, &self.directory.join("said"))
    }

    /// Kills and removes a container, with the plain low-level runtime in both cases: this is not what is measured.
    pub fn delete(&self, id: &str) -> Result<()> {
        let mut command = Command::new(&self.low_level);
        timed(command.args(["delete", "--force", id]), &self.directory.join("said")).map(drop)
    }

    /// Runs any call, and says how long that took.
    pub fn time_call(&self, words: &[&str]) -> Result<Duration> {
        timed(Command::new(&self.runtime).args(words), &self.directory.join("said"))
    }
}

/// How long a whole process takes. Its output goes to a file: a pipe would be held open by the container.
fn timed(command: &mut Command, said: &Path) -> Result<Duration> {
    let output = File::create(said).context(said.display())?;
    let also = output.try_clone().context(said.display())?;
    command.stdin(Stdio::null()).stdout(output).stderr(also);
    let start = Instant::now();
    let status = command.status().context(command.get_program().display())?;
    let elapsed = start.elapsed();
    if status.success() {
        return Ok(elapsed);
    }
    let text = fs::read_to_string(said).unwrap_or_default();
    Err(Failure::new(format!("{command:?} ended with {status}: {}", text.trim_end())))
}
