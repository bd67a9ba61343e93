//! The shims as they were built, one for each generation of the driver: what they export, how large they are, and that
//! each can be told from the others.

use crate::exports;
use crate::failure::{Context, Failure, Result, ensure};
use crate::namespaces::Inside;
use crate::stage::{SHIMS, Stage};
use gpool_driver_abi::{GENERATIONS, Generation};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Loaded into every process that uses a GPU.
const LIMIT_BYTES: u64 = 232 << 10;
/// The real driver and glibc's libraries: nothing that an image could lack or bring in another version.
const CUDA_NEEDS: [&str; 3] = ["/dev/gpool/real/libcuda.so.1", "libc.so.6", "libdl.so.2"];

/// Reads all files.
pub fn run(_inside: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let mut builds = BTreeSet::new();
    for generation in &GENERATIONS {
        for (shim, names) in SHIMS.iter().zip([generation.cuda, generation.nvml]) {
            let path = stage.shim(generation.name, shim);
            exports_exactly(&path, names)?;
            let bytes = std::fs::metadata(&path).context(path.display())?.len();
            println!("{}: {bytes} bytes", path.display());
            ensure(bytes <= LIMIT_BYTES, || format!("{} takes {bytes} bytes", path.display()))?;
            builds.insert(build_id(&path)?);
        }
        needs_no_more(&stage.shim(generation.name, SHIMS[0]))?;
    }
    ensure(builds.len() == GENERATIONS.len() * SHIMS.len(), || format!("build ids that are not unique: {builds:?}"))?;
    each_has_the_names_of_the_one_before(&GENERATIONS)
}

/// One name less and a program does not link, or finds the real function behind the shim; one more and its probe for a
/// newer driver is answered wrongly.
fn exports_exactly(library: &Path, names: &str) -> Result<()> {
    let (exported, wanted) = (exports::of(library)?, names.lines().map(str::to_owned).collect::<BTreeSet<_>>());
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let superfluous: Vec<_> = exported.difference(&wanted).collect();
    ensure(missing.is_empty() && superfluous.is_empty(), || {
        format!("{} lacks {missing:?} and has {superfluous:?} too much", library.display())
    })
}

fn needs_no_more(cuda: &Path) -> Result<()> {
    let listed = Command::new("/usr/bin/objdump").arg("-p").arg(cuda).output().context("objdump")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let needed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim).collect();
    ensure(needed == CUDA_NEEDS.into(), || format!("{} needs {needed:?}", cuda.display()))
}

/// As another program than gpool's own reads it.
fn build_id(library: &Path) -> Result<String> {
    let read = Command::new("/usr/bin/readelf").arg("--notes").arg(library).output().context("readelf")?;
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).map(str::to_owned);
    id.ok_or_else(|| Failure::new(format!("{} has no build id", library.display())))
}

fn each_has_the_names_of_the_one_before(generations: &[Generation]) -> Result<()> {
    let names = |list: &'static str| list.lines().collect::<BTreeSet<_>>();
    let grows = |pair: &[Generation]| {
        names(pair[0].cuda).is_subset(&names(pair[1].cuda)) && names(pair[0].nvml).is_subset(&names(pair[1].nvml))
    };
    ensure(generations.windows(2).all(grows), || "a generation lacks names of the one before it".to_owned())
}
