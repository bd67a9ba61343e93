//! What happens while no supervisor is there: a tenant dies, and another process gets the pid of its init.

use super::unit;
use crate::booted::{Booted, Share, Tenants};
use crate::failure::{Context, Result, ensure};

const PASSING: Share = ("passing", "0.1", 100);
/// The kernel gives out the pid behind the one that is written there; another process may be quicker.
const TAKE_PID: &str = "for attempt in $(seq 600); do \
        [ $((attempt % 20)) != 0 ] || sleep 0.2; \
        echo $(($0 - 1)) > /proc/sys/kernel/ns_last_pid; sleep 1000 < /dev/null > /dev/null 2>&1 & \
        if [ $! = $0 ]; then exit 0; fi; kill $!; \
    done; exit 1";
/// The next supervisor starts when this file is gone. It does not survive a boot.
const HOLD: &str = "/run/hold-gpool-supervisor";
const DROP_IN: &str = "/run/systemd/system/gpool-supervisor.service.d/hold.conf";
/// Gives the init in a lease's record the start time of the process that has its pid now, as two processes have it that
/// were started within 10 ms. Field 22 of /proc/PID/stat; a container's init and `sleep` have no space in their names.
const IMPERSONATE: &str = r#"set -e
    ticks=$(cut -d ' ' -f 22 /proc/$0/stat)
    record=$(grep -l "\"init\":{\"pid\":$0," /run/gpool/leases/*/lease.json)
    sed -i "s/\"init\":{\"pid\":$0,\"start_ticks\":[0-9]*}/\"init\":{\"pid\":$0,\"start_ticks\":$ticks}/" $record
    grep -q "\"init\":{\"pid\":$0,\"start_ticks\":$ticks}" $record"#;

/// The lease of the dead is over at the next start, and nothing is done to who has its pid. systemd gives up what it keeps
/// for a service that is stopped, so pid and start time have to tell; what runs is kept again.
pub fn a_tenant_dies(booted: &Booted, tenants: &mut Tenants<'_>) -> Result<()> {
    let leases = tenants.leases()?;
    let pid = passing(booted, tenants)?;
    let before = unit::property(booted, "MainPID")?;
    // Its socket, too, or whoever asks meanwhile, as the device plugin and the overflow watch do, starts it again.
    booted.sh("systemctl stop gpool-supervisor.service gpool-supervisor.socket")?;
    unit::keeps(booted, 0)?;
    dies_and_its_pid_is_taken(booted, &pid)?;
    booted.sh("systemctl start gpool-supervisor.service")?;
    unit::wait_until_ready(booted, &before)?;
    only_the_dead_is_gone(booted, tenants, &leases, &pid)
}

/// The same after kill -9, where the other process has the start time of the init, too: the pidfd that systemd keeps tells
/// them apart.
pub fn a_tenant_dies_and_is_impersonated(booted: &Booted, tenants: &mut Tenants<'_>) -> Result<()> {
    let leases = tenants.leases()?;
    let pid = passing(booted, tenants)?;
    let before = unit::property(booted, "MainPID")?;
    let line = format!("ExecStartPre=/bin/sh -c \"while [ -e {HOLD} ]; do sleep 0.1; done\"");
    booted.sh(&format!(
        "mkdir -p $(dirname {DROP_IN}) && printf '[Service]\\nTimeoutStartSec=300\\n%s\\n' '{line}' > {DROP_IN} && \
         systemctl daemon-reload && touch {HOLD} && kill -9 {before}"
    ))?;
    booted.wait_until("test $(systemctl show --value --property SubState gpool-supervisor) = start-pre")?;
    unit::keeps(booted, leases.len() + 1).context("while no supervisor is there")?;
    dies_and_its_pid_is_taken(booted, &pid)?;
    // Were the descriptor given up with the process, the record alone would speak.
    unit::keeps(booted, leases.len() + 1).context("after a container died")?;
    let forged = booted.run(&["sh", "-c", IMPERSONATE, &pid])?;
    ensure(forged.status.success(), || {
        format!("the record was not forged: {}", crate::host::text(&[forged.stdout, forged.stderr].concat()))
    })?;
    booted.sh(&format!("rm {HOLD}"))?;
    unit::wait_until_ready(booted, &before)?;
    only_the_dead_is_gone(booted, tenants, &leases, &pid)?;
    booted.sh(&format!("rm -r $(dirname {DROP_IN}) && systemctl daemon-reload")).map(drop)
}

/// Starts a container that is about to die; the pid of its init.
fn passing(booted: &Booted, tenants: &mut Tenants<'_>) -> Result<String> {
    tenants.add(PASSING)?;
    unit::keeps(booted, tenants.leases()?.len())?;
    booted.sh(&format!("docker inspect -f '{{{{.State.Pid}}}}' {}", PASSING.0))
}

fn dies_and_its_pid_is_taken(booted: &Booted, pid: &str) -> Result<()> {
    booted.sh(&format!("docker kill {} && while [ -e /proc/{pid} ]; do sleep 0.05; done", PASSING.0))?;
    let taken = booted.run(&["sh", "-c", TAKE_PID, pid])?;
    ensure(taken.status.success(), || format!("no process could be given the pid {pid}"))
}

fn only_the_dead_is_gone(booted: &Booted, tenants: &mut Tenants<'_>, leases: &[String], pid: &str) -> Result<()> {
    tenants.stop(PASSING.0)?;
    tenants.go_on(Some(leases)).context("after a container died without a supervisor")?;
    unit::keeps(booted, leases.len())?;
    let name = booted.sh(&format!("cat /proc/{pid}/comm && kill {pid}"))?;
    ensure(name == "sleep", || format!("process {pid} is {name}: not the one that was given the pid"))
}
