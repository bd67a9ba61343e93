//! Programs that the kernel asks when a device is opened, in the machine code of BPF, as linux/bpf.h has it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One instruction, as struct bpf_insn lays it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What it does.
    pub code: u8,
    /// The destination in the low half, the source in the high one.
    pub registers: u8,
    /// Of a jump, so many instructions more; of memory, so many bytes from what the register points to.
    pub offset: i16,
    /// A number in the instruction itself.
    pub immediate: i32,
}

impl Instruction {
    /// One between these registers, the destination first.
    pub const fn of(code: u8, (to, from): (u8, u8), offset: i16, immediate: i32) -> Self {
        Self { code, registers: to | from << 4, offset, immediate }
    }
}

/// Opcodes of linux/bpf.h and linux/bpf_common.h that the programs need.
pub const LOAD_WORD: u8 = 0x61;
pub const MOVE: u8 = 0xb7;
pub const AND: u8 = 0x57;
pub const MOVE_REGISTER: u8 = 0xbf;
pub const ADD: u8 = 0x07;
pub const SHIFT_RIGHT: u8 = 0x77;
pub const STORE_DOUBLE: u8 = 0x7b;
pub const LOAD_CONSTANT: u8 = 0x18;
pub const JUMP_ALWAYS: u8 = 0x05;
pub const JUMP_IF_EQUAL: u8 = 0x15;
pub const JUMP_UNLESS_EQUAL: u8 = 0x55;
pub const CALL: u8 = 0x85;
pub const EXIT: u8 = 0x95;

/// Offsets in struct bpf_cgroup_dev_ctx, and what its first word says of the kind of node in its low half.
pub const ACCESS_TYPE: i16 = 0;
pub const MAJOR: i16 = 4;
pub const MINOR: i16 = 8;
pub const CHARACTER_DEVICE: i32 = 2;

/// Commands, kinds and flags of bpf(2).
const BPF_PROG_LOAD: nix::libc::c_long = 5;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
pub const BPF_CGROUP_DEVICE: u32 = 6;
/// As long as the longest union bpf_attr of the kernels that there are, so that none writes past ours.
pub const ATTRIBUTE_WORDS: usize = 32;

/// Gives a program that is asked about devices to the kernel, which checks it.
///
/// # Errors
/// The kernel does not take it.
pub fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    // SPDX names the licence of the program as the kernel wants to hear it; it calls nothing that would ask for GPL.
    let licence = c"MIT";
    let (code, text) = (program.as_ptr() as u64, licence.as_ptr() as u64);
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let mut attribute = [0u32; ATTRIBUTE_WORDS];
    attribute[..2].copy_from_slice(&[BPF_PROG_TYPE_CGROUP_DEVICE, program.len() as u32]);
    attribute[2..4].copy_from_slice(&halves(code));
    attribute[4..6].copy_from_slice(&halves(text));
    descriptor(BPF_PROG_LOAD, &mut attribute)
}

/// A descriptor as attributes have it.
pub fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A command that answers with a descriptor.
///
/// # Errors
/// The kernel's.
pub fn descriptor(command: nix::libc::c_long, attribute: &mut [u32; ATTRIBUTE_WORDS]) -> io::Result<OwnedFd> {
    let raw = bpf(command, attribute)?;
    // SAFETY: just made for us by the kernel, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// The call. What its attribute points to has to outlive it.
///
/// # Errors
/// The kernel's.
pub fn bpf(command: nix::libc::c_long, attribute: &mut [u32; ATTRIBUTE_WORDS]) -> io::Result<i32> {
    // SAFETY: the attribute is as long as is said, and what it points to outlives the call.
    let result =
        unsafe { nix::libc::syscall(nix::libc::SYS_bpf, command, attribute.as_mut_ptr(), size_of_val(attribute)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
