//! `gpool run` in a cgroup whose device rules forbid the GPU, as in a job of Slurm's with ConstrainDevices.

use super::{finish, wait_for};
use crate::cgroups::hierarchies;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, text};
use crate::namespaces::Inside;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Output;

/// The node in the folder of the simulated GPU, whose number is what the rule forbids.
const NODE: &str = "/run/gpool-simgpu/dev/nvidia0";

/// Says so with the rule in force, and runs without it.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = called_from_a_cgroup(&host, inside);
    finish(host, outcome)
}

fn called_from_a_cgroup(host: &Host, inside: &Inside) -> Result<()> {
    // Version 2 has no files for this: there a rule is a program that somebody attaches.
    let Some(devices) = hierarchies().into_iter().find(|root| root.join("devices.deny").exists()) else {
        println!("skipped: no hierarchy of cgroup version 1 has device rules");
        return Ok(());
    };
    let cgroup = devices.join(&inside.cgroup_parent).join("job");
    fs::create_dir_all(&cgroup).context(cgroup.display())?;
    let outcome = with_and_without_a_rule(host, &cgroup);
    fs::remove_dir(&cgroup).context(cgroup.display()).and(outcome)
}

fn with_and_without_a_rule(host: &Host, cgroup: &Path) -> Result<()> {
    let allowed = gpool_run_in(host, cgroup)?;
    ensure(allowed.status.success(), || format!("without a rule it says {}", text(&allowed.stderr)))?;

    let node = fs::metadata(NODE).context(NODE)?;
    ensure(node.file_type().is_char_device(), || format!("{NODE} is no device node"))?;
    let rule = format!("c {}:{} rwm", rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
    fs::write(cgroup.join("devices.deny"), &rule).context(&rule)?;
    let forbidden = gpool_run_in(host, cgroup)?;
    let said = text(&forbidden.stderr);
    ensure(forbidden.status.code() == Some(125), || format!("it ended with {:?}: {said}", forbidden.status.code()))?;
    for part in ["the caller's cgroup forbids the device node /dev/nvidia0", "ConstrainDevices", "GPOOL-E511"] {
        ensure(said.contains(part), || format!("{said:?} lacks {part:?}"))?;
    }
    ensure(!said.contains("needs root") && said.lines().count() == 1, || format!("it says {said}"))?;
    wait_for("the end of the lease of what was not started", || Ok(host.leases()?.is_empty()))
}

/// A shell goes there first: who calls has the rules of its cgroup.
fn gpool_run_in(host: &Host, cgroup: &Path) -> Result<Output> {
    let script = "echo $$ > \"$0/cgroup.procs\" && exec gpool run --fraction 0.3 --memory 2GiB -- true";
    let mut shell = host.command_named("sh");
    shell.arg("-c").arg(script).arg(cgroup).output().context("sh")
}
