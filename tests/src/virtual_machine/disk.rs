//! The disk of a virtual machine: a file with an ext4 file system, made without mounting it.

use crate::booted::copy_of;
use crate::failure::{Context, Result};
use crate::host::succeeded;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const ANSWERS: &str = include_str!("../../programs/answers.sh");
const UNIT: &str = "[Unit]\nDescription=answers to the test\n[Service]\nExecStart=/bin/sh /root/answers.sh\n";
/// What the system has is a quarter of it. Nothing is taken for what is not used.
const SIZE: &str = "2G";

/// A file for the machine: what is to be copied, and the path there.
#[derive(Debug, Clone)]
pub struct File {
    /// On this machine.
    pub source: PathBuf,
    /// In the virtual one.
    pub path: String,
}

/// Makes a disk in `home` with the system, what answers the test, and `files`.
pub fn make(system: &Path, files: &[File], home: &Path) -> Result<PathBuf> {
    let root = copy_of(system)?;
    for file in files {
        let place = root.join(file.path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap_or(&root)).context(place.display())?;
        fs::copy(&file.source, &place).context(file.source.display())?;
    }
    let units = root.join("etc/systemd/system");
    let wanted = units.join("multi-user.target.wants");
    fs::create_dir_all(&wanted).context(wanted.display())?;
    fs::write(root.join("root/answers.sh"), ANSWERS).context("answers.sh")?;
    fs::write(units.join("answers.service"), UNIT).context("answers.service")?;
    symlink("../answers.service", wanted.join("answers.service")).context("answers.service")?;
    // Nobody sits at the console, and nobody is asked what a new system asks.
    symlink("/dev/null", units.join("serial-getty@ttyS0.service")).context("serial-getty@ttyS0.service")?;
    fs::write(root.join("etc/machine-id"), "67706f6f6c0000000000000000000001\n").context("machine-id")?;
    let disk = home.join("disk");
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard", "-d"]).arg(&root).arg(&disk).arg(SIZE);
    succeeded("mke2fs", command.output().context("mke2fs, of the package e2fsprogs")?)?;
    Ok(disk)
}
