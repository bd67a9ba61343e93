//! Word from the kernel that somebody opens a GPU's device node, at once, whoever and wherever it is and whatever the node is called.
//!
//! A program at the root of the hierarchy of version 2 sees each opening on the host, as it is asked before all those of
//! containers; it allows every one and says of those of GPUs that there was one. It sits above what engines and the service manager attach
//! to their own groups, so neither removes the other's, and it goes with the descriptor that holds it.

use super::bpf::{
    ACCESS_TYPE, ADD, AND, ATTRIBUTE_WORDS, BPF_CGROUP_DEVICE, CALL, CHARACTER_DEVICE, EXIT, Instruction, JUMP_ALWAYS,
    JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, LOAD_CONSTANT, LOAD_WORD, MAJOR, MINOR, MOVE, MOVE_REGISTER, SHIFT_RIGHT,
    STORE_DOUBLE, descriptor, load, number,
};
use super::{CGROUP2_SUPER_MAGIC, ROOT, is_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Commands and kinds of bpf(2), and what a ring's helper is called and told, in linux/bpf.h.
const BPF_MAP_CREATE: nix::libc::c_long = 0;
const BPF_LINK_CREATE: nix::libc::c_long = 28;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_FUNC_RINGBUF_OUTPUT: i32 = 130;
const BPF_RB_FORCE_WAKEUP: i32 = 2;
const BPF_PSEUDO_MAP_FD: u8 = 1;
/// The register that points behind the program's stack.
const FRAME: u8 = 10;
/// In the upper half of the first word of struct bpf_cgroup_dev_ctx: reading and writing, not making a node.
const READ_OR_WRITE: i32 = 6;

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
        let root = root().ok_or_else(|| io::Error::other("no hierarchy of cgroup version 2 is mounted"))?;
        let root = open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let ring = Ring::new()?;
        let loaded = load(&program(devices, number(ring.map.as_fd()).cast_signed()))?;
        let mut attribute = [0u32; ATTRIBUTE_WORDS];
        attribute[..3].copy_from_slice(&[number(loaded.as_fd()), number(root.as_fd()), BPF_CGROUP_DEVICE]);
        let link = descriptor(BPF_LINK_CREATE, &mut attribute)?;
        Ok(Self { ring, _link: link })
    }

    /// Waits until one is opened, or for so long. Whether one was, since this was asked last.
    pub fn wait(&self, patience: Duration) -> bool {
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.ring.map.as_fd(), PollFlags::IN)], Some(&limit));
        self.ring.empty()
    }
}

/// Where the hierarchy of version 2 is mounted, alone or beside those of version 1.
fn root() -> Option<PathBuf> {
    let root = Path::new(ROOT);
    [root.to_owned(), root.join("unified")].into_iter().find(|path| is_of(path, &[CGROUP2_SUPER_MAGIC]))
}

/// The program that says of each opening of one of the devices that there was one, and allows everything.
fn program(devices: &BTreeSet<(u32, u32)>, ring: i32) -> Vec<Instruction> {
    let load = |to: u8, offset| Instruction::of(LOAD_WORD, (to, 1), offset, 0);
    let with = |code, register, immediate| Instruction::of(code, (register, 0), 0, immediate);
    let jump = |code, register, offset, immediate| Instruction::of(code, (register, 0), offset, immediate);
    let end = [with(MOVE, 0, 1), with(EXIT, 0, 0)];
    let say = [
        with(MOVE, 2, 0),
        Instruction::of(STORE_DOUBLE, (FRAME, 2), -8, 0),
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

/// A ring that the kernel writes into and that is only emptied, never read: that something was written says it all. One that is
/// full takes no more.
#[derive(Debug)]
struct Ring {
    map: OwnedFd,
    /// Two pages: up to where it was read, which is ours to say, and up to where it was written.
    read: Page,
    written: Page,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let page = rustix::param::page_size();
        let mut attribute = [0u32; ATTRIBUTE_WORDS];
        // Kind, size of keys, size of values, bytes; as large as the smallest one is.
        attribute[..4].copy_from_slice(&[BPF_MAP_TYPE_RINGBUF, 0, 0, page as u32]);
        let map = descriptor(BPF_MAP_CREATE, &mut attribute)?;
        let read = Page::of(map.as_fd(), 0, ProtFlags::READ | ProtFlags::WRITE)?;
        let written = Page::of(map.as_fd(), page as u64, ProtFlags::READ)?;
        Ok(Self { map, read, written })
    }

    /// Whether anything was written since the last time.
    fn empty(&self) -> bool {
        let written = self.written.position().load(Ordering::Acquire);
        self.read.position().swap(written, Ordering::Release) != written
    }
}

/// A page that the kernel shares.
#[derive(Debug)]
struct Page(NonNull<c_void>);

// SAFETY: a page of memory, of which one atomic word is used.
unsafe impl Send for Page {}

impl Page {
    fn of(map: BorrowedFd<'_>, offset: u64, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping of a map that nobody can shorten; it is unmapped when this value is dropped.
        let mapped = unsafe {
            mmap(std::ptr::null_mut(), rustix::param::page_size(), protection, MapFlags::SHARED, map, offset)
        };
        NonNull::new(mapped?).map(Self).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The position in the first word, as linux/kernel/bpf/ringbuf.c has it: bytes, never turned back.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: a page is longer than a word, aligned, and mapped for as long as this value is there.
        unsafe { self.0.cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: ours alone, of one page, and not used any more.
        let _ = unsafe { munmap(self.0.as_ptr(), rustix::param::page_size()) };
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
                CALL => has_said = true,
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
        for devices in [&[][..], &[(195, 0)], &[(195, 0), (195, 3), (510, 0)]] {
            let program = program(&devices.iter().copied().collect(), 7);
            let device = CHARACTER_DEVICE.cast_unsigned();
            for number in [(195, 0), (195, 3), (510, 0), (195, 1), (510, 3), (1, 3)] {
                let is_its = devices.contains(&number);
                assert_eq!(says(&program, (device, 2), number), is_its, "{number:?} of {devices:?}");
                assert_eq!(says(&program, (device, 6), number), is_its, "for writing too");
                assert!(!says(&program, (device, 1), number), "a node that is only made");
                assert!(!says(&program, (1, 2), number), "of blocks");
            }
        }
    }

    #[test]
    fn the_kernel_tells_that_a_device_is_opened() {
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
        assert!(!openings.wait(at_once));
        File::open("/dev/null").unwrap();
        assert!(!openings.wait(at_once), "another one");
        for _ in 0..3 {
            File::open("/dev/full").unwrap();
            assert!(openings.wait(Duration::from_secs(10)) && !openings.wait(at_once));
        }
        // A ring that is full says so, and is of use again when it has been emptied.
        (0..2000).for_each(|_| drop(File::open("/dev/full").unwrap()));
        assert!(openings.wait(at_once) && !openings.wait(at_once));
        File::open("/dev/full").unwrap();
        assert!(openings.wait(Duration::from_secs(10)));
    }
}
