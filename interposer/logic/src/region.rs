//! The three files of the lease, mapped.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering};
use gpool_shared_region::{
    CONTROL_BYTES, Control, GateWord, HEARTBEAT_STALE_NS, MAGIC, OLDEST_VERSION, REPORT_BYTES, ROSTER_OFFSET, Roster,
    SLOT_BYTES, SLOTS, Slot, VERSION,
};

const CONTROL_PATH: &CStr = c"/dev/gpool/control";
const REPORT_PATH: &CStr = c"/dev/gpool/report";
const BELL_PATH: &CStr = c"/dev/gpool/bell";

/// Why a container's region cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionError {
    /// A file is not there or cannot be mapped.
    Absent,
    /// It is no region, or one of a version that this shim does not know.
    Foreign,
    /// All slots are taken.
    Full,
}

/// The mapped region of this process's lease. Mapped once and never unmapped.
pub struct Region {
    control: &'static Control,
    report: *const u8,
    /// None in the report of an older supervisor.
    roster: Option<&'static Roster>,
    report_fd: i32,
    bell_fd: AtomicI32,
    /// Which file it is of, none as zeros: with an `Option` in here one of the region would not be zero where there is none, and
    /// what it is a part of would take room in the shim's file.
    bell: [u64; 2],
}

// SAFETY: the report is only touched through atomics in `Slot`; the rest is immutable or atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Opens `path` so that it is closed on exec, away from the low numbers that programs close wholesale, and in any case from
/// 0 to 2: what a program that was started with closed streams prints is written to whatever has their numbers.
fn open(path: &CStr, flags: i32) -> Option<i32> {
    // SAFETY: `path` is a terminated string.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let Some(high) = [700, 3].into_iter().find_map(|least| duplicate(fd, least)) else { return Some(fd) };
    // SAFETY: `fd` is ours and was just duplicated.
    unsafe { libc::close(fd) };
    Some(high)
}

/// The same file under a number that is not below `least`; none where so high ones are not allowed, or none is left.
fn duplicate(fd: i32, least: i32) -> Option<i32> {
    // SAFETY: changes nothing but the table of descriptors.
    let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) };
    (high >= 0).then_some(high)
}

/// Maps `length` bytes of `fd`, if the file is that long.
fn map(fd: i32, length: usize, protection: i32) -> Option<*mut u8> {
    if (status(fd)?.st_size as usize) < length {
        return None;
    }
    // SAFETY: a new shared mapping of a file that is long enough.
    let address = unsafe { libc::mmap(core::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0) };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// The slots, and the roster behind them where the supervisor has made room for it.
type MappedReport = (*const u8, Option<&'static Roster>);

fn map_report(fd: i32, protection: i32) -> Option<MappedReport> {
    let Some(report) = map(fd, REPORT_BYTES, protection) else {
        return map(fd, ROSTER_OFFSET, protection).map(|report| (report.cast_const(), None));
    };
    // SAFETY: mapped for the slots and the roster behind them, aligned, for ever; it holds only atomics.
    let roster = unsafe { &*report.add(ROSTER_OFFSET).cast::<Roster>() };
    Some((report, Some(roster)))
}

/// Maps the report for somebody who only reads it. The driver's shim in the same process may hold a slot by a record lock, and
/// closing any descriptor of the file drops that: so this one stays open, and where it is, since moving it means closing it. Under
/// the number of a stream that the program was started without, what it prints goes nowhere: it cannot be written to.
fn report_to_read(path: &CStr) -> Option<MappedReport> {
    // SAFETY: `path` is a terminated string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    map_report(fd, libc::PROT_READ)
}

impl Region {
    /// Maps the region for somebody who reads it and takes no place, as NVML's shim does.
    ///
    /// # Errors
    /// As [`Region::page`].
    pub fn to_read() -> Result<Self, RegionError> {
        let control = Self::page()?;
        let (report, roster) = report_to_read(REPORT_PATH).ok_or(RegionError::Absent)?;
        Ok(Self { control, report, roster, report_fd: -1, bell: [0; 2], bell_fd: AtomicI32::new(-1) })
    }

    /// Maps the supervisor's page alone, which says whether there is a region to be used.
    ///
    /// # Errors
    /// [`RegionError::Absent`] or [`RegionError::Foreign`].
    pub fn page() -> Result<&'static Control, RegionError> {
        // SAFETY: a terminated string.
        let fd = unsafe { libc::open(CONTROL_PATH.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(RegionError::Absent);
        }
        let control = map(fd, CONTROL_BYTES, libc::PROT_READ);
        // SAFETY: `fd` is ours; the mapping stays.
        unsafe { libc::close(fd) };
        // SAFETY: the mapping is as long as Control, page-aligned, and never unmapped.
        let control = unsafe { &*control.ok_or(RegionError::Absent)?.cast::<Control>() };
        let version = control.version.load(Ordering::Acquire);
        let readable = version >= OLDEST_VERSION && control.oldest_reader.load(Ordering::Relaxed) <= VERSION;
        if control.magic.load(Ordering::Acquire) != MAGIC || !readable {
            return Err(RegionError::Foreign);
        }
        Ok(control)
    }

    /// Maps the rest of the region whose page this is.
    ///
    /// # Errors
    /// [`RegionError::Absent`].
    pub fn behind(control: &'static Control) -> Result<Self, RegionError> {
        // Opened once and never closed from here on: closing any descriptor of a file drops the process's record locks on it,
        // and the lock on our slot's byte, which is taken later, is what names this process to the host.
        let report_fd = open(REPORT_PATH, libc::O_RDWR).ok_or(RegionError::Absent)?;
        let (report, roster) = map_report(report_fd, libc::PROT_READ | libc::PROT_WRITE).ok_or(RegionError::Absent)?;
        let bell_fd = open(BELL_PATH, libc::O_RDWR | libc::O_NONBLOCK).ok_or(RegionError::Absent)?;
        Ok(Self { control, report, roster, report_fd, bell: identity(bell_fd), bell_fd: AtomicI32::new(bell_fd) })
    }

    /// A region in memory, for tests and benchmarks of the gate.
    ///
    /// # Safety
    /// `report` must point to [`REPORT_BYTES`] zeroed bytes, aligned to 64, that live for ever.
    pub unsafe fn in_memory(control: &'static Control, report: *const u8, bell_fd: i32) -> Self {
        // SAFETY: inside the report, aligned, for ever; it holds only atomics.
        let roster = Some(unsafe { &*report.add(ROSTER_OFFSET).cast::<Roster>() });
        Self { control, report, roster, report_fd: -1, bell: [0; 2], bell_fd: AtomicI32::new(bell_fd) }
    }

    /// The region of a report in a file, for tests.
    #[cfg(test)]
    pub(crate) fn over(control: &'static Control, report_fd: i32) -> Self {
        let (report, roster) = map_report(report_fd, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        Self { control, report, roster, report_fd, bell: identity(-1), bell_fd: AtomicI32::new(-1) }
    }

    /// The supervisor's page.
    pub fn control(&self) -> &'static Control {
        self.control
    }

    /// Slot `index` of the report.
    pub fn slot(&self, index: usize) -> &'static Slot {
        assert!(index < SLOTS);
        // SAFETY: the report is mapped for SLOTS slots, aligned, for ever; Slot holds only atomics.
        unsafe { &*self.report.add(index * SLOT_BYTES).cast::<Slot>() }
    }

    /// All slots that were ever taken, so that a lease of few processes does not pay for places that it could have.
    #[inline(always)]
    pub fn slots(&self) -> impl Iterator<Item = &'static Slot> + '_ {
        let taken = self.roster.map_or(SLOTS, Roster::slots_taken);
        (0..taken).map(|index| self.slot(index))
    }

    /// What all processes of the lease tell each other, where the supervisor has made room for it.
    #[inline(always)]
    pub fn roster(&self) -> Option<&'static Roster> {
        self.roster
    }

    /// Slot `index` is about to be taken; without this nobody would count what is charged there.
    pub fn note_taken(&self, index: usize) {
        if let Some(roster) = self.roster {
            roster.note_taken(index);
        }
    }

    /// Frees slot `index`, whose record lock this process has. The registration goes last, so that no new process takes the slot
    /// while it is being cleared. Through the file, as the supervisor does it: words of the mapping are of different sizes.
    #[cfg(not(loom))]
    pub(crate) fn clear(&self, index: usize) {
        let (zeros, start) = ([0u8; SLOT_BYTES], (index * SLOT_BYTES) as libc::off_t);
        let write = |from: usize, length: usize| {
            let at = start + from as libc::off_t;
            // SAFETY: writes from a live array that is at least so long.
            unsafe { libc::syscall(libc::SYS_pwrite64, self.report_fd, zeros.as_ptr(), length, at) == length as i64 }
        };
        // A failure leaves the slot taken.
        let _ = write(8, SLOT_BYTES - 8) && write(0, 8);
    }

    /// The descriptor whose record locks mark slots as taken.
    pub fn report_fd(&self) -> i32 {
        self.report_fd
    }

    /// The gate as it is now.
    pub fn gate(&self) -> GateWord {
        GateWord(self.control.gate.load(Ordering::Acquire))
    }

    /// Whether the supervisor has been silent for so long that it must be away.
    pub fn supervisor_is_away(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.control.heartbeat_ns.load(Ordering::Relaxed)) > HEARTBEAT_STALE_NS
    }

    /// Asks the supervisor to look at slot `index`. A full bell is as good as a rung one.
    pub fn ring(&self, index: usize) {
        let mut fd = self.bell_fd.load(Ordering::Relaxed);
        // A program may close descriptors that it did not open, and open a file, or a pipe, under the same number.
        if self.report_fd >= 0 && identity(fd) != self.bell {
            let Some(again) = open(BELL_PATH, libc::O_RDWR | libc::O_NONBLOCK) else { return };
            self.bell_fd.store(again, Ordering::Relaxed);
            fd = again;
        }
        let byte = index as u8;
        // The system call itself: a thread that is cancelled does not go here.
        // SAFETY: writes one byte from a live variable.
        unsafe { libc::syscall(libc::SYS_write, fd, &raw const byte, 1usize) };
    }
}

/// Which file a descriptor is of: its device and inode, zeros if it is none.
fn identity(fd: i32) -> [u64; 2] {
    status(fd).map_or([0; 2], |stat| [stat.st_dev, stat.st_ino])
}

/// What fstat says. The system call itself: glibc has had a function of this name only since 2.33, and on x86-64 the
/// kernel's `struct stat` is glibc's.
fn status(fd: i32) -> Option<libc::stat> {
    // SAFETY: an all-zero stat is a valid place for the answer.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is a valid place for the answer.
    (unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) } == 0).then_some(stat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    /// Whether there is a record lock on the file.
    fn is_locked(file: &File) -> bool {
        let inode = format!(":{} ", file.metadata().unwrap().ino());
        std::fs::read_to_string("/proc/locks").unwrap().lines().any(|lock| lock.contains(&inode))
    }

    /// By that lock a supervisor that has been away finds the process.
    #[test]
    fn who_reads_the_report_leaves_the_lock_on_the_processs_slot_alone() {
        let path = std::env::temp_dir().join(format!("gpool-report-{}", std::process::id()));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.set_len(REPORT_BYTES as u64).unwrap();
        // SAFETY: all-zero is a valid flock, and it lives.
        unsafe {
            let mut lock: libc::flock = core::mem::zeroed();
            (lock.l_type, lock.l_len) = (libc::F_WRLCK as libc::c_short, 1);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock), 0);
        }
        assert!(is_locked(&file));
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let (_, roster) = report_to_read(&name).unwrap();
        assert!(roster.is_some() && is_locked(&file));
        std::fs::remove_file(&path).unwrap();
        assert!(report_to_read(&name).is_none(), "it is not there");
    }
}
