//! Calls that are passed on once the lease is there: those of touched.txt. The build script makes a function for each, which comes
//! here with the address of the real one's slot in r11; what the program has given stands in the registers and on the stack where the
//! driver looks for it, so nobody here need know what that is. None of them takes a number with a fraction or a varying count of
//! arguments, so xmm0 to xmm7 and rax are free (System V ABI for x86-64, 3.2.3).

use crate::PROCESS;
use gpool_interposer_logic::Process;

/// As [`Process::touch`], and goes on to the function in the slot at r11.
#[unsafe(naked)]
pub unsafe extern "C" fn pass() {
    core::arch::naked_asm!(
        "mov rax, [rip + {process} + {page}]",
        "test rax, rax",
        "jz 2f",
        "cmp dword ptr [rax + {is_suspended}], 1",
        "je {stand}",
        "2:",
        "jmp qword ptr [r11]",
        process = sym PROCESS,
        page = const Process::PAGE_OFFSET,
        is_suspended = const Process::IS_SUSPENDED_OFFSET,
        stand = sym stand,
    )
}

/// Keeps what the program has given while this thread stands. Described to whoever looks why a program does not go on.
#[unsafe(naked)]
unsafe extern "C" fn stand() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push r11",
        ".cfi_adjust_cfa_offset 56",
        "call {touch}",
        "pop r11",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -56",
        "jmp qword ptr [r11]",
        ".cfi_endproc",
        touch = sym touch,
    )
}

/// [`Process::touch`], out of line: dozens of entry points begin with it.
#[inline(never)]
pub extern "C" fn touch() {
    PROCESS.touch();
}
