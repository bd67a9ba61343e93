//! Limits of the memory that the processes of a cgroup may hold, as drivers from 615 on have them.
//!
//! Source: "MPS v3 memory partitioning" (docs.nvidia.com/deploy/mps), of which this is the backend called `misc`: a limit holds for
//! a cgroup and what is below it, but for what has a limit of its own there; what would go above it is refused, whoever asks.
//! Memory that was made by another process counts with that one's cgroup. As with the kernel's controller, the other backend, no limit
//! is taken below what is held, and nothing is said of it. Soft limits, by which MPS evicts its clients, are kept and do nothing.

use crate::device::Device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Soft and hard ones by path of the cgroup, as the meter's owners; in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits(BTreeMap<String, (u64, u64)>);

impl Limits {
    /// The cgroup whose limit holds for `owner`: the nearest of those that it is, or lies in.
    fn nearest(&self, owner: &str) -> Option<(&str, (u64, u64))> {
        let mut group = owner;
        loop {
            if let Some((path, limit)) = self.0.get_key_value(group) {
                return Some((path, *limit));
            }
            group = group.rsplit_once('/')?.0;
        }
    }
}

/// What holds for a cgroup, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What MPS leaves to its processes.
    pub soft_bytes: u64,
    /// What they may hold at most.
    pub hard_bytes: u64,
    /// What those hold for whom this is the limit.
    pub used_bytes: u64,
}

impl Device {
    /// Sets the soft and the hard limit of what the processes of a cgroup may hold, or lifts them.
    pub fn limit_memory(&mut self, now_ns: u64, group: &str, limit: Option<(u64, u64)>) {
        self.advance(now_ns);
        let Some((soft, hard)) = limit else {
            self.limits.0.remove(group);
            return;
        };
        let before = self.limits.0.insert(group.to_owned(), (soft, hard));
        if self.memory_limit(group).is_some_and(|limit| limit.used_bytes > hard) {
            match before {
                Some(before) => self.limits.0.insert(group.to_owned(), before),
                None => self.limits.0.remove(group),
            };
        }
    }

    /// The cgroups that have a limit of their own.
    pub fn limited_groups(&self) -> Vec<String> {
        self.limits.0.keys().cloned().collect()
    }

    /// What holds for a cgroup; none if nothing does.
    pub fn memory_limit(&self, group: &str) -> Option<MemoryLimit> {
        let (path, (soft_bytes, hard_bytes)) = self.limits.nearest(group)?;
        let is_its = |owner: &str| self.limits.nearest(owner).is_some_and(|(its, _)| its == path);
        let owners = self.meter().owners.iter().filter(|(owner, _)| is_its(owner));
        let used_bytes = owners.map(|(_, usage)| usage.bytes_now).sum();
        Some(MemoryLimit { soft_bytes, hard_bytes, used_bytes })
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
        device.limit_memory(1, "/docker/1", Some((0, context_bytes + 64 * MIB)));
        let own = device.create_context(2, 7, "/docker/1").unwrap();
        device.allocate(3, own, 32 * MIB).unwrap();
        let below = device.create_context(4, 8, "/docker/1/below");
        assert!(below.is_err(), "the context itself would go above it");
        device.limit_memory(5, "/docker/1/below", Some((MIB, context_bytes + 2 * MIB)));
        let below = device.create_context(6, 8, "/docker/1/below").unwrap();
        assert!(device.allocate(7, below, 4 * MIB).is_err());
        let limit = device.memory_limit("/docker/1").unwrap();
        let (hard_bytes, used_bytes) = (context_bytes + 64 * MIB, context_bytes + 32 * MIB);
        assert_eq!(limit, MemoryLimit { soft_bytes: 0, hard_bytes, used_bytes });
        assert_eq!(device.memory_free_for("/docker/1"), 32 * MIB);
        let other = device.create_context(8, 9, "/docker/10").unwrap();
        device.allocate(9, other, 512 * MIB).unwrap();
        assert_eq!(device.memory_limit("/docker/10"), None, "a name that begins alike is another one's");
        device.limit_memory(10, "/docker/1", None);
        device.allocate(11, own, 64 * MIB).unwrap();
        assert_eq!(device.limited_groups(), ["/docker/1/below"]);
    }

    #[test]
    fn no_limit_is_taken_below_what_is_held() {
        let mut device = Device::new(DeviceParameters::default(), 0);
        let context_bytes = device.parameters().context_bytes;
        let own = device.create_context(1, 7, "/docker/1").unwrap();
        device.limit_memory(2, "/docker/1", Some((0, MIB)));
        assert_eq!(device.memory_limit("/docker/1"), None);
        device.limit_memory(3, "/docker/1", Some((0, context_bytes)));
        device.limit_memory(4, "/docker/1", Some((0, MIB)));
        assert_eq!(device.memory_limit("/docker/1").map(|limit| limit.hard_bytes), Some(context_bytes));
        assert!(device.allocate(5, own, 1).is_err());
        device.destroy_context(6, own);
        device.limit_memory(7, "/docker/1", Some((0, MIB)));
        assert!(device.create_context(8, 7, "/docker/1").is_err());
    }

    #[test]
    fn who_comes_back_comes_back_within_its_limit() {
        let mut device = Device::new(DeviceParameters::default(), 0);
        let context = device.create_context(1, 7, "/docker/1").unwrap();
        device.allocate(2, context, 32 * MIB).unwrap();
        assert!(device.suspend(3, 7));
        device.limit_memory(4, "/docker/1", Some((0, 16 * MIB)));
        assert!(device.resume(5, 7).is_err());
        device.limit_memory(6, "/docker/1", None);
        assert_eq!(device.resume(7, 7), Ok(true));
    }
}
