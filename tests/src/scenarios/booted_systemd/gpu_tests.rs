//! The timer that tests GPUs: one that nobody has unless he enables it.

use crate::booted::Booted;
use crate::failure::{Failure, Result, ensure};

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
    let untested = last_test(booted)?;
    ensure(untested == ["", ""], || format!("of a GPU that nobody has tested is said {untested:?}"))?;
    booted.sh(&format!("systemctl start {SERVICE}"))?;
    let tested = last_test(booted)?;
    ensure(tested[1] == "passed", || format!("the test is {tested:?}"))?;
    // It is not due again.
    booted.sh(&format!("systemctl start {SERVICE}"))?;
    let again = last_test(booted)?;
    ensure(again == tested, || format!("the test was {tested:?} and is {again:?}"))
}

/// When the GPU was tested last, and what was found.
fn last_test(booted: &Booted) -> Result<[String; 2]> {
    let listed = booted.sh("gpool gpu ls --format csv")?;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split(',').collect()).collect();
    let cell = |column: &str| {
        let place = rows.first()?.iter().position(|name| *name == column)?;
        rows.get(1)?.get(place).map(|cell| (*cell).to_owned())
    };
    let found = cell("tested_unix_ms").zip(cell("test_outcome"));
    found.map(|(at, outcome)| [at, outcome]).ok_or_else(|| Failure::new(format!("gpool gpu ls says {listed}")))
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
