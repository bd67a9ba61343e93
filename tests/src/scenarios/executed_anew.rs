//! A program that executes itself anew has the memory that it had before: what it held went with the program. And one that
//! was started with closed streams prints into no file of gpool's.

use super::{finish, wait_for};
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
    let outcome = one_after_the_other(&host).and_then(|()| closed_streams_stay_free(&host));
    finish(host, outcome)
}

fn one_after_the_other(host: &Host) -> Result<()> {
    fs::write(PLACE, PROGRAM).context(PLACE)?;
    let share = ["run", "--fraction", "0.5", "--memory", "1536MiB", "--"];
    let ran = host.gpool(&[&share[..], &["/usr/bin/python3", PLACE, "4", BYTES]].concat())?;
    let (said, wrong) = (text(&ran.stdout), text(&ran.stderr));
    ensure(ran.status.success() && said.contains("still itself"), || format!("it says {said} {wrong}"))
}

fn closed_streams_stay_free(host: &Host) -> Result<()> {
    let closed = ["sh", "-c", "exec gpool-tenant --kernel-us 500 <&- >&- 2>&-"];
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")];
    let container = host.run_container("closed-streams", &env, &[], &closed)?;
    wait_for("the program to use the GPU", || Ok(host.lease_of(&container)?.launches > 0))?;
    let pid = host.lease_of(&container)?.init_pid.map_or(0, |pid| pid.0);
    let opened = |number: &str| fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap_or_default();
    let mut reports = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).context(pid)? {
        let number = entry.context(pid)?.file_name().to_string_lossy().into_owned();
        if opened(&number).ends_with("report") {
            reports.push(number);
        }
    }
    let is_out_of_the_way = reports.len() == 1 && !["0", "1", "2"].contains(&reports[0].as_str());
    ensure(is_out_of_the_way, || format!("the report is open as {reports:?}"))
}
