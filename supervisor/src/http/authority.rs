//! Who is on the other side of a connection, and what they may do.

use crate::cgroup;
use crate::lease::Leases;
use crate::procfs::WatchedProcess;
use gpool_protocol::{ErrorBody, ErrorCode, HostPid};
use rustix::net::sockopt::socket_peercred;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process on the other side, as the kernel knows it.
pub struct Peer {
    pub uid: u32,
    pid: HostPid,
    in_group: bool,
    in_lease: bool,
}

fn refused(what: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotPermitted, what, "ask root or a member of the group gpool")
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// A peer without credentials.
    pub fn of(stream: &UnixStream, leases: &Leases) -> Result<Self, ErrorBody> {
        let credentials = socket_peercred(stream).map_err(|_| refused("the peer has no credentials"))?;
        let pid = HostPid(credentials.pid.as_raw_nonzero().get() as u32);
        let group = nix::unistd::Group::from_name(&leases.configuration.socket.group).ok().flatten();
        let in_group = group.is_some_and(|group| {
            credentials.gid.as_raw() == group.gid.as_raw() || peer_groups(stream).contains(&group.gid.as_raw())
        });
        Ok(Self { uid: credentials.uid.as_raw(), pid, in_group, in_lease: is_in_a_lease(pid, leases) })
    }

    /// The process itself, held so that its pid cannot be reused.
    ///
    /// # Errors
    /// When it has ended.
    fn process(&self) -> Result<WatchedProcess, ErrorBody> {
        WatchedProcess::open(self.pid).map_err(|_| refused("the peer has ended"))
    }

    /// Who makes the container for which this peer asks: itself, or its parent if it asks for that one.
    ///
    /// # Errors
    /// When it has ended.
    pub fn maker(&self, asked_for_parent: bool) -> Result<WatchedProcess, ErrorBody> {
        let process = self.process()?;
        if !asked_for_parent {
            return Ok(process);
        }
        process.parent().map_err(|_| refused("the process for which the peer asks has ended"))
    }

    /// May change everything.
    pub fn administers(&self) -> bool {
        !self.in_lease && (self.uid == 0 || self.in_group)
    }

    /// # Errors
    /// Unless the peer may change everything.
    pub fn must_administer(&self, what: &str) -> Result<(), ErrorBody> {
        if self.administers() { Ok(()) } else { Err(refused(format!("user {} may not {what}", self.uid))) }
    }

    /// # Errors
    /// Unless the peer may change everything, or owns the lease and stands outside every lease.
    pub fn must_own(&self, owner_uid: u32) -> Result<(), ErrorBody> {
        if self.administers() || (!self.in_lease && self.uid == owner_uid) {
            return Ok(());
        }
        Err(refused(format!("user {} may not change a lease of user {owner_uid}", self.uid)))
    }
}

/// Supplementary groups of the peer as they were when it connected (SO_PEERGROUPS), so that a reused pid gives nobody
/// another's groups.
fn peer_groups(stream: &UnixStream) -> Vec<u32> {
    let mut groups = vec![0u32; 1024];
    let mut length = (groups.len() * size_of::<u32>()) as nix::libc::socklen_t;
    // SAFETY: the buffer is as long as `length` says, and the kernel writes back how much it used.
    let result = unsafe {
        nix::libc::getsockopt(
            stream.as_raw_fd(),
            nix::libc::SOL_SOCKET,
            nix::libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &mut length,
        )
    };
    groups.truncate(if result == 0 { length as usize / size_of::<u32>() } else { 0 });
    groups
}

/// A process inside a lease has no say, whoever it is; nor has one that ended before it could be looked at.
fn is_in_a_lease(pid: HostPid, leases: &Leases) -> bool {
    let path = match cgroup::known_path_of(pid) {
        Ok(Some(path)) => path,
        Ok(None) => return false,
        Err(_) => return true,
    };
    let book = leases.book();
    book.leases
        .values()
        .filter_map(|lease| lease.record.cgroup.as_deref())
        .any(|leased| path.strip_prefix(leased).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}
