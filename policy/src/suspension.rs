//! Whether what a lease holds of its GPUs can be moved to the host's memory, and when it comes back.
//!
//! The driver does the moving, by its checkpoint calls: it takes whole processes, in which no call of theirs comes back meanwhile. What it
//! cannot move it says too late to be asked in vain: a process that it fails half-way may be lost. So what is known to stand in the way
//! is looked for first.

use std::fmt;

/// Of the host's memory so much of a hundred parts is left free, in per cent.
const LEFT_PERCENT: u64 = 10;
/// The first driver with the calls.
const OLDEST_DRIVER: u32 = 570;
/// What is moved takes of the host's memory its own size and, for the driver's own tables, one part in so many.
const BESIDE_PART: u64 = 16;

/// What is known of a lease that is to be suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether its share is one of slices, behind a gate.
    pub is_sliced: bool,
    /// Whether it is in an instance of MIG.
    pub is_in_instance: bool,
    /// Whether the driver is too old to have the calls.
    pub has_old_driver: bool,
    /// Whether a cluster has counted its share, which goes on to be its own there.
    pub is_counted: bool,
    /// Whether its container is frozen, or stopped.
    pub is_frozen: bool,
    /// Whether all of its processes have shims that notice when they want their GPUs back.
    pub notices: bool,
    /// Whether processes of it use a GPU past the shims.
    pub bypasses: bool,
    /// Whether they share memory of a GPU with each other.
    pub shares_memory: bool,
    /// What they hold of all its GPUs, contexts included, in bytes.
    pub held_bytes: u64,
    /// The host's memory, and what of it is available, in bytes.
    pub host_bytes: u64,
    /// See there.
    pub host_available_bytes: u64,
    /// What the container may take of the host's memory beside what it has; none if nothing bounds it.
    pub container_available_bytes: Option<u64>,
}

/// Why a lease cannot be suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// It has no gate, so nobody would notice that it is wanted.
    NoSlices,
    /// The driver moves nothing out of an instance.
    InInstance,
    /// The driver has no such calls.
    OldDriver,
    /// Others would be given what the cluster counts as taken, and the cluster gives it to nobody.
    Counted,
    /// What is frozen cannot be moved: its own threads do it.
    Frozen,
    /// Shims of an older gpool.
    OldShims,
    /// Past the shims.
    Bypasses,
    /// The driver moves no memory that several processes have.
    SharesMemory,
    /// The host has not so much memory, in bytes.
    HostMemory {
        /// What it takes.
        wanted_bytes: u64,
        /// What there is for it.
        free_bytes: u64,
    },
    /// The container is not allowed so much of it.
    ContainerMemory {
        /// What it takes.
        wanted_bytes: u64,
        /// What there is for it.
        free_bytes: u64,
    },
}

impl Obstacle {
    /// What can be done about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NoSlices => "only containers with mode=slice on a whole GPU can be; gpool evict takes GPUs from any",
            Self::InInstance => "gpool evict takes GPUs from any container",
            Self::OldDriver => "install a driver of 570 or newer; gpool evict takes GPUs from any container",
            Self::Counted => "end the pod, and its cluster gives the share to another one",
            Self::Frozen => "thaw the container (docker unpause), and suspend it then",
            Self::OldShims => "start the container anew, and it has the shims of this version",
            Self::Bypasses => "gpool doctor names the processes and their libraries",
            Self::SharesMemory => "gpool evict takes GPUs from any container",
            Self::HostMemory { .. } => "free some of the host's memory, or take the GPUs with gpool evict",
            Self::ContainerMemory { .. } => {
                "what is moved counts as the container's memory: raise its limit (docker update --memory), or take the GPUs with gpool evict"
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match *self {
            Self::NoSlices => out.write_str("it has no slices"),
            Self::InInstance => out.write_str("it is in a MIG instance, from which the driver moves nothing"),
            Self::OldDriver => out.write_str("the driver has no checkpoint calls, which 570 and newer have"),
            Self::Counted => out.write_str("its share is counted by its cluster, which would give it to nobody else"),
            Self::Frozen => out.write_str("it is frozen or stopped, and its own threads would have to do the work"),
            Self::OldShims => out.write_str(
                "a program of it has the shims of an older gpool, which would not notice that it wants its GPU back",
            ),
            Self::Bypasses => out.write_str("a program of it uses the GPU past the shims"),
            Self::SharesMemory => {
                out.write_str("programs of it share memory of the GPU with each other, which the driver does not move")
            }
            Self::HostMemory { wanted_bytes, free_bytes } => write!(
                out,
                "the host has no memory for it: {} MiB are needed, and {} MiB are free for that",
                mib(wanted_bytes),
                mib(free_bytes)
            ),
            Self::ContainerMemory { wanted_bytes, free_bytes } => write!(
                out,
                "its container's limit of memory leaves no room for it: {} MiB are needed, and {} MiB are free below the limit",
                mib(wanted_bytes),
                mib(free_bytes)
            ),
        }
    }
}

/// Whether a driver of this version, as `570.86.10`, is too old to move anything. One whose version cannot be read is asked.
#[must_use]
pub fn is_old_driver(version: &str) -> bool {
    version.split('.').next().and_then(|branch| branch.parse::<u32>().ok()).is_some_and(|branch| branch < OLDEST_DRIVER)
}

/// What a lease that holds so much takes of the host's memory, in bytes.
#[must_use]
pub fn host_bytes(held_bytes: u64) -> u64 {
    held_bytes.saturating_add(held_bytes / BESIDE_PART)
}

/// Whether such a lease can be suspended.
///
/// # Errors
/// What stands in the way.
pub fn check(facts: &Facts) -> Result<(), Obstacle> {
    let wanted_bytes = host_bytes(facts.held_bytes);
    // A container that holds nothing takes nothing, however full the host is.
    let left_bytes = (facts.host_bytes / 100).saturating_mul(LEFT_PERCENT);
    let free_bytes = facts.host_available_bytes.saturating_sub(left_bytes);
    let of_container = facts.container_available_bytes.filter(|free_bytes| *free_bytes < wanted_bytes);
    let all = [
        (!facts.is_sliced).then_some(Obstacle::NoSlices),
        facts.is_in_instance.then_some(Obstacle::InInstance),
        facts.has_old_driver.then_some(Obstacle::OldDriver),
        facts.is_counted.then_some(Obstacle::Counted),
        facts.bypasses.then_some(Obstacle::Bypasses),
        (!facts.notices).then_some(Obstacle::OldShims),
        facts.shares_memory.then_some(Obstacle::SharesMemory),
        facts.is_frozen.then_some(Obstacle::Frozen),
        (free_bytes < wanted_bytes).then_some(Obstacle::HostMemory { wanted_bytes, free_bytes }),
        of_container.map(|free_bytes| Obstacle::ContainerMemory { wanted_bytes, free_bytes }),
    ];
    all.into_iter().flatten().next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn facts() -> Facts {
        Facts {
            is_sliced: true,
            is_in_instance: false,
            has_old_driver: false,
            is_counted: false,
            is_frozen: false,
            notices: true,
            bypasses: false,
            shares_memory: false,
            held_bytes: 16 * GIB,
            host_bytes: 100 * GIB,
            host_available_bytes: 27 * GIB,
            container_available_bytes: None,
        }
    }

    #[test]
    fn the_host_keeps_a_tenth_and_the_driver_takes_a_sixteenth_beside() {
        assert_eq!(check(&facts()), Ok(()), "17 GiB beside the 10 that are left");
        let less = Facts { host_available_bytes: 27 * GIB - 1, ..facts() };
        let wanted_bytes = 17 * GIB;
        assert_eq!(check(&less), Err(Obstacle::HostMemory { wanted_bytes, free_bytes: 17 * GIB - 1 }));
        let nothing = Facts { held_bytes: 0, host_available_bytes: 0, ..facts() };
        assert_eq!(check(&nothing), Ok(()), "what holds nothing takes nothing");
        let bounded = |gib| Facts { container_available_bytes: Some(gib * GIB), ..facts() };
        assert_eq!(check(&bounded(17)), Ok(()));
        assert_eq!(check(&bounded(16)), Err(Obstacle::ContainerMemory { wanted_bytes, free_bytes: 16 * GIB }));
        let huge = Facts { held_bytes: u64::MAX, ..facts() };
        assert!(matches!(check(&huge), Err(Obstacle::HostMemory { wanted_bytes: u64::MAX, .. })));
    }

    #[test]
    fn a_driver_is_too_old_by_its_branch() {
        let old =
            ["570.86.10", "580.95.05", "1000.1", "", "unknown", "565.57.01", "535.000.00-simulated"].map(is_old_driver);
        assert_eq!(old, [false, false, false, false, false, true, true]);
    }

    #[test]
    fn what_stands_in_the_way_is_named_with_what_helps() {
        let cases = [
            (Facts { is_sliced: false, ..facts() }, Obstacle::NoSlices),
            (Facts { is_in_instance: true, ..facts() }, Obstacle::InInstance),
            (Facts { has_old_driver: true, ..facts() }, Obstacle::OldDriver),
            (Facts { is_counted: true, ..facts() }, Obstacle::Counted),
            (Facts { is_frozen: true, ..facts() }, Obstacle::Frozen),
            (Facts { notices: false, ..facts() }, Obstacle::OldShims),
            (Facts { bypasses: true, ..facts() }, Obstacle::Bypasses),
            (Facts { shares_memory: true, ..facts() }, Obstacle::SharesMemory),
        ];
        for (facts, obstacle) in cases {
            assert_eq!(check(&facts), Err(obstacle));
            assert!(!obstacle.to_string().is_empty() && !obstacle.remedy().is_empty());
        }
        let told = Obstacle::HostMemory { wanted_bytes: 3 << 30, free_bytes: 1 << 30 }.to_string();
        assert!(told.contains("3072 MiB") && told.contains("1024 MiB"), "{told}");
    }
}
