//! What the supervisor and the hook can do, as the kernel says it: of every thread of them.

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_SYS_NICE (linux/capability.h).
const SUPERVISORS: u64 = 1 << 1 | 1 << 5 | 1 << 19 | 1 << 21 | 1 << 23;
/// CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE.
const HOOKS: u64 = 1 << 2 | 1 << 19;
/// A hook waits for a supervisor that is stopped for 4 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// Capabilities, sockets and modes.
pub fn is_least(host: &Host) -> Result<()> {
    let pid = host.supervisor_pid().ok_or_else(|| Failure::new("no supervisor runs"))?;
    let threads = statuses(pid)?;
    threads.iter().try_for_each(|status| has_exactly("the supervisor", status, SUPERVISORS))?;
    ensure(threads.len() >= 4, || format!("only {} threads of the supervisor were seen", threads.len()))?;
    has_no_network(pid)?;
    modes()?;
    hook_is_least(host, pid)
}

/// A hook that waits for the supervisor, which a script in its place has stopped.
fn hook_is_least(host: &Host, supervisor: u32) -> Result<()> {
    let hook = host.stage.hook();
    let real = format!("{}.real", hook.display());
    fs::rename(&hook, &real).context(&real)?;
    let script = format!("#!/bin/sh\nkill -STOP {supervisor}\nexec \"$0.real\" \"$@\"\n");
    fs::write(&hook, script).context(hook.display())?;
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).context(hook.display())?;
    let env = [("GPOOL_FRACTION", "0.01"), ("GPOOL_MEMORY", "256MiB")];
    let seen = std::thread::scope(|scope| {
        let start = scope.spawn(|| host.run_container("held", &env, &[], &["sleep", "1000"]));
        let seen = waiting_hook(&real);
        let supervisor = Pid::from_raw(supervisor as i32).ok_or_else(|| Failure::new("no supervisor runs"))?;
        kill_process(supervisor, Signal::CONT).context("continue the supervisor")?;
        start.join().map_err(|_| Failure::new("docker run"))??;
        seen
    });
    fs::rename(&real, &hook).context(&real)?;
    host.engine.docker_text(&["rm", "-f", "held"])?;
    seen?.iter().try_for_each(|status| has_exactly("the hook", status, HOOKS))
}

/// What the kernel says of the hook's threads once it has given up what it does not need: it asks the supervisor then. Both
/// filters are installed by then, the last of all, one after the other.
fn waiting_hook(program: &str) -> Result<Vec<String>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let processes = fs::read_dir("/proc").context("/proc")?.flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_hook = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(program.as_bytes()))
                && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| has_both_filters(&status))
        };
        if let Some(pid) = pids.find(is_hook) {
            return statuses(pid);
        }
        ensure(Instant::now() < deadline, || {
            "no hook with both filters was seen waiting for the supervisor".to_owned()
        })?;
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_both_filters(status: &str) -> bool {
    // Older kernels do not tell their number.
    field(status, "Seccomp") == "2" && matches!(field(status, "Seccomp_filters"), "2" | "")
}

fn statuses(pid: u32) -> Result<Vec<String>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("threads")?.flatten();
    // Of one that has ended since there is none.
    let is_gone = |error: &std::io::Error| {
        error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
    };
    threads
        .map(|thread| thread.path().join("status"))
        .map(|path| (fs::read_to_string(&path), path))
        .filter(|(status, _)| !status.as_ref().is_err_and(is_gone))
        .map(|(status, path)| status.context(path.display()))
        .collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap_or_default()
}

/// Whether a thread has the capabilities `kept`, as far as this machine's root has them, and can gain none.
fn has_exactly(who: &str, status: &str, kept: u64) -> Result<()> {
    let own = fs::read_to_string("/proc/self/status").context("this process's status")?;
    let set = |status: &str, name: &str| u64::from_str_radix(field(status, name), 16).context(name);
    for (name, wanted) in [("CapPrm", kept), ("CapEff", kept), ("CapBnd", kept), ("CapInh", 0), ("CapAmb", 0)] {
        let (has, wanted) = (set(status, name)?, set(&own, name)? & wanted);
        ensure(has == wanted, || format!("{name} of a thread of {who} is {has:x} and should be {wanted:x}"))?;
    }
    ensure(field(status, "NoNewPrivs") == "1", || format!("{who} could gain privileges"))
}

fn has_no_network(pid: u32) -> Result<()> {
    let mut inodes = String::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        inodes += &fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).context("descriptors")?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            let is_network = inodes.split_whitespace().any(|word| word == inode);
            ensure(!is_network, || format!("the supervisor has the network socket {inode}"))?;
        }
    }
    Ok(())
}

fn modes() -> Result<()> {
    for (path, mode) in [("/run/gpool", 0o755), ("/run/gpool/gpool.sock", 0o666), ("/run/gpool/leases", 0o711)] {
        let is = fs::metadata(path).context(path)?.permissions().mode() & 0o7777;
        ensure(is == mode, || format!("the mode of {path} is {is:o}"))?;
    }
    Ok(())
}
