//! Limits of the memory that a cgroup's processes may hold of a device: whose they are, by the directory of the cgroup.

use crate::driver_version::DriverVersion;
use crate::layout::Layout;
use crate::store::{Store, StoreError};
use gpool_device_model::MemoryLimit;
use std::fs;
use std::path::Path;

/// Where a driver looks for version 2 of cgroups, and nowhere else.
const ROOT: &str = "/sys/fs/cgroup";
/// CGROUP2_SUPER_MAGIC of linux/magic.h.
const CGROUP2: i64 = 0x6367_7270;
/// The first driver with them brings this version of the API: 13.4.
const SINCE_CUDA: i32 = 13_040;

/// Why there is no limit, or none is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitError {
    /// The driver has none: it is older than 615.
    NoFunction,
    /// MIG is on, or version 2 is not where cgroups are.
    NotSupported,
    /// That is no cgroup.
    NotFound,
    /// The simulation fails.
    Failed,
}

/// Those of one device.
#[derive(Debug)]
pub struct Limits<'a> {
    /// Where everything lies.
    pub layout: &'a Layout,
    /// The device.
    pub store: &'a Store,
}

impl Limits<'_> {
    /// Sets the soft and the hard limit of what the processes of the cgroup with this directory may hold; none lifts them.
    ///
    /// # Errors
    /// Why it is not done.
    pub fn set(&self, directory: &str, limit: Option<(u64, u64)>) -> Result<(), LimitError> {
        let group = self.group(directory)?;
        let changed = self.store.update(|device, now_ns| device.limit_memory(now_ns, &group, limit));
        changed.map_err(|_| LimitError::Failed)
    }

    /// What holds for the cgroup with this directory; none if nothing does.
    ///
    /// # Errors
    /// Why that cannot be said.
    pub fn get(&self, directory: &str) -> Result<Option<MemoryLimit>, LimitError> {
        let group = self.group(directory)?;
        self.store.read(|device| device.memory_limit(&group)).map_err(|_| LimitError::Failed)
    }

    /// The cgroup, as the meter calls it.
    fn group(&self, directory: &str) -> Result<String, LimitError> {
        let version = DriverVersion::read(self.layout).map_err(|_| LimitError::Failed)?;
        if version.cuda() < SINCE_CUDA {
            return Err(LimitError::NoFunction);
        }
        let is_divided = self.store.read(|device| device.mig.is_on).map_err(|_| LimitError::Failed)?;
        if is_divided || !is_version_2(Path::new(ROOT)) {
            return Err(LimitError::NotSupported);
        }
        let group = directory.strip_prefix(ROOT).filter(|group| group.starts_with('/'));
        group.filter(|_| is_version_2(Path::new(directory))).map(str::to_owned).ok_or(LimitError::NotFound)
    }
}

/// The limit of a cgroup goes with it. Asked by whoever sees all cgroups of the host.
///
/// # Errors
/// The device's state cannot be read or written.
pub(crate) fn forget_removed(store: &Store) -> Result<(), StoreError> {
    let known = store.read(gpool_device_model::Device::limited_groups)?;
    for group in known.iter().filter(|group| !Path::new(&format!("{ROOT}{group}")).exists()) {
        store.update(|device, now_ns| device.limit_memory(now_ns, group, None))?;
    }
    Ok(())
}

fn is_version_2(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|found| found.is_dir())
        && rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == CGROUP2)
}
