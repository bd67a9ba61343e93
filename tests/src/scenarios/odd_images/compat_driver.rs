//! Which libcuda is behind the shim in an image for CUDA: the host's, or the image's where the host's configuration says
//! so and the image's is newer. Copies of the simulated driver stand in for drivers of other versions; each ends with a
//! line that says whose it is, behind everything that the loader reads.

use super::ask;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU};
use crate::image;
use crate::scenarios::loader_matrix::programs::{LEASE, LEASED};
use crate::scenarios::{reload_with, wait_for};
use gpool_simulated_hardware::DriverVersion;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

const CONFIGURATION: &str = "/etc/gpool/config.toml";
const HOST_VERSION: &str = "535.261.03";
const NEWER: [&str; 2] = ["575.57.08", "590.3"];
const OLDER: &str = "470.256.02";
const IMAGE: &str = "gpool-with-drivers:1";
const OLD_IMAGE: &str = "gpool-with-old-driver:1";

/// Tries every case with the same images.
pub fn try_all(host: &mut Host) -> Result<()> {
    make_image(host, IMAGE, &[NEWER[0], NEWER[1], OLDER])?;
    make_image(host, OLD_IMAGE, &[OLDER])?;
    name_the_hosts_driver(host)?;
    expect(host, IMAGE, HOST_VERSION).context("by default")?;
    let usual = fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?;
    // The table of the driver is the last one.
    let configure = |value: &str| fs::write(CONFIGURATION, format!("{usual}compat = \"{value}\"\n"));
    configure("image").context(CONFIGURATION)?;
    expect(host, IMAGE, NEWER[1]).context("the image has newer ones")?;
    expect(host, OLD_IMAGE, HOST_VERSION).context("the image has an older one")?;
    expect(host, image::NAME, HOST_VERSION).context("the image has none")?;
    configure("host").context(CONFIGURATION)?;
    expect(host, IMAGE, HOST_VERSION).context("the host's, as it is said")?;
    configure("newest").context(CONFIGURATION)?;
    let said = ask(host, &LEASED, IMAGE)?;
    ensure(said.contains("GPOOL-E004") && said.contains("`image`"), || format!("compat = newest: {said}"))?;
    configure("image").context(CONFIGURATION)?;
    expect_without_shims(host).context("whole GPUs")?;
    fs::write(CONFIGURATION, usual).context(CONFIGURATION)
}

/// Programs come to the shim, and behind it is the driver of this version; NVML's is always the host's.
fn expect(host: &Host, image: &str, version: &str) -> Result<()> {
    let said = ask(host, &LEASED, image)?;
    ensure(said == format!("loads: {LEASE}\nlinked: {LEASE}"), || said)?;
    let script = "cd /dev/gpool/real; for name in libcuda libnvidia-ml; do tail -n 1 $name.so.1; done";
    let said = host.engine.docker_text(&[&["run", "--rm"], &LEASED[..], &[image, "sh", "-c", script]].concat())?;
    ensure(said == format!("driver {version}\ndriver {HOST_VERSION}"), || format!("behind the shims: {said:?}"))
}

/// Programs come to the newest driver of the image wherever they look, and to the host's NVML.
fn expect_without_shims(host: &Host) -> Result<()> {
    reload_with(host, "[policy.env]\nallow = [\"mode\"]\n")?;
    wait_for("room for a whole GPU", || Ok(host.leases()?.is_empty()))?;
    let script = "for file in /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/local/cuda-12.0/compat/libcuda.so.1 \
                  /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; do tail -n 1 $file; done";
    let whole = ["run", "--rm", "--runtime=gpool", "-e", "GPOOL_MODE=exclusive", IMAGE, "sh", "-c", script];
    let said = host.engine.docker_text(&whole)?;
    let wanted = format!("driver {0}\ndriver {0}\ndriver {HOST_VERSION}", NEWER[1]);
    ensure(said == wanted, || format!("without shims: {said:?}"))
}

/// The host's driver gets a version, in the names of its files as well, as packages have it, and the supervisor sees that.
fn name_the_hosts_driver(host: &mut Host) -> Result<()> {
    host.stop_supervisor()?;
    host.set_driver_version(&DriverVersion::parse(HOST_VERSION).context(HOST_VERSION)?)?;
    for name in ["libcuda", "libnvidia-ml"] {
        let link = format!("{SIMULATED_GPU}/lib/{name}.so.1");
        let file = format!("{name}.so.{HOST_VERSION}");
        let path = format!("{SIMULATED_GPU}/lib/{file}");
        fs::rename(&link, &path).context(&link)?;
        mark(Path::new(&path), HOST_VERSION)?;
        symlink(&file, &link).context(&link)?;
    }
    host.start_supervisor()
}

fn make_image(host: &Host, name: &str, versions: &[&str]) -> Result<()> {
    let root = Path::new("/run/gpool-with-drivers");
    image::lay_out(&host.stage, root)?;
    for (number, version) in versions.iter().enumerate() {
        let compat = root.join(format!("usr/local/cuda-12.{number}/compat"));
        fs::create_dir_all(&compat).context(compat.display())?;
        let file = format!("libcuda.so.{version}");
        fs::copy(host.stage.simulated().join("libcuda.so.1"), compat.join(&file)).context(&file)?;
        mark(&compat.join(&file), version)?;
        symlink(&file, compat.join("libcuda.so.1")).context(&file)?;
    }
    host.engine.import_directory(root, name)?;
    fs::remove_dir_all(root).context("the image")
}

fn mark(library: &Path, version: &str) -> Result<()> {
    let mut file = OpenOptions::new().append(true).open(library).context(library.display())?;
    write!(file, "\ndriver {version}\n").context(library.display())
}
