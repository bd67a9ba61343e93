//! `gpool suspend ID...`

use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, ContainerId, ErrorBody, ErrorCode, LeaseView, SuspensionStage, lease_path};
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
    while !no_wait && lease.suspension.as_ref().is_some_and(|its| its.stage == SuspensionStage::Suspending) {
        std::thread::sleep(PERIOD);
        lease = client.get::<LeaseView>(&whole)?;
    }
    if lease.suspension.is_some() {
        return Ok(lease.container_id);
    }
    // It goes on as before, or has come back already because its programs wanted the GPU.
    Err(ErrorBody::new(
        ErrorCode::LeaseConflict,
        format!("container {} is not suspended", lease.container_id.short()),
        "gpool events says why: it could not be, or its programs have wanted the GPU at once",
    ))
}
