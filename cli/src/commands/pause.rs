//! `gpool pause ID...`, `gpool resume ID...` and `gpool evict ID...`

use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{Client, ErrorBody, LeaseId, LeaseState, LeaseView, format_seconds, lease_path};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often it is looked whether suspended leases are back.
const LOOK: Duration = Duration::from_millis(200);

/// Pauses, resumes or evicts leases, as `verb` says, and prints the containers' ids. One that is refused does not keep the others
/// from it.
pub fn run(client: &Client, ids: &[String], verb: &str) -> Result<(), Failure> {
    ask(client, ids, verb).and_then(|(_, refused)| Failure::of_all(&refused))
}

/// Those that do as is asked, and why the others do not.
fn ask(client: &Client, ids: &[String], verb: &str) -> Result<(Vec<LeaseId>, Vec<ErrorBody>), Failure> {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for id in ids {
        let asked =
            lease_path(id).and_then(|path| client.post::<Value, LeaseView>(&format!("{path}/{verb}"), &json!({})));
        match asked {
            Ok(lease) => {
                output::print(&format!("{}\n", lease.container_id))?;
                done.push(lease.lease_id);
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    Ok((done, refused))
}

/// Has these leases, or all that do not run, go on, and waits until they do, if that is wanted.
///
/// # Errors
/// One is refused, which does not keep the others from being waited for, or is not back in time.
pub fn resume(client: &Client, ids: &[String], all: bool, timeout: Option<u64>) -> Result<(), Failure> {
    let ids = if all { standing(client)?.into_iter().map(|lease| lease.lease_id.0).collect() } else { ids.to_vec() };
    let (asked, refused) = ask(client, &ids, "resume")?;
    let seconds = timeout.unwrap_or(0);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while timeout.is_some() {
        let mut left = standing(client)?;
        left.retain(|lease| asked.contains(&lease.lease_id));
        if left.is_empty() {
            break;
        }
        if Instant::now() >= deadline {
            return Err(too_late(&left, seconds, &refused));
        }
        std::thread::sleep(LOOK);
    }
    Failure::of_all(&refused)
}

/// Those that are paused or suspended and could go on: no kept places, none that were not taken over, none whose GPUs were taken.
fn standing(client: &Client) -> Result<Vec<LeaseView>, Failure> {
    let leases: Vec<LeaseView> = client.get("/v1/leases")?;
    let stands = |lease: &LeaseView| lease.paused || lease.suspension.is_some();
    Ok(leases.into_iter().filter(|lease| lease.state == LeaseState::Active && stands(lease)).collect())
}

fn too_late(left: &[LeaseView], seconds: u64, refused: &[ErrorBody]) -> Failure {
    let ids: Vec<&str> = left.iter().map(|lease| lease.container_id.short()).collect();
    let waited = format_seconds(seconds);
    let late =
        format!("gpool: after {waited} these are not back on their GPUs: {}; gpool explain says why", ids.join(", "));
    let lines: Vec<String> = refused.iter().map(ToString::to_string).chain([late]).collect();
    Failure::Refused(ExitStatus::NoCapacity, lines.join("\n"))
}
