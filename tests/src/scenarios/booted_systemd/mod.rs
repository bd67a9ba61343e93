//! gpool's packages in a Debian with its own systemd: what the README says, and a year of a host's life after it.

mod confined;
mod device_plugin;
mod first_hour;
mod gpu_tests;
mod life;
mod meanwhile;
mod mps;
mod overflow;
mod removal;
mod rpm;
mod suspension;
mod unit;

use crate::booted::{Booted, Packages, pack};
use crate::downloads::Downloads;
use crate::failure::{Context, Result, ensure};
use crate::image;
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;
use std::path::Path;
use std::process::Command;

/// What a host has before gpool comes.
pub const SUITE: &str = "bookworm";
const SYSTEM: [&str; 9] =
    ["systemd", "systemd-sysv", "dbus", "docker.io", "runc", "libgcc-s1", "init-system-helpers", "procps", "rpm"];
/// gpool's own, and the GPU for machines without one.
pub const PACKAGES: [&str; 2] = ["gpool", "gpool-simulated-gpu"];

/// Makes the system that is booted, unless it is here.
pub fn fetch() -> Result<()> {
    Downloads::in_directory(Stage::of_this_program()?.downloads()).fetch_system(SUITE, &SYSTEM)
}

/// Makes what is missing, then boots it for each part, without network.
pub fn run() -> Result<()> {
    let stage = Stage::of_this_program()?;
    if let Err(failure) = fetch() {
        println!("skipped: no Debian can be made to boot: {failure}");
        return Ok(());
    }
    pack(&stage)?;
    for part in ["first-hour-inside", "booted-systemd-inside", "rpm-inside"] {
        let status = another_run().arg(part).status().context(part)?;
        ensure(status.success(), || format!("{part} ended with {status}"))?;
    }
    Ok(())
}

/// From the README alone to a container that sees its part of the GPU.
pub fn first_hour(inside: &Inside) -> Result<()> {
    in_a_booted_system(inside, first_hour::run)
}

/// The .rpm: install, upgrade, erase.
pub fn rpm(inside: &Inside) -> Result<()> {
    in_a_booted_system(inside, rpm::run)
}

/// Install, restart, kill, hang, upgrade, downgrade, remove, purge.
pub fn life(inside: &Inside) -> Result<()> {
    in_a_booted_system(inside, |booted, packages| {
        let clean = removal::Clean::note(booted)?;
        let mut tenants = life::installed(booted, packages)?;
        life::restarted(booted, &tenants)?;
        meanwhile::a_tenant_dies(booted, &mut tenants)?;
        meanwhile::a_tenant_dies_and_is_impersonated(booted, &mut tenants)?;
        confined::confined(booted, &mut tenants)?;
        life::upgraded(booted, packages, &mut tenants)?;
        life::downgraded(booted, packages, &tenants)?;
        removal::removed(booted, &mut tenants)?;
        clean.is_there_again(booted)
    })
}

fn in_a_booted_system(inside: &Inside, body: impl FnOnce(&Booted, &Packages) -> Result<()>) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let system = Downloads::in_directory(stage.downloads()).system(SUITE);
    let system =
        system.ok_or_else(|| crate::failure::Failure::new("the system that booted-systemd makes is not here"))?;
    let booted = Booted::boot(inside, &system)?;
    bring_image(&booted, &stage)?;
    let outcome = body(&booted, &Packages::beside(&stage));
    if outcome.is_err() {
        eprintln!("{}", booted.journal());
    }
    outcome
}

/// An image of the name that the README uses, since there is no registry here.
fn bring_image(booted: &Booted, stage: &Stage) -> Result<()> {
    let (root, archive) = (Path::new("/run/gpool-image"), Path::new("/run/gpool-image.tar"));
    image::lay_out(stage, root)?;
    let tar = Command::new("tar").arg("-C").arg(root).arg("-cf").arg(archive).arg(".").status().context("tar")?;
    ensure(tar.success(), || format!("tar ended with {tar}"))?;
    booted.bring(archive, "image.tar")?;
    booted.sh("docker import image.tar debian:12 && rm image.tar").map(drop)
}

/// Installs packages as a person does.
fn install(booted: &Booted, packages: &[(std::path::PathBuf, String)], options: &str) -> Result<String> {
    let mut names = String::new();
    for (file, name) in packages {
        booted.bring(file, name)?;
        names += &format!(" ./{name}");
    }
    // Both streams: what a package says to people goes to either.
    booted.sh(&format!("apt-get -qq install -y {options} {names} 2>&1"))
}
