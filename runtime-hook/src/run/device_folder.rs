//! The command's `/dev`: the host's, but for the nodes of GPUs that are not the lease's.

use super::mounts::{attach, bind_at, make_directory};
use super::plan::Node;
use super::unprepared;
use crate::privilege::is_host_root;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::fcntl::OFlag;
use nix::libc;
use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use std::fs::{DirEntry, File, Metadata, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const DEV: &str = "/dev";
/// What the driver's nodes and folders begin with: `nvidia0`, `nvidiactl`, `nvidia-caps`.
const DRIVER: &str = "nvidia";
/// gpool's own folder in a `/dev`, should the host's have one.
const OWN: &str = "gpool";
/// Major and minor number of `/dev/ptmx`, by which programs make terminals of their own.
const TERMINALS: (u64, u64) = (5, 2);

/// Opens `path` to find it again by its descriptor, wherever it will have been covered.
pub fn hold(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)
}

/// `name` below what is held.
pub fn through(held: &File, name: &Path) -> PathBuf {
    let held = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    if name.as_os_str().is_empty() { held } else { held.join(name) }
}

/// Covers `/dev` with a new one: everything that the host has in it, without the driver's; then `nodes`.
///
/// # Errors
/// A mount or a node that the kernel refuses.
pub fn make(nodes: &[Node]) -> Result<(), ErrorBody> {
    let unread = |error| unprepared("/dev cannot be read", error);
    let dev = Path::new(DEV);
    let old = hold(dev).map_err(unread)?;
    let entries: Vec<DirEntry> = std::fs::read_dir(dev).and_then(Iterator::collect).map_err(unread)?;
    attach(Some("gpool-dev"), dev, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, Some("mode=755,size=1m"))?;
    for entry in &entries {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with(DRIVER) && text != OWN {
            copy(&through(&old, Path::new(&name)), &dev.join(&name))?;
        }
    }
    nodes.iter().try_for_each(make_node)
}

/// Lets `place` be what `source` is.
fn copy(source: &Path, place: &Path) -> Result<(), ErrorBody> {
    let failed = |error| unprepared(format!("{} cannot be made", place.display()), error);
    let Ok(found) = source.symlink_metadata() else { return Ok(()) };
    let kind = found.file_type();
    if kind.is_symlink() {
        return std::fs::read_link(source).and_then(|target| symlink(target, place)).map_err(failed);
    }
    if kind.is_dir() {
        make_directory(place)?;
        return bind_at(source, place, MsFlags::MS_REC);
    }
    // The kernel looks for `pts` beside the node that is opened, and beside a node that is mounted alone there is nothing.
    if makes_terminals(&found) && make_character_device(place, TERMINALS).is_ok() {
        return Ok(());
    }
    if kind.is_fifo() {
        mkfifo(place, Mode::from_bits_truncate(0o600)).map_err(|error| failed(error.into()))?;
    } else {
        File::create(place).map_err(failed)?;
    }
    bind_at(source, place, MsFlags::empty())
}

fn makes_terminals(found: &Metadata) -> bool {
    let (major, minor) = TERMINALS;
    found.file_type().is_char_device() && found.rdev() == makedev(major, minor)
}

fn make_node(node: &Node) -> Result<(), ErrorBody> {
    node.path.parent().map_or(Ok(()), make_directory)?;
    make_character_device(&node.path, (node.major, node.minor))
        .map_err(|error| not_made(&node.path, error, is_host_root()))
}

/// What to say of a node that the kernel does not make. Of the host's root it refuses that for a cgroup's device rules alone
/// (mknod(2), devcgroup_inode_mknod in the kernel's include/linux/device_cgroup.h).
fn not_made(path: &Path, error: std::io::Error, is_host_root: bool) -> ErrorBody {
    match error.raw_os_error() {
        Some(libc::EPERM) if is_host_root => ErrorBody::new(
            ErrorCode::CommandNotPrepared,
            format!("the command was not started: the caller's cgroup forbids the device node {}", path.display()),
            "call gpool run where the cgroup's device rules allow the node with rwm (a job with ConstrainDevices in Slurm \
             has to ask for the GPU, a unit with DeviceAllow to name it), or leave the GPU out of [driver] gpus",
        ),
        _ => unprepared(format!("the device node {} cannot be made", path.display()), error),
    }
}

/// A node that everybody may open.
fn make_character_device(path: &Path, (major, minor): (u64, u64)) -> std::io::Result<()> {
    let mode = Mode::from_bits_truncate(0o666);
    mknod(path, SFlag::S_IFCHR, mode, makedev(major, minor))?;
    // Whatever the umask is.
    std::fs::set_permissions(path, Permissions::from_mode(0o666))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_node_that_the_cgroup_forbids_the_cgroup_is_told() {
        let told = |errno, is_host_root| {
            not_made(Path::new("/dev/nvidia1"), std::io::Error::from_raw_os_error(errno), is_host_root).to_string()
        };
        let forbidden = told(libc::EPERM, true);
        assert!(forbidden.contains("the caller's cgroup forbids the device node /dev/nvidia1"), "{forbidden}");
        assert!(forbidden.contains("ConstrainDevices") && !forbidden.contains("needs root"), "{forbidden}");
        // Root of a user namespace may make no node at all, whatever the cgroup says.
        for other in [told(libc::EPERM, false), told(libc::EACCES, true), told(libc::ENOSPC, true)] {
            assert!(other.contains("cannot be made") && other.contains("needs root"), "{other}");
        }
    }

    #[test]
    fn only_the_node_that_makes_terminals_is_made_anew() {
        let makes_one = |path: &str| makes_terminals(&Path::new(path).symlink_metadata().unwrap());
        assert!(!makes_one("/dev/null") && !makes_one("/dev"));
        // In a container it may be a link, which is copied as one.
        let ptmx = Path::new("/dev/ptmx").symlink_metadata().unwrap();
        assert_eq!(makes_terminals(&ptmx), !ptmx.is_symlink());
    }
}
