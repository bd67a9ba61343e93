//! The driver's own limits of the memory that the processes of a cgroup may have.
//!
//! Sources: nvml.h of CUDA 13.4 (driver 615), "MPS v3 memory partitioning" (docs.nvidia.com/deploy/mps): limits of the boards
//! as a whole, for cgroups of version 2 below `/sys/fs/cgroup`; kept by the kernel's controller `dmem` where it has one (6.14), else by
//! the driver itself. Everything that a process has of the device counts, its contexts included, and managed memory not. The limit
//! of a cgroup goes with it. Who asks for that of a cgroup that has none of its own is told an ancestor's, or that the question is not
//! supported. `dmem` takes no limit below what is held (page_counter_set_max of the kernel, EBUSY), and says nothing of it.
//!
//! The soft limit is for MPS servers, which end clients above it when others want memory: it stays 0 for all, so that nobody is
//! within his own and has others ended.

use super::inventory::NvmlInventory;
use gpool_driver_abi::nvml::{
    NVML_DEVICE_MEMORY_LIMIT_MAX, NvmlDeviceGetMemoryLimitsV1, NvmlDeviceSetMemoryLimitsV1, nvmlDevice_t,
    nvmlGetMemoryLimits_v1_t, nvmlSetMemoryLimits_v1_t,
};
use gpool_protocol::is_limit_of;
use libloading::Library;
use nvml_wrapper::error::{NvmlError, nvml_try};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is added to a limit that the driver has rounded down, at first, and how often that is doubled: to 128 MiB.
const ROUNDED: u64 = 2 << 20;
const ROUNDED_TRIES: u32 = 7;
/// How often more than is held is tried, twice as much more each time: to 4 TiB.
const GROWING_TRIES: u32 = 22;

/// The two calls; nvml-wrapper knows none of them.
pub(super) struct Calls {
    set: NvmlDeviceSetMemoryLimitsV1,
    get: NvmlDeviceGetMemoryLimitsV1,
    // The functions are its.
    _library: Library,
}

/// What holds for a cgroup, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    soft: u64,
    hard: u64,
    used: u64,
}

impl Calls {
    /// Those of NVML, which this process has loaded from there; none of a driver that has none.
    pub(super) fn load(library: &Path) -> Option<Self> {
        // SAFETY: the same library as is loaded already, so nothing of it runs.
        let library = unsafe { Library::new(library) }.ok()?;
        // SAFETY: both have these types in nvml.h.
        let (set, get) = unsafe {
            (
                *library.get::<NvmlDeviceSetMemoryLimitsV1>(c"nvmlDeviceSetMemoryLimits_v1".to_bytes()).ok()?,
                *library.get::<NvmlDeviceGetMemoryLimitsV1>(c"nvmlDeviceGetMemoryLimits_v1".to_bytes()).ok()?,
            )
        };
        Some(Self { set, get, _library: library })
    }

    fn set(&self, board: nvmlDevice_t, group: &CStr, hard_bytes: u64) -> Result<(), NvmlError> {
        let mut limits = nvmlSetMemoryLimits_v1_t { nameSpace: group.as_ptr(), softLimit: 0, hardLimit: hard_bytes };
        // SAFETY: the handle is one that the library has just given, and the structure and the name in it are live.
        nvml_try(unsafe { (self.set)(board, &mut limits) }.cast_unsigned())
    }

    /// What holds for a cgroup; none if nothing does.
    fn get(&self, board: nvmlDevice_t, group: &CStr) -> Result<Option<Limit>, NvmlError> {
        let mut limits =
            nvmlGetMemoryLimits_v1_t { nameSpace: group.as_ptr(), softLimit: 0, hardLimit: 0, currentUsed: 0 };
        // SAFETY: as above.
        match nvml_try(unsafe { (self.get)(board, &mut limits) }.cast_unsigned()) {
            Ok(()) => {
                let found = Limit { soft: limits.softLimit, hard: limits.hardLimit, used: limits.currentUsed };
                Ok(Some(found).filter(|found| found.hard != NVML_DEVICE_MEMORY_LIMIT_MAX))
            }
            Err(NvmlError::NotSupported | NvmlError::NotFound) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// A limit that a cgroup is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedLimit {
    /// The cgroup's directory.
    pub directory: PathBuf,
    /// What its processes may have, in bytes; none: what they like.
    pub bytes: Option<u64>,
    /// What the driver made of the same limit when it was set last; none before.
    pub known_bytes: Option<u64>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLimit {
    /// What the driver keeps now, in bytes: what was wanted, a little more where it rounds, or what is held where that is more.
    pub kept_bytes: Option<u64>,
    /// What it was before.
    pub before_bytes: Option<u64>,
    /// Whether that is what the driver made of what was wanted, and not something that it had before, or that takes its place for now.
    pub is_settled: bool,
    /// What its processes hold, in bytes, as the driver counts it.
    pub used_bytes: u64,
}

/// Why the driver keeps none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitRefusal {
    /// It has no such call.
    #[error("the driver has no memory limits, which 615 and newer have")]
    NoFunction,
    /// The cgroup, or the board.
    #[error("the driver has no memory limits here: it wants version 2 of cgroups alone, and no MIG")]
    NotSupported,
    /// The kernel's controller is not there for this cgroup.
    #[error("its cgroup has no dmem.max: one above it does not hand the controller down")]
    NoController,
    /// The cgroup has ended.
    #[error("the cgroup is not there any more")]
    Gone,
    /// It has taken the limit, and says that there is none.
    #[error("the driver takes the limit and keeps none")]
    NotKept,
    /// The board.
    #[error("the GPU does not answer")]
    Unanswered,
    /// Something else, in NVML's words.
    #[error("NVML refuses: {0}")]
    Other(String),
}

impl LimitRefusal {
    fn of(cause: &NvmlError, directory: &Path) -> Self {
        match cause {
            _ if !directory.exists() => Self::Gone,
            NvmlError::FunctionNotFound => Self::NoFunction,
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::NotFound => Self::NoController,
            other => Self::Other(other.to_string()),
        }
    }

    /// Whether all of the host, or the driver, is so, and not one container.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::NoFunction | Self::NotSupported)
    }
}

/// What two calls do with a cgroup of one board.
trait Board {
    fn set(&self, hard_bytes: u64) -> Result<(), NvmlError>;
    fn get(&self) -> Result<Option<Limit>, NvmlError>;
}

/// Sees to it that a cgroup has its limit, and says what it has.
fn keep(board: &impl Board, wanted: &WantedLimit) -> Result<FoundLimit, NvmlError> {
    let before = board.get()?;
    let before_bytes = before.map(|its| its.hard);
    let Some(bytes) = wanted.bytes else {
        match board.set(NVML_DEVICE_MEMORY_LIMIT_MAX) {
            // What it was told is an ancestor's then.
            Ok(()) | Err(NvmlError::NotFound | NvmlError::NotSupported) => {}
            Err(other) => return Err(other),
        }
        let used_bytes = before.map_or(0, |its| its.used);
        return Ok(FoundLimit { kept_bytes: None, before_bytes, is_settled: true, used_bytes });
    };
    // One that nobody here has set may be an ancestor's, however much it is.
    let found = |kept: Option<Limit>, is_settled| FoundLimit {
        kept_bytes: kept.map(|its| its.hard),
        before_bytes,
        is_settled,
        used_bytes: kept.map_or(0, |its| its.used),
    };
    if before.is_some_and(|its| its.soft == 0 && Some(its.hard) == wanted.known_bytes) {
        return Ok(found(before, true));
    }
    board.set(bytes)?;
    let mut kept = board.get()?;
    // A cap that the shims keep and the driver does not would be refused where `free` says that there is room.
    let mut more = ROUNDED;
    for _ in 0..ROUNDED_TRIES {
        if kept.is_none_or(|its| its.hard >= bytes) {
            break;
        }
        board.set(bytes.saturating_add(more))?;
        kept = board.get()?;
        more *= 2;
    }
    // Where more is held than that the one before stays, which by its size might be what a driver has rounded to.
    let is_it = |its: Limit| {
        its.hard == bytes || Some(its.hard) != before_bytes && its.used <= bytes && is_limit_of(its.hard, bytes)
    };
    if kept.is_some_and(is_it) {
        return Ok(found(kept, true));
    }
    Ok(found(add_nothing(board, bytes, kept)?, false))
}

/// Where more is held than is wanted, that is the limit for now: at least nothing is added. What is held may grow meanwhile, and of who
/// has no limit it is not known.
fn add_nothing(board: &impl Board, bytes: u64, mut kept: Option<Limit>) -> Result<Option<Limit>, NvmlError> {
    let mut room = ROUNDED;
    for _ in 0..GROWING_TRIES {
        let enough = match kept {
            Some(its) => its.used.saturating_add(room).max(bytes),
            None => bytes.saturating_add(room),
        };
        if kept.is_some_and(|its| its.hard <= enough) {
            break;
        }
        board.set(enough)?;
        (kept, room) = (board.get()?, room.saturating_mul(2));
    }
    Ok(kept)
}

impl NvmlInventory {
    /// Whether this driver has limits at all.
    pub fn has_memory_limits(&self) -> bool {
        self.limit_calls().is_some()
    }

    /// Sees to it that cgroups have their limits on the board `index`: what came of each.
    pub fn keep_memory_limits(&self, index: u32, wanted: &[WantedLimit]) -> Vec<Result<FoundLimit, LimitRefusal>> {
        let board = self.nvml().device_by_index(index).map_err(|cause| LimitRefusal::Other(cause.to_string()));
        let one = |wanted: &WantedLimit| {
            let calls = self.limit_calls().ok_or(LimitRefusal::NoFunction)?;
            let refused = |cause: NvmlError| LimitRefusal::of(&cause, &wanted.directory);
            let group = CString::new(wanted.directory.as_os_str().as_bytes()).map_err(|_| LimitRefusal::Gone)?;
            // SAFETY: used while the device lives from which it is.
            let handle = unsafe { board.as_ref().map_err(Clone::clone)?.handle() }.cast();
            keep(&OnBoard { calls, handle, group: &group }, wanted).map_err(refused)
        };
        wanted.iter().map(one).collect()
    }
}

struct OnBoard<'a> {
    calls: &'a Calls,
    handle: nvmlDevice_t,
    group: &'a CStr,
}

impl Board for OnBoard<'_> {
    fn set(&self, hard_bytes: u64) -> Result<(), NvmlError> {
        self.calls.set(self.handle, self.group, hard_bytes)
    }

    fn get(&self) -> Result<Option<Limit>, NvmlError> {
        self.calls.get(self.handle, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const MIB: u64 = 1 << 20;

    /// A driver that keeps a limit in pieces of so much, rounded down or up, and takes none below what is held.
    #[derive(Default)]
    struct Driver {
        limit: Cell<Option<Limit>>,
        piece: u64,
        rounds_up: bool,
        held: Cell<u64>,
        set: RefCell<Vec<u64>>,
    }

    impl Driver {
        fn hard(&self) -> Option<u64> {
            self.limit.get().map(|its| its.hard)
        }

        fn put(&self, soft: u64, hard: u64) {
            self.limit.set(Some(Limit { soft, hard, used: 0 }));
        }
    }

    impl Board for Driver {
        fn set(&self, hard_bytes: u64) -> Result<(), NvmlError> {
            self.set.borrow_mut().push(hard_bytes);
            let piece = self.piece.max(1);
            let pieces = if self.rounds_up { hard_bytes.div_ceil(piece) } else { hard_bytes / piece };
            let hard = pieces.saturating_mul(piece);
            if hard_bytes == NVML_DEVICE_MEMORY_LIMIT_MAX {
                self.limit.set(None);
            } else if hard >= self.held.get() {
                self.put(0, hard);
            }
            Ok(())
        }

        fn get(&self) -> Result<Option<Limit>, NvmlError> {
            Ok(self.limit.get().map(|its| Limit { used: self.held.get(), ..its }))
        }
    }

    fn wanted(bytes: Option<u64>, known_bytes: Option<u64>) -> WantedLimit {
        WantedLimit { directory: "/sys/fs/cgroup/docker/1".into(), bytes, known_bytes }
    }

    #[test]
    fn a_limit_is_set_once_and_again_when_somebody_has_changed_it() {
        let driver = Driver::default();
        let first = keep(&driver, &wanted(Some(1000), None)).unwrap();
        assert_eq!(first, FoundLimit { kept_bytes: Some(1000), before_bytes: None, is_settled: true, used_bytes: 0 });
        let again = keep(&driver, &wanted(Some(1000), Some(1000))).unwrap();
        assert_eq!((again.before_bytes, driver.set.borrow().len()), (Some(1000), 1));
        driver.put(0, 5000);
        let changed = keep(&driver, &wanted(Some(1000), Some(1000))).unwrap();
        assert_eq!(
            changed,
            FoundLimit { kept_bytes: Some(1000), before_bytes: Some(5000), is_settled: true, used_bytes: 0 }
        );
        // Somebody who is within his soft limit would have others ended.
        driver.put(1000, 1000);
        keep(&driver, &wanted(Some(1000), Some(1000))).unwrap();
        assert_eq!(driver.limit.get().map(|its| its.soft), Some(0));
        let lifted = keep(&driver, &wanted(None, None)).unwrap();
        assert_eq!(lifted, FoundLimit { kept_bytes: None, before_bytes: Some(1000), is_settled: true, used_bytes: 0 });
        assert_eq!(driver.hard(), None);
    }

    #[test]
    fn a_limit_that_nobody_here_has_set_is_not_taken_for_its_own() {
        let driver = Driver::default();
        // An ancestor's, of the same size.
        driver.put(0, 1000);
        keep(&driver, &wanted(Some(1000), None)).unwrap();
        assert_eq!(*driver.set.borrow(), [1000]);
    }

    #[test]
    fn a_driver_that_rounds_keeps_no_less_than_the_cap_and_is_left_alone_then() {
        for (rounds_up, piece) in [(true, 64 * MIB), (false, 4096), (false, 2 * MIB), (false, 64 * MIB)] {
            for rest in [0, 1, 4095, MIB, 31 * MIB, 33 * MIB, 64 * MIB - 1] {
                let cap = 3 * 1024 * MIB + rest;
                let driver = Driver { piece, rounds_up, ..Driver::default() };
                let found = keep(&driver, &wanted(Some(cap), None)).unwrap();
                let kept = found.kept_bytes.unwrap();
                assert!(is_limit_of(kept, cap) && found.is_settled, "of {cap} in pieces of {piece} it keeps {kept}");
                let sets = driver.set.borrow().len();
                keep(&driver, &wanted(Some(cap), found.kept_bytes)).unwrap();
                assert_eq!(driver.set.borrow().len(), sets);
            }
        }
    }

    #[test]
    fn where_more_is_held_nothing_is_added_and_the_limit_follows() {
        let driver = Driver::default();
        driver.put(0, 4096 * MIB);
        driver.held.set(3000 * MIB);
        let look = || {
            let found = keep(&driver, &wanted(Some(1024 * MIB), None)).unwrap();
            (found.kept_bytes.unwrap() / MIB, found.is_settled)
        };
        assert_eq!(look(), (3002, false), "what is kept is told, not what was wanted");
        driver.held.set(2000 * MIB);
        assert_eq!(look(), (2002, false));
        driver.held.set(500 * MIB);
        assert_eq!(look(), (1024, true));
        // Of one that had no limit nothing is known.
        let driver = Driver { held: Cell::new(3000 * MIB), ..Driver::default() };
        let found = keep(&driver, &wanted(Some(1024 * MIB), None)).unwrap();
        assert!(!found.is_settled && found.kept_bytes.is_some_and(|kept| kept < 5000 * MIB), "{found:?}");
        let found = keep(&driver, &wanted(Some(1024 * MIB), None)).unwrap();
        assert_eq!(found.kept_bytes, Some(3002 * MIB));
    }

    #[test]
    fn one_that_was_not_taken_is_not_taken_for_a_rounded_one() {
        let driver = Driver::default();
        driver.put(0, 1088 * MIB);
        driver.held.set(1087 * MIB);
        let look = || keep(&driver, &wanted(Some(1024 * MIB), None)).unwrap();
        assert!(is_limit_of(1088 * MIB, 1024 * MIB) && !look().is_settled);
        driver.held.set(0);
        assert_eq!(look().kept_bytes, Some(1024 * MIB));
    }

    #[test]
    fn what_grows_meanwhile_is_caught_up_with() {
        struct Growing(Driver);
        impl Board for Growing {
            fn set(&self, hard_bytes: u64) -> Result<(), NvmlError> {
                // Up to its old limit.
                self.0.held.set((self.0.held.get() + 20 * MIB).min(self.0.hard().unwrap_or(u64::MAX)));
                self.0.set(hard_bytes)
            }

            fn get(&self) -> Result<Option<Limit>, NvmlError> {
                self.0.get()
            }
        }
        let board = Growing(Driver::default());
        board.0.put(0, 20_000 * MIB);
        board.0.held.set(5000 * MIB);
        let found = keep(&board, &wanted(Some(1000 * MIB), None)).unwrap();
        assert!(found.kept_bytes.is_some_and(|kept| kept < 5300 * MIB) && !found.is_settled, "{found:?}");
    }

    #[test]
    fn why_there_is_none_is_told_apart() {
        let here = Path::new("/");
        assert_eq!(LimitRefusal::of(&NvmlError::FunctionNotFound, here), LimitRefusal::NoFunction);
        assert_eq!(LimitRefusal::of(&NvmlError::NotFound, here), LimitRefusal::NoController);
        assert_eq!(LimitRefusal::of(&NvmlError::NotFound, Path::new("/not/there")), LimitRefusal::Gone);
        assert!(LimitRefusal::of(&NvmlError::NoPermission, here).to_string().starts_with("NVML refuses: "));
        assert!(Calls::load(Path::new("libc.so.6")).is_none());
    }
}
