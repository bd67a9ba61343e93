//! Limits of the memory that the processes of a cgroup may hold, as drivers from 615 on have them.
//!
//! Source: "MPS v3 memory partitioning" (docs.nvidia.com/deploy/mps), of which this is the backend called `misc`: a limit holds for
//! a cgroup and what is below it, but for what has a limit of its own there; what would go above it is refused, whoever asks.
//! Memory that was made by another process counts with that one's cgroup. Soft limits, by which MPS evicts its clients, are not
//! simulated.

use crate::device::Device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// By path of the cgroup, as the meter's owners; in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits(BTreeMap<String, u64>);

impl Limits {
    /// The cgroup whose limit holds for `owner`: the nearest of those that it is, or lies in.
    fn nearest(&self, owner: &str) -> Option<(&str, u64)> {
        let mut group = owner;
        loop {
            if let Some((path, bytes)) = self.0.get_key_value(group) {
                return Some((path, *bytes));
            }
            group = group.rsplit_once('/')?.0;
        }
    }
}

/// What holds for a cgroup, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What its processes may hold at most.
    pub hard_bytes: u64,
    /// What those hold for whom this is the limit.
    pub used_bytes: u64,
}

impl Device {
    /// Sets what the processes of a cgroup may hold at most, or lifts that. What they hold already stays theirs.
    pub fn limit_memory(&mut self, now_ns: u64, group: &str, hard_bytes: Option<u64>) {
        self.advance(now_ns);
        match hard_bytes {
            Some(bytes) => drop(self.limits.0.insert(group.to_owned(), bytes)),
            None => drop(self.limits.0.remove(group)),
        }
    }

    /// The cgroups that have a limit of their own.
    pub fn limited_groups(&self) -> Vec<String> {
        self.limits.0.keys().cloned().collect()
    }

    /// What holds for a cgroup; none if nothing does.
    pub fn memory_limit(&self, group: &str) -> Option<MemoryLimit> {
        let (path, hard_bytes) = self.limits.nearest(group)?;
        let is_its = |owner: &str| self.limits.nearest(owner).is_some_and(|(its, _)| its == path);
        let owners = self.meter().owners.iter().filter(|(owner, _)| is_its(owner));
        Some(MemoryLimit { hard_bytes, used_bytes: owners.map(|(_, usage)| usage.bytes_now).sum() })
    }

    /// What processes of a cgroup can still have, in bytes.
    pub fn memory_free_for(&self, owner: &str) -> u64 {
        let of_limit = self.memory_limit(owner).map(|limit| limit.hard_bytes.saturating_sub(limit.used_bytes));
        self.memory_free().min(of_limit.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceParameters;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_nearest_limit_holds_and_what_is_below_another_is_not_counted() {
        let mut device = Device::new(DeviceParameters::default(), 0);
        let context_bytes = device.parameters().context_bytes;
        device.limit_memory(1, "/docker/1", Some(context_bytes + 64 * MIB));
        let own = device.create_context(2, 7, "/docker/1").unwrap();
        device.allocate(3, own, 32 * MIB).unwrap();
        let below = device.create_context(4, 8, "/docker/1/below");
        assert!(below.is_err(), "the context itself would go above it");
        device.limit_memory(5, "/docker/1/below", Some(context_bytes + 2 * MIB));
        let below = device.create_context(6, 8, "/docker/1/below").unwrap();
        assert!(device.allocate(7, below, 4 * MIB).is_err());
        let limit = device.memory_limit("/docker/1").unwrap();
        assert_eq!(limit, MemoryLimit { hard_bytes: context_bytes + 64 * MIB, used_bytes: context_bytes + 32 * MIB });
        assert_eq!(device.memory_free_for("/docker/1"), 32 * MIB);
        let other = device.create_context(8, 9, "/docker/10").unwrap();
        device.allocate(9, other, 512 * MIB).unwrap();
        assert_eq!(device.memory_limit("/docker/10"), None, "a name that begins alike is another one's");
        // Lowered below what is held, it takes nothing from anybody and gives nothing.
        device.limit_memory(10, "/docker/1", Some(MIB));
        assert!(device.allocate(11, own, 1).is_err() && device.memory_free_for("/docker/1") == 0);
        device.limit_memory(12, "/docker/1", None);
        device.allocate(13, own, 64 * MIB).unwrap();
        assert_eq!(device.limited_groups(), ["/docker/1/below"]);
    }

    #[test]
    fn who_comes_back_comes_back_within_its_limit() {
        let mut device = Device::new(DeviceParameters::default(), 0);
        let context = device.create_context(1, 7, "/docker/1").unwrap();
        device.allocate(2, context, 32 * MIB).unwrap();
        assert!(device.suspend(3, 7));
        device.limit_memory(4, "/docker/1", Some(16 * MIB));
        assert!(device.resume(5, 7).is_err());
        device.limit_memory(6, "/docker/1", None);
        assert_eq!(device.resume(7, 7), Ok(true));
    }
}
