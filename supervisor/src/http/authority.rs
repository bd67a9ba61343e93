//! Who is on the other side of a connection, and what they may do.

use crate::cgroup;
use crate::lease::Leases;
use crate::procfs::{WatchedProcess, groups};
use gpool_protocol::{ErrorBody, ErrorCode, HostPid};
use rustix::net::sockopt::socket_peercred;
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
        let in_group = group.is_some_and(|group| groups(pid).contains(&group.gid.as_raw()));
        Ok(Self { uid: credentials.uid.as_raw(), pid, in_group, in_lease: is_in_a_lease(pid, leases) })
    }

    /// The process itself, held so that its pid cannot be reused.
    ///
    /// # Errors
    /// When it has ended.
    pub fn process(&self) -> Result<WatchedProcess, ErrorBody> {
        WatchedProcess::open(self.pid).map_err(|_| refused("the peer has ended"))
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

/// A process inside a lease has no say, whoever it is.
fn is_in_a_lease(pid: HostPid, leases: &Leases) -> bool {
    let Some(path) = cgroup::path_of(pid) else { return false };
    let book = leases.book();
    book.leases
        .values()
        .filter_map(|lease| lease.record.cgroup.as_deref())
        .any(|leased| path.strip_prefix(leased).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}
