//! Leases of users without root: whose a process is, and who may reach the files of a lease.

use crate::procfs::WatchedProcess;
use gpool_protocol::{ErrorBody, ErrorCode};
use rustix::fs::XattrFlags;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `ioctl_ns(2)`: the user who made a user namespace.
const NS_GET_OWNER_UID: nix::libc::c_ulong = 0xb704;

/// # Errors
/// Unless the process is the user's, or in a user namespace that the user has made.
pub fn must_be_of(process: &WatchedProcess, uid: u32) -> Result<(), ErrorBody> {
    let found = owner_of(process);
    // Asked last: a process that lives has its pid to itself.
    if found.as_ref().is_ok_and(|owner| *owner == uid) && !process.has_ended() {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::NotPermitted,
        format!("user {uid} may not bind a lease to process {}, which is not that user's", process.name.pid),
        "let the engine's hook bind it",
    ))
}

fn owner_of(process: &WatchedProcess) -> io::Result<u32> {
    let pid = process.name.pid;
    let namespace = File::open(format!("/proc/{pid}/ns/user"))?;
    let own = fs::metadata("/proc/self/ns/user")?;
    let its = namespace.metadata()?;
    match (own.dev(), own.ino()) == (its.dev(), its.ino()) {
        // The directory belongs to the effective user; to root, for one that may not be looked into.
        true => Ok(fs::metadata(format!("/proc/{pid}"))?.uid()),
        false => maker_of(namespace.as_raw_fd()),
    }
}

fn maker_of(namespace: RawFd) -> io::Result<u32> {
    let mut uid: nix::libc::uid_t = 0;
    // SAFETY: the descriptor is open for the length of the call, and the kernel writes one uid_t to a valid place.
    match unsafe { nix::libc::ioctl(namespace, NS_GET_OWNER_UID, &raw mut uid) } {
        0 => Ok(uid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the user, beside root, search `dir`, which stays closed for everybody else: the user's engine has to find what
/// it mounts. An access list and no change of owner, who could put other files there.
///
/// # Errors
/// The kernel's, also where the file system has no access lists.
pub fn let_search(dir: &Path, uid: u32) -> io::Result<()> {
    rustix::fs::setxattr(dir, "system.posix_acl_access", &access_list(uid), XattrFlags::empty())
        .map_err(io::Error::from)
}

/// `rwx` for the owner, `--x` for the user: version 2 of linux/posix_acl_xattr.h, entries of tag, permissions and id.
fn access_list(uid: u32) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    const VERSION: u32 = 2;
    // Owner, user, group, mask, others (linux/posix_acl.h).
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 7, NO_ID), (0x02, 1, uid), (0x04, 0, NO_ID), (0x10, 1, NO_ID), (0x20, 0, NO_ID)];
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::HostPid;

    #[test]
    fn a_process_belongs_to_its_user_and_to_nobody_else() {
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(must_be_of(&me, uid), Ok(()));
        let error = must_be_of(&me, uid + 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotPermitted);
    }

    #[test]
    fn the_list_has_the_form_that_the_kernel_reads() {
        let list = access_list(1000);
        assert_eq!(list.len(), 4 + 5 * 8);
        assert_eq!(list[12..20], [2, 0, 1, 0, 0xe8, 3, 0, 0]);
    }

    #[test]
    fn the_user_may_search_and_others_may_not() {
        let root = Path::new("/dev/shm");
        if !nix::unistd::geteuid().is_root() || !root.is_dir() {
            println!("skipped: needs root and a tmpfs");
            return;
        }
        let dir = tempfile::tempdir_in(root).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let_search(dir.path(), 4711).unwrap();
        let path = dir.path().join("file").display().to_string();
        let sees = |uid: &str| {
            let user = [format!("--reuid={uid}"), format!("--regid={uid}")];
            let mut command = std::process::Command::new("setpriv");
            command.args(user).args(["--clear-groups", "test", "-e", &path]).status().unwrap().success()
        };
        assert!(sees("4711") && !sees("4712"));
        assert_eq!(dir.path().metadata().unwrap().uid(), 0);
    }
}
