//! A program that executes itself anew has the memory that it had before: what it held went with the program.

use super::finish;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, text};
use crate::namespaces::Inside;
use std::fs;

const PROGRAM: &str = include_str!("../../programs/executes_anew.py");
const PLACE: &str = "/run/executes_anew.py";
/// More than half of what it may have, with a context.
const BYTES: &str = "805306368";

/// Five programs, one after the other in one process.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = one_after_the_other(&host);
    finish(host, outcome)
}

fn one_after_the_other(host: &Host) -> Result<()> {
    fs::write(PLACE, PROGRAM).context(PLACE)?;
    let share = ["run", "--fraction", "0.5", "--memory", "1536MiB", "--"];
    let ran = host.gpool(&[&share[..], &["/usr/bin/python3", PLACE, "4", BYTES]].concat())?;
    let (said, wrong) = (text(&ran.stdout), text(&ran.stderr));
    ensure(ran.status.success() && said.contains("still itself"), || format!("it says {said} {wrong}"))
}
