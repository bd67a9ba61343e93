//! A daemon with its folders: what is written down of it, and what is known of its processes.

use super::clients::{Clients, Silence};
use super::control::ServerState;
use super::died::{Loss, Seat};
use super::room::Told;
use crate::lease::{let_search, write_whole};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_policy::mechanism::MpsLimits;
use gpool_protocol::{GpuUuid, HostPid, LeaseId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Directory of all groups, below `paths.run_dir`.
const GROUPS_DIR: &str = "mps";
const RECORD_FILE: &str = "group.json";
/// Where a group's tmpfs is mounted.
const SHARED_DIR: &str = "shared";
/// What is in it, with the mode of each: the daemon's pipes, its logs, and the `/dev/shm` of daemon and clients.
const FOLDERS: [(&str, u32); 3] = [("pipe", 0o755), ("log", 0o755), ("shm", 0o1777)];

/// Who shares a server, and with it every fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The team.
    pub team: String,
    /// The namespace of the pods that these containers are of, if they are of any: who writes a pod may name any team in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The user that the containers' first processes have on the host.
    pub uid: u32,
}

/// What is written down of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// State of another boot is void.
    pub boot_id: String,
    /// Names its directory and its unit.
    pub id: String,
    /// Whose it is.
    pub domain: Domain,
    /// Its GPUs, as clients number them.
    pub gpus: Vec<GpuUuid>,
    /// The control daemon, once it runs.
    #[serde(default)]
    pub daemon: Option<ProcessName>,
    /// The server, once it is known.
    #[serde(default)]
    pub server: Option<ProcessName>,
    /// Its daemon has run, and has ended while leases were under it.
    #[serde(default)]
    pub has_ended: bool,
}

/// A group's directory.
pub fn dir_of(run_dir: &Path, id: &str) -> PathBuf {
    run_dir.join(GROUPS_DIR).join(id)
}

/// One of the folders that a group shares with its containers: `pipe`, `log` or `shm`.
pub fn folder_of(run_dir: &Path, id: &str, name: &str) -> PathBuf {
    shared_of(run_dir, id).join(name)
}

/// Where the group's tmpfs is mounted.
pub fn shared_of(run_dir: &Path, id: &str) -> PathBuf {
    dir_of(run_dir, id).join(SHARED_DIR)
}

impl GroupRecord {
    /// Reads the record of the group `id`.
    ///
    /// # Errors
    /// When there is none.
    pub fn read(run_dir: &Path, id: &str) -> io::Result<Self> {
        let text = fs::read(dir_of(run_dir, id).join(RECORD_FILE))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The ids of all groups that have a directory.
    pub fn ids(run_dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(run_dir.join(GROUPS_DIR)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Writes it so that it is either the old one or the new one, whatever happens.
    ///
    /// # Errors
    /// Names the file.
    pub fn write(&self, run_dir: &Path) -> io::Result<()> {
        let (groups, dir) = (run_dir.join(GROUPS_DIR), dir_of(run_dir, &self.id));
        // Whoever knows a group's name may look for it, and around nowhere.
        DirBuilder::new().recursive(true).mode(0o711).create(&groups)?;
        fs::set_permissions(&groups, Permissions::from_mode(0o711))?;
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        self.close(run_dir)?;
        write_whole(&dir.join(RECORD_FILE), self).map_err(io::Error::other)
    }

    /// Lets nobody pass to what is shared but root and the team's user, whose the server is: every other user of this host could
    /// reach the daemon's pipes, and write into the team's `/dev/shm`. Containers have both mounted and do not come this way.
    /// An older supervisor let everybody pass.
    ///
    /// # Errors
    /// Of the file system, also where it has no access lists.
    pub fn close(&self, run_dir: &Path) -> io::Result<()> {
        let dir = dir_of(run_dir, &self.id);
        match self.domain.uid {
            0 => fs::set_permissions(&dir, Permissions::from_mode(0o700)),
            // Sets the mode as well, in one step: who passes is not kept out for a moment.
            uid => let_search(&dir, uid),
        }
    }

    /// Makes the folders in the tmpfs, which is mounted.
    ///
    /// # Errors
    /// Of the file system.
    pub fn make_folders(&self, run_dir: &Path) -> io::Result<()> {
        for (name, mode) in FOLDERS {
            let folder = folder_of(run_dir, &self.id, name);
            fs::create_dir(&folder)?;
            // The umask may have taken bits away.
            fs::set_permissions(&folder, Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}

/// How far a group has come. One thread at a time starts its daemon or tells it something, without the lock of the groups:
/// that takes seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Its first lease enters the book; nobody has begun to start its daemon.
    New,
    /// Its daemon is being started.
    Starting,
    /// Its daemon has started.
    Started,
    /// Its daemon is being told what its server gives.
    Telling,
    /// Its daemon did not start, for this reason.
    Failed(String),
    /// Nobody uses it any more, and its daemon is being stopped.
    Stopping,
}

/// What whoever got the turn has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Start the daemon of this group.
    Start(Box<GroupRecord>),
    /// Tell the daemon, which runs, what it has to give; what it was told last.
    Tell(Option<MpsLimits>),
}

/// A group of leases under one daemon.
#[derive(Debug)]
pub struct Group {
    /// What is written down of it.
    pub record: GroupRecord,
    /// How far it is.
    pub stage: Stage,
    /// The control daemon; none once it has been seen to have ended.
    pub daemon: Option<WatchedProcess>,
    /// The server, while one is known to run.
    pub server: Option<WatchedProcess>,
    /// How the server was when it was last asked, if it has said so. Of one that ends it holds until the next one says.
    pub state: Option<ServerState>,
    /// What the server was last told that it gives.
    pub limits: Option<MpsLimits>,
    /// The daemon as this process's child, to be waited for.
    pub child: Option<Child>,
    /// The server's clients; none while nobody can tell.
    pub clients: Option<Clients>,
    /// Where those are, as far as they could be found.
    pub seats: BTreeMap<HostPid, Seat>,
    /// What leases lost with a server that has ended.
    pub losses: BTreeMap<LeaseId, Loss>,
    /// When a fault of a program was last told of each lease.
    pub told_faults: BTreeMap<LeaseId, Instant>,
    /// What it has run out of that was told.
    pub told: Told,
    /// How long the daemon has not answered.
    pub silence: Silence,
    /// Its processes that were told to end, each with the time until which that may take.
    pub leaving: Vec<(HostPid, Instant)>,
}

impl Group {
    /// One of whose processes nothing is known.
    pub fn new(record: GroupRecord, stage: Stage) -> Self {
        Self {
            record,
            stage,
            daemon: None,
            server: None,
            state: None,
            limits: None,
            child: None,
            clients: None,
            seats: BTreeMap::new(),
            losses: BTreeMap::new(),
            told_faults: BTreeMap::new(),
            told: Told::default(),
            silence: Silence::default(),
            leaving: Vec::new(),
        }
    }

    /// Whether its daemon runs.
    pub fn is_alive(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| !daemon.has_ended())
    }

    /// Whether a container can join it.
    pub fn takes_in(&self) -> bool {
        match self.stage {
            Stage::New | Stage::Starting => true,
            Stage::Started | Stage::Telling => self.is_alive() && !self.is_faulted(),
            Stage::Failed(_) | Stage::Stopping => false,
        }
    }

    /// Whether its server takes nobody in after a fault.
    pub fn is_faulted(&self) -> bool {
        let is_there = matches!(self.stage, Stage::Started | Stage::Telling) && self.is_alive();
        is_there && self.state == Some(ServerState::Fault)
    }

    /// Whether nobody can join it any more, and it may not have ended.
    fn is_ending(&self) -> bool {
        self.stage == Stage::Stopping || self.is_alive() && !self.takes_in() && !self.is_faulted()
    }

    /// Hands its processes over to who stops them. What stays here says until when that may take.
    pub fn begin_stop(&mut self, until: Instant) -> Self {
        let record = GroupRecord { daemon: None, server: None, ..self.record.clone() };
        let mut rest = Self::new(record, Stage::Stopping);
        let processes = [&self.daemon, &self.server].into_iter().flatten();
        rest.leaving = processes.map(|process| (process.name.pid, until)).chain(self.leaving.clone()).collect();
        std::mem::replace(self, rest)
    }

    /// Whether the process is its daemon or server.
    fn is_served_by(&self, pid: HostPid) -> bool {
        [&self.daemon, &self.server].into_iter().flatten().any(|process| process.name.pid == pid)
    }

    /// Whether the process is its daemon or server, or was and may take until later than `now` to end.
    fn has_process(&self, pid: HostPid, now: Instant) -> bool {
        let leaves = |(its, until): &(HostPid, Instant)| *its == pid && now < *until;
        self.is_served_by(pid) || self.leaving.iter().any(leaves)
    }

    /// Whether somebody has the turn.
    pub fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Telling)
    }
}

/// All groups of this host. Their lock is taken after that of the book of leases, and held by nobody who waits.
#[derive(Debug, Default)]
pub struct Groups {
    list: Mutex<Vec<Group>>,
    /// Rung when somebody has given the turn back.
    turned: Condvar,
}

impl Groups {
    /// The groups.
    pub fn all(&self) -> MutexGuard<'_, Vec<Group>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else is busy with the group `id`, until `deadline` at most, and says what is to be done then. It is
    /// the caller's turn until [`Groups::end_turn`].
    ///
    /// # Errors
    /// Its daemon did not start or has ended, or somebody is busy with it for too long.
    pub fn take_turn(&self, id: &str, deadline: Instant) -> Result<Turn, String> {
        let mut all = self.all();
        loop {
            let group = all.iter_mut().find(|group| group.record.id == id);
            let group = group.ok_or("nobody uses it any more")?;
            match &group.stage {
                Stage::New => {
                    group.stage = Stage::Starting;
                    return Ok(Turn::Start(Box::new(group.record.clone())));
                }
                Stage::Started if group.is_alive() => {
                    group.stage = Stage::Telling;
                    return Ok(Turn::Tell(group.limits));
                }
                Stage::Started => return Err("it has ended".to_owned()),
                Stage::Stopping => return Err("it is being stopped".to_owned()),
                Stage::Failed(cause) => return Err(cause.clone()),
                Stage::Starting | Stage::Telling => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("another container's start waits for it".to_owned());
            }
            all = self.turned.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives the turn back: `change` says what has become of the group, its stage included.
    pub fn end_turn(&self, id: &str, change: impl FnOnce(&mut Group)) {
        if let Some(group) = self.all().iter_mut().find(|group| group.record.id == id) {
            change(group);
        }
        self.turned.notify_all();
    }

    /// The clients of a group's server; none while nobody can tell.
    pub fn clients_of(&self, id: &str) -> Option<Clients> {
        let groups = self.all();
        groups.iter().find(|group| group.record.id == id)?.clients.clone()
    }

    /// The GPUs of daemons that are there for no lease, one for each: of those that nobody can join any more and that may not have
    /// ended, and of those that are about to be stopped, since they are not among the `used`, unless who asks `joins` them.
    pub fn being_stopped(&self, used: &BTreeSet<&String>, joins: impl Fn(&GroupRecord) -> bool) -> Vec<GpuUuid> {
        let is_unused = |group: &Group| group.is_alive() && !used.contains(&group.record.id) && !joins(&group.record);
        let all = self.all();
        let stopped = all.iter().filter(|group| group.is_ending() || is_unused(group));
        stopped.flat_map(|group| group.record.gpus.clone()).collect()
    }

    /// The GPUs of daemons whose servers take nobody in after a fault, one for each.
    pub fn faulted(&self) -> Vec<GpuUuid> {
        self.all().iter().filter(|group| group.is_faulted()).flat_map(|group| group.record.gpus.clone()).collect()
    }

    /// Whether the process is a daemon or a server of a group that is among the `used`. One that is being ended, or is about to
    /// be, is nobody's any more, and has its GPU until then.
    pub fn are_served_by(&self, pid: HostPid, used: &BTreeSet<&String>) -> bool {
        self.all().iter().any(|group| used.contains(&group.record.id) && group.is_served_by(pid))
    }

    /// Whether the process is any group's daemon or server, or one that is being ended.
    pub fn has_process(&self, pid: HostPid) -> bool {
        let now = Instant::now();
        self.all().iter().any(|group| group.has_process(pid, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn record() -> GroupRecord {
        let domain = Domain { team: "vision".into(), namespace: None, uid: 1000 };
        let gpus = vec![GpuUuid("GPU-1".into())];
        GroupRecord { boot_id: "b".into(), id: "01".into(), domain, gpus, daemon: None, server: None, has_ended: false }
    }

    fn me() -> WatchedProcess {
        WatchedProcess::open(HostPid(std::process::id())).unwrap()
    }

    /// What the second of two gets when the first, who starts the daemon, has given the turn back.
    fn second_after(first: impl FnOnce(&mut Group)) -> Result<Turn, String> {
        let groups = Arc::new(Groups::default());
        groups.all().push(Group::new(record(), Stage::New));
        assert_eq!(groups.take_turn("01", later()), Ok(Turn::Start(Box::new(record()))));
        assert!(groups.all()[0].takes_in() && groups.all()[0].is_busy());
        assert!(groups.take_turn("01", Instant::now()).is_err(), "nobody else starts it");
        let waits = groups.clone();
        let second = std::thread::spawn(move || waits.take_turn("01", later()));
        groups.end_turn("01", first);
        second.join().unwrap()
    }

    #[test]
    fn one_starts_a_daemon_and_the_others_wait_for_what_becomes_of_it() {
        let limits = Some(MpsLimits { percent: 36, memory_bytes: 4 << 30 });
        let started =
            |group: &mut Group| (group.stage, group.daemon, group.limits) = (Stage::Started, Some(me()), limits);
        assert_eq!(second_after(started), Ok(Turn::Tell(limits)));
        let failed = |group: &mut Group| group.stage = Stage::Failed("no GPU".into());
        assert_eq!(second_after(failed), Err("no GPU".into()));
        let ended = |group: &mut Group| group.stage = Stage::Started;
        assert_eq!(second_after(ended), Err("it has ended".into()));
        let groups = Groups::default();
        assert!(groups.take_turn("01", Instant::now()).is_err());
    }

    #[test]
    fn nobody_joins_a_daemon_that_has_ended_or_did_not_start() {
        let mut group = Group::new(record(), Stage::Started);
        assert!(!group.takes_in());
        group.daemon = Some(me());
        assert!(group.takes_in() && !group.is_busy());
        group.stage = Stage::Failed("no GPU".into());
        assert!(!group.takes_in());
    }

    #[test]
    fn nobody_joins_a_server_in_a_fault_which_keeps_its_gpus() {
        let groups = Groups::default();
        groups.all().push(Group { daemon: Some(me()), ..Group::new(record(), Stage::Started) });
        let seen = |state| {
            groups.all()[0].state = Some(state);
            let takes_in = groups.all()[0].takes_in();
            (takes_in, groups.faulted().len())
        };
        assert_eq!(seen(ServerState::Active), (true, 0));
        assert_eq!(seen(ServerState::Fault), (false, 1));
        let used = record().id;
        assert!(groups.being_stopped(&BTreeSet::from([&used]), |_| false).is_empty(), "it takes in again some time");
        assert_eq!(seen(ServerState::Initializing), (true, 0));
    }

    #[test]
    fn a_gpu_is_a_daemons_until_it_has_ended() {
        let groups = Groups::default();
        let (pid, id) = (me().name.pid, record().id);
        let being_stopped = |used: &[&String], is_joined: bool, change: &dyn Fn(&mut Group)| {
            groups.all().iter_mut().for_each(change);
            groups.being_stopped(&used.iter().copied().collect(), |_| is_joined)
        };
        groups.all().push(Group { daemon: Some(me()), ..Group::new(record(), Stage::Started) });
        assert!(being_stopped(&[&id], false, &|_| {}).is_empty(), "its leases are in the way");
        assert!(groups.are_served_by(pid, &BTreeSet::from([&id])));
        assert_eq!(being_stopped(&[], false, &|_| {}), record().gpus, "it is about to be stopped");
        assert!(!groups.are_served_by(pid, &BTreeSet::new()), "it is in the way of who wants the GPU as a whole");
        assert!(being_stopped(&[], true, &|_| {}).is_empty(), "it has a lease again");
        assert_eq!(being_stopped(&[&id], true, &|group| group.stage = Stage::Failed("deaf".into())), record().gpus);
        let stop = |group: &mut Group| drop(group.begin_stop(Instant::now()));
        assert_eq!(being_stopped(&[&id], true, &stop), record().gpus);
        let has_died = |group: &mut Group| group.stage = Stage::Started;
        assert!(being_stopped(&[], false, &has_died).is_empty(), "one that died is on no GPU");
    }

    #[test]
    fn the_processes_of_a_group_are_its_own_until_they_have_had_their_time_to_end() {
        let mut group = Group { daemon: Some(me()), ..Group::new(record(), Stage::Started) };
        let (pid, now) = (me().name.pid, Instant::now());
        assert!(group.has_process(pid, now) && !group.has_process(HostPid(1), now));
        let until = now + Duration::from_secs(8);
        let stopped = group.begin_stop(until);
        assert!(stopped.is_alive() && !group.is_alive() && !group.takes_in());
        assert!(group.has_process(pid, now) && !group.has_process(pid, until));
        assert!(
            stopped.is_served_by(pid) && !group.is_served_by(pid),
            "it is in the way of who wants the GPU as a whole"
        );
    }

    #[test]
    fn a_group_reads_back_and_lets_nobody_pass_but_its_user() {
        let run_dir = tempfile::tempdir().unwrap();
        let mut record = record();
        record.write(run_dir.path()).unwrap();
        record.daemon = Some(ProcessName { pid: HostPid(7), start_ticks: 9 });
        record.write(run_dir.path()).unwrap();
        assert_eq!(GroupRecord::read(run_dir.path(), "01").unwrap(), record);
        assert_eq!(GroupRecord::ids(run_dir.path()), ["01"]);
        fs::create_dir(shared_of(run_dir.path(), "01")).unwrap();
        record.make_folders(run_dir.path()).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let dir = dir_of(run_dir.path(), "01");
        assert_eq!(mode(dir.clone()) & 0o7, 0, "others do not pass");
        assert!(rustix::fs::getxattr(&dir, "system.posix_acl_access", &mut [0_u8; 256]).unwrap() > 0, "its user does");
        record.domain.uid = 0;
        record.id = "02".into();
        record.write(run_dir.path()).unwrap();
        assert_eq!(mode(dir_of(run_dir.path(), "02")), 0o700);
        assert_eq!(mode(folder_of(run_dir.path(), "01", "shm")), 0o1777);
        assert_eq!(mode(folder_of(run_dir.path(), "01", "pipe")), 0o755);
        fs::set_permissions(&dir, Permissions::from_mode(0o711)).unwrap();
        record.id = "01".into();
        record.close(run_dir.path()).unwrap();
        assert_eq!(mode(dir), 0o700, "what an older supervisor has made");
        assert!(GroupRecord::read(run_dir.path(), "03").is_err());
    }
}
