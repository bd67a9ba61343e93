//! Making, finding and removing a region, and writing its control page.

use super::aside::{Errand, Owner};
use super::bell::LeaseBell;
use super::futex;
use super::mounts::Mounts;
use super::opening;
use super::report_file::ReportFile;
use crate::clock;
use gpool_policy::slice::Parameters;
use gpool_protocol::GpuUuid;
use gpool_shared_region::{
    BELL_FILE, CONTROL_BYTES, CONTROL_FILE, Control, GPUS, GateWord, MAGIC, OLDEST_VERSION, Opening, REPORT_BYTES,
    REPORT_FILE, SLOT_BYTES, SLOTS, VERSION,
};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A region that cannot be made or used; the text names the path.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {cause}")]
pub struct RegionError {
    action: &'static str,
    path: String,
    cause: String,
}

/// `action` on `path` has failed.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RegionError {
    let path = path.display().to_string();
    move |cause| RegionError { action, path, cause: cause.to_string() }
}

/// What a new control page says.
pub struct ControlPage<'a> {
    /// Memory cap on each GPU.
    pub memory_cap_bytes: u64,
    /// What of its memory beyond that may lie in the host's.
    pub spill_bytes: u64,
    /// What a context is taken to cost.
    pub context_bytes: u64,
    /// Part of each GPU, in thousandths.
    pub fraction_permille: u16,
    /// Whether the container runs unpaced while no supervisor is there.
    pub fail_open: bool,
    /// The lease's GPUs, at most [`GPUS`].
    pub gpu_uuids: &'a [GpuUuid],
}

#[cfg(test)]
impl ControlPage<'static> {
    /// One of a lease of half a GPU, for tests of what its memory does not matter for.
    pub fn of_half() -> Self {
        let (memory_cap_bytes, spill_bytes, context_bytes) = (1, 0, 1);
        Self { memory_cap_bytes, spill_bytes, context_bytes, fraction_permille: 500, fail_open: true, gpu_uuids: &[] }
    }
}

/// A region as the supervisor holds it. The control page is written here and nowhere else.
pub struct RegionHost {
    control: *mut Control,
    report: Arc<ReportFile>,
    bell: Arc<LeaseBell>,
    /// Waking those at the gate whom the one who opens it has left.
    waking: Errand,
}

// SAFETY: the control page is only touched through its atomics; the rest are descriptors and atomics.
unsafe impl Send for RegionHost {}
// SAFETY: as above.
unsafe impl Sync for RegionHost {}

impl RegionHost {
    /// Makes a region in `dir` for a lease of this user: an own tmpfs with the three files, gate closed.
    ///
    /// # Errors
    /// Names the path that could not be made. What was made is removed again.
    pub fn create(mounts: &Mounts, dir: &Path, page: &ControlPage<'_>, uid: u32) -> Result<Self, RegionError> {
        let owner = Owner::of(uid);
        std::fs::create_dir_all(dir).map_err(failed("cannot make", dir))?;
        mounts.mount(dir)?;
        let made = Self::make_files(dir, owner).and_then(|bell| Self::open_with(dir, owner, || Ok(Arc::new(bell))));
        match made {
            Ok(region) => {
                region.initialise(page);
                Ok(region)
            }
            Err(error) => {
                // Whoever has no region has no lease, and clears away once more.
                let _ = Self::remove(mounts, dir);
                Err(error)
            }
        }
    }

    /// A region without a tmpfs of its own, for tests that are not root.
    #[cfg(test)]
    pub fn create_unmounted(dir: &Path, page: &ControlPage<'_>) -> Self {
        let owner = Owner::of(0);
        let bell = Self::make_files(dir, owner).unwrap();
        let region = Self::open_with(dir, owner, || Ok(Arc::new(bell))).unwrap();
        region.initialise(page);
        region
    }

    /// Makes the files, and opens the bell while nobody else can.
    fn make_files(dir: &Path, owner: Owner) -> Result<LeaseBell, RegionError> {
        for (name, mode, length) in [(CONTROL_FILE, 0o644, CONTROL_BYTES), (REPORT_FILE, 0o666, REPORT_BYTES)] {
            let path = dir.join(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
            let file = file.map_err(failed("cannot make", &path))?;
            file.set_len(length as u64).map_err(failed("cannot size", &path))?;
            // The umask may have taken bits away.
            file.set_permissions(PermissionsExt::from_mode(mode)).map_err(failed("cannot set the mode of", &path))?;
        }
        let path = dir.join(BELL_FILE);
        let mode = Mode::from_raw_mode(0o600);
        let node = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0);
        node.map_err(|cause| failed("cannot make", &path)(cause.into()))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let bell = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|cause| failed("cannot open", &path)(cause.into()))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))
            .map_err(failed("cannot set the mode of", &path))?;
        Ok(LeaseBell::new(owner, bell))
    }

    /// Opens the region of a lease of this user that is there, after a restart of the supervisor.
    ///
    /// # Errors
    /// Names the path that could not be opened or mapped. Where the container has a lease on a file, a later call succeeds; where it keeps
    /// the opening of its bell waiting, that can be heard later.
    pub fn open(dir: &Path, uid: u32) -> Result<Self, RegionError> {
        let (path, owner) = (dir.join(BELL_FILE), Owner::of(uid));
        Self::open_with(dir, owner, || opening::open_bell(&path, owner).map_err(failed("cannot open", &path)))
    }

    fn open_with(
        dir: &Path,
        owner: Owner,
        bell: impl FnOnce() -> Result<Arc<LeaseBell>, RegionError>,
    ) -> Result<Self, RegionError> {
        let (path, report_path) = (dir.join(CONTROL_FILE), dir.join(REPORT_FILE));
        let paths = [path.as_path(), &report_path];
        // The bell is opened beside them, if they are waited for.
        let (opened, bell) = (opening::open_all(paths), bell());
        let [control, report] = opened.map_err(|(place, cause)| failed("cannot open", paths[place])(cause))?;
        let (report, bell) = (Arc::new(ReportFile::new(owner, report)), bell?);
        let (protection, sharing) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file that only root can shorten; it is unmapped when this value is dropped.
        let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), CONTROL_BYTES, protection, sharing, &control, 0) };
        let mapped = mapped.map_err(|cause| failed("cannot map", &path)(cause.into()))?;
        Ok(Self { control: mapped.cast(), report, bell, waking: Errand::new(owner) })
    }

    fn initialise(&self, page: &ControlPage<'_>) {
        let control = self.control();
        control.version.store(VERSION, Ordering::Relaxed);
        control.oldest_reader.store(OLDEST_VERSION, Ordering::Relaxed);
        self.set_fail_open(page.fail_open);
        self.set_fraction(page.fraction_permille);
        let Parameters { burst_ns, depth_ns, .. } = Parameters::default();
        control.burst_ns.store(burst_ns, Ordering::Relaxed);
        control.depth_ns.store(depth_ns, Ordering::Relaxed);
        control.memory_cap_bytes.store(page.memory_cap_bytes, Ordering::Relaxed);
        control.spill_bytes.store(page.spill_bytes, Ordering::Relaxed);
        control.context_bytes.store(page.context_bytes, Ordering::Relaxed);
        control.gpus.store(page.gpu_uuids.len().min(GPUS) as u32, Ordering::Relaxed);
        for (place, uuid) in control.gpu_uuids.iter().zip(page.gpu_uuids) {
            for (to, byte) in place.iter().zip(uuid_bytes(uuid)) {
                to.store(byte, Ordering::Relaxed);
            }
        }
        self.beat(clock::now_ns());
        control.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether this is a region of a layout that this supervisor knows.
    pub fn is_ours(&self) -> bool {
        let control = self.control();
        let version = control.version.load(Ordering::Relaxed);
        control.magic.load(Ordering::Acquire) == MAGIC && (OLDEST_VERSION..=VERSION).contains(&version)
    }

    /// Whether it was made and nothing has been written into it.
    pub fn is_blank(&self) -> bool {
        self.control().magic.load(Ordering::Acquire) == 0
    }

    /// What the container does while no supervisor is there.
    pub fn set_fail_open(&self, fail_open: bool) {
        self.control().fail_open.store(u32::from(fail_open), Ordering::Relaxed);
    }

    /// Whether its processes are in the host's memory, or on their way there or back. Who stands there for that is woken when it is over.
    pub fn set_suspended(self: &Arc<Self>, is_suspended: bool) {
        self.control().is_suspended.store(u32::from(is_suspended), Ordering::Release);
        if !is_suspended {
            self.wake_at_the_gate();
        }
    }

    /// Wakes who stands at the gate: as many as an ordinary lease has at once, the others soon.
    fn wake_at_the_gate(self: &Arc<Self>) {
        if futex::wake_some(&self.control().gate) {
            Errand::ask(self, |region| &region.waking, |region| futex::wake_rest(&region.control().gate));
        }
    }

    /// The lease's part of each of its GPUs, in thousandths.
    pub fn set_fraction(&self, permille: u16) {
        self.control().fraction_permille.store(u32::from(permille), Ordering::Relaxed);
    }

    /// The control page.
    pub fn control(&self) -> &Control {
        // SAFETY: mapped for the life of this value, page-aligned, long enough; Control holds only atomics.
        unsafe { &*self.control }
    }

    /// The bell, for waiting; none before it could be opened.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.pipe()
    }

    /// Slots below this are known to have been rung from.
    pub fn slots_rung(&self) -> usize {
        self.bell.slots()
    }

    /// Has the bell emptied by a thread that may hang; `heard` is called if it held anything.
    pub fn empty_bell(&self, heard: impl Fn() + Send + 'static) {
        self.bell.empty_aside(heard);
    }

    /// Whether its container has kept a thread of the supervisor waiting for so long.
    pub fn keeps_waiting(&self, time: Duration) -> bool {
        self.bell.keeps_waiting(time) || self.report.keeps_waiting(time)
    }

    /// The report file, whose record locks name the processes. Whoever writes to it may be kept waiting by its container.
    pub fn report_file(&self) -> &File {
        self.report.file()
    }

    /// Says that the supervisor lives.
    pub fn beat(&self, now_ns: u64) {
        self.control().heartbeat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The gate as it is.
    #[cfg(test)]
    pub fn gate(&self) -> GateWord {
        GateWord(self.control().gate.load(Ordering::Relaxed))
    }

    /// Opens the gate, or renews an open one; wakes who stands there. Returns the new word.
    pub fn open_gate(self: &Arc<Self>, now_ns: u64, opening: Opening) -> GateWord {
        let word = self.control().open_gate(now_ns, opening);
        self.wake_at_the_gate();
        word
    }

    /// Closes the gate. Nobody is woken: who waits goes on waiting. Returns the new word.
    pub fn close_gate(&self) -> GateWord {
        self.control().close_gate()
    }

    /// Reads the first `slots` slots into `buffer`, and what is behind them if these are all; returns how many bytes there
    /// were. A tenant may have cut the file.
    pub fn read_report(&self, buffer: &mut [u8], slots: usize) -> usize {
        let end = if slots < SLOTS { slots * SLOT_BYTES } else { REPORT_BYTES };
        let end = end.min(buffer.len());
        self.report.read(&mut buffer[..end])
    }

    /// The number under which slot `index` is taken; 0 if it is free, none if the tenant has cut the file.
    pub fn registration(&self, index: usize) -> Option<u64> {
        self.report.registration(index)
    }

    /// Says that the process which took slot `index` under the number `registration` is watched, and wakes it if it waits
    /// for that.
    pub fn accept(&self, index: usize, registration: u64) {
        let accepted = &self.control().slots[index].accepted;
        accepted.store(registration, Ordering::Release);
        // One thread waits for it, and looks again soon in any case.
        futex::wake_some_low(accepted);
    }

    /// The same once what was cleared before this is written, so that whoever waits for it finds the memory free that an earlier
    /// program of its had. Who keeps that from being written waits in vain, and goes on.
    pub fn accept_behind_what_is_cleared(self: &Arc<Self>, index: usize, registration: u64) {
        let region = Arc::downgrade(self);
        let accept = move || {
            // It may have ended meanwhile, and so may the lease.
            let region = region.upgrade().filter(|region| region.registration(index) == Some(registration));
            region.iter().for_each(|region| region.accept(index, registration));
        };
        if !self.report.once_cleared(index, accept) {
            self.accept(index, registration);
        }
    }

    /// Frees slot `index` after its process has died: for whoever reads the report here at once, for other processes as soon as
    /// it could be written.
    pub fn clear_slot(&self, index: usize) {
        self.control().slots[index].accepted.store(0, Ordering::Release);
        self.report.free(index);
    }

    /// Takes back what the dead process of slot `index` wanted and counted; what it held stays.
    pub fn clear_demand(&self, index: usize) {
        self.report.silence(index);
    }

    /// Empties the bell at once.
    #[cfg(test)]
    pub fn hear(&self) {
        self.bell.empty();
    }

    /// Whether all that was to be cleared is.
    #[cfg(test)]
    pub fn is_clear(&self) -> bool {
        self.report.is_clear()
    }

    /// Takes the files away. Containers that still run keep their own mounts of them.
    ///
    /// # Errors
    /// It could not be unmounted.
    pub fn remove(mounts: &Mounts, dir: &Path) -> io::Result<()> {
        opening::forget(dir);
        let unmounted = mounts.unmount(dir);
        // A region that is gone is as removed as can be.
        let _ = std::fs::remove_dir(dir);
        unmounted
    }
}

impl Drop for RegionHost {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, not used after this.
        let _ = unsafe { rustix::mm::munmap(self.control.cast(), CONTROL_BYTES) };
    }
}

/// The sixteen bytes of a UUID as cuDeviceGetUuid gives them: the digits of NVML's text in their order. Zeros for a
/// text that is no UUID, which no device has.
fn uuid_bytes(uuid: &GpuUuid) -> [u8; 16] {
    let digits = uuid.0.split_once('-').map_or("", |(_, digits)| digits);
    let hex: Vec<u8> = digits.bytes().filter(|byte| *byte != b'-').collect();
    let mut bytes = [0; 16];
    if hex.len() == 32 && hex.iter().all(u8::is_ascii_hexdigit) {
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks(2)) {
            let digit = |character: u8| char::from(character).to_digit(16).unwrap_or(0) as u8;
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_page_says_what_the_lease_has() {
        let dir = tempfile::tempdir().unwrap();
        let gpu_uuids = ["GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-ff112233-4455-6677-8899-aabbccddeeff"];
        let page = ControlPage {
            memory_cap_bytes: 7,
            spill_bytes: 9,
            context_bytes: 5,
            fraction_permille: 300,
            fail_open: false,
            gpu_uuids: &gpu_uuids.map(|uuid| GpuUuid(uuid.into())),
        };
        let region = RegionHost::create_unmounted(dir.path(), &page);
        let control = region.control();
        assert!(region.is_ours());
        assert_eq!(control.gpus.load(Ordering::Relaxed), 2);
        let first_bytes: Vec<u8> =
            control.gpu_uuids.iter().take(3).map(|uuid| uuid[0].load(Ordering::Relaxed)).collect();
        assert_eq!(first_bytes, [0, 0xff, 0]);
        assert_eq!(control.fail_open.load(Ordering::Relaxed), 0);
        assert_eq!(control.fraction_permille.load(Ordering::Relaxed), 300);
        assert_eq!(control.spill_bytes.load(Ordering::Relaxed), 9);
        region.set_fail_open(true);
        assert_eq!(control.fail_open.load(Ordering::Relaxed), 1, "an update changes it live");
    }

    #[test]
    fn an_opened_gate_wakes_also_those_who_are_more_than_a_lease_has_processes() {
        let dir = tempfile::tempdir().unwrap();
        let region = Arc::new(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
        let threads = futex::tests::park(3 * SLOTS + 1, &region.control().gate);
        region.wake_at_the_gate();
        // The kernel would let them go after a minute.
        assert!(threads.into_iter().all(|thread| thread.join().unwrap().is_ok()));
    }

    #[test]
    fn a_uuid_has_the_bytes_that_cuda_shows() {
        let uuid = GpuUuid("GPU-00112233-4455-6677-8899-aabbccddeeff".into());
        assert_eq!(uuid_bytes(&uuid), std::array::from_fn(|index| index as u8 * 0x11));
        for text in
            ["", "GPU-1", "GPU-0011223g-4455-6677-8899-aabbccddeeff", "GPU-00112233-4455-6677-8899-aabbccddeeff0"]
        {
            assert_eq!(uuid_bytes(&GpuUuid(text.into())), [0; 16], "{text}");
        }
    }
}
