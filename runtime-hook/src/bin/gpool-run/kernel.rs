//! What `gpool-run` asks of the kernel and no safe function offers. The library has no unsafe code.
#![allow(unsafe_code)]

use gpool_runtime_hook::End;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction, signal};
use std::process::ExitCode;

/// A caller that ignores SIGCHLD hands that on, and the kernel then keeps no exit status of any child.
pub fn notice_ends_of_children() {
    // SAFETY: the default action runs no code of this program, and there is no second thread yet.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// Has the kernel take children away by itself as they end, and go on telling when they stop. One that nobody collects holds back the
/// end of the PID namespace that it was in.
pub fn forget_children() {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDWAIT, SigSet::empty());
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { sigaction(Signal::SIGCHLD, &action) };
}

/// Ends as the command has ended: by the same signal, or with the status that this returns.
pub fn end_as(end: End) -> ExitCode {
    if let End::Signal(signal) = end {
        end_by(signal);
    }
    end.status().into()
}

/// Ends this process by `ending`, by which its command has ended: shells leave a loop at Ctrl-C, and systemd takes SIGTERM
/// for a good end, by the signal and not by the status that says the same. Returns where the kernel keeps the process, as
/// it does a container's first, and of a signal that nix has no name for, as the real-time ones.
fn end_by(ending: i32) {
    let Ok(ending) = Signal::try_from(ending) else { return };
    // A core is the command's to leave.
    let _ = set_dumpable(false);
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { signal(ending, SigHandler::SigDfl) };
    let _ = SigSet::from(ending).thread_unblock();
    let _ = raise(ending);
}

/// Puts a filter over the system calls of this thread and of whatever it executes. Not by seccompiler, which would take
/// `sudo` and the like from the command (no_new_privs), and on older kernels slow it down as one that runs others' code.
pub fn filter_calls(program: &[sock_filter]) -> std::io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel copies the program before it returns, and writes to none of it.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
