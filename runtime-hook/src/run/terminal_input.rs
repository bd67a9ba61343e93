//! What keeps a user's program from typing into the terminal of root, who has called it.
//!
//! TIOCSTI pushes characters into the input of the terminal of one's session, and TIOCLINUX pastes into a console's: what
//! the shell of root reads when the command has ended. Newer kernels can be told to refuse both.

use nix::libc::{self, sock_filter};

/// Puts a filter over the calls of this thread. The program has it, since no safe function does.
pub type FilterCalls = fn(&[sock_filter]) -> std::io::Result<()>;

// The kernel's linux/audit.h.
const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;
/// Numbers of ioctl(2): for 64-bit programs, those of the x32 ABI, and 32-bit ones.
const IOCTL: u32 = 16;
const IOCTL_X32: u32 = 0x4000_0000 + 514;
const IOCTL_I386: u32 = 54;
// Where struct seccomp_data (seccomp(2)) has them.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The lower half of the second argument: the kernel looks at no more of a request.
const REQUEST: u32 = 24;

/// Refuses both with EPERM, under each of the processor's three kinds of calls, and leaves everything else as it is.
pub const FILTER: [sock_filter; 13] = [
    load(ARCH),
    skip_if(ARCH_I386, 4, 0),
    skip_if(ARCH_X86_64, 0, 9),
    load(NUMBER),
    skip_if(IOCTL, 3, 0),
    skip_if(IOCTL_X32, 2, 6),
    load(NUMBER),
    skip_if(IOCTL_I386, 0, 4),
    load(REQUEST),
    skip_if(libc::TIOCSTI as u32, 1, 0),
    skip_if(libc::TIOCLINUX as u32, 0, 1),
    answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    answer(libc::SECCOMP_RET_ALLOW),
];

/// Loads a word of `struct seccomp_data`.
const fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Skips so many instructions if the loaded word is `value`, and so many if not.
const fn skip_if(value: u32, equal: u8, different: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: equal, jf: different, k: value }
}

const fn answer(what: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: what }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with the filter.
    fn judged(arch: u32, number: u32, request: u32) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let step = FILTER[at];
            at += 1;
            match u32::from(step.code) & 0x7 {
                libc::BPF_LD if step.k == ARCH => word = arch,
                libc::BPF_LD if step.k == NUMBER => word = number,
                libc::BPF_LD => word = request,
                libc::BPF_JMP => at += usize::from(if word == step.k { step.jt } else { step.jf }),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn two_requests_of_one_call_are_refused_and_nothing_else() {
        let (refused, passed) = (libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, libc::SECCOMP_RET_ALLOW);
        let of_64_bits = u32::try_from(libc::SYS_ioctl).unwrap();
        for (arch, number) in [(ARCH_X86_64, of_64_bits), (ARCH_X86_64, IOCTL_X32), (ARCH_I386, IOCTL_I386)] {
            for (request, want) in [(0x5412, refused), (0x541c, refused), (0x5413, passed), (0, passed)] {
                assert_eq!(judged(arch, number, request), want, "{arch:x} {number} {request:x}");
            }
        }
        // The same numbers mean other calls elsewhere.
        for (arch, number) in [(ARCH_X86_64, 54), (ARCH_X86_64, 0), (ARCH_I386, 16), (0xc000_00b7, 16), (0, 0)] {
            assert_eq!(judged(arch, number, 0x5412), passed, "{arch:x} {number}");
        }
    }
}
