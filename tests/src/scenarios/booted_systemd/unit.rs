//! The unit as systemd sees it.

use crate::booted::Booted;
use crate::failure::{Context, Result, ensure};

const UNIT: &str = "gpool-supervisor.service";
/// `systemd-analyze security`, in tenths.
const EXPOSURE: u32 = 40;
/// The five of docs/threat-model.md, as /proc shows them: DAC_OVERRIDE, KILL, SYS_PTRACE, SYS_ADMIN, SYS_NICE.
pub const CAPABILITIES: u64 = 1 << 1 | 1 << 5 | 1 << 19 | 1 << 21 | 1 << 23;

/// A property of the unit.
pub fn property(booted: &Booted, name: &str) -> Result<String> {
    booted.sh(&format!("systemctl show --value --property {name} {UNIT}"))
}

/// The process of a unit; 0 of one that does not run.
pub fn main_pid(booted: &Booted, unit: &str) -> Result<String> {
    booted.sh(&format!("systemctl show --value --property MainPID {unit}"))
}

/// Waits until the unit is active and has said so, as another process than `not`.
pub fn wait_until_ready(booted: &Booted, not: &str) -> Result<String> {
    booted.wait_until(&format!(
        "systemctl --quiet is-active {UNIT} && test \"$(systemctl show --value --property MainPID {UNIT})\" != {not}"
    ))?;
    property(booted, "MainPID")
}

/// Waits until systemd keeps so many descriptors for the unit: one for each container that runs.
pub fn keeps(booted: &Booted, count: usize) -> Result<()> {
    let kept = format!("systemctl show --value --property NFileDescriptorStore {UNIT}");
    booted.wait_until(&format!("test \"$({kept})\" = {count}")).context(format!("systemd keeps {:?}", booted.sh(&kept)))
}

/// The unit is what it promises to be: notified, watched, confined, and in the host's mount namespace.
pub fn is_as_promised(booted: &Booted) -> Result<()> {
    for unit in [UNIT, "gpool-supervisor.socket"] {
        booted.sh(&format!("systemctl is-active {unit} && systemctl is-enabled {unit}"))?;
    }
    let status = property(booted, "StatusText")?;
    ensure(status == "1 GPU(s), 0 lease(s)", || format!("systemctl status says {status:?}"))?;
    ensure(property(booted, "Type")? == "notify", || "the unit is of another type".to_owned())?;
    let bound = booted.sh("systemctl show --value --property TimeoutStartUSec gpool-devices.service")?;
    ensure(bound == "20s", || format!("a driver that hangs holds the supervisor's start up for {bound}"))?;
    let pid = property(booted, "MainPID")?;
    let namespaces = booted.sh(&format!("readlink /proc/1/ns/mnt /proc/{pid}/ns/mnt | sort -u | wc -l"))?;
    ensure(namespaces == "1", || "regions would be mounted where no engine sees them".to_owned())?;
    is_bounded_to(booted, &pid, CAPABILITIES)?;
    can_be_reloaded(booted)?;
    // Under another name, so that what is asked about is not what the simulated GPU makes of it.
    booted.sh(&format!(
        "cp /usr/lib/systemd/system/{UNIT} /tmp/as-shipped.service && \
         systemd-analyze security --offline=true --threshold={EXPOSURE} /tmp/as-shipped.service"
    ))?;
    let said = booted
        .sh("cd /usr/lib/systemd/system && systemd-analyze verify --man=no gpool-*.service gpool-*.socket 2>&1")?;
    ensure(said.is_empty(), || format!("systemd-analyze verify says {said}"))
}

/// `systemctl reload` takes changed files over, and tells what is wrong with one.
fn can_be_reloaded(booted: &Booted) -> Result<()> {
    const DROP_IN: &str = "/etc/gpool/conf.d/90-reload.toml";
    let reload = |text: &str| {
        booted.sh(&format!("mkdir -p /etc/gpool/conf.d && printf '{text}' > {DROP_IN} && systemctl reload {UNIT}"))
    };
    reload("[lease]\\nhold_ms = 11000\\n")?;
    let has_it = "gpool config diff | grep -q hold_ms && gpool events | grep -q configuration-reloaded";
    booted.sh(has_it)?;
    ensure(reload("[lease]\\nhold_ms = x\\n").is_err(), || "a broken file was taken over".to_owned())?;
    booted
        .sh(&format!("journalctl -u {UNIT} | grep -q 90-reload.toml && rm {DROP_IN} && systemctl reload {UNIT}"))
        .map(drop)
}

/// The process can never have other capabilities than these.
pub fn is_bounded_to(booted: &Booted, pid: &str, capabilities: u64) -> Result<()> {
    let bounding = booted.sh(&format!("sed -n 's/^CapBnd:[[:space:]]*//p' /proc/{pid}/status"))?;
    let left = u64::from_str_radix(&bounding, 16).unwrap_or(u64::MAX);
    ensure(left == capabilities, || format!("process {pid} may have the capabilities {bounding}"))
}
