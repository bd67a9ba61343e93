//! A file that holds one state for many processes, none of which ever waits for another.
//!
//! The first page names the published buffer. Every writer has a pair of buffers of its own: it fills the one of them
//! that is not published and then publishes it by one compare-and-swap, which fails if somebody else has published
//! since the writer looked. A process that is killed, stopped or frozen anywhere in between keeps nobody from going
//! on, as a real device goes on without the processes that use it.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"gpoolsim");
const FORMAT: u64 = 7;
const PAGE_BYTES: usize = 4096;
const PUBLISHED_WORD: usize = 2;
/// Far more than a device with hundreds of busy contexts needs. The file is sparse.
const BUFFER_BYTES: u64 = 16 << 20;
const BUFFER_HEADER_BYTES: usize = 24;
/// As many writers may have the file open at a time.
const WRITERS: u64 = 2048;

/// One state of the file among all that it ever had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    const BUFFER_BITS: u32 = 16;

    /// Counts the states, so that no two versions are the same.
    fn generation(self) -> u64 {
        self.0 >> Self::BUFFER_BITS
    }

    fn buffer(self) -> u64 {
        self.0 & ((1 << Self::BUFFER_BITS) - 1)
    }

    fn successor(self, buffer: u64) -> Self {
        Self((self.generation() + 1) << Self::BUFFER_BITS | buffer)
    }
}

/// The file, open.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    page: Page,
    /// The writer's number, which nobody else has while the file is open. Readers need none.
    writer: OnceLock<u64>,
}

impl Image {
    /// Writes a first state into an empty file.
    pub(crate) fn create(file: &File, content: &[u8]) -> Result<()> {
        let first = Version(0).successor(0);
        write_buffer(file, first, content)?;
        let mut page = [0; PAGE_BYTES];
        for (word, value) in page.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC, FORMAT, first.0]) {
            *word = value.to_le_bytes();
        }
        file.write_all_at(&page, 0)
    }

    /// Takes a file that [`Image::create`] has filled, opened for reading and writing.
    pub(crate) fn open(file: File) -> Result<Self> {
        let mut start = [0; 16];
        file.read_exact_at(&mut start, 0)?;
        let [magic, format] = [0, 1].map(|index| u64::from_le_bytes(start.as_chunks::<8>().0[index]));
        if magic != MAGIC || format != FORMAT || file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(Error::new(ErrorKind::InvalidData, "not the state of a simulated device of this version"));
        }
        let page = Page::map(&file)?;
        Ok(Self { file, page, writer: OnceLock::new() })
    }

    /// The published version.
    pub(crate) fn version(&self) -> Version {
        Version(self.page.published().load(Ordering::Acquire))
    }

    /// Reads the state into `content` and says which version it is.
    pub(crate) fn read(&self, content: &mut Vec<u8>) -> Result<Version> {
        loop {
            let version = self.version();
            match read_buffer(&self.file, version, content) {
                Ok(()) => return Ok(version),
                // While nobody has published, nobody writes to this buffer. If somebody has, it may have changed.
                Err(cause) if self.version() == version => return Err(cause),
                Err(_) => {}
            }
        }
    }

    /// Publishes `content` as the successor of `seen`. None, and nothing changed, if `seen` has one already.
    pub(crate) fn replace(&self, seen: Version, content: &[u8]) -> Result<Option<Version>> {
        let first = 2 * self.writer()?;
        let next = seen.successor(if seen.buffer() == first { first + 1 } else { first });
        // What is published now may be a later version in either of this writer's buffers only if this writer
        // published it; then it has seen it, since its store lets one thread in at a time.
        if self.version() != seen {
            return Ok(None);
        }
        write_buffer(&self.file, next, content)?;
        let swapped = self.page.published().compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
        Ok(swapped.is_ok().then_some(next))
    }

    /// The open file, whose copy a child after fork has to close.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn writer(&self) -> Result<u64> {
        if let Some(writer) = self.writer.get() {
            return Ok(*writer);
        }
        for writer in 0..WRITERS {
            if claim(&self.file, PAGE_BYTES as u64 + writer)? {
                return Ok(*self.writer.get_or_init(|| writer));
            }
        }
        Err(Error::new(ErrorKind::QuotaExceeded, "2048 writers use the simulated device already"))
    }
}

/// Locks one byte for this open file description, until the last descriptor of it is closed, by death at the latest.
/// False if another one has it. Never waits.
fn claim(file: &File, byte: u64) -> Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and the lock a valid local that the call only reads.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    match Error::last_os_error() {
        taken if [Some(libc::EAGAIN), Some(libc::EACCES)].contains(&taken.raw_os_error()) => Ok(false),
        other => Err(other),
    }
}

fn offset(buffer: u64) -> u64 {
    PAGE_BYTES as u64 + buffer * BUFFER_BYTES
}

fn write_buffer(file: &File, version: Version, content: &[u8]) -> Result<()> {
    let length = (BUFFER_HEADER_BYTES + content.len()) as u64;
    if length > BUFFER_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, "the state of the simulated device outgrew its file"));
    }
    let mut header = [0; BUFFER_HEADER_BYTES];
    let values = [version.0, content.len() as u64, checksum(content)];
    for (word, value) in header.as_chunks_mut::<8>().0.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
    let offset = offset(version.buffer());
    file.write_all_at(&header, offset)?;
    file.write_all_at(content, offset + BUFFER_HEADER_BYTES as u64)
}

fn read_buffer(file: &File, version: Version, content: &mut Vec<u8>) -> Result<()> {
    let damaged = || Error::new(ErrorKind::InvalidData, "the state of the simulated device is damaged");
    let offset = offset(version.buffer());
    let mut header = [0; BUFFER_HEADER_BYTES];
    file.read_exact_at(&mut header, offset)?;
    let [written, length, sum] = [0, 1, 2].map(|index| u64::from_le_bytes(header.as_chunks::<8>().0[index]));
    if written != version.0 || length > BUFFER_BYTES {
        return Err(damaged());
    }
    content.resize(length as usize, 0);
    file.read_exact_at(content, offset + BUFFER_HEADER_BYTES as u64)?;
    if checksum(content) == sum { Ok(()) } else { Err(damaged()) }
}

/// Tells a damaged buffer, not a forged one: FNV-1a over words of eight bytes.
fn checksum(content: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let (words, rest) = content.as_chunks::<8>();
    let sum = words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

/// The first page, mapped.
#[derive(Debug)]
struct Page(*mut AtomicU64);

// SAFETY: the page is used through atomic operations alone, and stays mapped until this value is dropped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(file: &File) -> Result<Self> {
        let (protection, sharing) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at no address in particular; nobody shortens the file.
        let mapped = unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, protection, sharing, file, 0) };
        Ok(Self(mapped?.cast()))
    }

    fn published(&self) -> &AtomicU64 {
        // SAFETY: the word lies inside the page, which is aligned and mapped as long as `self` lives.
        unsafe { &*self.0.add(PUBLISHED_WORD) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which nobody has a reference any more. It cannot fail.
        let _ = unsafe { munmap(self.0.cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The image in a new file, and another description of the same file.
    fn two() -> (Image, Image, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        Image::create(file.as_file(), b"first").unwrap();
        let open = || Image::open(File::options().read(true).write(true).open(file.path()).unwrap()).unwrap();
        (open(), open(), file)
    }

    fn content(image: &Image) -> Vec<u8> {
        let mut content = Vec::new();
        image.read(&mut content).unwrap();
        content
    }

    #[test]
    fn a_writer_that_stops_half_way_loses_nothing_and_stops_nobody() {
        let (one, other, _file) = two();
        let seen = one.version();
        assert!(one.replace(seen, b"second").unwrap().is_some());
        // It has filled its buffer and never published it.
        let stopped = other.version();
        write_buffer(&other.file, stopped.successor(2 * other.writer().unwrap()), b"half a st").unwrap();
        assert_eq!(content(&one), b"second");
        for text in [b"third", b"forth"] {
            assert!(one.replace(one.version(), text).unwrap().is_some());
        }
        // It goes on, is told that it came late, and tries again.
        assert_eq!(other.replace(stopped, b"too late").unwrap(), None);
        assert_eq!(content(&other), b"forth");
        assert!(other.replace(other.version(), b"fifth").unwrap().is_some());
        assert_eq!(content(&one), b"fifth");
    }

    #[test]
    fn a_writers_number_is_free_again_after_its_end() {
        let (one, other, file) = two();
        assert_eq!((one.writer().unwrap(), other.writer().unwrap()), (0, 1));
        one.replace(one.version(), b"the last words of the dead").unwrap();
        drop(one);
        let heir = Image::open(File::options().read(true).write(true).open(file.path()).unwrap()).unwrap();
        assert_eq!(heir.writer().unwrap(), 0);
        // What the dead one published is not written over before something else is published.
        write_buffer(&heir.file, heir.version().successor(heir.version().buffer() ^ 1), b"unfinished").unwrap();
        assert_eq!(content(&other), b"the last words of the dead");
        assert!(heir.replace(heir.version(), b"next").unwrap().is_some());
        assert_eq!(content(&other), b"next");
    }

    #[test]
    fn damage_and_strangers_are_told() {
        let (image, _, file) = two();
        let start = offset(image.version().buffer());
        image.file.write_all_at(b"X", start + BUFFER_HEADER_BYTES as u64).unwrap();
        assert!(image.read(&mut Vec::new()).is_err());
        image.file.write_all_at(b"X", 0).unwrap();
        assert!(Image::open(File::open(file.path()).unwrap()).is_err());
        assert!(Image::open(tempfile::tempfile().unwrap()).is_err());
    }
}
