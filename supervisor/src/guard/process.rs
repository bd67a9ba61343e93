//! What a process has open and mapped, read from /proc. The process may be hostile: what it calls its files is shown to
//! people and never believed; which device a descriptor is and which build a mapping is, the kernel says.

use super::reader::{Reader, Reading};
use crate::procfs::{self, ProcessName};
use gpool_protocol::{BuildId, HostPid};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Names of the libraries that shims stand in for; what follows them is a version.
const CUDA: &str = "libcuda.so";
const NVML: &str = "libnvidia-ml.so";

/// No more of its mappings is read at a look. A program with as many mappings as Linux allows stays far below, unless it
/// means to take the supervisor's memory with the names of its files.
const MAPS_BYTES: u64 = 16 << 20;
/// No more of its libraries are looked at, and no more of their paths is kept: the end, where the name stands.
const LIBRARIES: usize = 16;
const PATH_LETTERS: usize = 256;
/// Processes whose mappings keep a thread each waiting, before those of others are not read any more.
const STUCK_PROCESSES: usize = 8;
/// No more of its descriptors are looked at, no more of its threads, and no more tables of descriptors of theirs.
const WITHIN: Bounds = Bounds { descriptors: 1 << 16, threads: 1 << 14, tables: 16 };
/// Where nobody can tell which threads have a table in common, so many of them are looked at.
const NOT_COMPARED: usize = 8;
/// Of linux/kcmp.h: whether two threads have one table of descriptors.
const KCMP_FILES: i32 = 2;

/// A file as a line of /proc/PID/maps names it: the number of its device, and its inode on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Major and minor number.
    pub device: (u32, u32),
    /// Number of the inode.
    pub inode: u64,
}

/// A library that a process can execute code of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Its path, as the process sees it.
    pub path: String,
    /// Whether it is named as libcuda is, or as libnvidia-ml.
    pub is_cuda: bool,
    /// Which build it is, if its file says so and can be read.
    pub build_id: Option<BuildId>,
    /// Whether nobody could look into it now.
    pub is_unread: bool,
}

/// What a look has found in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Libraries named as the driver's, each file once.
    pub libraries: Vec<Library>,
    /// It has more mapped than is read, and there may be others in that.
    pub is_cut: bool,
    /// Whether nobody could read what it has mapped now.
    pub is_unread: bool,
}

/// What the descriptors of a process say of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptors {
    /// It has it open.
    Open,
    /// It has not.
    NotOpen,
    /// It has more descriptors than are looked at, and none of those that were.
    TooMany,
}

#[derive(Clone, Copy)]
struct Bounds {
    descriptors: usize,
    threads: usize,
    tables: usize,
}

/// Whether the process has a character device open that is one of `devices`, by major and minor number.
pub fn descriptors(pid: HostPid, devices: &BTreeSet<(u32, u32)>) -> Descriptors {
    among(pid, devices, WITHIN)
}

/// The first thread does not speak for the others: one that has ended shows nothing, and any may have a table of its own
/// (`unshare` with CLONE_FILES).
fn among(pid: HostPid, devices: &BTreeSet<(u32, u32)>, bounds: Bounds) -> Descriptors {
    let (mut tables, mut left, mut not_compared) = (Vec::new(), bounds.descriptors, 0);
    for (count, thread) in std::iter::once(pid).chain(other_threads(pid)).enumerate() {
        if count == bounds.threads {
            return Descriptors::TooMany;
        }
        match is_among(thread, &tables) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(_) if not_compared == NOT_COMPARED => break,
            Err(_) => not_compared += 1,
        }
        let entries = fs::read_dir(format!("/proc/{pid}/task/{thread}/fd"));
        let mut paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        let before = left;
        let is_open = paths.by_ref().take(left).inspect(|_| left -= 1).any(|path| is_one_of(&path, devices));
        if is_open {
            return Descriptors::Open;
        }
        if paths.next().is_some() || tables.len() == bounds.tables {
            return Descriptors::TooMany;
        }
        // A thread at its end has none any more, and there may be any number of these.
        if left < before {
            tables.push(thread);
        }
    }
    Descriptors::NotOpen
}

fn other_threads(pid: HostPid) -> impl Iterator<Item = HostPid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok().map(HostPid));
    threads.filter(move |thread| *thread != pid)
}

/// Whether the thread has its table of descriptors in common with one of `others`.
fn is_among(thread: HostPid, others: &[HostPid]) -> io::Result<bool> {
    for other in others {
        // SAFETY: takes numbers alone.
        let order = unsafe { nix::libc::syscall(nix::libc::SYS_kcmp, thread.0, other.0, KCMP_FILES, 0, 0) };
        match order {
            0 => return Ok(true),
            1.. => {}
            _ => match io::Error::last_os_error() {
                // One of the two has ended.
                cause if cause.raw_os_error() == Some(nix::libc::ESRCH) => {}
                cause => return Err(cause),
            },
        }
    }
    Ok(false)
}

fn is_one_of(path: &Path, devices: &BTreeSet<(u32, u32)>) -> bool {
    // Sockets, pipes and the like have no path; a device may have been given another one.
    let is_file = fs::read_link(path).is_ok_and(|target| target.is_absolute());
    // What the kernel knows already: a file server behind the container's file system is not asked.
    let status = is_file.then(|| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE));
    status.and_then(Result::ok).is_some_and(|status| {
        FileType::from_raw_mode(status.stx_mode.into()) == FileType::CharacterDevice
            && devices.contains(&(status.stx_rdev_major, status.stx_rdev_minor))
    })
}

/// What processes have mapped, by threads of their own, which may hang.
#[derive(Debug)]
pub struct Maps {
    /// Where the kernel shows processes.
    proc: PathBuf,
    reader: Reader<ProcessName, Option<Mappings>>,
}

impl Maps {
    /// Reads below `proc`, which is /proc.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(proc: PathBuf) -> io::Result<Self> {
        Ok(Self { proc, reader: Reader::start(STUCK_PROCESSES)? })
    }

    /// A look at processes begins.
    pub fn begin(&mut self) {
        self.reader.begin();
    }

    /// The libraries named as the driver's that the process has mapped; none if nobody can tell, as it has ended or has
    /// not begun. `look` says which build a file is, from its id and where it can be opened.
    pub fn libraries(
        &mut self,
        pid: HostPid,
        mut look: impl FnMut(FileId, PathBuf) -> Reading<Option<BuildId>>,
    ) -> Option<Look> {
        let name = ProcessName { pid, start_ticks: procfs::start_ticks(pid)? };
        let process = self.proc.join(pid.to_string());
        let asked = Instant::now();
        let Mappings { found, is_cut } = match self.reader.read(name, move || mappings(&process)) {
            Reading::Answer(mappings) => {
                // Who has much mapped must not make others unread by the time that this takes.
                self.reader.forgive(asked.elapsed());
                mappings?
            }
            Reading::Silent | Reading::Unread => {
                return Some(Look { libraries: Vec::new(), is_cut: false, is_unread: true });
            }
        };
        let library = |mapping: Mapping| {
            // The file itself, whatever has been done to its path since: works for deleted files and in every namespace.
            let reading = look(mapping.file, PathBuf::from(format!("/proc/{pid}/map_files/{}", mapping.range)));
            let is_unread = reading == Reading::Unread;
            // A shim of ours lies on the host's own disk, which answers.
            let build_id = if let Reading::Answer(build_id) = reading { build_id } else { None };
            Library { path: shown_path(&mapping.path), is_cuda: mapping.is_cuda, build_id, is_unread }
        };
        Some(Look { libraries: found.into_iter().map(library).collect(), is_cut, is_unread: false })
    }
}

/// A path as people see it, whatever its file is called.
fn shown_path(path: &str) -> String {
    let letters = path.chars().skip(path.chars().count().saturating_sub(PATH_LETTERS));
    letters.map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// The mappings of the process with this directory. Of one whose first thread has ended the other threads tell.
fn mappings(process: &Path) -> Option<Mappings> {
    let of = |directory: &Path| read_mappings(File::open(directory.join("maps")).ok()?, MAPS_BYTES);
    let threads = || fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    of(process).or_else(|| threads().find_map(|thread| of(&thread.path())))
}

/// Of a maps file: the first mapping of each driver library with code in it.
#[derive(Debug)]
struct Mappings {
    found: Vec<Mapping>,
    is_cut: bool,
}

/// Reads the first `limit` bytes of a maps file, in which names of files may be of any bytes; none if it is empty.
fn read_mappings(file: impl Read, limit: u64) -> Option<Mappings> {
    let mut file = BufReader::new(file.take(limit));
    let (mut found, mut files) = (Vec::new(), BTreeSet::new());
    let (mut line, mut bytes) = (Vec::new(), 0);
    loop {
        line.clear();
        bytes += file.read_until(b'\n', &mut line).ok()? as u64;
        if line.is_empty() {
            return (bytes > 0).then_some(Mappings { found, is_cut: bytes >= limit });
        }
        let text = String::from_utf8_lossy(&line);
        let Some(mapping) = named_mapping(text.trim_end_matches('\n')) else { continue };
        if files.insert(mapping.file) {
            if found.len() == LIBRARIES {
                return Some(Mappings { found, is_cut: true });
            }
            found.push(mapping);
        }
    }
}

/// A mapping of a driver library with code in it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: String,
    file: FileId,
    path: String,
    is_cuda: bool,
}

fn named_mapping(line: &str) -> Option<Mapping> {
    // Range, mode, offset, device, inode, and a path that may hold spaces.
    let mut fields = line.splitn(6, ' ');
    let (range, mode, _, device) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let (inode, path) = (fields.next()?.parse().ok()?, fields.next()?.trim_start());
    let (major, minor) = device.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_cuda = name.starts_with(CUDA);
    if !mode.contains('x') || !(is_cuda || name.starts_with(NVML)) {
        return None;
    }
    let file = FileId { device: (number(major)?, number(minor)?), inode };
    Some(Mapping { range: range.to_owned(), file, path: path.to_owned(), is_cuda })
}

#[cfg(test)]
mod tests {
    use super::super::builds::Builds;
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    fn file(inode: u64) -> FileId {
        FileId { device: (0, 0x2a), inode }
    }

    #[test]
    fn driver_libraries_are_told_by_their_names_each_once() {
        let maps = "\
            00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n\
            7f0000000000-7f0000001000 r--p 00000000 00:2a 77  /usr/lib/x86_64-linux-gnu/libcuda.so.1 (deleted)\n\
            7f0000001000-7f0000002000 r-xp 00001000 00:2a 77  /usr/lib/x86_64-linux-gnu/libcuda.so.1 (deleted)\n\
            7f0000003000-7f0000004000 r-xp 00003000 00:2a 77  /usr/lib/x86_64-linux-gnu/libcuda.so.1 (deleted)\n\
            7f0000005000-7f0000006000 r-xp 00000000 00:2a 78  /dev/gpool/real/libcuda.so.1\n\
            7f0000007000-7f0000008000 r-xp 00000000 00:2a 79  /odd name/libnvidia-ml.so.535.1\n\
            7f0000009000-7f000000a000 rw-p 00000000 00:00 0 \n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let read = read_mappings(maps.as_bytes(), MAPS_BYTES).unwrap();
        assert!(!read.is_cut && read_mappings(&b""[..], MAPS_BYTES).is_none());
        let found = read.found;
        let mapping = |range: &str, inode, path: &str, is_cuda| Mapping {
            range: range.to_owned(),
            file: file(inode),
            path: path.to_owned(),
            is_cuda,
        };
        let deleted = "/usr/lib/x86_64-linux-gnu/libcuda.so.1 (deleted)";
        assert_eq!(found[0], mapping("7f0000001000-7f0000002000", 77, deleted, true));
        assert_eq!(found[1], mapping("7f0000005000-7f0000006000", 78, "/dev/gpool/real/libcuda.so.1", true));
        assert_eq!(found[2], mapping("7f0000007000-7f0000008000", 79, "/odd name/libnvidia-ml.so.535.1", false));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn of_a_path_its_end_is_kept() {
        let path = format!("/{}/odd\nname/libcuda.so.1", "\u{1d11e}".repeat(1024));
        let shown = shown_path(&path);
        assert_eq!(shown.chars().count(), PATH_LETTERS);
        assert!(shown.ends_with("/odd?name/libcuda.so.1"));
        assert_eq!(shown_path("/usr/lib/libcuda.so.1"), "/usr/lib/libcuda.so.1");
    }

    #[test]
    fn a_process_that_maps_without_end_is_read_up_to_a_bound() {
        let line = |inode: u64| format!("7f00-7f01 r-xp 00000000 00:2a {inode} /{}/libcuda.so.1\n", "d".repeat(4000));
        // As long as the file is asked for more, there is more.
        struct Endless(Vec<u8>, usize);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let count = (&self.0[self.1..]).read(buffer)?;
                self.1 = (self.1 + count) % self.0.len();
                Ok(count)
            }
        }
        let read = read_mappings(Endless(line(7).into_bytes(), 0), MAPS_BYTES).unwrap();
        assert_eq!((read.found.len(), read.is_cut), (1, true));
        let many: String = (0..=LIBRARIES as u64).map(line).collect();
        let read = read_mappings(many.as_bytes(), MAPS_BYTES).unwrap();
        assert_eq!((read.found.len(), read.is_cut), (LIBRARIES, true));
    }

    /// A program that has a library of that name in it and stands still, and what is seen of it. Its file is gone by then.
    #[test]
    fn a_mapped_file_tells_its_build_also_when_it_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let (library, program) = (directory.path().join("libcuda.so.1"), directory.path().join("program"));
        let source = directory.path().join("a.c");
        let text = "#ifdef MAIN\nint pause(void); int f(void);\nint main(void) { pause(); return f(); }\n\
                    #else\nint f(void) { return 0; }\n#endif\n";
        fs::write(&source, text).unwrap();
        let cc = |arguments: &[&str], output: &std::path::Path, last: &[&std::path::Path]| {
            let made = Command::new("cc").args(arguments).arg("-o").arg(output).arg(&source).args(last).status();
            assert!(made.unwrap().success());
        };
        cc(&["-shared", "-fPIC", "-Wl,--build-id=0xfeed"], &library, &[]);
        cc(&["-DMAIN"], &program, &[&library]);
        let mut child = Command::new(&program).env("LD_LIBRARY_PATH", directory.path()).spawn().unwrap();
        let pid = HostPid(child.id());
        let (mut builds, mut maps) = (Builds::new().unwrap(), Maps::new("/proc".into()).unwrap());
        let mut look = || {
            builds.begin([].into_iter());
            maps.begin();
            maps.libraries(pid, |file, path| builds.of(file, path))
        };
        let seen = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            look()?.libraries.pop()
        });
        let its = library.metadata().unwrap();
        fs::remove_file(&library).unwrap();
        let after = look().unwrap().libraries;
        let mut maps = Maps::new("/proc".into()).unwrap();
        maps.begin();
        let unread = maps.libraries(pid, |_, _| Reading::Unread).unwrap().libraries;
        let mut files = Vec::new();
        maps.libraries(pid, |file, _| {
            files.push(file);
            Reading::Silent
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.map(|library| library.build_id), Some(Some(BuildId("feed".into()))));
        assert_eq!((after.len(), after[0].is_cuda, after[0].build_id.clone()), (1, true, Some(BuildId("feed".into()))));
        assert!(after[0].path.ends_with("libcuda.so.1 (deleted)"));
        assert!(look().is_none());
        assert!(unread[0].is_unread && unread[0].build_id.is_none() && !after[0].is_unread);
        let device = (rustix::fs::major(its.dev()), rustix::fs::minor(its.dev()));
        assert_eq!(files, [FileId { device, inode: its.ino() }], "as stat names the file");
    }

    #[test]
    fn a_device_is_known_by_its_number_and_not_by_its_path() {
        let (null, zero) = (BTreeSet::from([(1, 3)]), BTreeSet::from([(1, 5)]));
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = HostPid(child.id());
        let held = (descriptors(pid, &null), descriptors(pid, &zero));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(held, (Descriptors::Open, Descriptors::NotOpen));
        assert_eq!(descriptors(pid, &null), Descriptors::NotOpen);
    }

    #[test]
    fn of_who_has_too_many_descriptors_nobody_knows_whether_it_holds_the_device() {
        let _two = [File::open("/dev/null").unwrap(), File::open("/dev/null").unwrap()];
        let (me, nothing, null) = (HostPid(std::process::id()), BTreeSet::new(), BTreeSet::from([(1, 3)]));
        assert_eq!(among(me, &nothing, Bounds { descriptors: 1, ..WITHIN }), Descriptors::TooMany);
        assert_eq!(among(me, &nothing, WITHIN), Descriptors::NotOpen);
        assert_eq!(among(me, &null, WITHIN), Descriptors::Open);
    }

    /// Opens /dev/null in a second thread that has left the first one's table, or whose first thread ends then.
    const HIDER: &str = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <pthread.h>\n#include <sched.h>\n\
        #include <unistd.h>\nstatic int is_apart;\n\
        static void *hide(void *unused) {\n\
        if (is_apart && unshare(CLONE_FILES)) return unused;\n\
        if (open(\"/dev/null\", O_RDWR) < 0) return unused;\n\
        if (!is_apart) usleep(50000);\n\
        if (write(1, \"\\n\", 1) == 1) pause();\n\
        return unused; }\n\
        int main(int count, char **words) { pthread_t thread; (void)words; is_apart = count > 1;\n\
        pthread_create(&thread, 0, hide, 0); if (is_apart) pause(); pthread_exit(0); }\n";

    #[test]
    fn a_device_that_one_thread_alone_shows_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("hider.c"), directory.path().join("hider"));
        fs::write(&source, HIDER).unwrap();
        assert!(Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status().unwrap().success());
        let (null, zero) = (BTreeSet::from([(1, 3)]), BTreeSet::from([(1, 5)]));
        for words in [&["apart"][..], &[]] {
            let mut command = Command::new(&program);
            let command = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let pid = HostPid(child.id());
            let held = [&null, &zero].map(|devices| among(pid, devices, WITHIN));
            let within = |threads, tables| among(pid, &zero, Bounds { threads, tables, ..WITHIN });
            let (few_threads, few_tables) = (within(1, 16), within(16, 1));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(held, [Descriptors::Open, Descriptors::NotOpen], "{words:?}");
            assert_eq!(few_threads, Descriptors::TooMany);
            let is_apart = !words.is_empty();
            assert_eq!(few_tables == Descriptors::TooMany, is_apart, "the first of the others has none");
        }
    }
}
