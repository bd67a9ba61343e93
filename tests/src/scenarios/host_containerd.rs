//! A run on a machine whose containerd already runs: dockerd would use it if it saw its socket.

use crate::failure::{Context, Result, ensure};
use crate::host::{Program, succeeded};
use crate::namespaces::{Inside, another_run};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where a host's containerd listens, and where dockerd looks for it.
const SOCKET: &str = "/run/containerd/containerd.sock";

/// Plays a host with a containerd and does a run there.
pub fn run(_inside: &Inside) -> Result<()> {
    let mut containerd = Command::new("/usr/bin/containerd");
    containerd.args(["--address", SOCKET, "--root", "/run/host-containerd", "--state", "/run/host-containerd-state"]);
    let mut containerd = Program::start("containerd", &mut containerd)?;
    containerd.wait_for("an answer", Duration::from_secs(20), |_| namespaces().is_ok())?;
    let run = another_run().arg("engine-alone").stdout(Stdio::null()).status().context("the run")?;
    ensure(run.success(), || format!("the run ended with {run}"))?;
    let namespaces = namespaces()?;
    ensure(!namespaces.contains("moby"), || format!("the host's containerd was used: {namespaces}"))?;
    containerd.stop(Duration::from_secs(10))
}

/// The namespaces that the host's containerd knows; docker's is called moby.
fn namespaces() -> Result<String> {
    let listed = Command::new("/usr/bin/ctr").args(["--address", SOCKET, "namespaces", "ls", "-q"]).output();
    succeeded("ctr", listed.context("ctr cannot be started")?)
}
