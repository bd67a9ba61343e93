//! The namespace of the stand: `/dev` with the region, the shim and the driver behind it, seen by this process alone.

use crate::failure::{Context, Result};
use gpool_interposer_logic::clock::now_ns;
use gpool_interposer_logic::futex;
use gpool_shared_region::{CONTROL_BYTES, Control, GateWord, MAGIC, OLDEST_VERSION, Opening, REPORT_BYTES, VERSION};
use rustix::fs::{FileType, Mode};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::MountFlags;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::mem::offset_of;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where the shim lies in the stand.
pub const SHIM: &CStr = c"/dev/gpool/shim.so";
/// Where it finds what it stands for.
pub const REAL: &CStr = c"/dev/gpool/real/libcuda.so.1";

const CONTROL: &str = "/dev/gpool/control";
/// Put together here, and then in the place of `/dev`.
const MADE: &str = "/run/dev";
const NODES: [&str; 3] = ["null", "zero", "urandom"];
const HOUR_NS: u64 = 3_600_000_000_000;
/// A burst holds as many launches as are counted or timed in one go.
const BURST_NS: u64 = 1_000_000_000;
/// The lease's cap.
pub const CAP_BYTES: u64 = 512 << 30;
/// What a context costs here.
pub const CONTEXT_BYTES: usize = 1 << 20;

/// What the stand puts together.
#[derive(Debug)]
pub struct Files<'a> {
    /// The CUDA shim.
    pub shim: &'a Path,
    /// What it finds in the place of the real library.
    pub driver: &'a Path,
}

/// A control page, byte for byte.
pub type Page = [u8; CONTROL_BYTES];

fn put(page: &mut Page, offset: usize, value: &[u8]) {
    page[offset..offset + value.len()].copy_from_slice(value);
}

/// A page that says that the gate is open for an hour, and that its supervisor lives for as long.
pub fn open_gate() -> Page {
    let mut page = [0; CONTROL_BYTES];
    put(&mut page, offset_of!(Control, magic), &MAGIC.to_le_bytes());
    put(&mut page, offset_of!(Control, version), &VERSION.to_le_bytes());
    put(&mut page, offset_of!(Control, oldest_reader), &OLDEST_VERSION.to_le_bytes());
    put(&mut page, offset_of!(Control, gate), &GateWord(0).next(true).0.to_le_bytes());
    let long = [
        (offset_of!(Control, until_ns), now_ns() + HOUR_NS),
        (offset_of!(Control, heartbeat_ns), now_ns() + HOUR_NS),
        (offset_of!(Control, burst_ns), BURST_NS),
        (offset_of!(Control, depth_ns), 100 * BURST_NS),
        (offset_of!(Control, memory_cap_bytes), CAP_BYTES),
        (offset_of!(Control, context_bytes), CONTEXT_BYTES as u64),
    ];
    long.iter().for_each(|(offset, value)| put(&mut page, *offset, &value.to_le_bytes()));
    put(&mut page, offset_of!(Control, gpus), &1u32.to_le_bytes());
    page
}

/// A page of which parts are garbage; the same for the same `seed`. One in four is garbage from its first byte on, the
/// others are ones that a shim reads: a piece of them, or all words behind the head, are random or extreme.
pub fn garbage(seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        // Xorshift. Source: Marsaglia, Xorshift RNGs, 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut page = open_gate();
    let from = if seed.is_multiple_of(4) { 0 } else { offset_of!(Control, gate) };
    let all = random() % 2 == 0;
    let (start, length) = (random() % CONTROL_BYTES as u64, random() % 1024);
    for offset in (from..CONTROL_BYTES).step_by(4) {
        let is_hit = all || (start..start + length).contains(&(offset as u64)) || random() % 64 == 0;
        let extremes = [0, 1, u32::MAX, u32::MAX - 1, 1 << 31, random() as u32, random() as u32, random() as u32];
        if is_hit {
            put(&mut page, offset, &extremes[random() as usize % extremes.len()].to_le_bytes());
        }
    }
    // Who is told that his lease is in the host's memory waits for its way back, and nobody would bring it.
    let is_suspended = offset_of!(Control, is_suspended);
    if page[is_suspended..is_suspended + 4] == 1_u32.to_le_bytes() {
        put(&mut page, is_suspended, &2_u32.to_le_bytes());
    }
    page
}

/// Enters a mount namespace in which the region lies at its place with `page`. The process must have no other thread.
///
/// # Errors
/// Without root.
pub fn enter(files: &Files<'_>, page: &Page) -> Result<()> {
    // SAFETY: nothing of this process is shared with another thread yet.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.context("a mount namespace")?;
    mount(c"none", c"/", libc::MS_PRIVATE | libc::MS_REC)?;
    let contents = [(SHIM, files.shim), (REAL, files.driver)].map(|(at, file)| (at, fs::read(file)));
    rustix::mount::mount("stand", "/run", "tmpfs", MountFlags::empty(), c"mode=755").context("a private /run")?;
    let made = Path::new(MADE);
    fs::create_dir_all(made.join("gpool/real")).context(MADE)?;
    for node in NODES {
        File::create(made.join(node)).context(node)?;
        let [from, to] =
            [Path::new("/dev"), made].map(|folder| CString::new(folder.join(node).into_os_string().into_vec()));
        mount(&from.context(node)?, &to.context(node)?, libc::MS_BIND)?;
    }
    for (at, content) in contents {
        let name = at.to_string_lossy();
        fs::write(made.join(name.trim_start_matches("/dev/")), content.context(&name)?).context(&name)?;
    }
    let region = made.join("gpool");
    fs::write(region.join("control"), page).context("control")?;
    File::create(region.join("report")).and_then(|file| file.set_len(REPORT_BYTES as u64)).context("report")?;
    rustix::fs::mknodat(rustix::fs::CWD, region.join("bell"), FileType::Fifo, Mode::from_raw_mode(0o666), 0)
        .context("bell")?;
    mount(&CString::new(MADE).context(MADE)?, c"/dev", libc::MS_BIND | libc::MS_REC)
}

/// The page of a stand whose gate opens and closes, as a supervisor's does.
pub struct Pacing(&'static Control);

impl Pacing {
    /// Grants are short, so that they end, and bursts so that there are many of them.
    const GRANT: Duration = Duration::from_millis(1);
    const PAUSE: Duration = Duration::from_micros(200);
    const SHORT_BURST_NS: u64 = 50_000;

    /// Maps the page of the namespace that this process has entered.
    ///
    /// # Errors
    /// Outside of one.
    pub fn new() -> Result<Self> {
        let file = File::options().read(true).write(true).open(CONTROL).context(CONTROL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that is as long.
        let page =
            unsafe { mmap(null_mut(), CONTROL_BYTES, protection, MapFlags::SHARED, &file, 0) }.context(CONTROL)?;
        // SAFETY: as long as `Control`, which holds only atomics, page-aligned, and never unmapped.
        Ok(Self(unsafe { &*page.cast::<Control>() }))
    }

    /// Closes and opens the gate until `is_over`, and leaves it open.
    pub fn until(&self, is_over: &AtomicBool) {
        let Self(control) = self;
        while !is_over.load(Ordering::Acquire) {
            control.close_gate();
            std::thread::sleep(Self::PAUSE);
            Self::open(control, Self::GRANT.as_nanos() as u64);
            futex::wake(&control.gate, i32::MAX);
            std::thread::sleep(Self::GRANT);
        }
        Self::open(control, HOUR_NS);
        futex::wake(&control.gate, i32::MAX);
    }

    fn open(control: &Control, length_ns: u64) {
        let (now_ns, depth_ns, burst_ns) = (now_ns(), 100 * BURST_NS, Self::SHORT_BURST_NS);
        let until_ns = now_ns + length_ns;
        control.open_gate(
            now_ns,
            Opening { until_ns, depth_ns, burst_ns, is_left_open: false, heeds_leaving: false, stands_alone: false },
        );
    }
}

/// With a type, which the kernel ignores here: a checker of memory takes none for an error.
fn mount(source: &CStr, target: &CStr, flags: libc::c_ulong) -> Result<()> {
    // SAFETY: all are terminated strings, and these mounts take no data.
    let failed = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), c"none".as_ptr(), flags, std::ptr::null()) };
    let cause = std::io::Error::last_os_error();
    crate::failure::ensure(failed == 0, || format!("mount {target:?}: {cause}"))
}
