//! Instructions of x86-64, as far as they can make one processor wait for another.

/// Longest instruction.
pub const LONGEST: usize = 15;
/// A breakpoint.
pub const INT3: u8 = 0xcc;

/// Whether the instruction at the beginning of `code` takes a cache line for itself: one with a lock prefix, or an
/// exchange with memory, which locks without one. Source: Intel's manual, volume 2, LOCK and XCHG.
pub fn is_locked(code: &[u8]) -> bool {
    const PREFIXES: [u8; 10] = [0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
    let mut rest = code;
    while let [first, after @ ..] = rest {
        match *first {
            0xf0 => return true,
            prefix if PREFIXES.contains(&prefix) => rest = after,
            _ => break,
        }
    }
    // A REX prefix stands right before the opcode.
    if let [0x40..=0x4f, after @ ..] = rest {
        rest = after;
    }
    matches!(rest, [0x86 | 0x87, operands, ..] if operands >> 6 != 3)
}

#[cfg(test)]
mod tests {
    use super::is_locked;

    #[test]
    fn locks_are_seen_with_and_without_a_prefix() {
        for locked in [
            &[0xf0, 0x48, 0x0f, 0xc1, 0x07][..], // lock xadd [rdi], rax
            &[0x66, 0xf0, 0x0f, 0xb1, 0x0f],     // lock cmpxchg [rdi], cx
            &[0x87, 0x07],                       // xchg [rdi], eax
            &[0x48, 0x87, 0x47, 0x08],           // xchg [rdi + 8], rax
        ] {
            assert!(is_locked(locked), "{locked:x?}");
        }
        for free in [
            &[0x48, 0x87, 0xc1][..], // xchg rcx, rax
            &[0x66, 0x90],           // nop
            &[0x48, 0x89, 0x07],     // mov [rdi], rax
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
            &[],
        ] {
            assert!(!is_locked(free), "{free:x?}");
        }
    }
}
