//! Names by which the processes of a lease know a piece of memory that one of them has made, see `pieces`.
//!
//! What the driver makes of bytes (handles of IPC and of a fabric) is the same for who exports and who imports, so its
//! hash is the name. A descriptor has another number in each process, and nothing of its file tells what it stands for.
//! But an open file description can carry a lock that belongs to it and to nobody who has opened the same file, which
//! shows in the fdinfo of all its descriptors, in whatever process: the name is the byte that is locked. The lock ends
//! with the description. Sources: fcntl(2), open file description locks; proc_pid_fdinfo(5).

use core::ffi::{CStr, c_int};

/// Names are below this: a lock's place is a signed word, and what is being made has a name above it.
const NAMES: u64 = 1 << 62;

/// The name of what the driver calls `bytes`; FNV-1a of 64 bits. Never 0.
/// Source: The FNV Non-Cryptographic Hash Algorithm, draft-eastlake-fnv.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    (bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix) % NAMES) | 1
}

/// Gives what `descriptor` stands for the name `name`; false if it cannot have one, as where its file takes no locks.
pub fn give(descriptor: c_int, name: u64) -> bool {
    // SAFETY: all-zero is a valid flock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = name as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` is a valid description of one byte; a descriptor that is none gives an error.
    unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &lock) == 0 }
}

/// The name that what `descriptor` stands for was given last.
pub fn of_descriptor(descriptor: c_int) -> Option<u64> {
    let mut path = *b"/proc/self/fdinfo/\0\0\0\0\0\0\0\0\0\0\0\0";
    write_number(&mut path[18..], u32::try_from(descriptor).ok()?);
    let mut text = [0u8; 1024];
    // SAFETY: a terminated path; the descriptor is ours from here to its close, and the text has its length.
    let length = unsafe {
        let path = CStr::from_ptr(path.as_ptr().cast());
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length
    };
    name_in(text.get(..usize::try_from(length).ok()?)?)
}

/// The place of the last lock that a fdinfo lists: `lock: 1: OFDLCK ADVISORY  READ -1 00:0f:77 123 123`.
fn name_in(fdinfo: &[u8]) -> Option<u64> {
    let mut lines = fdinfo.split(|byte| *byte == b'\n');
    let place = lines.rfind(|line| line.starts_with(b"lock:"))?.rsplit(|byte| *byte == b' ').next()?;
    place.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Writes `number` and leaves the zeros behind it; there is room for ten digits.
fn write_number(place: &mut [u8], number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut left = number;
    for byte in place[..digits].iter_mut().rev() {
        *byte = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};

    fn made(descriptor: c_int) -> File {
        assert!(descriptor >= 0);
        // SAFETY: a new descriptor that nobody else has.
        unsafe { File::from_raw_fd(descriptor) }
    }

    #[test]
    fn a_name_belongs_to_what_a_descriptor_stands_for_and_to_nothing_else_of_its_file() {
        // Files of the kinds that a driver may give: with an inode of its own, with one that all of its kind share, and
        // a device, each opened twice.
        // SAFETY: calls that make descriptors.
        let pairs = unsafe {
            let memory = made(libc::memfd_create(c"one".as_ptr(), libc::MFD_CLOEXEC));
            let again = File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
            let events = [0, 0].map(|_| made(libc::eventfd(0, libc::EFD_CLOEXEC)));
            let [one, other] = events;
            let device = || File::options().read(true).write(true).open("/dev/null").unwrap();
            [(memory, again), (one, other), (device(), device())]
        };
        for (one, other) in &pairs {
            assert_eq!(of_descriptor(one.as_raw_fd()), None);
            let name = of_bytes(format!("{one:?}").as_bytes());
            assert!(give(one.as_raw_fd(), name), "{one:?}");
            let copy = one.try_clone().unwrap();
            assert_eq!(of_descriptor(copy.as_raw_fd()), Some(name), "{one:?}");
            assert_eq!(of_descriptor(other.as_raw_fd()), None, "{other:?}");
            assert!(give(other.as_raw_fd(), name + 1) && of_descriptor(copy.as_raw_fd()) == Some(name));
        }
    }

    #[test]
    fn a_name_goes_along_to_another_process_and_outlives_the_descriptor_that_it_was_given_by() {
        // SAFETY: calls that make descriptors.
        let file = unsafe { made(libc::memfd_create(c"sent".as_ptr(), libc::MFD_CLOEXEC)) };
        let copy = file.try_clone().unwrap();
        assert!(give(file.as_raw_fd(), 4711));
        drop(file);
        let mut other = std::process::Command::new("cat");
        let seen = other.arg("/proc/self/fdinfo/0").stdin(copy.try_clone().unwrap()).output().unwrap();
        assert_eq!(name_in(&seen.stdout), Some(4711));
        assert_eq!(of_descriptor(copy.as_raw_fd()), Some(4711));
    }

    #[test]
    fn what_has_no_name_is_told_from_what_has() {
        assert_eq!(of_descriptor(-1), None);
        assert_eq!(of_descriptor(1 << 20), None);
        assert!(!give(-1, 1));
        let fdinfo = |lock: &str| name_in(format!("pos:\t0\nflags:\t02\n{lock}ino:\t7\n").as_bytes());
        assert_eq!(fdinfo("lock:\t1: OFDLCK ADVISORY  READ -1 00:0f:77 123 123\n"), Some(123));
        for none in ["", "lock:\t1: OFDLCK ADVISORY  READ -1 00:0f:77 0 EOF\n", "lock:\n", "clock: 5\n"] {
            assert_eq!(fdinfo(none), None, "{none}");
        }
    }

    #[test]
    fn names_of_bytes_differ_and_can_be_locks() {
        let name = |byte: u8| of_bytes(&[byte; 64]);
        assert!((0..=255).all(|byte| name(byte) != 0 && name(byte) < NAMES));
        assert!((1..=255).all(|byte| name(byte) != name(byte - 1)));
    }

    #[test]
    fn numbers_are_written_as_the_kernel_writes_them() {
        for number in [0, 7, 10, 99, 1024, u32::MAX] {
            let mut place = [0u8; 12];
            write_number(&mut place, number);
            assert_eq!(CStr::from_bytes_until_nul(&place).unwrap().to_str().unwrap(), number.to_string());
        }
    }
}
