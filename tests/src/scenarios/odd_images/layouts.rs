//! How the image of this machine's files is changed before it is imported.

use crate::failure::{Context, Result, ensure};
use crate::host::SIMULATED_GPU;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// One image.
#[derive(Debug)]
pub struct Layout {
    pub name: &'static str,
    /// Changes what lies in the directory.
    pub change: fn(&Path) -> Result<()>,
    /// Where its loader finds libraries.
    pub libraries: &'static str,
    /// Docker's options for a container of it.
    pub options: &'static [&'static str],
}

const DEBIAN: &str = "/usr/lib/x86_64-linux-gnu";
const USUAL: Layout = Layout { name: "", change: |_| Ok(()), libraries: DEBIAN, options: &[] };

/// All of them.
pub const LAYOUTS: [Layout; 10] = [
    Layout { name: "/lib and /lib64 are absolute links", change: merged, ..USUAL },
    Layout { name: "/usr/lib64 is an absolute link to /usr/lib", change: one_directory, ..USUAL },
    // Debian's loader has to be told of the directory in which Fedora's looks by itself.
    Layout {
        name: "libraries in /usr/lib64",
        change: fedora,
        libraries: "/usr/lib64",
        options: &["-e", "LD_LIBRARY_PATH=/usr/lib64"],
    },
    Layout { name: "/etc is a link", change: |root| leads_out(root, "etc", "/run/outside"), ..USUAL },
    Layout { name: "/run is a link", change: |root| leads_out(root, "run", "/etc/outside"), ..USUAL },
    Layout { name: "the library directory is a link", change: libraries_elsewhere, ..USUAL },
    Layout { name: "libcuda.so.1 is a link to nothing", change: library_leads_out, ..USUAL },
    Layout { name: "the loader's cache names another driver", change: cached, ..USUAL },
    Layout {
        name: "LD_LIBRARY_PATH leads to another driver as this loader and processor take it",
        change: for_this_processor,
        options: &["-e", "LD_LIBRARY_PATH=/opt/$LIB"],
        ..USUAL
    },
    Layout { name: "/dev is a link", change: |root| leads_out(root, "dev", "/etc/outside"), ..USUAL },
];

fn merged(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("usr")).context("usr")?;
    for name in ["lib", "lib64"] {
        rename(root, name, &format!("usr/{name}"))?;
        link(root, &format!("/usr/{name}"), name)?;
    }
    Ok(())
}

fn one_directory(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("usr")).context("usr")?;
    rename(root, "lib", "usr/lib")?;
    rename(root, "lib64/ld-linux-x86-64.so.2", "usr/lib/ld-linux-x86-64.so.2")?;
    fs::remove_dir(root.join("lib64")).context("lib64")?;
    ["lib", "lib64", "usr/lib64"].iter().try_for_each(|name| link(root, "/usr/lib", name))
}

fn fedora(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("usr/lib")).context("usr/lib")?;
    rename(root, "lib/x86_64-linux-gnu", "usr/lib64")?;
    fs::remove_dir(root.join("lib")).context("lib")?;
    fs::remove_dir_all(root.join("lib64")).context("lib64")?;
    link(root, "usr/lib", "lib")?;
    link(root, "usr/lib64", "lib64")
}

/// `name` leads to a place that the host has, and so has the image: what follows the link on the host goes out of it.
fn leads_out(root: &Path, name: &str, place: &str) -> Result<()> {
    fs::create_dir_all(root.join(&place[1..])).context(place)?;
    if root.join(name).exists() {
        fs::remove_dir_all(root.join(name)).context(name)?;
    }
    link(root, place, name)
}

fn libraries_elsewhere(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("run")).context("run")?;
    rename(root, "lib/x86_64-linux-gnu", "run/outside")?;
    link(root, "/run/outside", "lib/x86_64-linux-gnu")
}

fn library_leads_out(root: &Path) -> Result<()> {
    link(root, "/run/outside/libcuda.so.1", "lib/x86_64-linux-gnu/libcuda.so.1")
}

/// The cache knows a driver in a directory that no configuration names any more.
fn cached(root: &Path) -> Result<()> {
    let directory = root.join("opt/vendor");
    fs::create_dir_all(&directory).context("opt/vendor")?;
    fs::copy(format!("{SIMULATED_GPU}/lib/libcuda.so.1"), directory.join("libcuda.so.1")).context("the driver")?;
    let configuration = root.join("etc/ld.so.conf");
    fs::write(&configuration, "/opt/vendor\n").context("ld.so.conf")?;
    let made = Command::new("/sbin/ldconfig").arg("-r").arg(root).status().context("ldconfig")?;
    ensure(made.success(), || format!("ldconfig ended with {made}"))?;
    fs::remove_file(&configuration).context("ld.so.conf")
}

/// Into folders of this name glibc looks before 2.37, on every processor of this architecture.
fn for_this_processor(root: &Path) -> Result<()> {
    let directory = root.join("opt/lib/x86_64-linux-gnu/x86_64");
    fs::create_dir_all(&directory).context("opt/lib")?;
    fs::copy(format!("{SIMULATED_GPU}/lib/libcuda.so.1"), directory.join("libcuda.so.1")).context("the driver")?;
    Ok(())
}

fn rename(root: &Path, from: &str, to: &str) -> Result<()> {
    fs::rename(root.join(from), root.join(to)).context(format!("{from} to {to}"))
}

fn link(root: &Path, target: &str, name: &str) -> Result<()> {
    symlink(target, root.join(name)).context(name)
}
