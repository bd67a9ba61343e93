//! `gpool gpu drain --evict`: whoever is left on a drained GPU loses it.

use super::drain::{NOBODY, left_after};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{Client, DrainedGpu, ErrorBody, GpuView, LeaseId, LeaseState, LeaseView, lease_path};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A container that is being made is taken them from when it runs, and one that was told may take a while to end: for so long, about,
/// it is looked again whether somebody is left.
const PATIENCE_SECONDS: u64 = 30;

/// Takes GPUs from all containers that have them, prints their ids, and waits until no lease is left.
///
/// # Errors
/// Some are left, each with the reason if it was refused.
pub fn evict(client: &Client, drained: &[DrainedGpu]) -> Result<(), Failure> {
    let mut asked: BTreeMap<LeaseId, Option<ErrorBody>> = BTreeMap::new();
    let mut left = Vec::new();
    for _ in 0..PATIENCE_SECONDS {
        let (leases, gpus): (Vec<LeaseView>, Vec<GpuView>) = (client.get("/v1/leases")?, client.get("/v1/gpus")?);
        for lease in leases.iter().filter(|lease| has_one_of(lease, &gpus, drained)) {
            if !matches!(asked.get(&lease.lease_id), Some(None)) {
                asked.insert(lease.lease_id.clone(), take_from(client, lease)?);
            }
        }
        left = left_after(client, drained, 1)?;
        if left.is_empty() {
            return output::print(NOBODY);
        }
    }
    let refused = asked.into_values().flatten().map(|refusal| refusal.to_string());
    let last = format!("gpool: {}; gpool ps lists them", left.join(", "));
    let lines: Vec<String> = refused.chain([last]).collect();
    Err(Failure::Refused(ExitStatus::Failed, lines.join("\n")))
}

/// Whether its container has one of these GPUs, or an instance of one, and can lose it.
fn has_one_of(lease: &LeaseView, gpus: &[GpuView], drained: &[DrainedGpu]) -> bool {
    // An instance has the index of its board.
    let is_of = |gpu: &GpuView, its: &DrainedGpu| gpu.uuid == its.uuid || Some(gpu.index) == its.index;
    let meant = gpus.iter().filter(|gpu| drained.iter().any(|its| is_of(gpu, its)));
    let has = |gpu: &GpuView| lease.gpus.iter().any(|its| its.gpu_uuid == gpu.uuid);
    matches!(lease.state, LeaseState::Active | LeaseState::Ending) && meant.into_iter().any(has)
}

/// Why it was refused, if it was.
fn take_from(client: &Client, lease: &LeaseView) -> Result<Option<ErrorBody>, Failure> {
    let path = lease_path(&lease.lease_id.0).map(|path| format!("{path}/evict"));
    match path.and_then(|path| client.post::<Value, LeaseView>(&path, &json!({}))) {
        Ok(lease) => output::print(&format!("{}\n", lease.container_id)).map(|()| None),
        Err(refusal) => Ok(Some(refusal)),
    }
}
