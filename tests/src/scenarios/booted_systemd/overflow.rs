//! The unit that tells a program when the host is short of room: one that nobody has unless he enables it, and that is nobody.

use crate::booted::Booted;
use crate::failure::{Context, Result, ensure};

const SERVICE: &str = "gpool-overflow.service";
/// Where the supervisor of a simulated GPU has its configuration.
const PLACE: &str = "/usr/share/gpool-simulated-gpu/conf.d";
const SHORT: &str = "[overflow]\\nafter_seconds = 1\\nclear_seconds = 1\\n";
const PROGRAM: &str = "#!/bin/sh\\necho \"$1 $(id -u)\" >> \"$STATE_DIRECTORY/heard\"\\n";
const HEARD: &str = "/var/lib/private/gpool-overflow/heard";

/// Enables it on a host without leases, and has a command wait for another one's end.
pub fn enabled(booted: &Booted) -> Result<()> {
    let state = booted.sh(&format!("systemctl is-enabled {SERVICE} || true"))?;
    ensure(state == "disabled", || format!("the package leaves {SERVICE} {state}"))?;
    booted.sh(&format!("mkdir {PLACE} && printf '{SHORT}' > {PLACE}/overflow.toml"))?;
    booted.sh(&format!("printf '{PROGRAM}' > /etc/gpool/overflow && chmod 755 /etc/gpool/overflow"))?;
    booted.sh(&format!("gpool config reload && systemctl enable --now {SERVICE}"))?;
    booted.sh("systemd-run --quiet --unit holder gpool run --fraction 1 -- sleep 6")?;
    booted.wait_until("gpool ps | grep -q '100 %'").context("a command that has all of the GPU")?;
    booted.sh("systemd-run --quiet --wait --unit waiter gpool run --fraction 0.5 --wait 1m -- true")?;
    booted.wait_until(&format!("grep -q ended {HEARD}")).context("the program to be told that it is over")?;
    let heard = booted.sh(&format!("cat {HEARD}"))?;
    let words: Vec<&str> = heard.split_whitespace().collect();
    let is_as_promised = matches!(words[..], ["began", first, "ended", second] if first == second && first != "0");
    ensure(is_as_promised, || format!("the program was told {heard}"))?;
    booted.sh(&format!("rm -r {PLACE} && gpool config reload")).map(drop)
}

/// After an upgrade it is enabled as it was.
pub fn is_kept(booted: &Booted) -> Result<()> {
    booted.sh(&format!("systemctl is-active {SERVICE} && systemctl is-enabled {SERVICE}")).map(drop)
}

/// With the package it goes.
pub fn is_gone(booted: &Booted) -> Result<()> {
    booted.sh(&format!("! systemctl --quiet is-active {SERVICE}")).map(drop)
}
