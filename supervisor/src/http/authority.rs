//! Who is on the other side of a connection, and what they may do.

use super::listener::Side;
use super::subordinate::{self, Range};
use crate::cgroup;
use crate::lease::{Book, Leases, Record};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_configuration::Policy;
use gpool_protocol::{ErrorBody, ErrorCode, HostPid};
use rustix::net::sockopt::socket_peercred;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

/// The process on the other side, as the kernel knew it when the connection was taken.
pub struct Peer {
    pub uid: u32,
    /// The range of somebody's subordinate ids that this is out of.
    subordinate: Option<Range>,
    groups: Vec<u32>,
    administrators: String,
    /// Held from then on, so that its pid cannot be reused; none if it had ended.
    process: Option<WatchedProcess>,
    /// Whether it is in one, or had ended.
    in_lease: bool,
    has_ended: bool,
    /// Says the number of a group. The host may have to ask a directory server for it, which takes its time.
    gid_of: fn(&str) -> Option<u32>,
    /// Says whether a user has that id, which may take as long.
    is_account: fn(u32) -> bool,
}

/// Refuses with whom to ask: root, and the group of `[socket] group`.
fn refused(what: impl Into<String>, administrators: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotPermitted, what, ask(administrators))
}

fn ask(administrators: &str) -> String {
    format!("ask root or a member of the group {administrators}")
}

impl Peer {
    /// Asks the kernel. All who connect wait for this, and it waits for nobody: not for the book either.
    ///
    /// # Errors
    /// A peer without credentials.
    pub fn of(stream: &UnixStream, leases: &Leases) -> Result<Self, ErrorBody> {
        let administrators = leases.configuration().socket.group.clone();
        let nobody = |_| refused("the peer has no credentials", &administrators);
        let credentials = socket_peercred(stream).map_err(nobody)?;
        let pid = HostPid(credentials.pid.as_raw_nonzero().get() as u32);
        let mut groups = peer_groups(stream);
        groups.push(credentials.gid.as_raw());
        let process = WatchedProcess::open(pid).ok().filter(|process| is_the_peer(stream, process));
        let is_leased = |path: &str| leases.known_cgroups.now().hold(path);
        let has_ended = process.as_ref().is_none_or(WatchedProcess::has_ended);
        let in_lease = is_in_a_lease(pid, is_leased) || has_ended;
        let uid = credentials.uid.as_raw();
        let subordinate = subordinate::range_of(uid).filter(|_| !subordinate::is_known_account(uid));
        let is_account = subordinate::is_account;
        Ok(Self { uid, subordinate, groups, administrators, process, in_lease, has_ended, gid_of, is_account })
    }

    fn refused(&self, what: impl Into<String>) -> ErrorBody {
        refused(what, &self.administrators)
    }

    /// That this peer may not do `what`. In a lease that is so for everybody, root too, and whom to ask would be no help.
    fn may_not(&self, what: &str, remedy: impl FnOnce() -> String) -> ErrorBody {
        match self.in_lease {
            true => ErrorBody::new(
                ErrorCode::NotPermitted,
                format!("a process in a leased container or under gpool run may not {what}, whoever started it"),
                "do it outside of it",
            ),
            false => ErrorBody::new(ErrorCode::NotPermitted, format!("user {} may not {what}", self.uid), remedy()),
        }
    }

    /// Finds out, if that is not known, whether it is a user's own id after all, whose connections are counted by themselves then.
    pub fn look_for_account(&self) {
        if self.subordinate.is_some() {
            (self.is_account)(self.uid);
        }
    }

    /// Whose connections its own counts among: all that are a user's subordinates are one. Asks nobody for groups, since everybody would wait for that: their numbers are
    /// asked for beside.
    pub fn side(&self) -> Side {
        let is_member = || known_gid(&self.administrators).is_some_and(|gid| self.groups.contains(&gid));
        let uid = self.subordinate.as_ref().map_or(self.uid, |range| range.first);
        match self.in_lease {
            // Whose it was is not known: a tenant's that names root, or a user's, would take connections from either.
            true if self.has_ended => Side::Ended,
            true => Side::Tenants,
            false if self.uid != 0 && is_member() => Side::Administrator(uid),
            false => Side::User(uid),
        }
    }

    /// The process itself.
    ///
    /// # Errors
    /// When it has ended.
    pub fn process(&self) -> Result<WatchedProcess, ErrorBody> {
        let ended = || self.refused("the peer has ended");
        let held = self.process.as_ref().filter(|process| !process.has_ended()).ok_or_else(ended)?;
        held.try_clone().map_err(|_| ended())
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
        process.parent().map_err(|_| self.refused("the process for which the peer asks has ended"))
    }

    /// Whether this peer has asked for a lease that is tied to the process `maker`, see [`Peer::maker`].
    pub fn asked_for(&self, maker: &ProcessName) -> bool {
        let is_it = |for_parent| self.maker(for_parent).is_ok_and(|process| process.name == *maker);
        !self.in_lease && [false, true].into_iter().any(is_it)
    }

    /// May change everything.
    pub fn administers(&self) -> bool {
        !self.in_lease && (self.uid == 0 || self.is_in(&self.administrators))
    }

    /// Whether its user may change everything; none of a process in a lease, which has no say about that either.
    pub fn standing(&self) -> Option<bool> {
        (!self.in_lease).then(|| self.administers())
    }

    /// # Errors
    /// Unless the peer is root, outside of every lease.
    pub fn must_be_root(&self, what: &str) -> Result<(), ErrorBody> {
        if !self.in_lease && self.uid == 0 {
            return Ok(());
        }
        Err(self.may_not(what, || "ask root".to_owned()))
    }

    fn is_in(&self, group: &str) -> bool {
        let gid = (self.gid_of)(group);
        note_gid(group, gid);
        gid.is_some_and(|gid| self.groups.contains(&gid))
    }

    /// # Errors
    /// Unless the peer may change everything.
    pub fn must_administer(&self, what: &str) -> Result<(), ErrorBody> {
        if self.administers() { Ok(()) } else { Err(self.may_not(what, || ask(&self.administrators))) }
    }

    /// # Errors
    /// Unless the peer may start leased containers: whoever may change everything, and outside of every lease whom the
    /// configuration lets do so without root. With subordinate ids, whose groups can be one's own, one user would be thousands to
    /// quotas, the queue and the ledger.
    pub fn must_start(&self, policy: &Policy) -> Result<(), ErrorBody> {
        if self.administers() {
            return Ok(());
        }
        if !self.in_lease && !policy.rootless_group.is_empty() && self.is_in(&policy.rootless_group) {
            let Some(Range { owner, .. }) = self.subordinate.as_ref().filter(|_| !(self.is_account)(self.uid)) else {
                return Ok(());
            };
            let what = format!("start a leased container: it is a subordinate id of {owner} in /etc/subuid");
            return Err(self.may_not(&what, || format!("start it as {owner}")));
        }
        let remedy = || {
            match policy.rootless_group.as_str() {
            "" => "use an engine that runs as root, or ask root to name a group in [policy] rootless_group and run gpool config reload".to_owned(),
            group => format!("use an engine that runs as root, or ask root to add the user to the group {group}"),
        }
        };
        Err(self.may_not("start a leased container", remedy))
    }

    /// The user to whom a lease is confined that the peer makes or binds; none for who may change everything.
    pub fn confined_to(&self) -> Option<u32> {
        (!self.administers()).then_some(self.uid)
    }

    /// # Errors
    /// Unless the peer may change everything, or owns the lease or what waits for one and stands outside every lease.
    pub fn must_own(&self, owner_uid: u32) -> Result<(), ErrorBody> {
        if self.administers() || (!self.in_lease && self.uid == owner_uid) {
            return Ok(());
        }
        let what = format!("change a lease of user {owner_uid}");
        Err(self.may_not(&what, || ask(&self.administrators)))
    }

    /// The id of the lease that `find` finds, which the peer may change. The book is read first and given back: see
    /// [`Peer::gid_of`].
    ///
    /// # Errors
    /// There is no such lease, or the peer may not change it.
    pub fn own(
        &self,
        book: &Mutex<Book>,
        find: impl FnOnce(&mut Book) -> Result<&Record, ErrorBody>,
    ) -> Result<String, ErrorBody> {
        let (id, owner_uid) = {
            let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
            let record = find(&mut book)?;
            (record.lease_id.0.clone(), record.owner_uid)
        };
        self.must_own(owner_uid)?;
        Ok(id)
    }
}

/// Numbers of groups as they were asked for last; there are two that matter.
static GIDS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// What could not be found out is as it was.
fn note_gid(group: &str, gid: Option<u32>) {
    if let Some(gid) = gid {
        GIDS.lock().unwrap_or_else(PoisonError::into_inner).insert(group.to_owned(), gid);
    }
}

/// Asks for the group whose members have connections of their own.
pub fn ask_for_group(group: &str) {
    note_gid(group, gid_of(group));
}

fn known_gid(group: &str) -> Option<u32> {
    GIDS.lock().unwrap_or_else(PoisonError::into_inner).get(group).copied()
}

fn gid_of(group: &str) -> Option<u32> {
    nix::unistd::Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw())
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

/// Whether the process that has the peer's pid now is the peer: kernels from 6.5 on hand the peer itself out
/// (SO_PEERPIDFD, include/uapi/asm-generic/socket.h). On others the moment between connecting and this is open.
fn is_the_peer(stream: &UnixStream, process: &WatchedProcess) -> bool {
    const SO_PEERPIDFD: nix::libc::c_int = 77;
    let mut raw: nix::libc::c_int = -1;
    let mut length = size_of::<nix::libc::c_int>() as nix::libc::socklen_t;
    let place = (&raw mut raw).cast();
    // SAFETY: `place` is as long as `length` says, and the kernel writes a descriptor of ours or nothing.
    let result =
        unsafe { nix::libc::getsockopt(stream.as_raw_fd(), nix::libc::SOL_SOCKET, SO_PEERPIDFD, place, &mut length) };
    match (result, std::io::Error::last_os_error().raw_os_error()) {
        (0, _) if raw >= 0 => {
            // SAFETY: just made for us by the kernel, and nobody else's.
            let peer = unsafe { OwnedFd::from_raw_fd(raw) };
            // The peer lives, so its pid is its own.
            !WatchedProcess { name: process.name, pidfd: peer }.has_ended()
        }
        (_, Some(nix::libc::ENOPROTOOPT)) => true,
        _ => false,
    }
}

/// A process inside a lease has no say, whoever it is; nor has one that ended before it could be looked at.
fn is_in_a_lease(pid: HostPid, is_leased: impl FnOnce(&str) -> bool) -> bool {
    let path = match cgroup::known_path_of(pid) {
        Ok(Some(path)) => path,
        Ok(None) => return false,
        Err(_) => return true,
    };
    is_leased(&path)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lease::sample;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn of_user(uid: u32, gid_of: fn(&str) -> Option<u32>) -> Peer {
        let administrators = "gpu-operators".to_owned();
        let (subordinate, groups, process, in_lease, has_ended) = (None, Vec::new(), None, false, false);
        Peer { uid, subordinate, groups, administrators, process, in_lease, has_ended, gid_of, is_account: |_| false }
    }

    /// A process of that user's, which is in the group 7.
    pub(in super::super) fn of_member(uid: u32, gid_of: fn(&str) -> Option<u32>) -> Peer {
        Peer { groups: vec![7], ..of_user(uid, gid_of) }
    }

    #[test]
    fn one_user_with_thousands_of_ids_is_one() {
        let policy = Policy { rootless_group: "gpool-users".to_owned(), ..Policy::default() };
        let member = |uid| {
            let gid_of = |group: &str| (group == "gpool-users").then_some(7);
            let subordinate = Range::read("alice:100000:65536");
            Peer { subordinate, ..of_member(uid, gid_of) }
        };
        let refused = member(100_005).must_start(&policy).unwrap_err().to_string();
        let is_told = refused.contains("user 100005") && refused.contains("start it as alice [GPOOL-E401]");
        assert!(is_told && refused.contains("a subordinate id of alice in /etc/subuid"), "{refused}");
        assert_eq!(member(100_005).side(), member(165_535).side());
        let account = Peer { is_account: |_| true, ..member(100_005) };
        assert_eq!(account.must_start(&policy), Ok(()), "a directory has given that id to a user");
        let itself = Peer { subordinate: None, ..member(1000) };
        assert_eq!((itself.must_start(&policy), itself.side()), (Ok(()), Side::User(1000)));
        let engine = Peer { subordinate: None, ..member(0) };
        assert_eq!(engine.must_start(&Policy::default()), Ok(()));
    }

    #[test]
    fn who_may_not_is_told_whom_the_configuration_lets() {
        let peer = of_user(1000, |_| None);
        for refused in [peer.must_administer("reload the configuration"), peer.must_own(0)] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("a member of the group gpu-operators") && text.contains("GPOOL-E401"), "{text}");
        }
        assert_eq!(peer.must_own(1000), Ok(()));
    }

    #[test]
    fn who_is_in_a_lease_is_told_so_also_as_root() {
        let root = Peer { in_lease: true, ..of_user(0, |_| None) };
        for refused in [
            root.must_be_root("divide GPUs"),
            root.must_administer("reload the configuration"),
            root.must_start(&Policy::default()),
            root.must_own(0),
        ] {
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with("gpool: a process in a leased container or under gpool run may not "), "{text}");
            assert!(text.contains("; do it outside of it [GPOOL-E401]") && !text.contains("ask root"), "{text}");
        }
    }

    #[test]
    fn who_has_ended_takes_nobodys_connections_and_may_nothing() {
        let root = Peer { in_lease: true, has_ended: true, ..of_user(0, |_| None) };
        assert_eq!((root.side(), root.administers()), (Side::Ended, false));
        assert_eq!(Peer { has_ended: false, ..root }.side(), Side::Tenants);
    }

    #[test]
    fn root_in_a_container_that_could_not_be_taken_over_administers_nothing() {
        let me = HostPid(std::process::id());
        let Some(its) = cgroup::path_of(me) else { return };
        let of = |stranded: &str| {
            let stranded = vec![Record { cgroup: Some(stranded.to_owned()), ..sample() }];
            let book = Book { stranded, ..Book::default() };
            let in_lease = is_in_a_lease(me, |path| book.cgroups().hold(path));
            Peer { in_lease, ..of_user(0, |_| None) }.administers()
        };
        // Its own is below this one too, if it is not that.
        let above = its.get(..its[1..].find('/').map_or(its.len(), |end| end + 1)).unwrap_or(&its);
        assert!(!of(&its) && !of(above) && of("/docker/c"));
        assert!(is_in_a_lease(HostPid(u32::MAX >> 1), |_| false), "it has ended");
    }

    /// A directory server that does not answer must not keep everybody from the book.
    #[test]
    fn groups_are_asked_for_with_the_book_given_back() {
        static BOOK: LazyLock<Mutex<Book>> = LazyLock::new(|| {
            let record = Record { owner_uid: 1000, ..sample() };
            Mutex::new(Book { stranded: vec![record], ..Book::default() })
        });
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let gid_of = |_: &str| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            assert!(BOOK.try_lock().is_ok(), "the book is held");
            None
        };
        let own = |uid| of_user(uid, gid_of).own(&BOOK, |book| Ok(&book.stranded[0]));
        assert_eq!(own(1000), Ok(sample().lease_id.0));
        assert_eq!(own(1001).unwrap_err().code, ErrorCode::NotPermitted);
        assert_eq!(ASKED.load(Ordering::Relaxed), 2);
    }
}
