//! The mounter that mounts regions in the host's mount namespace for a supervisor that has been given one of its own. All
//! that it can be asked for is a small tmpfs on, or none on, the directory of a lease that is there.

use super::mounts::{DONE, SOCKET, is_mounted, mount_tmpfs};
use crate::{privilege, service_manager};
use gpool_protocol::HostPid;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A peer that says nothing for so long is let go: there is one thread, and one supervisor that asks.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest question, in bytes.
const QUESTION_BYTES: u64 = 64;
/// Letters and digits of a lease's id.
const ID_LENGTH: usize = 26;

/// Serves until it is killed. It keeps nothing between two questions, so that may be at any time.
///
/// # Errors
/// When there is no directory for running state, or no socket.
pub fn serve(run_dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    // Held from the start: nothing that its owner does later leads elsewhere.
    let base = File::open(run_dir).map_err(|cause| format!("cannot open {} ({cause})", run_dir.display()))?;
    let path = run_dir.join(SOCKET);
    let listener = match service_manager::socket_at(&path) {
        Some(listener) => listener,
        None => listen(&path).map_err(|cause| format!("cannot listen on {} ({cause})", path.display()))?,
    };
    privilege::keep_mounting()?;
    for stream in listener.incoming().flatten() {
        let answer = match answered(&stream, &base) {
            Ok(()) => DONE.to_owned(),
            Err(cause) => cause.to_string(),
        };
        // A peer that went away does not want to know.
        let _ = (&stream).write_all(format!("{answer}\n").as_bytes());
    }
    Ok(())
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn answered(stream: &UnixStream, base: &File) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The socket's mode says the same; who was given it by somebody else is asked again.
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if !peer.uid.is_root() {
        let pid = HostPid(peer.pid.as_raw_nonzero().get().cast_unsigned());
        return Err(io::Error::other(format!("process {pid} is not root's")));
    }
    let mut question = String::new();
    BufReader::new(stream).take(QUESTION_BYTES).read_line(&mut question)?;
    match question.trim_end().split_once(' ') {
        Some(("mount", lease)) => mount(base, lease),
        Some(("unmount", lease)) => unmount_from(base, lease),
        _ => Err(io::Error::other("the question is neither of a mount nor of its end")),
    }
}

fn mount(base: &File, lease: &str) -> io::Result<()> {
    let dir = lease_dir(base, lease)?;
    let region = below(dir.as_fd(), "region")?;
    let place = place_of(&region);
    // Opened, a directory is what is mounted on it.
    if is_mounted_over(&dir, &region)? {
        return Err(io::Error::other("a tmpfs is mounted there already"));
    }
    mount_tmpfs(&place)
}

fn unmount_from(base: &File, lease: &str) -> io::Result<()> {
    let dir = match lease_dir(base, lease) {
        // It is gone, and its mount with it.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    let region = place_of(&dir).join("region");
    if !region.exists() || !is_mounted(&region)? {
        return Ok(());
    }
    // Whoever has it mounted elsewhere, a container, keeps it.
    Ok(unmount(&region, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// The directory of a lease, without a link on the way.
fn lease_dir(base: &File, lease: &str) -> io::Result<OwnedFd> {
    let is_id =
        lease.len() == ID_LENGTH && lease.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    if !is_id {
        return Err(io::Error::other("that is no lease's id"));
    }
    below(below(base.as_fd(), "leases")?.as_fd(), lease)
}

/// The directory `name` in another; no link is followed. One after the other, because the unit's RestrictSUIDSGID denies
/// openat2, which could do it at once.
fn below(base: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(base, name, flags, Mode::empty())?)
}

/// The path that means an open directory and no other.
fn place_of(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn is_mounted_over(dir: &OwnedFd, region: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstat(dir)?.st_dev != rustix::fs::fstat(region)?.st_dev)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: &str = "01JD8ZQ3W4X5Y6Z7A8B9C0D1E2";

    #[test]
    fn only_a_lease_s_own_directory_is_found() {
        let run_dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let lease = run_dir.path().join("leases").join(LEASE);
        fs::create_dir_all(&lease).unwrap();
        let base = File::open(run_dir.path()).unwrap();
        let dir = lease_dir(&base, LEASE).unwrap();
        for text in
            ["", "..", "../../../../../../../../etc", "01jd8zq3w4x5y6z7a8b9c0d1e2", "leases/ABCDEFGHIJKLMNOPQRS"]
        {
            assert_eq!(lease_dir(&base, text).unwrap_err().to_string(), "that is no lease's id", "{text}");
        }
        // A link in the region's place leads nowhere, and neither does one in the lease's.
        std::os::unix::fs::symlink(outside.path(), lease.join("region")).unwrap();
        assert!(below(dir.as_fd(), "region").is_err());
        fs::remove_file(lease.join("region")).unwrap();
        fs::create_dir(lease.join("region")).unwrap();
        let region = below(dir.as_fd(), "region").unwrap();
        assert!(!is_mounted_over(&dir, &region).unwrap());
        assert!(unmount_from(&base, LEASE).is_ok(), "nothing is mounted, and nothing is to be done");
        fs::remove_dir_all(&lease).unwrap();
        std::os::unix::fs::symlink(outside.path(), &lease).unwrap();
        assert!(lease_dir(&base, LEASE).is_err());
        fs::remove_file(&lease).unwrap();
        assert!(mount(&base, LEASE).is_err() && unmount_from(&base, LEASE).is_ok());
    }

    #[test]
    fn a_question_is_one_of_two() {
        let run_dir = tempfile::tempdir().unwrap();
        let base = File::open(run_dir.path()).unwrap();
        for question in ["", "mount\n", "umount x\n", "mount x\n", &format!("mount {}\n", "A".repeat(100))] {
            let (one, mut other) = UnixStream::pair().unwrap();
            other.write_all(question.as_bytes()).unwrap();
            drop(other);
            let said = answered(&one, &base).unwrap_err().to_string();
            assert!(said.contains("question") || said.contains("id") || said.contains("root"), "{question:?}: {said}");
        }
    }
}
