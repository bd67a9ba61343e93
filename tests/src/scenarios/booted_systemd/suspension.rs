//! What takes a newer driver, done by the supervisor as systemd confines it: a container's cap is the driver's limit of its cgroup, and it
//! is suspended by a process of the unit that calls the driver.

use super::unit;
use crate::booted::{Booted, Share, Tenants};
use crate::failure::{Context, Result, ensure};

/// A driver that has limits of cgroups, and the checkpoint calls.
const DRIVER: &str = "615.71.05";
/// Where the simulated GPU reads which one it plays.
const VERSION_FILE: &str = "/run/gpool-simgpu/state/driver-version";

/// Suspends a container that is kept from the GPU, and has it go on.
pub fn under_the_unit(booted: &Booted, share: Share) -> Result<()> {
    let before = booted.sh(&format!("cat {VERSION_FILE}"))?;
    play(booted, DRIVER)?;
    let mut tenants = Tenants::start(booted, &[share])?;
    let id = booted.sh(&format!("docker inspect -f '{{{{.Id}}}}' {}", share.0))?;
    let shown = booted.sh("gpool ps --format wide")?;
    ensure(shown.contains("  driver  "), || format!("its cap is the shims' alone: {shown}"))?;
    booted.sh(&format!("gpool pause {id} && gpool suspend {id}")).context("gpool suspend")?;
    let shown = booted.sh("gpool ps")?;
    ensure(shown.contains("  suspended  "), || format!("gpool ps says {shown}"))?;
    booted.sh(&format!("gpool resume {id}"))?;
    booted.wait_until("! gpool ps | grep -q -e suspended -e waking -e resuming").context("it comes back")?;
    tenants.still_run()?;
    tenants.stop(share.0)?;
    booted.wait_until("test -z \"$(gpool ps --quiet)\"").context("its place is given up")?;
    play(booted, &before)
}

fn play(booted: &Booted, version: &str) -> Result<()> {
    let pid = unit::property(booted, "MainPID")?;
    booted.sh(&format!("printf %s '{version}' > {VERSION_FILE} && systemctl restart gpool-supervisor"))?;
    unit::wait_until_ready(booted, &pid).map(drop)
}
