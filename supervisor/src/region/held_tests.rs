//! What a container holds in the kernel keeps nobody waiting but threads of their own. With real locks of the kernel's.

use super::{ControlPage, RegionHost, Report, tend_aside};
use gpool_shared_region::{BELL_FILE, Demand, REPORT_FILE, SLOT_BYTES, SLOTS};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Holds the lock of a FIFO's pipe while it reads, or the one of a file's inode while it writes: at the memory that it does that
/// from or to is a page fault that it is to serve itself, and does not.
const HOLDER: &str = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <linux/userfaultfd.h>\n#include <pthread.h>\n\
    #include <stdio.h>\n#include <sys/ioctl.h>\n#include <sys/mman.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
    static char *page, *way; static int file;\n\
    static void *hold(void *unused) {\n\
    if (*way == 'w') { if (pwrite(file, page, 1, 200000)) return unused; }\n\
    else do if (write(file, \"\\7\", 1) < 0) continue; while (read(file, page, 1) < 1);\n\
    return unused; }\n\
    int main(int count, char **words) { pthread_t thread; struct uffd_msg fault; char byte; (void)count;\n\
    struct uffdio_api api = {.api = UFFD_API};\n\
    struct uffdio_register its = {.mode = UFFDIO_REGISTER_MODE_MISSING};\n\
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);\n\
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
    its.range.start = (unsigned long)page; its.range.len = 4096;\n\
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &its)) return puts(\"cannot\"), 0;\n\
    way = words[2]; file = open(words[1], O_RDWR | O_NONBLOCK); pthread_create(&thread, 0, hold, 0);\n\
    if (read(faults, &fault, sizeof fault) == sizeof fault) puts(\"holds\");\n\
    fflush(stdout); return (int)read(0, &byte, 1); }\n";

/// A process that keeps others waiting for a file. Dropped, it ends.
pub struct Holder(Child);

impl Holder {
    /// One that reads the FIFO `path`; none where the kernel lets nobody have faults of his own, which is said.
    pub fn of_pipe(path: &Path) -> Option<Self> {
        Self::of(path, "read")
    }

    /// One that writes to the file `path`.
    pub fn of_file(path: &Path) -> Option<Self> {
        Self::of(path, "write")
    }

    fn of(path: &Path, way: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("holder.c"), directory.path().join("holder"));
        std::fs::write(&source, HOLDER).unwrap();
        assert!(Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status().unwrap().success());
        let mut command = Command::new(program);
        let mut child = command.arg(path).arg(way).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let holder = Self(child);
        if said != "holds\n" {
            println!("skipped: this kernel lets this user serve no page faults of the kernel's (userfaultfd(2))");
            return None;
        }
        Some(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Looks from time to time, as the gatekeeper does, until it is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        tend_aside();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A region in which slots 3 and 4 are taken by processes that hold something and stand at the gate.
fn region_with_two(dir: &Path) -> RegionHost {
    let region = RegionHost::create_unmounted(dir, &ControlPage::of_half());
    for (slot, registration) in [(3, 9u64), (4, 10)] {
        for (offset, word) in [(0, registration), (16, 4096), (64, Demand::Waiting as u64)] {
            region.report_file().write_all_at(&word.to_le_bytes(), (slot * SLOT_BYTES + offset) as u64).unwrap();
        }
    }
    region
}

/// What a look at the report finds: slots, what they hold and want.
fn found(region: &RegionHost) -> Vec<(usize, u64, Demand)> {
    let mut report = Report::new();
    report.read(region, SLOTS);
    report.taken().map(|(index, slot)| (index, slot.allocated_bytes(), slot.demand())).collect()
}

/// What is written there.
fn written(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(dir.join(REPORT_FILE)).unwrap().read_to_end(&mut bytes).unwrap();
    bytes[3 * SLOT_BYTES..5 * SLOT_BYTES].to_vec()
}

#[test]
fn a_report_that_nobody_can_write_to_is_cleared_for_whoever_looks_and_holds_nobody_up() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (region, other) = (region_with_two(dir.path()), region_with_two(other_dir.path()));
    let Some(holder) = Holder::of_file(&dir.path().join(REPORT_FILE)) else { return };
    let before = written(dir.path());
    region.clear_slot(3);
    region.clear_demand(4);
    assert_eq!(found(&region), [(4, 4096, Demand::Idle)]);
    assert_eq!([3, 4, 5].map(|slot| region.registration(slot)), [Some(0), Some(10), Some(0)]);
    assert_eq!(written(dir.path()), before, "its processes find both taken");
    other.clear_slot(3);
    wait_until("others wait for it", || other.is_clear());
    assert!(!other.keeps_waiting(Duration::ZERO));
    wait_until("it does not hold it up", || region.keeps_waiting(Duration::from_millis(20)));
    // It is freed as well by the time that it can be written to.
    region.clear_slot(4);
    assert_eq!(found(&region), []);
    drop(holder);
    wait_until("it is not cleared", || region.is_clear());
    assert!(written(dir.path()).iter().all(|byte| *byte == 0));
    assert_eq!(found(&other), [(4, 4096, Demand::Waiting)]);
}

#[test]
fn a_place_that_is_taken_anew_is_the_new_one_s() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_with_two(dir.path());
    let Some(holder) = Holder::of_file(&dir.path().join(REPORT_FILE)) else { return };
    region.clear_slot(3);
    drop(holder);
    wait_until("it is not cleared", || region.is_clear());
    // The same once more, by a process whose registration nobody has freed.
    for (offset, word) in [(0, 11u64), (16, 7)] {
        region.report_file().write_all_at(&word.to_le_bytes(), (3 * SLOT_BYTES + offset) as u64).unwrap();
    }
    assert_eq!(found(&region)[0], (3, 7, Demand::Idle));
    assert_eq!(region.registration(3), Some(11));
}

#[test]
fn a_bell_that_is_held_keeps_nobody_from_opening_or_closing_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let region = RegionHost::create_unmounted(dir.path(), &ControlPage::of_half());
    let Some(holder) = Holder::of_pipe(&dir.path().join(BELL_FILE)) else { return };
    // It would not come back.
    let regions = [(); 3].map(|()| RegionHost::open(dir.path(), 0).unwrap());
    assert!(regions.iter().all(|region| region.is_ours() && region.bell().is_none()));
    region.empty_bell(|| {});
    for region in regions.iter().chain([&region]) {
        wait_until("it does not hold it up", || region.keeps_waiting(Duration::from_millis(20)));
    }
    let [first, _, _] = regions;
    drop(region);
    drop(holder);
    wait_until("it is not opened after all", || first.bell().is_some());
    wait_until("it is not opened at once", || RegionHost::open(dir.path(), 0).unwrap().bell().is_some());
}
