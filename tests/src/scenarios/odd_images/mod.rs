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
