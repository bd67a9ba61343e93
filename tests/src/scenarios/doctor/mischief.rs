//! Ways to break a host, each of which puts things back when it is dropped.

use crate::failure::{Context, Result};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A fault that lasts until this is dropped.
pub struct Mischief(Undo);

enum Undo {
    Move { from: PathBuf, to: PathBuf },
    Write { path: PathBuf, text: Option<Vec<u8>> },
    Mode { path: PathBuf, mode: u32 },
    Unmount(PathBuf),
    Kill(Child),
    Size(String),
}

impl Drop for Mischief {
    fn drop(&mut self) {
        let done = match &mut self.0 {
            Undo::Move { from, to } => fs::rename(from, to),
            Undo::Write { path, text: Some(text) } => fs::write(path, text),
            Undo::Write { path, text: None } => fs::remove_file(path),
            Undo::Mode { path, mode } => fs::set_permissions(path, PermissionsExt::from_mode(*mode)),
            Undo::Unmount(path) => unmount(&*path, UnmountFlags::DETACH).map_err(Into::into),
            Undo::Kill(child) => child.kill().and_then(|()| child.wait().map(drop)),
            Undo::Size(size) => resize_run(size).map_err(|failure| std::io::Error::other(failure.to_string())),
        };
        // The checks that follow would show it too.
        if let Err(error) = done {
            eprintln!("a fault could not be taken back: {error}");
        }
    }
}

/// The file is away.
pub fn missing(path: impl AsRef<Path>) -> Result<Mischief> {
    let to = path.as_ref().to_owned();
    let from = to.with_file_name(format!("{}.away", to.file_name().unwrap_or_default().display()));
    fs::rename(&to, &from).context(to.display())?;
    Ok(Mischief(Undo::Move { from, to }))
}

/// The file holds this; it need not be there.
pub fn written(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Result<Mischief> {
    let path = path.as_ref().to_owned();
    let before = fs::read(&path).ok();
    path.parent().map_or(Ok(()), fs::create_dir_all).context(path.display())?;
    fs::write(&path, text).context(path.display())?;
    Ok(Mischief(Undo::Write { path, text: before }))
}

/// The file is another one, made anew: a library that is mapped keeps its bytes.
pub fn replaced(path: impl AsRef<Path>, by: &Path) -> Result<Mischief> {
    let away = missing(&path)?;
    fs::copy(by, &path).context(by.display())?;
    Ok(away)
}

/// The file or directory has this mode.
pub fn mode(path: impl AsRef<Path>, mode: u32) -> Result<Mischief> {
    let path = path.as_ref().to_owned();
    let before = fs::metadata(&path).context(path.display())?.permissions().mode() & 0o7777;
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).context(path.display())?;
    Ok(Mischief(Undo::Mode { path, mode: before }))
}

/// A file of the kernel's says this, by a mount in this run's own namespace.
pub fn kernel_says(path: impl AsRef<Path>, text: &str) -> Result<Mischief> {
    let path = path.as_ref().to_owned();
    let said = Path::new("/run/kernel-says");
    fs::write(said, text).context(said.display())?;
    mount_bind(said, &path).context(path.display())?;
    Ok(Mischief(Undo::Unmount(path)))
}

/// An empty directory lies over this one.
pub fn emptied(path: impl AsRef<Path>) -> Result<Mischief> {
    let path = path.as_ref().to_owned();
    let empty = Path::new("/run/empty");
    fs::create_dir_all(empty).context(empty.display())?;
    mount_bind(empty, &path).context(path.display())?;
    Ok(Mischief(Undo::Unmount(path)))
}

/// A process of this name runs.
pub fn process(name: &str) -> Result<Mischief> {
    let program = Path::new("/run").join(name);
    fs::copy("/bin/sleep", &program).context("/bin/sleep")?;
    let child = crate::namespaces::spawn_bound(Command::new(&program).arg("1000")).context(name)?;
    Ok(Mischief(Undo::Kill(child)))
}

/// `/run` has little more room than what is in it.
pub fn run_is_full() -> Result<Mischief> {
    let now = rustix::fs::statvfs("/run").context("/run")?;
    let (total, used) = (now.f_blocks * now.f_frsize, (now.f_blocks - now.f_bfree) * now.f_frsize);
    resize_run(&(used + (1 << 20)).to_string())?;
    Ok(Mischief(Undo::Size(total.to_string())))
}

fn resize_run(size: &str) -> Result<()> {
    let options = std::ffi::CString::new(format!("size={size}")).context("mount options")?;
    rustix::mount::mount_remount("/run", rustix::mount::MountFlags::empty(), &*options).context("remounting /run")
}
