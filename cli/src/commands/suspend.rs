//! `gpool suspend ID...`

use crate::exit::Failure;
use crate::output;
use gpool_protocol::{
    Client, ContainerId, ErrorBody, ErrorCode, Event, EventKind, LeaseId, LeaseState, LeaseView, SuspensionStage,
    lease_path,
};
use serde_json::{Value, json};
use std::time::Duration;

/// It is looked so often whether it is done.
const PERIOD: Duration = Duration::from_millis(100);

/// Suspends leases one after the other and prints the containers' ids, each when it is done, or at once if nobody waits for that. One
/// that is refused does not keep the others from it.
pub fn run(client: &Client, ids: &[String], no_wait: bool) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for id in ids {
        match suspend(client, id, no_wait) {
            Ok(container) => output::print(&format!("{container}\n"))?,
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)
}

fn suspend(client: &Client, id: &str, no_wait: bool) -> Result<ContainerId, ErrorBody> {
    let path = lease_path(id)?;
    let mut lease = client.post::<Value, LeaseView>(&format!("{path}/suspend"), &json!({}))?;
    let whole = lease_path(&lease.lease_id.0)?;
    let is_under_way = |lease: &LeaseView| {
        let suspension = lease.suspension.as_ref().filter(|_| lease.state == LeaseState::Active);
        suspension.is_some_and(|its| its.stage == SuspensionStage::Suspending)
    };
    while !no_wait && is_under_way(&lease) {
        std::thread::sleep(PERIOD);
        lease = client.get::<LeaseView>(&whole)?;
    }
    let stage = lease.suspension.as_ref().map(|its| its.stage);
    if stage == Some(SuspensionStage::Suspended) || no_wait && stage == Some(SuspensionStage::Suspending) {
        return Ok(lease.container_id);
    }
    // It could not be, or has come back already because its programs wanted the GPU.
    let short = lease.container_id.short();
    let conflict = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy));
    match last_told(client, &lease.lease_id)? {
        Some(told) if told.contains("could not be suspended") => {
            conflict(told, "gpool evict takes the GPUs from any container")
        }
        _ => conflict(
            format!("container {short} was suspended and has come back: its programs want the GPU, and there is room"),
            "gpool pause it first, and it stays away until gpool resume",
        ),
    }
}

/// What was told last of its way out and back.
fn last_told(client: &Client, lease: &LeaseId) -> Result<Option<String>, ErrorBody> {
    let mut last = None;
    client.stream("/v1/events?after=0", |line| {
        let event = serde_json::from_str::<Event>(line).ok().filter(|event| event.lease_id.as_ref() == Some(lease));
        let is_of_it = |event: &Event| matches!(event.kind, EventKind::LeaseSuspended | EventKind::LeaseWoken);
        if let Some(event) = event.filter(is_of_it) {
            last = Some(event.message);
        }
        true
    })?;
    Ok(last)
}
