//! A Docker engine of the run's own: data, socket and containerd all below the private `/run`.

use super::program::Program;
use super::succeeded;
use crate::failure::{Context, Result, ensure};
use crate::image;
use crate::stage::Stage;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const HOME: &str = "/run/gpool-docker";
/// Where the engines' files are listed, in place of a directory that is not this host's alone.
pub const TOLD_FILES: &str = "/run/gpool-told-files";

/// Debian's client: a machine may have another one in front of it.
const DOCKER: &str = "/usr/bin/docker";

/// A running dockerd.
#[derive(Debug)]
pub struct Engine {
    process: Program,
}

impl Engine {
    /// Starts dockerd with the runtime `gpool`, its containers below `cgroup_parent`.
    pub fn start(stage: &Stage, cgroup_parent: &str) -> Result<Self> {
        Self::start_with(stage, cgroup_parent, &serde_json::json!({}))
    }

    /// The same with more settings.
    pub fn start_with(stage: &Stage, cgroup_parent: &str, more: &serde_json::Value) -> Result<Self> {
        fs::create_dir_all(HOME).context(HOME)?;
        let file = format!("{HOME}/daemon.json");
        let mut settings = settings(cgroup_parent);
        for (key, value) in more.as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        fs::write(&file, settings.to_string()).context(&file)?;
        configure(stage, &file)?;
        let mut process = Program::start("dockerd", Command::new("/usr/sbin/dockerd").args(["--config-file", &file]))?;
        process.wait_for("an answer of dockerd", Duration::from_secs(40), |_| {
            client(&["version"]).output().is_ok_and(|output| output.status.success())
        })?;
        Ok(Self { process })
    }

    /// What `DOCKER_HOST` must be for a client of this engine.
    pub fn address(&self) -> String {
        format!("unix://{HOME}/docker.sock")
    }

    /// Runs `docker` and returns what it said.
    pub fn docker(&self, arguments: &[&str]) -> Result<Output> {
        client(arguments).output().context("docker cannot be started")
    }

    /// `docker`, for who does something else meanwhile.
    pub fn command(&self, arguments: &[&str]) -> Command {
        client(arguments)
    }

    /// Runs `docker` and returns its stdout.
    ///
    /// # Errors
    /// Docker's own sentence.
    pub fn docker_text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("docker {}", arguments.join(" ")), self.docker(arguments)?)
    }

    /// Tells the running engine of another runtime.
    pub fn add_runtime(&self, name: &str, program: &Path) -> Result<()> {
        let file = format!("{HOME}/daemon.json");
        let text = fs::read_to_string(&file).context(&file)?;
        let mut settings: serde_json::Value = serde_json::from_str(&text).context(&file)?;
        settings["runtimes"][name] = serde_json::json!({"path": program});
        fs::write(&file, settings.to_string()).context(&file)?;
        self.process.signal(Signal::HUP)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.docker_text(&["info", "-f", "{{json .Runtimes}}"])?.contains(&format!("{name:?}")) {
            ensure(Instant::now() < deadline, || format!("dockerd does not take the runtime {name}"))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Starts `docker` with its input and output open, to talk to what runs in the container.
    pub fn start_talking(&self, arguments: &[&str]) -> Result<Child> {
        client(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("docker cannot be started")
    }

    /// Starts `docker` and does not wait for it.
    pub fn start_docker(&self, arguments: &[&str]) -> Result<Child> {
        client(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("docker cannot be started")
    }

    /// Makes the image from local files.
    pub fn import_image(&self, stage: &Stage) -> Result<()> {
        let root = Path::new(HOME).join("image");
        image::lay_out(stage, &root)?;
        self.import_directory(&root, image::NAME)
    }

    /// Makes the image `name` of everything in `root`.
    pub fn import_directory(&self, root: &Path, name: &str) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(root).args(["-cf", "-", "."]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut packing = tar.spawn().context("tar")?;
        let packed = packing.stdout.take().map_or(Stdio::null(), Stdio::from);
        let imported = client(&["import", "-", name]).stdin(packed).output().context("docker import")?;
        let status = packing.wait().context("tar")?;
        ensure(status.success(), || format!("tar ended with {status}"))?;
        succeeded("docker import", imported).map(drop)
    }

    /// Kills and removes every container.
    pub fn remove_all_containers(&self) -> Result<()> {
        let ids = self.docker_text(&["ps", "-aq"])?;
        let arguments: Vec<&str> = ["rm", "-f"].into_iter().chain(ids.lines()).collect();
        if ids.is_empty() { Ok(()) } else { self.docker_text(&arguments).map(drop) }
    }

    /// The end of dockerd's log.
    pub fn log_end(&self) -> String {
        self.process.log_end()
    }

    /// Stops dockerd and the containerd that it started.
    pub fn stop(self, patience: Duration) -> Result<()> {
        self.process.stop(patience)
    }
}

fn client(arguments: &[&str]) -> Command {
    let mut command = Command::new(DOCKER);
    // The person's own docker settings and contexts must not matter.
    command.args(arguments).env("DOCKER_HOST", format!("unix://{HOME}/docker.sock")).env("DOCKER_CONFIG", HOME);
    command.env_remove("DOCKER_CONTEXT").env_remove("DOCKER_TLS_VERIFY").stdin(Stdio::null());
    command
}

/// Tells Docker of the runtime as a person would.
fn configure(stage: &Stage, file: &str) -> Result<()> {
    let mut gpool = Command::new(stage.program("gpool"));
    gpool.args(["runtime", "--told-files", TOLD_FILES, "configure", "--runtime", "docker", "--config", file]);
    gpool.arg("--runtime-path");
    let output = gpool.arg(stage.program("gpool-runtime")).output().context("gpool")?;
    succeeded("gpool runtime configure", output).map(drop)
}

fn settings(cgroup_parent: &str) -> serde_json::Value {
    serde_json::json!({
        "bridge": "none",
        "iptables": false,
        "ip6tables": false,
        "ip-masq": false,
        "data-root": format!("{HOME}/data"),
        "exec-root": format!("{HOME}/exec"),
        "pidfile": format!("{HOME}/docker.pid"),
        "hosts": [format!("unix://{HOME}/docker.sock")],
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": format!("/{cgroup_parent}"),
    })
}
