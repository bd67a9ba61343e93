//! The ways of [`loader_matrix`](super::loader_matrix) in whole images of other systems, made by Debian's own tools:
//! with an old glibc, with a new one, and with musl. The simulated driver is behind the real shims, so that each program
//! says whether it saw its lease.

mod containers;
mod musl;

use crate::downloads::{Downloads, Packages};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, another_run};
use crate::scenarios::{finish_found, loader_matrix::programs};
use crate::stage::Stage;

/// Debian's releases with glibc 2.31 and 2.41.
const SUITES: [&str; 2] = ["bullseye", "trixie"];
/// The other C library that images have, for which NVIDIA makes no libraries.
const MUSL: Packages = Packages { suite: "stable", component: "main", names: &["musl", "musl-dev"] };

/// Makes what is missing; what cannot be had.
pub fn fetch() -> Result<Vec<Failure>> {
    let downloads = downloads()?;
    // At the same time: they wait for the network more than for anything else.
    let mut failures: Vec<Failure> = std::thread::scope(|scope| {
        let makers = SUITES.map(|suite| scope.spawn(|| downloads.fetch_image(suite)));
        let ended = makers.into_iter().map(|maker| maker.join().unwrap_or_else(|_| Err(Failure::new("it panicked"))));
        ended.filter_map(Result::err).collect()
    });
    failures.extend(downloads.fetch(&MUSL).err());
    Ok(failures)
}

/// Makes what is missing, then looks in a run of its own, which has no network.
pub fn run() -> Result<()> {
    let failures = fetch()?;
    failures.iter().for_each(|failure| println!("skipped in part: {failure}"));
    if failures.len() > SUITES.len() {
        println!("skipped: no image of another system can be made");
        return Ok(());
    }
    let status = another_run().arg("whole-images-inside").status().context("the run that looks")?;
    ensure(status.success(), || format!("the run that looks ended with {status}"))
}

/// Looks into each image that is there.
pub fn inside(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = look_into_all(&host, &downloads()?);
    // One of the programs goes past the shim on purpose.
    finish_found(host, outcome)
}

fn look_into_all(host: &Host, downloads: &Downloads) -> Result<()> {
    programs::compile_all(&host.stage)?;
    for suite in SUITES {
        let Some(archive) = downloads.image(suite) else { continue };
        containers::look_into(host, suite, &archive).context(suite)?;
    }
    match downloads.unpacked(&MUSL) {
        Some(unpacked) => musl::look_into(host, &unpacked).context("musl"),
        None => Ok(()),
    }
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}
