//! A containerd of the run's own that no engine stands in front of: people use it through `ctr`, and a kubelet through CRI.

use super::cri::Cri;
use super::{Engine, Program, succeeded};
use crate::failure::{Context, Failure, Result};
use crate::image;
use crate::stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const HOME: &str = "/run/gpool-containerd";
const CTR: &str = "/usr/bin/ctr";
const CONTAINERD: &str = "/usr/bin/containerd";
const SOCKET: &str = "/run/gpool-containerd/containerd.sock";

/// The image of a pod's sandbox, which no registry is asked for.
const PAUSE: &str = "gpool-pause:1";
/// Where containerd keeps what kubelets use.
const OF_KUBERNETES: &str = "k8s.io";

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
        // Running the CRI plugin takes Kubernetes.
        let file = write_settings("disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", "")?;
        let containerd = Self { process: run(&file)?, runtime, cgroup_parent: cgroup_parent.to_owned() };
        containerd.import(engine, image::NAME, "default")?;
        Ok(containerd)
    }

    /// Starts it for pods, with what `gpool runtime configure` writes, and gives it the engine's image. Pods have a network
    /// of their own by `network`'s plugins, or must be on the node's.
    pub fn start_for_pods(engine: &Engine, stage: &Stage, cgroup_parent: &str, network: Option<&Path>) -> Result<Self> {
        let runtime = stage.program("gpool-runtime");
        let plugin = "[plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\n";
        let network = write_network(network)?;
        let file = write_settings("", &format!("{plugin}sandbox_image = \"docker.io/library/{PAUSE}\"\n\n{network}"))?;
        let mut gpool = Command::new(stage.program("gpool"));
        gpool.args(["runtime", "--told-files", super::engine::TOLD_FILES, "configure", "--runtime", "containerd"]);
        gpool.args(["--config", &file, "--runtime-path"]);
        succeeded("gpool runtime configure", gpool.arg(&runtime).output().context("gpool")?)?;
        let containerd = Self { process: run(&file)?, runtime, cgroup_parent: cgroup_parent.to_owned() };
        engine.docker_text(&["create", "--runtime=runc", "--name=pause", image::NAME, "true"])?;
        engine.docker_text(&["commit", "--change=ENTRYPOINT [\"/bin/sleep\", \"100000\"]", "pause", PAUSE])?;
        engine.docker_text(&["rm", "pause"])?;
        for name in [image::NAME, PAUSE] {
            containerd.import(engine, name, OF_KUBERNETES)?;
        }
        Ok(containerd)
    }

    /// Where it listens.
    pub fn socket(&self) -> &'static str {
        SOCKET
    }

    /// What a kubelet would talk to.
    pub fn cri(&self) -> Cri<'_> {
        Cri { socket: SOCKET, cgroup_parent: &self.cgroup_parent }
    }

    fn import(&self, engine: &Engine, name: &str, namespace: &str) -> Result<()> {
        let archive = format!("{HOME}/image.tar");
        engine.docker_text(&["save", "-o", &archive, name])?;
        self.text(&["--namespace", namespace, "images", "import", &archive]).map(drop)
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

    /// The end of its log.
    pub fn log_end(&self) -> String {
        self.process.log_end()
    }

    /// Stops containerd.
    pub fn stop(self) -> Result<()> {
        self.process.stop(Duration::from_secs(10))
    }
}

fn ctr(arguments: &[&str]) -> Command {
    let mut command = Command::new(CTR);
    command.args(["--address", SOCKET]).args(arguments).stdin(Stdio::null());
    command
}

fn run(file: &str) -> Result<Program> {
    let mut process = Program::start("containerd", Command::new(CONTAINERD).args(["--config", file]))?;
    process.wait_for("an answer of containerd", Duration::from_secs(20), |_| {
        ctr(&["version"]).output().is_ok_and(|output| output.status.success())
    })?;
    Ok(process)
}

/// Writes the network of pods, a bridge without a way out, and returns what the plugin is told of it.
fn write_network(plugins: Option<&Path>) -> Result<String> {
    let directory = format!("{HOME}/network");
    fs::create_dir_all(&directory).context(&directory)?;
    let section = format!("[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = \"{directory}\"\n");
    let Some(plugins) = plugins else { return Ok(section) };
    let addresses = serde_json::json!({
        "type": "host-local", "dataDir": format!("{HOME}/addresses"), "ranges": [[{"subnet": "10.9.8.0/24"}]],
    });
    let bridge = serde_json::json!({"type": "bridge", "bridge": "pods0", "isGateway": true, "ipam": addresses});
    let network = serde_json::json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]});
    let file = format!("{directory}/pods.conflist");
    fs::write(&file, network.to_string()).context(&file)?;
    Ok(format!("{section}bin_dir = \"{}\"\n", plugins.display()))
}

/// Writes the configuration: `more` at the top, `plugins` at the end.
fn write_settings(more: &str, plugins: &str) -> Result<String> {
    fs::create_dir_all(HOME).context(HOME)?;
    let file = format!("{HOME}/config.toml");
    let text = format!(
        "version = 2\nroot = \"{HOME}/root\"\nstate = \"{HOME}/state\"\n{more}\n\
         [grpc]\naddress = \"{SOCKET}\"\n\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{HOME}/opt\"\n\n{plugins}"
    );
    fs::write(&file, text).context(&file)?;
    Ok(file)
}
