//! Programs of other users than their container's, as many an image's.

use super::{ASKS, remove, sampler_rounds, wait_for};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::scenarios::mps_groups::process_of;
use gpool_protocol::EventKind;

/// The server that was started for root and has no clients makes room for one of the user who comes, which is nobody's loss.
pub fn of_one_container_are_served_in_turn(host: &Host) -> Result<()> {
    let idle = host.run_container("idle", &ASKS, &[], &["sleep", "1000"])?;
    wait_for("its server", || Ok(process_of("vision", "server").is_ok()))?;
    let server = process_of("vision", "server")?;
    // Its daemon has been asked for clients by then.
    let rounds = sampler_rounds(host)?;
    wait_for("a second", || Ok(sampler_rounds(host)? >= rounds + 2))?;
    let program = ["gpool-tenant", "--kernel-us", "1000", "--allocate-mib", "64", "--seconds", "2"];
    host.engine.docker_text(&[&["exec", "--user", "1000", "idle"], &program[..]].concat())?;
    wait_for("another server", || Ok(process_of("vision", "server").is_ok_and(|now| now != server)))?;
    let lease = host.lease_of(&idle)?;
    ensure(lease.fault.is_none() && lease.enforcement == "co-operative", || format!("its lease is {lease:?}"))?;
    let told = [host.events_of(EventKind::MpsServerDied)?, host.events_of(EventKind::Bypass)?].concat();
    ensure(told.is_empty(), || format!("it is told as {told:#?}"))?;
    remove(host, &["idle"])
}
