//! The filters that the hook installs, in processes of their own: this program again, which installs them and tries one
//! call. It has no test harness, because a filter is for ever and the harness starts threads.

use gpool_runtime_hook::{FORBIDDEN, restrict_system_calls};
use nix::libc;
use std::io::Read;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

/// What a call that the filters let through, or answer for, says of itself.
const DONE: u8 = 0;
const REFUSED: u8 = 3;
const OTHERWISE: u8 = 4;
/// What only podman's hook does, which replaces a file.
const PODMANS: [&str; 2] = ["replace a file", "have a file on the disk"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("try") => attempt(&words[1]),
        // What a harness is asked by those who list tests.
        Some("--list") => ExitCode::SUCCESS,
        _ => judge(),
    }
}

/// With the filters installed.
fn attempt(what: &str) -> ExitCode {
    if let Err(error) = restrict_system_calls(PODMANS.contains(&what)) {
        eprintln!("{error}");
        return ExitCode::from(OTHERWISE);
    }
    let is_done = match what {
        "read a file" => std::fs::read("/proc/self/stat").is_ok_and(|text| !text.is_empty()),
        "list a folder" => std::fs::read_dir("/proc/self").is_ok_and(|mut entries| entries.next().is_some()),
        "start a thread" => return refused(std::thread::Builder::new().spawn(|| 7).err()),
        "connect" => {
            UnixStream::connect("/proc/no-such-socket").is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
        }
        "set a socket" => UnixDatagram::unbound().is_ok_and(|socket| socket.set_nonblocking(true).is_ok()),
        "read stdin" => std::io::stdin().read(&mut [0; 8]).is_ok(),
        "make a socket pair" => return refused(UnixStream::pair().err()),
        "write to a terminal's input" => return refused_call(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0]),
        "have a file on the disk" => return refused_call(libc::SYS_fdatasync, [-1, 0, 0]),
        "replace a file" => return refused_call(libc::SYS_renameat, [-1, 0, -1]),
        "change a file's owner" => return refused_call(libc::SYS_fchown, [-1, 0, 0]),
        "rename" => return refused_call(libc::SYS_renameat, [-1, 0, -1]),
        "write a file" => return refused(std::fs::write("/dev/null", "x").err()),
        "make a file" => return refused(std::fs::File::create("/proc/self/x").err()),
        "a newer call" => return refused_call(100_000, [0; 3]),
        "kill" => return refused_call(libc::SYS_kill, [1, 0, 0]),
        "unlink" => return refused_call(libc::SYS_unlink, [0; 3]),
        "clone3" => return refused_call(libc::SYS_clone3, [0; 3]),
        "another filter" => return refused_call(libc::SYS_seccomp, [0; 3]),
        "inet" => return refused_call(libc::SYS_socket, [libc::AF_INET as i64, libc::SOCK_STREAM as i64, 0]),
        "netlink" => return refused_call(libc::SYS_socket, [libc::AF_NETLINK as i64, libc::SOCK_RAW as i64, 0]),
        name => {
            let call = FORBIDDEN.iter().find(|(its, _)| *its == name).expect("a name of the list").1;
            return refused_call(call, [0; 3]);
        }
    };
    ExitCode::from(if is_done { DONE } else { OTHERWISE })
}

fn refused(error: Option<std::io::Error>) -> ExitCode {
    let is_refused = error.is_some_and(|error| error.raw_os_error() == Some(libc::ENOSYS));
    ExitCode::from(if is_refused { REFUSED } else { OTHERWISE })
}

fn refused_call(call: i64, arguments: [i64; 3]) -> ExitCode {
    let [first, second, third] = arguments;
    // SAFETY: with these arguments, which are no addresses, every call that is tried fails or changes nothing here; a child
    // that `clone` or `fork` would make runs on from here and ends.
    // The last goes over the stack, where a literal without a type would fill half of its word.
    let answer = unsafe { libc::syscall(call, first, second, third, 0i64, 0i64, 0i64) };
    refused((answer < 0).then(std::io::Error::last_os_error))
}

fn run(what: &str) -> ExitStatus {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own).args(["try", what]).stdin(std::process::Stdio::null()).output();
    output.expect("this program can be started again").status
}

fn judge() -> ExitCode {
    let mut wrong = Vec::new();
    let mut expect = |what: &str, is_so: &dyn Fn(ExitStatus) -> bool| {
        let status = run(what);
        if !is_so(status) {
            wrong.push(format!("{what}: {status}"));
        }
    };
    let is_done = |status: ExitStatus| status.code() == Some(DONE.into());
    for what in ["read a file", "list a folder", "connect", "set a socket", "read stdin"] {
        expect(what, &is_done);
    }
    let is_refused = |status: ExitStatus| status.code() == Some(REFUSED.into());
    let absent = ["a newer call", "kill", "unlink", "clone3", "another filter", "rename", "change a file's owner"];
    for what in
        ["write a file", "make a file", "make a socket pair", "write to a terminal's input"].iter().chain(&absent)
    {
        expect(what, &is_refused);
    }
    // Podman's hook comes as far as the kernel's own refusal.
    for what in PODMANS {
        expect(what, &|status| status.code() == Some(OTHERWISE.into()));
    }
    let is_killed = |status: ExitStatus| status.signal() == Some(libc::SIGSYS);
    for what in ["inet", "netlink", "start a thread"].into_iter().chain(FORBIDDEN.iter().map(|(name, _)| *name)) {
        expect(what, &is_killed);
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    println!("{} calls are forbidden, {} tries went otherwise than they should", FORBIDDEN.len() + 3, wrong.len());
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
