//! docker with crun as the low-level runtime behind gpool-runtime.

use super::life::{CAP, COMMAND, lead};
use super::{Client, check_shares, wait_for_lease};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::Host;
use crate::namespaces::Inside;
use crate::scenarios::{finish, pass_through};
use std::path::Path;
use std::process::{Command, Output};

const CRUN: &str = "/usr/bin/crun";

/// Shares, device rules and lives of containers under crun, and what passes through to it.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    let host = Host::start_with(inside, 2, &format!("[runtime]\nlow_level = [\"{CRUN}\"]\n"))?;
    let outcome = leased(&host)
        .and_then(|()| passed_through(&host.stage.program("gpool-runtime")))
        .and_then(|()| pass_through::on_a_bundle(&host, &inside.cgroup_parent, Path::new(CRUN)));
    finish(host, outcome)
}

pub(super) fn leased(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let mut containers = Vec::new();
    for (name, fraction) in [("small", "0.3"), ("large", "0.6")] {
        let env = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", CAP)];
        let container = host.run_container(name, &env, &["--stop-timeout=0"], &COMMAND)?;
        wait_for_lease(host, &container)?;
        containers.push(container);
    }
    check_shares(host, &[(&containers[0], 0.3), (&containers[1], 0.6)])?;
    let devices = "mknod /tmp/other c 195 1; true < /tmp/other; ls /dev/nvidia*; true < /dev/nvidia0";
    let said = docker.refusal(&["exec", "small", "sh", "-c", devices])?;
    // The simulated device answers an open that its cgroup allows with ENXIO.
    let is_exact = said.contains("/tmp/other: Operation not permitted")
        && said.contains("/dev/nvidia0: No such device or address")
        && !said.contains("/dev/nvidia1");
    ensure(is_exact, || format!("devices under crun: {said}"))?;
    lead(host, &docker, "small")?;
    lead(host, &docker, "large")
}

/// What makes no container is crun's, byte for byte.
fn passed_through(runtime: &Path) -> Result<()> {
    for arguments in [
        &["--version"][..],
        &["--help"],
        &["features"],
        &["list"],
        &["--root", "/run/gpool-crun", "list"],
        &["--root", "/run/gpool-crun", "state", "nobody"],
        &["--root", "/run/gpool-crun", "delete", "--force", "nobody"],
        &["kill", "nobody", "9"],
        &["create", "--help"],
        &["frobnicate"],
        &[],
    ] {
        let said =
            |program: &Path| -> Result<Output> { Command::new(program).args(arguments).output().context("crun") };
        let (plain, wrapped) = (said(Path::new(CRUN))?, said(runtime)?);
        ensure(plain == wrapped, || format!("crun {arguments:?}: {plain:?}\nwith gpool: {wrapped:?}"))?;
    }
    Ok(())
}
