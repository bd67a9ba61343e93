//! What `gpool doctor --fix` does: only what takes nothing from anybody and can be done again.

use super::survivors;
use gpool_protocol::{Client, LeaseView};
use rustix::mount::UnmountFlags;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lease that is being made has a directory before the supervisor tells of it; what is older than this has ended.
const SETTLED: Duration = Duration::from_secs(60);

/// A safe repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Gives a file or directory of gpool's this mode.
    Mode {
        /// Which.
        path: PathBuf,
        /// Its new mode.
        mode: u32,
    },
    /// Unmounts and removes what a lease has left that there is no longer.
    Leftover {
        /// Its directory.
        path: PathBuf,
    },
}

impl Fix {
    /// Does it, and says what was done.
    ///
    /// # Errors
    /// What stood in the way, in a sentence.
    pub fn apply(&self, client: &Client) -> Result<String, String> {
        match self {
            Fix::Mode { path, mode } => {
                let changed = std::fs::set_permissions(path, PermissionsExt::from_mode(*mode));
                changed.map_err(|cause| format!("the mode of {} stays ({})", path.display(), cause.kind()))?;
                Ok(format!("{} has mode {mode:o} now", path.display()))
            }
            Fix::Leftover { path } => clear_away(path, client),
        }
    }
}

/// Asks once more whether the lease is there, or anybody of its container, before its directory goes.
fn clear_away(path: &Path, client: &Client) -> Result<String, String> {
    let stays = |why: &str| format!("{} stays: {why}", path.display());
    let age = std::fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_none_or(|age| age < SETTLED) {
        return Err(stays("it may belong to a lease that is being made; try again in a minute"));
    }
    let leases: Vec<LeaseView> = client.get("/v1/leases").map_err(|error| stays(&error.message))?;
    if leases.iter().any(|lease| path.ends_with(&lease.lease_id.0)) {
        return Err(stays("its lease is there again"));
    }
    // A supervisor that could not take a lease over does not always know of it.
    if let Some(why) = survivors::of(path, Path::new("/proc")) {
        return Err(stays(&why));
    }
    // A region may have been mounted more than once over itself.
    while rustix::mount::unmount(path.join("region"), UnmountFlags::NOFOLLOW).is_ok() {}
    let mounts = std::fs::read("/proc/self/mountinfo").map_err(|cause| stays(&cause.kind().to_string()))?;
    let mounts = String::from_utf8_lossy(&mounts);
    let prefix = format!("{}/", path.display());
    if mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| point.starts_with(&prefix)) {
        return Err(stays("something is mounted in it that is in use"));
    }
    std::fs::remove_dir_all(path).map_err(|cause| stays(&cause.kind().to_string()))?;
    Ok(format!("removed {}", path.display()))
}
