//! More processes than a lease has places: the others are refused by the driver's own error, see the lease and not the
//! device, and have a place as soon as one ends.

use super::{finish, start_knowing_contexts, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::Inside;
use gpool_driver_abi::cuda::{CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS};
use gpool_protocol::EventKind;
use gpool_shared_region::SLOTS;
use serde_json::Value;

const CAP_BYTES: u64 = 22 << 30;
/// More than there is room for.
const MORE: usize = 3;

/// Fills a lease.
pub fn run(inside: &Inside) -> Result<()> {
    // As many contexts as there are places have to fit.
    let host = start_knowing_contexts(inside)?;
    let outcome = fill(&host);
    finish(host, outcome)
}

fn fill(host: &Host) -> Result<()> {
    let count = SLOTS + MORE;
    let script = format!("for turn in $(seq {count}); do gpool-tenant --take-place & done; sleep 1000");
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "22GiB")];
    let crowd = host.run_container("crowd", &env, &[], &["sh", "-c", &script])?;
    let said = places(host, &crowd, count)?;
    let with = |answer: i32| said.iter().filter(|one| one["context"] == answer).count();
    let (made, refused) = (with(CUDA_SUCCESS), with(CUDA_ERROR_NOT_INITIALIZED));
    ensure((made, refused) == (SLOTS, MORE), || format!("{made} made a context, {refused} were refused: {said:?}"))?;
    ensure(said.iter().all(|one| one["total"] == CAP_BYTES), || format!("not all see the lease: {said:?}"))?;
    wait_for("the lease to know as many", || Ok(host.lease_of(&crowd)?.processes as usize == SLOTS))?;
    let told = || -> Result<usize> { Ok(host.events_of(EventKind::PlacesFull)?.len()) };
    wait_for("an event that says that the lease is full", || Ok(told()? > 0))?;

    // Those that were refused have ended, and nobody has asked for their status: they have no program any more.
    let kill = "for one in $(pidof gpool-tenant); do [ -e /proc/$one/exe ] && kill -9 $one && break; done";
    host.engine.docker_text(&["exec", "crowd", "sh", "-c", kill])?;
    wait_for("a free place", || Ok((host.lease_of(&crowd)?.processes as usize) < SLOTS))?;
    host.engine.docker_text(&["exec", "-d", "crowd", "sh", "-c", "gpool-tenant --take-place > /proc/1/fd/1"])?;
    let said = places(host, &crowd, count + 1)?;
    ensure(said[count]["context"] == CUDA_SUCCESS, || format!("the free place is not given: {:?}", said[count]))?;
    let full = told()?;
    ensure((1..=2).contains(&full), || format!("{full} events say that the lease was full, which it was twice"))
}

/// What the first `count` processes have said.
fn places(host: &Host, crowd: &Container, count: usize) -> Result<Vec<Value>> {
    let mut said = Vec::new();
    wait_for("a word of each process", || {
        let log = host.engine.docker_text(&["logs", &crowd.id])?;
        let lines = log.lines().filter(|line| line.contains("\"place\""));
        said = lines.map(|line| serde_json::from_str(line).context(line.to_owned())).collect::<Result<_>>()?;
        Ok(said.len() >= count)
    })?;
    Ok(said)
}
