//! An image with musl and in Alpine's places. NVIDIA's libraries, and so the shims, cannot be loaded there with gpool or
//! without; its programs run in a leased container as they do in a plain one.

use crate::c_program::{MUSL_LOADER, compile_for_musl};
use crate::failure::{Context, Result, ensure};
use crate::host::{DRIVER_LIBRARIES, Host, SIMULATED_GPU};
use crate::scenarios::loader_matrix::programs::LEASED;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const SOURCE: &str = include_str!("../../../programs/musl.c");
const NAME: &str = "gpool-musl:1";
/// Where musl's loader looks for libraries.
const LIBRARIES: &str = "/usr/lib";

/// Makes the image from the packages in `unpacked` and runs its program in both containers.
pub fn look_into(host: &Host, unpacked: &Path) -> Result<()> {
    let root = Path::new("/run/gpool-musl");
    for directory in ["bin", "lib", "usr/lib", "proc", "dev", "sys", "etc"] {
        fs::create_dir_all(root.join(directory)).context(directory)?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).context("busybox")?;
    symlink("busybox", root.join("bin/sh")).context("sh")?;
    compile_for_musl(SOURCE, &root.join("bin"), "musl", unpacked, Path::new("/lib").join(MUSL_LOADER))?;
    fs::rename(root.join("bin").join(MUSL_LOADER), root.join("lib").join(MUSL_LOADER)).context(MUSL_LOADER)?;
    host.engine.import_directory(root, NAME)?;
    let mounts = DRIVER_LIBRARIES.map(|name| format!("{SIMULATED_GPU}/lib/{name}:{LIBRARIES}/{name}:ro"));
    let plain: Vec<&str> =
        ["--runtime=runc"].into_iter().chain(mounts.iter().flat_map(|mount| ["-v", mount])).collect();
    let script = format!("musl; busybox ls {LIBRARIES}/libcuda.so.1 {LIBRARIES}/libnvidia-ml.so.1");
    let wanted = format!("runs yes\nloads no\n{LIBRARIES}/libcuda.so.1\n{LIBRARIES}/libnvidia-ml.so.1");
    for options in [&plain[..], &LEASED] {
        let said = host.engine.docker_text(&[&["run", "--rm"][..], options, &[NAME, "sh", "-c", &script]].concat())?;
        ensure(said == wanted, || format!("{options:?}: {said}"))?;
    }
    Ok(())
}
