//! The device plugin as a service: one that nobody has unless he enables it, and that is confined.

use super::unit::main_pid;
use crate::booted::Booted;
use crate::failure::{Result, ensure};

const UNIT: &str = "gpool-device-plugin.service";
const KUBELET: &str = "/var/lib/kubelet";
/// What listens in a kubelet's place, and answers nobody.
const STAND_IN: &str = "kubelet-stand-in";
/// `systemd-analyze security`, in tenths.
const EXPOSURE: u32 = 20;

/// Enables it on a host without leases. A kubelet that takes nobody is enough to see it make its socket.
pub fn enabled(booted: &Booted) -> Result<()> {
    let state = booted.sh(&format!("systemctl is-enabled {UNIT} || true"))?;
    ensure(state == "disabled", || format!("the package leaves {UNIT} {state}"))?;
    booted.sh(&format!("systemctl enable --now {UNIT}"))?;
    let status = format!("systemctl show --value --property StatusText {UNIT}");
    booted.wait_until(&format!("test \"$({status})\" = '100 of 100 gpool.io/percent'"))?;
    let plugins = format!("{KUBELET}/device-plugins");
    booted.sh(&format!(
        "mkdir -p {plugins} && systemd-run --quiet --unit={STAND_IN} \
         --socket-property=ListenStream={plugins}/kubelet.sock sleep infinity"
    ))?;
    booted.wait_until(&format!("test -S {plugins}/gpool-percent.sock"))?;
    let mode = booted.sh(&format!("stat -c %a {plugins}/gpool-percent.sock"))?;
    ensure(mode == "700", || format!("the plugin's socket has the mode {mode}"))?;
    booted
        .sh(&format!("systemd-analyze security --offline=true --threshold={EXPOSURE} /usr/lib/systemd/system/{UNIT}"))
        .map(drop)
}

/// After an upgrade it is the new program, enabled as it was.
pub fn is_renewed(booted: &Booted, before: &str) -> Result<()> {
    let now = main_pid(booted, UNIT)?;
    ensure(now != before && now != "0", || format!("{UNIT} was process {before} and is {now}"))?;
    booted.sh(&format!("systemctl is-active {UNIT} && systemctl is-enabled {UNIT}")).map(drop)
}

/// Its process.
pub fn pid(booted: &Booted) -> Result<String> {
    main_pid(booted, UNIT)
}

/// With the package it goes.
pub fn is_gone(booted: &Booted) -> Result<()> {
    booted.sh(&format!("systemctl stop {STAND_IN}.socket {STAND_IN}.service; ! systemctl --quiet is-active {UNIT} && rm -r {KUBELET}")).map(drop)
}
