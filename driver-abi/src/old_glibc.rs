//! Running with any glibc since 2.17, as NVIDIA's own libraries do, though linked with a newer one.
//!
//! What a library calls carries a version, which the linker takes from the glibc that it finds. Functions that moved
//! into libc.so.6 (2.34), became functions of their own (2.33), or came later ask for a newer glibc by that. So the
//! library defines them itself, hidden, and each goes on to what every glibc has: the function's first version, or the
//! kernel. Source: the symbol versions in glibc's own libraries, 2.17 to 2.41, for x86-64.
//!
//! A package that uses this is linked with libpthread.so.0, libdl.so.2 and libm.so.6 whether the linker sees a need or
//! not (see [`OLD_GLIBC_LIBRARIES`]): before 2.34 the functions were there.

/// What the build script of a package has to pass to the linker.
pub const OLD_GLIBC_LIBRARIES: &str =
    "-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,-l:libm.so.6,--pop-state";

/// Defines, for the library or program that this is written in, what a new glibc would else be asked for. A program
/// says `needs_old_glibc!(program)`, for its start, a library `needs_old_glibc!(library)`.
#[macro_export]
macro_rules! needs_old_glibc {
    (library) => {
        $crate::first_versions!(
            "dlclose",
            "dlerror",
            "dlopen",
            "dlsym",
            "log",
            "pthread_attr_getguardsize",
            "pthread_attr_getstack",
            "pthread_attr_setstacksize",
            "pthread_create",
            "pthread_detach",
            "pthread_getattr_np",
            "pthread_key_create",
            "pthread_key_delete",
            "pthread_setspecific",
        );
        $crate::system_calls!("stat64" 4, "fstat64" 5, "lstat64" 6, "gettid" 186, "getrandom" 318, "memfd_create" 319, "statx" 332);
        // Since 2.12, which has a version of its own.
        $crate::hidden_function!(
            "pthread_setname_np",
            ".symver gpool_old_pthread_setname_np, pthread_setname_np@GLIBC_2.12",
            "jmp qword ptr [rip + gpool_old_pthread_setname_np@GOTPCREL]"
        );
        // Newer ones (2.18, 2.29), and weak in Rust's library, which does without where their address is zero.
        $crate::absent_functions!("__cxa_thread_atexit_impl", "posix_spawn_file_actions_addchdir_np");
    };
    (program) => {
        $crate::needs_old_glibc!(library);
        // Until 2.33 the program's own constructors were its own to call, by a function that it passes in rcx; the
        // compiler's start code for 2.34 passes none. Where one is passed, a newer glibc calls it in place of its own.
        $crate::hidden_function!(
            "__libc_start_main",
            ".symver gpool_old_start_main, __libc_start_main@GLIBC_2.2.5",
            "lea rcx, [rip + gpool_constructors]",
            "jmp qword ptr [rip + gpool_old_start_main@GOTPCREL]"
        );
        $crate::hidden_function!(
            "gpool_constructors",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov r12, rdi",
            "mov r13, rsi",
            "mov r14, rdx",
            "lea rbx, [rip + __init_array_start]",
            "lea r15, [rip + __init_array_end]",
            "2: cmp rbx, r15",
            "jae 3f",
            "mov rdi, r12",
            "mov rsi, r13",
            "mov rdx, r14",
            "call qword ptr [rbx]",
            "add rbx, 8",
            "jmp 2b",
            "3: pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "ret"
        );
    };
}

/// Functions of glibc that go on to their first version.
#[doc(hidden)]
#[macro_export]
macro_rules! first_versions {
    ($($name:literal),* $(,)?) => {
        $($crate::hidden_function!(
            $name,
            concat!(".symver gpool_old_", $name, ", ", $name, "@GLIBC_2.2.5"),
            concat!("jmp qword ptr [rip + gpool_old_", $name, "@GOTPCREL]")
        );)*
    };
}

/// Functions of glibc with at most five arguments that do nothing but call the kernel.
#[doc(hidden)]
#[macro_export]
macro_rules! system_calls {
    ($($name:literal $number:literal),* $(,)?) => {
        $($crate::hidden_function!(
            $name,
            // `syscall` takes the number first, and sets errno.
            "mov r9, r8",
            "mov r8, rcx",
            "mov rcx, rdx",
            "mov rdx, rsi",
            "mov rsi, rdi",
            concat!("mov edi, ", $number),
            "xor eax, eax",
            "jmp qword ptr [rip + syscall@GOTPCREL]"
        );)*
    };
}

/// Functions whose address is zero.
#[doc(hidden)]
#[macro_export]
macro_rules! absent_functions {
    ($($name:literal),* $(,)?) => {
        $(::core::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".set ", $name, ", 0")
        );)*
    };
}

/// A function that only the library or program itself sees, in a section of its own so that unused ones are left out.
#[doc(hidden)]
#[macro_export]
macro_rules! hidden_function {
    ($name:literal, $($line:expr),+) => {
        ::core::arch::global_asm!(
            concat!(".pushsection .text.gpool_old_", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            $($line,)+
            ".popsection"
        );
    };
}
