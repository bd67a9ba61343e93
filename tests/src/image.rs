//! A container image made from files of this machine: busybox, the tenant, and the shared libraries that they need.

use crate::failure::{Context, Failure, Result};
use crate::stage::Stage;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the image.
pub const NAME: &str = "gpool-tenant:1";

const BUSYBOX: &str = "/bin/busybox";
/// Where the loader of the image looks for libraries.
pub const LIBRARIES: &str = "/lib/x86_64-linux-gnu";

/// Libraries that the shims and NVIDIA's libraries need although most are empty in today's glibc.
const ALWAYS: [&str; 5] = ["libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libgcc_s.so.1"];

/// Lays the image's root out in `root`.
pub fn lay_out(stage: &Stage, root: &Path) -> Result<()> {
    for directory in ["bin", "tmp", "proc", "sys", "dev", "etc", "root", "lib/x86_64-linux-gnu", "lib64", "data"] {
        fs::create_dir_all(root.join(directory)).context(directory)?;
    }
    fs::copy(BUSYBOX, root.join("bin/busybox")).context("busybox-static is not installed")?;
    let listed = Command::new(BUSYBOX).arg("--list").output().context(BUSYBOX)?.stdout;
    for applet in String::from_utf8_lossy(&listed).lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).context(applet)?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").context("passwd")?;
    fs::write(root.join("etc/group"), "root:x:0:\n").context("group")?;
    let tenant = stage.program("gpool-tenant");
    fs::copy(&tenant, root.join("bin/gpool-tenant")).context("the tenant")?;
    for library in libraries_of(&[tenant, stage.simulated().join("libcuda.so.1")])? {
        fs::copy(&library, place_of(&library, root)).context(library.display())?;
    }
    // Debian's loader is in both places: a library that needs it by its name may be looked for without it.
    let loader = "ld-linux-x86-64.so.2";
    fs::copy(root.join("lib64").join(loader), root.join(&LIBRARIES[1..]).join(loader)).context(loader)?;
    Ok(())
}

/// The loader lies where the ABI says, everything else where Debian's loader looks.
fn place_of(library: &Path, root: &Path) -> PathBuf {
    let name = library.file_name().unwrap_or_default();
    let is_loader = name.to_string_lossy().starts_with("ld-linux");
    root.join(if is_loader { "lib64" } else { &LIBRARIES[1..] }).join(name)
}

fn libraries_of(files: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut found: BTreeSet<PathBuf> = ALWAYS.iter().map(|name| Path::new(LIBRARIES).join(name)).collect();
    found.retain(|path| path.exists());
    for file in files {
        let listed = Command::new("ldd").arg(file).output().context("ldd")?;
        if !listed.status.success() {
            return Err(Failure::new(format!("ldd cannot read {}", file.display())));
        }
        found.extend(parse_ldd(&String::from_utf8_lossy(&listed.stdout)));
    }
    Ok(found)
}

/// The absolute paths in the output of `ldd`: `libc.so.6 => /lib/… (0x…)` or `/lib64/ld-linux… (0x…)`.
fn parse_ldd(listed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        let path = target.trim().split(" (0x").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    listed.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_taken_from_ldd() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \tlibabsent.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let want = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse_ldd(listed), want.map(PathBuf::from));
    }

    #[test]
    fn the_loader_goes_where_the_abi_says() {
        let root = Path::new("/image");
        assert_eq!(
            place_of(Path::new("/lib64/ld-linux-x86-64.so.2"), root),
            Path::new("/image/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(place_of(Path::new("/usr/lib/libc.so.6"), root), Path::new("/image/lib/x86_64-linux-gnu/libc.so.6"));
    }
}
