//! NVIDIA's own libraries behind the shims, downloaded and not installed. Without a GPU they answer that there is none;
//! everything that they answer until then must be the same with gpool and without, and every name that they have must
//! be found.

mod answers;
mod containers;
mod verdicts;

use crate::downloads::{Downloads, Packages};
use crate::failure::{Context, Result, ensure};
use crate::host::{DRIVER_LIBRARIES, Host};
use crate::namespaces::{Inside, another_run};
use crate::scenarios::finish;
use crate::stage::Stage;
use std::fs;
use std::path::Path;

const DRIVER: [&str; 2] = ["libcuda1", "libnvidia-ml1"];
/// Suites with different generations of the driver.
const DRIVERS: [Packages; 3] = [
    Packages { suite: "oldstable", component: "non-free", names: &DRIVER },
    Packages { suite: "stable", component: "non-free", names: &DRIVER },
    Packages { suite: "experimental", component: "non-free", names: &DRIVER },
];
/// Suites with a glibc that is older than this machine's, and newer.
const GLIBCS: [Packages; 3] = [
    Packages { suite: "oldoldstable", component: "main", names: &["libc6"] },
    Packages { suite: "stable", component: "main", names: &["libc6"] },
    Packages { suite: "unstable", component: "main", names: &["libc6"] },
];
/// The other C library that images have, for which NVIDIA makes no libraries.
const MUSL: Packages = Packages { suite: "stable", component: "main", names: &["musl", "musl-dev"] };
/// NVIDIA's CUDA runtimes of three generations.
const RUNTIMES: [&str; 3] = ["nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"];

/// Downloads what is missing, then compares in a run of its own, which has no network.
pub fn run() -> Result<()> {
    let downloads = downloads()?;
    let drivers = DRIVERS.iter().map(|packages| downloads.fetch(packages)).collect::<Vec<_>>();
    if let Some(Err(failure)) = drivers.iter().find(|fetched| fetched.is_err())
        && drivers.iter().all(Result::is_err)
        && downloads.drivers().is_empty()
    {
        println!("skipped: no package of NVIDIA's driver can be reached: {failure}");
        return Ok(());
    }
    let rest = GLIBCS.iter().chain([&MUSL]).map(|packages| downloads.fetch(packages));
    let rest = rest.chain(RUNTIMES.iter().map(|name| downloads.fetch_wheel(name)));
    for failure in drivers.into_iter().chain(rest).filter_map(Result::err) {
        println!("skipped in part: {failure}");
    }
    let status = another_run().arg("real-driver-compared").status().context("the run that compares")?;
    ensure(status.success(), || format!("the run that compares ended with {status}"))
}

/// Compares each driver that is there.
pub fn compare(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = compare_all(&host, &downloads()?);
    finish(host, outcome)
}

fn compare_all(host: &Host, downloads: &Downloads) -> Result<()> {
    let data = containers::Data::lay_out(downloads)?;
    let unpacked = DRIVERS.iter().filter_map(|packages| downloads.unpacked(packages));
    let packaged = unpacked.map(|unpacked| unpacked.join("usr/lib/x86_64-linux-gnu/nvidia/current"));
    // Those of other suppliers, put there by hand.
    for driver in packaged.chain(downloads.drivers()) {
        if let Some(name) = DRIVER_LIBRARIES.iter().find(|name| fs::metadata(driver.join(name)).is_err()) {
            println!("skipped in part: {} has no {name}", driver.display());
            continue;
        }
        data.write_names(&driver)?;
        host.replace_driver(&driver)?;
        let natively = containers::ask_natively(host, &data, &driver)?;
        let leased = containers::ask_leased(host, &data)?;
        verdicts::judge(&natively, &leased).context(driver.display())?;
        println!("driver {}: {}", version_of(&driver)?, verdicts::summary(&leased));
    }
    Ok(())
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}

/// `535.261.03`: libcuda.so.1 is a link to the file that carries it.
fn version_of(driver: &Path) -> Result<String> {
    let file = fs::canonicalize(driver.join(DRIVER_LIBRARIES[0])).context(driver.display())?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(name.trim_start_matches("libcuda.so.").to_owned())
}
