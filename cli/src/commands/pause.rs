//! `gpool pause ID...`, `gpool resume ID...` and `gpool evict ID...`

use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{Client, LeaseState, LeaseView, format_seconds, lease_path};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often it is looked whether suspended leases are back.
const LOOK: Duration = Duration::from_millis(200);

/// Pauses, resumes or evicts leases, as `verb` says, and prints the containers' ids. One that is refused does not keep the others
/// from it.
pub fn run(client: &Client, ids: &[String], verb: &str) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for id in ids {
        let asked =
            lease_path(id).and_then(|path| client.post::<Value, LeaseView>(&format!("{path}/{verb}"), &json!({})));
        match asked {
            Ok(lease) => output::print(&format!("{}\n", lease.container_id))?,
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)
}

/// Has these leases, or all that do not run, go on, and waits until they do, if that is wanted.
///
/// # Errors
/// One is refused, or is not back in time.
pub fn resume(client: &Client, ids: &[String], all: bool, timeout: Option<u64>) -> Result<(), Failure> {
    let ids = if all { standing(client)?.into_iter().map(|lease| lease.lease_id.0).collect() } else { ids.to_vec() };
    // Those that are refused do not keep the others from being waited for.
    let asked = run(client, &ids, "resume");
    let Some(seconds) = timeout else { return asked };
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let is_meant = |lease: &LeaseView| {
        ids.iter().any(|id| lease.lease_id.0.starts_with(id.as_str()) || lease.container_id.0.starts_with(id.as_str()))
    };
    loop {
        let left: Vec<LeaseView> = standing(client)?.into_iter().filter(is_meant).collect();
        if left.is_empty() || asked.is_err() && left.iter().all(|lease| lease.suspension.is_none()) {
            return asked;
        }
        if Instant::now() >= deadline {
            return Err(too_late(&left, seconds));
        }
        std::thread::sleep(LOOK);
    }
}

/// Those that are paused or suspended and could go on: no kept places, none that were not taken over, none whose GPUs were taken.
fn standing(client: &Client) -> Result<Vec<LeaseView>, Failure> {
    let leases: Vec<LeaseView> = client.get("/v1/leases")?;
    let stands = |lease: &LeaseView| lease.paused || lease.suspension.is_some();
    Ok(leases.into_iter().filter(|lease| lease.state == LeaseState::Active && stands(lease)).collect())
}

fn too_late(left: &[LeaseView], seconds: u64) -> Failure {
    let ids: Vec<&str> = left.iter().map(|lease| lease.container_id.short()).collect();
    let waited = format_seconds(seconds);
    let sentence =
        format!("gpool: after {waited} these are not back on their GPUs: {}; gpool explain says why", ids.join(", "));
    Failure::Refused(ExitStatus::NoCapacity, sentence)
}
