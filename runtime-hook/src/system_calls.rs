//! Which system calls the hook may make: it reads what strangers wrote, as root.
//!
//! Two filters. The first kills the process at a call that a hook has no use for and an attacker has: starting programs,
//! processes and threads, mounting, reaching into others, loading code into the kernel, the network. The kernel's audit log
//! has its name then, and the container does not start. The second knows what the hook does; of anything else it says that the
//! kernel does not have it (ENOSYS). That is what C libraries are made for: a newer one that tries a newer call falls
//! back to the one that it replaces, and no start breaks.
//!
//! What `openat2` opens cannot be seen by a filter, as its flags lie in memory; `openat` may open for reading only.

use nix::libc;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// A call that cannot be expressed; the text is the assembler's or the kernel's.
#[derive(Debug)]
pub struct NotRestricted(String);

impl std::fmt::Display for NotRestricted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "system calls cannot be restricted: {}", self.0)
    }
}

impl std::error::Error for NotRestricted {}

/// Calls that end the process, whatever their arguments. Public, so that a test can try each.
pub const FORBIDDEN: &[(&str, i64)] = &[
    // Programs, processes and threads.
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("fork", libc::SYS_fork),
    ("vfork", libc::SYS_vfork),
    ("clone", libc::SYS_clone),
    // Others' memory, files and threads.
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("process_madvise", libc::SYS_process_madvise),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("kcmp", libc::SYS_kcmp),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    // Mounts and namespaces.
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("pivot_root", libc::SYS_pivot_root),
    ("chroot", libc::SYS_chroot),
    ("open_tree", libc::SYS_open_tree),
    ("move_mount", libc::SYS_move_mount),
    ("fsopen", libc::SYS_fsopen),
    ("fsconfig", libc::SYS_fsconfig),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("unshare", libc::SYS_unshare),
    ("setns", libc::SYS_setns),
    // The kernel itself.
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("init_module", libc::SYS_init_module),
    ("finit_module", libc::SYS_finit_module),
    ("delete_module", libc::SYS_delete_module),
    ("kexec_load", libc::SYS_kexec_load),
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("iopl", libc::SYS_iopl),
    ("ioperm", libc::SYS_ioperm),
    ("reboot", libc::SYS_reboot),
    ("swapon", libc::SYS_swapon),
    ("swapoff", libc::SYS_swapoff),
    ("settimeofday", libc::SYS_settimeofday),
    ("clock_settime", libc::SYS_clock_settime),
    // Keys, and who one is.
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    ("keyctl", libc::SYS_keyctl),
    ("setuid", libc::SYS_setuid),
    ("setgid", libc::SYS_setgid),
    ("setresuid", libc::SYS_setresuid),
    ("setresgid", libc::SYS_setresgid),
    ("capset", libc::SYS_capset),
];

/// Calls that the hook, its C library and its language's library make.
const ALLOWED: &[i64] = &[
    // Files, none of which it changes.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_openat2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_poll,
    libc::SYS_ppoll,
    // The supervisor's socket and the system log's.
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_madvise,
    // What the one thread has to do with others, and its end.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_arch_prctl,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_tgkill,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // Time, chance and limits.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
];

/// What replaces a file besides: the loader cache of podman's container, in the hook that is called before that is made.
const REPLACING: &[i64] =
    &[libc::SYS_fchown, libc::SYS_fchmod, libc::SYS_fdatasync, libc::SYS_renameat, libc::SYS_unlinkat];

/// Installs both filters for this thread and those that it starts. To be called before there is a second one.
///
/// # Errors
/// A kernel without seccomp, or one that refuses the filters.
pub fn restrict(replaces_a_file: bool) -> Result<(), NotRestricted> {
    let wrong = |error: &dyn std::fmt::Display| NotRestricted(error.to_string());
    let deadly =
        assemble(forbidden().map_err(|error| wrong(&error))?, SeccompAction::Allow, SeccompAction::KillProcess);
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    let known = assemble(allowed(replaces_a_file).map_err(|error| wrong(&error))?, absent, SeccompAction::Allow);
    // The second one does not allow a third, so it comes last.
    for filter in [deadly, known] {
        apply_filter(&filter.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Assembled<T> = Result<T, seccompiler::BackendError>;

fn assemble(rules: Rules, otherwise: SeccompAction, then: SeccompAction) -> Assembled<BpfProgram> {
    SeccompFilter::new(rules, otherwise, then, TargetArch::x86_64)?.try_into()
}

fn forbidden() -> Assembled<Rules> {
    let mut rules: Rules = FORBIDDEN.iter().map(|(_, call)| (*call, Vec::new())).collect();
    let family = SeccompCondition::new(0, Dword, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![family])?]);
    Ok(rules)
}

fn allowed(replaces_a_file: bool) -> Assembled<Rules> {
    let more = if replaces_a_file { REPLACING } else { &[] };
    let mut rules: Rules = ALLOWED.iter().chain(more).map(|call| (*call, Vec::new())).collect();
    let change = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64;
    let reads = SeccompCondition::new(2, Dword, SeccompCmpOp::MaskedEq(change), libc::O_RDONLY as u64)?;
    rules.insert(libc::SYS_openat, vec![SeccompRule::new(vec![reads])?]);
    // Blocking or not, closed on execution or not, a terminal or not.
    let asks =
        |request: libc::Ioctl| SeccompRule::new(vec![SeccompCondition::new(1, Dword, SeccompCmpOp::Eq, request)?]);
    let requests = [libc::FIONBIO, libc::FIOCLEX, libc::TCGETS].into_iter().map(asks);
    rules.insert(libc::SYS_ioctl, requests.collect::<Assembled<_>>()?);
    // What is not forbidden of it.
    rules.insert(libc::SYS_socket, Vec::new());
    Ok(rules)
}
