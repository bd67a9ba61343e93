//! The timer that tests GPUs: one that nobody has unless he enables it.

use crate::booted::Booted;
use crate::failure::{Result, ensure};

const TIMER: &str = "gpool-gpu-test.timer";
const SERVICE: &str = "gpool-gpu-test.service";
/// As an administrator says what is to be tested: kernels are executed on a processor here, so it is little.
const LITTLE: &str =
    "[Service]\nExecStart=\nExecStart=/usr/bin/gpool gpu test --all --due 7d --seconds 1 --memory 8MiB\n";

/// Enables it on a host without leases, and has its service test the GPU, which is confined.
pub fn enabled(booted: &Booted) -> Result<()> {
    let state = booted.sh(&format!("systemctl is-enabled {TIMER} || true"))?;
    ensure(state == "disabled", || format!("the package leaves {TIMER} {state}"))?;
    let directory = format!("/etc/systemd/system/{SERVICE}.d");
    booted.sh(&format!("mkdir {directory} && printf '{}' > {directory}/little.conf", LITTLE.replace('\n', "\\n")))?;
    booted.sh(&format!("systemctl daemon-reload && systemctl enable --now {TIMER}"))?;
    booted.sh(&format!("systemctl list-timers --no-legend {TIMER} | grep -q {SERVICE}"))?;
    let untested = booted.sh("gpool gpu ls --format csv")?;
    ensure(untested.ends_with(",,"), || format!("a GPU that nobody has tested is {untested}"))?;
    booted.sh(&format!("systemctl start {SERVICE}"))?;
    let tested = booted.sh("gpool gpu ls --format csv")?;
    ensure(tested.ends_with(",passed"), || format!("the GPU is {tested}"))?;
    // It is not due again.
    booted.sh(&format!("systemctl start {SERVICE}"))?;
    let again = booted.sh("gpool gpu ls --format csv")?;
    // When it was and what was found; the memory of the test's own process is gone by the next look.
    let of_the_test = |row: &str| row.rsplitn(3, ',').take(2).map(str::to_owned).collect::<Vec<_>>();
    ensure(of_the_test(&again) == of_the_test(&tested), || format!("the GPU was {tested} and is {again}"))
}

/// After an upgrade it is enabled as it was.
pub fn is_kept(booted: &Booted) -> Result<()> {
    booted.sh(&format!("systemctl is-active {TIMER} && systemctl is-enabled {TIMER}")).map(drop)
}

/// With the package it goes.
pub fn is_gone(booted: &Booted) -> Result<()> {
    let gone = format!("! systemctl --quiet is-active {TIMER} && rm -r /etc/systemd/system/{SERVICE}.d");
    booted.sh(&gone).map(drop)
}
