//! A podman of the run's own beside the Docker engine: storage and state below the private `/run`. There is no daemon
//! to start; `conmon` watches each container.

use super::{Engine, Program, succeeded};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::image;
use crate::stage::Stage;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const HOME: &str = "/run/gpool-podman";
const PODMAN: &str = "/usr/bin/podman";
const SOCKET: &str = "unix:///run/gpool-podman/podman.sock";

/// In the run's private `/etc`.
const SETTINGS: &str = "/etc/containers/containers.conf";

/// The hook file as it is shipped, but for the path.
const HOOK: &str = include_str!("../../../configs/oci-hooks.d/50-gpool.json");
const INSTALLED_HOOK: &str = "/usr/libexec/gpool/gpool-hook";

/// A container with this annotation has another precreate hook behind gpool's, which takes three seconds.
pub const SLOW: &str = "slow";
/// A container with this annotation has another precreate hook behind gpool's, which fails.
pub const FAILING: &str = "failing";

/// Podman's settings and storage.
#[derive(Debug)]
pub struct Podman {
    cgroup_parent: String,
}

impl Podman {
    /// Sets podman up with the runtime `gpool`, and gives it the engine's image.
    pub fn set_up(engine: &Engine, stage: &Stage, cgroup_parent: &str) -> Result<Self> {
        for directory in ["hooks", "hooks-for-all"] {
            let path = format!("{HOME}/{directory}");
            fs::create_dir_all(&path).context(&path)?;
        }
        // Raising limits, as podman does by default, takes a capability that root lacks on some machines.
        let limits = "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n";
        let settings = format!("{limits}[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n");
        fs::write(SETTINGS, settings).context(SETTINGS)?;
        // Tells podman of the runtime as a person would.
        let mut gpool = Command::new(stage.program("gpool"));
        gpool.args(["runtime", "configure", "--runtime", "podman", "--runtime-path"]);
        let configured = gpool.arg(stage.program("gpool-runtime")).output().context("gpool")?;
        succeeded("gpool runtime configure", configured)?;
        let file = HOOK.replace(INSTALLED_HOOK, &stage.hook().display().to_string());
        fs::write(format!("{HOME}/hooks/50-gpool.json"), &file).context("50-gpool.json")?;
        let mut for_all: serde_json::Value = serde_json::from_str(&file).context("50-gpool.json")?;
        for_all["when"] = serde_json::json!({"always": true});
        fs::write(format!("{HOME}/hooks-for-all/50-gpool.json"), for_all.to_string()).context("50-gpool.json")?;
        for (annotation, script) in [(SLOW, "sleep 3; exec cat"), (FAILING, "exit 1")] {
            // After gpool's own: hooks run in the order of their files' names.
            let name = format!("60-{annotation}.json");
            let other = serde_json::json!({
                "version": "1.0.0",
                "hook": {"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]},
                "when": {"annotations": {format!("^{annotation}$"): ".*"}},
                "stages": ["precreate"],
            });
            fs::write(format!("{HOME}/hooks/{name}"), other.to_string()).context(&name)?;
        }
        let podman = Self { cgroup_parent: cgroup_parent.to_owned() };
        let archive = format!("{HOME}/image.tar");
        engine.docker_text(&["save", "-o", &archive, image::NAME])?;
        podman.text(&["load", "-q", "-i", &archive])?;
        Ok(podman)
    }

    /// Options with which podman runs hooks for containers that carry an annotation of gpool, or for all.
    pub fn hooks(for_all: bool) -> String {
        format!("--hooks-dir={HOME}/hooks{}", if for_all { "-for-all" } else { "" })
    }

    /// Where further files for podman may lie.
    pub fn directory(&self) -> PathBuf {
        HOME.into()
    }

    /// Runs podman; what it starts is below the run's cgroup parent.
    pub fn podman(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = own_command();
        let until_verb = arguments.iter().position(|argument| *argument == "run").map_or(0, |verb| verb + 1);
        command.args(&arguments[..until_verb]);
        if until_verb > 0 {
            command.args(["--network=none", &format!("--cgroup-parent=/{}", self.cgroup_parent)]);
        }
        command.args(&arguments[until_verb..]).output().context("podman cannot be started")
    }

    /// Starts podman as a daemon, with these options for all its containers.
    pub fn serve(&self, options: &[&str]) -> Result<Program> {
        let mut command = own_command();
        command.args(options).args(["system", "service", "--time=0", SOCKET]);
        let mut service = Program::start("podman", &mut command)?;
        service.wait_for("an answer of podman's daemon", Duration::from_secs(20), |_| {
            self.ask_daemon(&["version"]).is_ok_and(|output| output.status.success())
        })?;
        Ok(service)
    }

    /// Has the daemon do what `arguments` say.
    pub fn ask_daemon(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(PODMAN);
        as_nobody_in_particular(&mut command);
        command.args(["--remote", "--url", SOCKET]).args(arguments).output().context("podman cannot be started")
    }

    /// Where its containers go.
    pub fn cgroup_parent(&self) -> &str {
        &self.cgroup_parent
    }

    /// Runs podman and returns its stdout.
    ///
    /// # Errors
    /// Podman's own sentence.
    pub fn text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("podman {}", arguments.join(" ")), self.podman(arguments)?)
    }

    /// Removes all containers and what podman leaves mounted and made.
    pub fn clear(&self) -> Result<()> {
        self.text(&["rm", "-f", "-a", "-t", "0"])?;
        wait_for_monitors()?;
        let _ = rustix::mount::unmount(format!("{HOME}/root/overlay"), rustix::mount::UnmountFlags::DETACH);
        for directory in cgroups::directories(&self.cgroup_parent) {
            // Podman's monitors have one for all of them, and leave it.
            let _ = fs::remove_dir(directory.join("conmon"));
        }
        Ok(())
    }
}

fn own_command() -> Command {
    let mut command = Command::new(PODMAN);
    command.args(["--root", &format!("{HOME}/root"), "--runroot", &format!("{HOME}/run")]);
    command.args(["--tmpdir", &format!("{HOME}/tmp")]);
    as_nobody_in_particular(&mut command);
    command
}

/// What a person has set for themselves must not matter.
fn as_nobody_in_particular(command: &mut Command) {
    command.env_remove("CONTAINERS_CONF").env("HOME", HOME).env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1");
    command.stdin(Stdio::null());
}

/// A monitor clears up with a podman of its own after its container has ended.
pub(super) fn wait_for_monitors() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_podmans = |name: String| ["conmon", "podman"].contains(&name.trim_end());
    let at_work = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok()).any(is_podmans)
    };
    while at_work() {
        ensure(Instant::now() < deadline, || "podman's monitors do not end".to_owned())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
