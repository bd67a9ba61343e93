//! Images whose directories are links, which keep libraries elsewhere, or which bring drivers to places that nobody
//! expects. The shim must be on top in each, or the start refused; and nothing may be made outside the image, wherever
//! its links lead.

mod compat_driver;
mod layouts;

use super::finish;
use super::loader_matrix::programs::{self, DATA, DEVICE, LEASE, LEASED};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU, text};
use crate::image;
use crate::namespaces::Inside;
use layouts::{LAYOUTS, Layout};
use std::fs;
use std::path::Path;

/// Where links of the images lead to on the host, if something follows them out of the image.
const OUTSIDE: [&str; 2] = ["/run/outside", "/etc/outside"];
const UNTOUCHED: &str = "nobody has written here";

/// Tries every layout, volumes, and drivers of images behind the shim.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = try_all(&mut host);
    finish(host, outcome)
}

fn try_all(host: &mut Host) -> Result<()> {
    programs::compile_all(&host.stage)?;
    for directory in OUTSIDE {
        fs::create_dir_all(directory).context(directory)?;
        fs::write(Path::new(directory).join("libcuda.so.1"), UNTOUCHED).context(directory)?;
    }
    for layout in &LAYOUTS {
        try_layout(host, layout).context(layout.name)?;
    }
    a_volume_with_a_driver_is_refused(host)?;
    a_driver_that_the_entrypoint_turns_on_is_covered(host)?;
    compat_driver::try_all(host)
}

fn try_layout(host: &Host, layout: &Layout) -> Result<()> {
    let root = Path::new("/run/gpool-layout");
    image::lay_out(&host.stage, root)?;
    (layout.change)(root)?;
    let name = "gpool-layout:1";
    host.engine.import_directory(root, name)?;
    fs::remove_dir_all(root).context("the layout")?;
    let plain = programs::plain_options(layout.libraries);
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    for (options, memory) in [(&plain[..], DEVICE), (&LEASED, LEASE)] {
        let said = ask(host, &[options, layout.options].concat(), name)?;
        let wanted = ["loads", "linked"].map(|way| format!("{way}: {memory}")).join("\n");
        ensure(said == wanted, || format!("with {}: {said}", options[0]))?;
    }
    for directory in OUTSIDE {
        let names: Vec<_> =
            fs::read_dir(directory).context(directory)?.flatten().map(|entry| entry.file_name()).collect();
        let said = fs::read_to_string(Path::new(directory).join("libcuda.so.1")).context(directory)?;
        ensure(names == ["libcuda.so.1"] && said == UNTOUCHED, || format!("{directory} on the host has {names:?}"))?;
    }
    Ok(())
}

/// What the programs said, or docker.
fn ask(host: &Host, options: &[&str], image: &str) -> Result<String> {
    let data = format!("{DATA}:{DATA}:ro");
    let script = format!("cd {DATA}; ./loads loads; ./linked linked");
    let output = host.docker(&[&["run", "--rm", "-v", &data], options, &[image, "sh", "-c", &script]].concat())?;
    Ok(if output.status.success() { text(&output.stdout) } else { text(&output.stderr) })
}

/// A directory of the host with a libcuda in it, where the loader is told to look first: no image has that file, and
/// nothing that gpool mounts covers it.
fn a_volume_with_a_driver_is_refused(host: &Host) -> Result<()> {
    let volume = format!("{SIMULATED_GPU}/lib:/opt/driver:ro");
    let options = ["-v", &volume, "-e", "LD_LIBRARY_PATH=/opt/other:/opt/driver"];
    let said = ask(host, &[&LEASED[..], &options].concat(), image::NAME)?;
    let is_refused = said.contains("GPOOL-E303") && said.contains("/opt/driver/libcuda.so.1");
    ensure(is_refused, || format!("a volume with a driver: {said}"))
}

/// NVIDIA's images for frameworks have their own libcuda in a folder that nothing names; LD_LIBRARY_PATH has another one
/// beside it, which is not there. If the host's driver is older, their entrypoint names the first, or links it there.
fn a_driver_that_the_entrypoint_turns_on_is_covered(host: &Host) -> Result<()> {
    const COMPAT: &str = "/usr/local/cuda-13.1/compat";
    let (root, name) = (Path::new("/run/gpool-layout"), "gpool-framework:1");
    image::lay_out(&host.stage, root)?;
    let real = root.join(&COMPAT[1..]).join("lib.real");
    fs::create_dir_all(&real).context("lib.real")?;
    fs::copy(format!("{SIMULATED_GPU}/lib/libcuda.so.1"), real.join("libcuda.so.590.48.01")).context("the driver")?;
    std::os::unix::fs::symlink("libcuda.so.590.48.01", real.join("libcuda.so.1")).context("its link")?;
    host.engine.import_directory(root, name)?;
    fs::remove_dir_all(root).context("the image")?;
    let told = format!("LD_LIBRARY_PATH={COMPAT}/lib");
    let data = format!("{DATA}:{DATA}:ro");
    let script = format!(
        "cd {DATA}; LD_LIBRARY_PATH={COMPAT}/lib.real ./linked named; ln -s lib.real {COMPAT}/lib; ./linked linked; \
         ./loads loads"
    );
    let options = ["run", "--rm", "-v", &data, "-e", &told];
    let said = host.engine.docker_text(&[&options, &LEASED[..], &[name, "sh", "-c", &script]].concat())?;
    let wanted = ["named", "linked", "loads"].map(|way| format!("{way}: {LEASE}")).join("\n");
    ensure(said == wanted, || format!("a driver that the entrypoint turns on: {said}"))
}
