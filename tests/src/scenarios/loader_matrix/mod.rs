//! Programs that load the driver in every way there is, in a leased container and in a plain one. Each says how much
//! memory its GPU has: the lease's if it came to the shim, the device's if it did not.

pub mod programs;

use super::finish_found;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU, succeeded};
use crate::image;
use crate::namespaces::Inside;
use crate::stage::{SHIMS, Stage};
use gpool_driver_abi::GENERATIONS;
use programs::{Answers, COMPAT, DATA, Image, LIBRARIES};
use std::path::Path;
use std::process::Command;

/// The image of this machine's own files.
const IMAGE: Image = Image { python: false, own_glibc: true };

/// Compiles the programs, runs them in both containers and compares.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = judge(&host);
    // One of the programs goes past the shim on purpose, and on a busy machine lives for two looks of the guard.
    finish_found(host, outcome)
}

fn judge(host: &Host) -> Result<()> {
    needs_old_glibc(&host.stage)?;
    programs::compile_all(&host.stage)?;
    let plain = programs::plain_options(LIBRARIES);
    let plain = ask(host, &plain.iter().map(String::as_str).collect::<Vec<_>>())?;
    programs::judge(&plain, IMAGE, false).context("without gpool")?;
    programs::judge(&ask(host, &programs::LEASED)?, IMAGE, true).context("leased")
}

/// The shims load wherever NVIDIA's libraries do that CUDA 11 needs: with glibc 2.17 and newer. So must what stands in
/// for those, and the tenant, or nothing could be tried there.
fn needs_old_glibc(stage: &Stage) -> Result<()> {
    let shims = GENERATIONS.iter().flat_map(|generation| SHIMS.map(|name| stage.shim(generation.name, name)));
    let simulated = ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| stage.simulated().join(name));
    for file in shims.chain(simulated).chain([stage.program("gpool-tenant")]) {
        let newest = newest_glibc(&file)?;
        ensure(!newest.is_empty() && newest.as_slice() <= [2, 17].as_slice(), || {
            format!("{} needs glibc {newest:?}", file.display())
        })?;
    }
    Ok(())
}

/// The newest version of glibc that `file` asks for; nothing if it asks for none.
fn newest_glibc(file: &Path) -> Result<Vec<u32>> {
    let mut readelf = Command::new("/usr/bin/readelf");
    readelf.args(["--wide", "--version-info"]).arg(file);
    let listed = succeeded("readelf", readelf.output().context("readelf")?)?;
    let versions = listed.split("Name: GLIBC_").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let numbers = versions.map(|version| version.split('.').map(|part| part.parse().unwrap_or(u32::MAX)));
    Ok(numbers.map(Iterator::collect::<Vec<_>>).max().unwrap_or_default())
}

fn ask(host: &Host, options: &[&str]) -> Result<Answers> {
    let programs = format!("{DATA}:{DATA}:ro");
    let compat = format!("{SIMULATED_GPU}/lib/libcuda.so.1:{COMPAT}/libcuda.so.1:ro");
    let script = programs::script(IMAGE);
    let fixed = ["run", "--rm", "-v", &programs, "-v", &compat];
    let arguments: Vec<&str> =
        fixed.iter().chain(options).chain(&[image::NAME, "sh", "-c", &script]).copied().collect();
    Ok(programs::answers(&succeeded("the container with the programs", host.docker(&arguments)?)?))
}
