//! Another build installed over the one that runs, as a package does it: every file replaced, the supervisor stopped and
//! started. Containers that run keep the shim that they have, a new one gets the new one, and all share as before.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::measure;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::tenant::report;
use crate::trace::Recorder;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const SHIM: &str = "libgpool-cuda.so";

/// Runs two containers across an upgrade, and a third one after it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = across_an_upgrade(&mut host);
    finish(host, outcome)
}

fn across_an_upgrade(host: &mut Host) -> Result<()> {
    let mut containers = start_tenants(host, &[("small", "0.3", "4GiB", 300), ("large", "0.5", "8GiB", 2000)])?;
    wait_until_running(host, &containers)?;
    let shim = host.stage.shim("535", SHIM);
    let old = inode(&shim)?;
    for container in &containers {
        ensure(maps(container, old)?, || format!("{} does not run with {SHIM}", container.name))?;
    }
    let leases = lease_ids(host)?;

    let replaced = host.stage.install_another_build()?;
    ensure(replaced >= 10, || format!("only {replaced} files were replaced"))?;
    let new = inode(&shim)?;
    host.stop_supervisor()?;
    host.start_supervisor()?;
    let after = lease_ids(host)?;
    ensure(leases == after, || format!("leases before: {leases:?}\nafter: {after:?}"))?;

    containers.extend(start_tenants(host, &[("newcomer", "0.2", "2GiB", 1000)])?);
    wait_until_running(host, &containers)?;
    for (container, (its, other)) in containers.iter().zip([(old, new), (old, new), (new, old)]) {
        let is_right = maps(container, its)? && !maps(container, other)?;
        ensure(is_right, || format!("{} runs with the other build's {SHIM}", container.name))?;
    }

    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from = now_ns() + 1_000_000_000;
    std::thread::sleep(Duration::from_secs(6));
    let to = now_ns();
    let trace = recorder.stop()?;
    for container in &containers {
        ensure(container.is_alive(), || format!("{} ended", container.name))?;
        report(&container.log(&host.engine)?)?;
    }
    let entitled = [0.3, 0.5, 0.2];
    let entitled: Vec<(&str, f64)> = containers.iter().map(|container| container.id.as_str()).zip(entitled).collect();
    let error = measure::worst_proportion_error_points(&trace, &entitled, from, to);
    ensure(error <= 5.0, || format!("after the upgrade shares are off by {error:.2} points"))
}

fn lease_ids(host: &Host) -> Result<Vec<String>> {
    let mut ids: Vec<String> = host.leases()?.iter().map(|lease| lease.lease_id.to_string()).collect();
    ids.sort();
    Ok(ids)
}

fn inode(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).context(path.display())?.ino())
}

/// Whether the container's first process has the file with this inode mapped, deleted or not.
fn maps(container: &Container, inode: u64) -> Result<bool> {
    let path = format!("/proc/{}/maps", container.init_pid);
    let maps = fs::read_to_string(&path).context(&path)?;
    // Address, mode, offset, device, inode, path.
    let is_it = |line: &str| line.split_whitespace().nth(4).is_some_and(|field| field == inode.to_string());
    Ok(maps.lines().any(is_it))
}
