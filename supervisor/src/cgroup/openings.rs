//! Word from the kernel that somebody opens a GPU's device node, at once, whoever and wherever it is and whatever the node is called.
//!
//! A program at the root of the hierarchy of version 2 sees each opening on the host, as it is asked before all those of
//! containers; it allows every one and says of those of GPUs in which group of version 2 the process is. It sits above what engines and
//! the service manager attach to their own groups, so neither removes the other's, and it goes with the descriptor that holds it.

use super::bpf::{
    ACCESS_TYPE, ADD, AND, ATTRIBUTE_WORDS, BPF_CGROUP_DEVICE, CALL, CHARACTER_DEVICE, EXIT, Instruction, JUMP_ALWAYS,
    JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, LOAD_CONSTANT, LOAD_WORD, MAJOR, MINOR, MOVE, MOVE_REGISTER, SHIFT_RIGHT,
    STORE_DOUBLE, descriptor, load, number,
};
use super::{CGROUP2_SUPER_MAGIC, ROOT, is_of};
use crate::procfs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Commands and kinds of bpf(2), and what a ring's helper is called and told, in linux/bpf.h.
const BPF_MAP_CREATE: nix::libc::c_long = 0;
const BPF_LINK_CREATE: nix::libc::c_long = 28;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_FUNC_RINGBUF_OUTPUT: i32 = 130;
const BPF_FUNC_GET_CURRENT_CGROUP_ID: i32 = 80;
const BPF_RB_FORCE_WAKEUP: i32 = 2;
const BPF_PSEUDO_MAP_FD: u8 = 1;
/// The register that points behind the program's stack.
const FRAME: u8 = 10;
/// In the upper half of the first word of struct bpf_cgroup_dev_ctx: reading and writing, not making a node.
const READ_OR_WRITE: i32 = 6;

/// Of a record in a ring, in linux/bpf.h: its first four bytes are its length and these; what was written lies behind eight.
const BPF_RINGBUF_BUSY_BIT: u32 = 1 << 31;
const BPF_RINGBUF_DISCARD_BIT: u32 = 1 << 30;
const BPF_RINGBUF_HDR_SZ: u64 = 8;
/// What the program says where the kernel does not tell it in which group it is. No group has this number.
const NO_GROUP: u64 = 0;

/// Who has opened a device node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Openers {
    /// The groups of version 2 that they are in, by the inodes of their directories.
    pub groups: BTreeSet<u64>,
    /// Whether there are others, of whom nothing is known: more than the ring holds, or all of them on an old kernel.
    pub are_more: bool,
}

impl Openers {
    /// Whether nobody has.
    pub fn is_nobody(&self) -> bool {
        self.groups.is_empty() && !self.are_more
    }
}

/// The group of version 2 that a process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The inode of its directory.
    pub number: u64,
    /// Whether it is the one that all others are in.
    pub is_root: bool,
}

/// That of this process; none where no hierarchy of version 2 is mounted, or another part of it than this process is in.
pub fn own_group() -> Option<Group> {
    let text = procfs::text("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    if path.starts_with("..") {
        return None;
    }
    Some(Group { number: fs::metadata(root()?.join(path)).ok()?.ino(), is_root: path.is_empty() })
}

/// Tells that GPUs' device nodes are opened. The kernel goes on without it when this is dropped.
#[derive(Debug)]
pub struct Openings {
    ring: Ring,
    /// Holds the program in its place.
    _link: OwnedFd,
}

impl Openings {
    /// Of the character devices with these major and minor numbers.
    ///
    /// # Errors
    /// No hierarchy of version 2 is mounted, or the kernel has no such programs (before Linux 5.8) or allows none.
    pub fn watch(devices: &BTreeSet<(u32, u32)>) -> io::Result<Self> {
        let ring = Ring::new()?;
        let said = number(ring.map.as_fd()).cast_signed();
        let loaded = load(&program(devices, said, true)).or_else(|_| load(&program(devices, said, false)))?;
        let link = attach(loaded.as_fd())?;
        Ok(Self { ring, _link: link })
    }

    /// Waits until one is opened, or for so long. Who has since this was asked last.
    pub fn wait(&self, patience: Duration) -> Openers {
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.ring.map.as_fd(), PollFlags::IN)], Some(&limit));
        self.ring.take()
    }
}

/// Has the kernel ask the program at the root of the hierarchy, for as long as the descriptor is there.
fn attach(loaded: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let root = root().ok_or_else(|| io::Error::other("no hierarchy of cgroup version 2 is mounted"))?;
    let root = open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut attribute = [0u32; ATTRIBUTE_WORDS];
    attribute[..3].copy_from_slice(&[number(loaded), number(root.as_fd()), BPF_CGROUP_DEVICE]);
    descriptor(BPF_LINK_CREATE, &mut attribute)
}

/// Where the hierarchy of version 2 is mounted, alone or beside those of version 1.
fn root() -> Option<PathBuf> {
    let root = Path::new(ROOT);
    [root.to_owned(), root.join("unified")].into_iter().find(|path| is_of(path, &[CGROUP2_SUPER_MAGIC]))
}

/// The program that says of each opening of one of the devices in which group that was, if it `can_tell` that, and allows everything.
fn program(devices: &BTreeSet<(u32, u32)>, ring: i32, can_tell: bool) -> Vec<Instruction> {
    let load = |to: u8, offset| Instruction::of(LOAD_WORD, (to, 1), offset, 0);
    let with = |code, register, immediate| Instruction::of(code, (register, 0), 0, immediate);
    let jump = |code, register, offset, immediate| Instruction::of(code, (register, 0), offset, immediate);
    let end = [with(MOVE, 0, 1), with(EXIT, 0, 0)];
    let group = if can_tell { with(CALL, 0, BPF_FUNC_GET_CURRENT_CGROUP_ID) } else { with(MOVE, 0, NO_GROUP as i32) };
    let say = [
        group,
        Instruction::of(STORE_DOUBLE, (FRAME, 0), -8, 0),
        Instruction::of(LOAD_CONSTANT, (1, BPF_PSEUDO_MAP_FD), 0, ring),
        Instruction::of(0, (0, 0), 0, 0),
        Instruction::of(MOVE_REGISTER, (2, FRAME), 0, 0),
        with(ADD, 2, -8),
        with(MOVE, 3, size_of::<u64>() as i32),
        with(MOVE, 4, BPF_RB_FORCE_WAKEUP),
        with(CALL, 0, BPF_FUNC_RINGBUF_OUTPUT),
    ];
    let mut all = vec![load(2, ACCESS_TYPE), Instruction::of(MOVE_REGISTER, (5, 2), 0, 0)];
    all.extend([
        with(AND, 2, 0xffff),
        with(SHIFT_RIGHT, 5, 16),
        with(AND, 5, READ_OR_WRITE),
        load(3, MAJOR),
        load(4, MINOR),
    ]);
    // Each device is three instructions; behind them all lie one that goes to the end, and what says it.
    let compared = 3 * devices.len() as i16;
    all.push(jump(JUMP_UNLESS_EQUAL, 2, compared + 1, CHARACTER_DEVICE));
    all.push(jump(JUMP_IF_EQUAL, 5, compared, 0));
    for (place, (major, minor)) in devices.iter().enumerate() {
        let behind = 3 * (devices.len() - 1 - place) as i16;
        all.push(jump(JUMP_UNLESS_EQUAL, 3, 2, major.cast_signed()));
        all.push(jump(JUMP_UNLESS_EQUAL, 4, 1, minor.cast_signed()));
        all.push(jump(JUMP_ALWAYS, 0, behind + 1, 0));
    }
    all.push(jump(JUMP_ALWAYS, 0, say.len() as i16, 0));
    all.extend(say);
    all.extend(end);
    all
}

/// A ring that the kernel writes into. One that is full takes no more.
#[derive(Debug)]
struct Ring {
    map: OwnedFd,
    /// A page with the position up to which it was read, which is ours to say.
    read: Mapping,
    /// A page with the position up to which it was written, and behind it the ring itself twice, so that no record has an end before its
    /// beginning.
    written: Mapping,
    bytes: u64,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let page = rustix::param::page_size();
        let mut attribute = [0u32; ATTRIBUTE_WORDS];
        // Kind, size of keys, size of values, bytes; as large as the smallest one is.
        attribute[..4].copy_from_slice(&[BPF_MAP_TYPE_RINGBUF, 0, 0, page as u32]);
        let map = descriptor(BPF_MAP_CREATE, &mut attribute)?;
        let read = Mapping::of(map.as_fd(), (0, page), ProtFlags::READ | ProtFlags::WRITE)?;
        let written = Mapping::of(map.as_fd(), (page as u64, 3 * page), ProtFlags::READ)?;
        Ok(Self { map, read, written, bytes: page as u64 })
    }

    /// Takes out what was written since the last time.
    fn take(&self) -> Openers {
        let mut openers = Openers::default();
        let (mut read, written) =
            (self.read.word(0).load(Ordering::Relaxed), self.written.word(0).load(Ordering::Acquire));
        // With no room for one more there may have been one more.
        openers.are_more = written - read + 2 * BPF_RINGBUF_HDR_SZ >= self.bytes;
        while read < written {
            let record = self.bytes + read % self.bytes;
            let length = self.written.word(record).load(Ordering::Acquire) as u32;
            if length & BPF_RINGBUF_BUSY_BIT != 0 {
                // It is written just now, and wakes whoever waits.
                break;
            }
            if length & BPF_RINGBUF_DISCARD_BIT == 0 {
                let group = self.written.word(record + BPF_RINGBUF_HDR_SZ).load(Ordering::Relaxed);
                openers.groups.insert(group);
            }
            let length = length & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
            read += (u64::from(length) + BPF_RINGBUF_HDR_SZ).next_multiple_of(8);
        }
        self.read.word(0).store(read, Ordering::Release);
        openers.are_more |= openers.groups.remove(&NO_GROUP);
        openers
    }
}

/// Memory that the kernel shares.
#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    length: usize,
}

// SAFETY: memory of which atomic words are used.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(map: BorrowedFd<'_>, (offset, length): (u64, usize), protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping of a map that nobody can shorten; it is unmapped when this value is dropped.
        let mapped = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, map, offset) };
        let at = NonNull::new(mapped?).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { at, length })
    }

    /// The word so many bytes from the beginning. Positions are in the first ones, as linux/kernel/bpf/ringbuf.c has it: bytes, never
    /// turned back.
    fn word(&self, bytes: u64) -> &AtomicU64 {
        let place = bytes as usize;
        assert!(place.is_multiple_of(8) && place + 8 <= self.length, "byte {place} of {}", self.length);
        // SAFETY: within the mapping, aligned, and mapped for as long as this value is there.
        unsafe { self.at.byte_add(place).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone, of this length, and not used any more.
        let _ = unsafe { munmap(self.at.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// What the program does for one access: whether it says something.
    fn says(program: &[Instruction], (kind, access): (u32, u32), (major, minor): (u32, u32)) -> bool {
        let mut registers = [0i64; 11];
        let (mut at, mut has_said) = (0, false);
        loop {
            let Instruction { code, registers: named, offset, immediate } = program[at];
            let (to, from) = (usize::from(named & 0xf), usize::from(named >> 4));
            at += 1;
            let jumps = match code {
                JUMP_ALWAYS => true,
                JUMP_IF_EQUAL => registers[to] == i64::from(immediate),
                JUMP_UNLESS_EQUAL => registers[to] != i64::from(immediate),
                _ => false,
            };
            match code {
                LOAD_WORD => {
                    registers[to] = i64::from(match offset {
                        ACCESS_TYPE => access << 16 | kind,
                        MAJOR => major,
                        MINOR => minor,
                        _ => panic!("nothing lies at {offset}"),
                    });
                }
                AND => registers[to] &= i64::from(immediate),
                SHIFT_RIGHT => registers[to] >>= immediate,
                MOVE => registers[to] = immediate.into(),
                MOVE_REGISTER => registers[to] = registers[from],
                ADD | STORE_DOUBLE => {}
                LOAD_CONSTANT => at += 1,
                CALL => has_said |= immediate == BPF_FUNC_RINGBUF_OUTPUT,
                EXIT => {
                    assert_eq!(registers[0], 1, "it allows everything");
                    return has_said;
                }
                _ if jumps => at += offset as usize,
                JUMP_ALWAYS | JUMP_IF_EQUAL | JUMP_UNLESS_EQUAL => {}
                _ => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_tells_of_openings_of_its_devices_alone() {
        let numbers = [(195, 0), (195, 3), (510, 0), (195, 1), (510, 3), (1, 3)];
        for (devices, can_tell) in
            [&[][..], &[(195, 0)], &[(195, 0), (195, 3), (510, 0)]].into_iter().zip([true, false, true])
        {
            let program = program(&devices.iter().copied().collect(), 7, can_tell);
            let device = CHARACTER_DEVICE.cast_unsigned();
            for number in numbers {
                let is_its = devices.contains(&number);
                assert_eq!(says(&program, (device, 2), number), is_its, "{number:?} of {devices:?}");
                assert_eq!(says(&program, (device, 6), number), is_its, "for writing too");
                assert!(!says(&program, (device, 1), number), "a node that is only made");
                assert!(!says(&program, (1, 2), number), "of blocks");
            }
        }
    }

    #[test]
    fn the_kernel_tells_who_opens_a_device() {
        // Nobody else opens this one while it is tested.
        let full = BTreeSet::from([(1, 7)]);
        let openings = match Openings::watch(&full) {
            Ok(openings) => openings,
            Err(error) => {
                println!("skipped: the kernel does not tell here: {error}");
                return;
            }
        };
        let at_once = Duration::ZERO;
        assert!(openings.wait(at_once).is_nobody());
        File::open("/dev/null").unwrap();
        assert!(openings.wait(at_once).is_nobody(), "another one");
        let me = |are_more| Openers { groups: BTreeSet::from([own_group().unwrap().number]), are_more };
        for _ in 0..700 {
            File::open("/dev/full").unwrap();
            assert_eq!(openings.wait(Duration::from_secs(10)), me(false));
            assert!(openings.wait(at_once).is_nobody());
        }
        // A ring that is full says so, and is of use again when it has been emptied.
        (0..2000).for_each(|_| drop(File::open("/dev/full").unwrap()));
        assert_eq!(openings.wait(at_once), me(true));
        assert!(openings.wait(at_once).is_nobody());
        File::open("/dev/full").unwrap();
        assert_eq!(openings.wait(Duration::from_secs(10)), me(false));
        drop(openings);
        // As on a kernel that tells no program its group.
        let ring = Ring::new().unwrap();
        let loaded = load(&program(&full, number(ring.map.as_fd()).cast_signed(), false)).unwrap();
        let openings = Openings { ring, _link: attach(loaded.as_fd()).unwrap() };
        File::open("/dev/full").unwrap();
        let unknown = Openers { groups: BTreeSet::new(), are_more: true };
        assert_eq!(openings.wait(Duration::from_secs(10)), unknown);
    }
}
