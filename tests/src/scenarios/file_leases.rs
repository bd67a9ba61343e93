//! A container that leases the files of its region while there is no supervisor delays nobody's restart but its own.

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{LeaseState, LeaseView};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const PROGRAM: &str = include_str!("../../programs/leases_files.py");
const PLACE: &str = "/run/leases_files.py";

/// The supervisor is killed and started again.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = start_beside_leases(&mut host);
    finish(host, outcome)
}

fn start_beside_leases(host: &mut Host) -> Result<()> {
    fs::write(PLACE, PROGRAM).context(PLACE)?;
    let share = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "1GiB")];
    let neighbour = host.run_container("neighbour", &share, &[], &["sleep", "600"])?;
    let mut command = host.command_named(host.stage.program("gpool"));
    command.args(["run", "--fraction", "0.3", "--memory", "1GiB", "--", "/usr/bin/python3", PLACE]);
    let mut holder = spawn_bound(command.stdin(Stdio::null()).stdout(Stdio::piped())).context("gpool run")?;
    let outcome = (|| {
        let said = holder.stdout.take().ok_or_else(|| Failure::new("its output is not to be had"))?;
        let mut lines = BufReader::new(said).lines();
        let mut says = |want: &str| match lines.next() {
            Some(Ok(line)) if line == want => Ok(()),
            other => Err(Failure::new(format!("it says {other:?} in place of {want}"))),
        };
        says("waiting")?;
        host.kill_supervisor()?;
        says("leased")?;
        // Which the kernel would break after 45 s for each file; a start that takes so long is given up.
        host.start_supervisor()?;
        let there = host.leases()?;
        let is_served = |lease: &&LeaseView| lease.state != LeaseState::Stranded;
        let served: Vec<&LeaseView> = there.iter().filter(is_served).collect();
        let is_neighbours = served.iter().all(|lease| lease.container_id.0 == neighbour.id);
        ensure(there.len() == 2 && served.len() == 1 && is_neighbours, || {
            format!("not the neighbour's lease is served and the other one stranded: {there:?}")
        })
    })();
    let _ = holder.kill();
    let _ = holder.wait();
    outcome
}
