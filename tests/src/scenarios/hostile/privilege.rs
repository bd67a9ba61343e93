//! What the supervisor can do, as the kernel says it: of every thread of it.

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_SYS_NICE (linux/capability.h).
const KEPT: u64 = 1 << 1 | 1 << 5 | 1 << 19 | 1 << 21 | 1 << 23;

/// Capabilities, sockets and modes.
pub fn is_least(host: &Host) -> Result<()> {
    let pid = host.supervisor_pid().ok_or_else(|| Failure::new("no supervisor runs"))?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("threads")?.flatten();
    let mut count = 0;
    for thread in threads {
        let path = thread.path().join("status");
        let status = fs::read_to_string(&path).context(path.display())?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.unwrap_or_default().to_owned()
        };
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let has = u64::from_str_radix(&field(name), 16).context(name)?;
            ensure(has & !KEPT == 0, || format!("{name} of a thread of the supervisor is {has:x}"))?;
        }
        ensure(field("NoNewPrivs") == "1", || "the supervisor could gain privileges".to_owned())?;
        count += 1;
    }
    ensure(count >= 4, || format!("only {count} threads of the supervisor were seen"))?;
    has_no_network(pid)?;
    modes()
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
    for (path, mode) in [("/run/gpool", 0o755), ("/run/gpool/gpool.sock", 0o666), ("/run/gpool/leases", 0o700)] {
        let is = fs::metadata(path).context(path)?.permissions().mode() & 0o7777;
        ensure(is == mode, || format!("the mode of {path} is {is:o}"))?;
    }
    Ok(())
}
