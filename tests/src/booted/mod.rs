//! A whole Debian with its own systemd as the first process, booted from a file system on this machine: packages are
//! installed and removed there as on a host. It has namespaces of its own and dies with the run.

mod packages;
mod tenants;

pub use packages::{Packages, pack, pack_one};
pub use tenants::{Share, Tenants};

use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{SIMULATED_GPU, succeeded};
use crate::meter::MeterReader;
use crate::namespaces::{Inside, spawn_bound};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("../../programs/boot.sh");
/// Where the system's file system is put together.
const HOME: &str = "/run/gpool-booted";
/// How long it may take to boot, or a command in it to have its effect.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running system.
#[derive(Debug)]
pub struct Booted {
    unshare: Child,
    /// Its systemd, as this run sees it.
    first: u32,
}

impl Booted {
    /// Boots a copy of the system in `lower`, which stays as it is.
    ///
    /// # Errors
    /// When it does not come up; or there is no cgroup version 2 here, as on no machine that Debian runs on.
    pub fn boot(inside: &Inside, lower: &Path) -> Result<Self> {
        let root = copy_of(lower)?;
        let script = format!("{HOME}/boot.sh");
        fs::write(&script, SCRIPT).context(&script)?;
        let unified = cgroups::hierarchies().into_iter().find(|root| root.join("cgroup.controllers").exists());
        let cgroup = unified.ok_or_else(|| Failure::new("no cgroup version 2 is mounted"))?.join(&inside.cgroup_parent);
        fs::create_dir_all(&cgroup).context(cgroup.display())?;
        // Its root of the cgroups is where it starts.
        let enter = "echo $$ > \"$0/cgroup.procs\" && exec unshare --mount --pid --uts --cgroup --fork --kill-child \
                     --propagation private sh \"$1\" \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", enter]).arg(&cgroup).arg(&script).arg(&root).stdin(Stdio::null());
        let unshare = spawn_bound(&mut command).context("unshare")?;
        let first = wait_for("the first process", || child_of(unshare.id()))?;
        let booted = Self { unshare, first };
        // Until then there is no answer at all.
        wait_for("a running system", || {
            let state = booted.run(&["systemctl", "is-system-running"]).ok()?;
            ["running", "degraded"].contains(&crate::host::text(&state.stdout).as_str()).then_some(())
        })?;
        Ok(booted)
    }

    /// Runs a command in it, as root and in root's home.
    pub fn run(&self, command: &[&str]) -> Result<Output> {
        let mut enter = Command::new("nsenter");
        enter.arg("--target").arg(self.first.to_string());
        enter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--wdns=/root", "--"]).args(command);
        enter.env_clear().envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("LC_ALL", "C.UTF-8")]);
        enter.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        enter.output().context("nsenter")
    }

    /// Runs a command line in it and returns what it printed.
    ///
    /// # Errors
    /// What it said on stderr, unless it ended well.
    pub fn sh(&self, line: &str) -> Result<String> {
        succeeded(line, self.run(&["sh", "-c", line])?)
    }

    /// Waits until a command line ends well.
    pub fn wait_until(&self, line: &str) -> Result<()> {
        let is_so = || self.run(&["sh", "-c", line]).is_ok_and(|output| output.status.success()).then_some(());
        wait_for(line, is_so)
    }

    /// A path of it, as this run reaches it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first))
    }

    /// Copies a file into root's home.
    pub fn bring(&self, file: &Path, name: &str) -> Result<()> {
        let place = self.path(&format!("/root/{name}"));
        fs::create_dir_all(place.parent().unwrap_or(&place)).context(place.display())?;
        fs::copy(file, &place).context(file.display()).map(drop)
    }

    /// The meter of its simulated GPU.
    pub fn meter(&self) -> Result<MeterReader> {
        MeterReader::open(&self.path(SIMULATED_GPU))
    }

    /// The end of its journal, for a person who looks for a cause.
    pub fn journal(&self) -> String {
        self.sh("journalctl --boot --no-pager --lines 60").unwrap_or_else(|failure| failure.to_string())
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // The kernel takes everything in it along.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// The file system in `lower` with a layer above it that goes with this run; where layers cannot be had, a copy.
pub fn copy_of(lower: &Path) -> Result<PathBuf> {
    let directory = |name: &str| {
        let path = Path::new(HOME).join(name);
        fs::create_dir_all(&path).context(path.display()).map(|()| path)
    };
    let (root, upper, work) = (directory("root")?, directory("upper")?, directory("work")?);
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let layered = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&root).output();
    if !layered.context("mount")?.status.success() {
        let copied = Command::new("cp").arg("-a").arg(lower.join(".")).arg(&root).status().context("cp")?;
        ensure(copied.success(), || format!("{} cannot be copied", lower.display()))?;
    }
    Ok(root)
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure(Instant::now() < deadline, || format!("not within {PATIENCE:?}: {what}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
}
