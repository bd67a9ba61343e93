//! A daemon with its folders: what is written down of it, and what is known of its processes.

use crate::lease::write_whole;
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_policy::mechanism::MpsLimits;
use gpool_protocol::{GpuUuid, HostPid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
        let dir = dir_of(run_dir, &self.id);
        // Others may pass through to what is shared, and look around nowhere.
        for place in [run_dir.join(GROUPS_DIR), dir.clone()] {
            DirBuilder::new().recursive(true).mode(0o711).create(&place)?;
            fs::set_permissions(&place, Permissions::from_mode(0o711))?;
        }
        write_whole(&dir.join(RECORD_FILE), self).map_err(io::Error::other)
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

/// A group whose daemon was started.
#[derive(Debug)]
pub struct Group {
    /// What is written down of it.
    pub record: GroupRecord,
    /// The control daemon; none once it has been seen to have ended.
    pub daemon: Option<WatchedProcess>,
    /// The server, while one is known to run.
    pub server: Option<WatchedProcess>,
    /// What the server was last told that it gives.
    pub limits: Option<MpsLimits>,
    /// The daemon as this process's child, to be waited for.
    pub child: Option<Child>,
    /// The server's clients when the daemon was asked last, and when that was; none while it has not been.
    pub clients: Option<(Instant, BTreeSet<HostPid>)>,
}

impl Group {
    /// Whether containers can join it.
    pub fn is_alive(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| !daemon.has_ended())
    }
}

/// All groups of this host. Their lock is taken after that of the book of leases.
#[derive(Debug, Default)]
pub struct Groups(Mutex<Vec<Group>>);

impl Groups {
    /// The groups.
    pub fn all(&self) -> MutexGuard<'_, Vec<Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients of a group's server and when it was asked for them; none while nobody can tell.
    pub fn clients_of(&self, id: &str) -> Option<(Instant, BTreeSet<HostPid>)> {
        let groups = self.all();
        groups.iter().find(|group| group.record.id == id)?.clients.clone()
    }

    /// Whether the process is a daemon or a server: it uses GPUs for the leases of its group.
    pub fn has_process(&self, pid: HostPid) -> bool {
        let is_it = |process: &Option<WatchedProcess>| process.as_ref().is_some_and(|its| its.name.pid == pid);
        self.all().iter().any(|group| is_it(&group.daemon) || is_it(&group.server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_reads_back_and_shows_others_only_what_is_shared() {
        let run_dir = tempfile::tempdir().unwrap();
        let domain = Domain { team: "vision".into(), uid: 1000 };
        let gpus = vec![GpuUuid("GPU-1".into())];
        let mut record = GroupRecord { boot_id: "b".into(), id: "01".into(), domain, gpus, daemon: None, server: None };
        record.write(run_dir.path()).unwrap();
        record.daemon = Some(ProcessName { pid: HostPid(7), start_ticks: 9 });
        record.write(run_dir.path()).unwrap();
        assert_eq!(GroupRecord::read(run_dir.path(), "01").unwrap(), record);
        assert_eq!(GroupRecord::ids(run_dir.path()), ["01"]);
        fs::create_dir(shared_of(run_dir.path(), "01")).unwrap();
        record.make_folders(run_dir.path()).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(dir_of(run_dir.path(), "01")), 0o711);
        assert_eq!(mode(folder_of(run_dir.path(), "01", "shm")), 0o1777);
        assert_eq!(mode(folder_of(run_dir.path(), "01", "pipe")), 0o755);
        assert!(GroupRecord::read(run_dir.path(), "02").is_err());
    }
}
