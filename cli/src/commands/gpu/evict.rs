//! `gpool gpu drain --evict`: whoever is left on a drained GPU loses it.

use super::drain::{AWAY, NOBODY, left_after};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{Client, DrainedGpu, ErrorBody, GpuView, LeaseId, LeaseState, LeaseView, lease_path};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A container that is being made is taken them from when it runs, and one that was told may take a while to end: so many times, a
/// second apart, it is looked again whether somebody is left.
const LOOKS: u32 = 30;

/// Takes GPUs from all containers that have them, prints their ids, and waits until no lease is left.
///
/// # Errors
/// Some are left, each with the reason if it was refused; or nobody answers.
pub fn evict(client: &Client, drained: &[DrainedGpu]) -> Result<(), Failure> {
    let mut asked: BTreeMap<LeaseId, Option<ErrorBody>> = BTreeMap::new();
    let mut left = Vec::new();
    for _ in 0..LOOKS {
        // While the supervisor is restarted nobody is told, and the next look waits for it.
        let leases: Vec<LeaseView> = client.get("/v1/leases").unwrap_or_default();
        let gpus: Vec<GpuView> = client.get("/v1/gpus").unwrap_or_default();
        asked.retain(|id, _| leases.iter().any(|lease| lease.lease_id == *id));
        for lease in leases.iter().filter(|lease| has_one_of(lease, &gpus, drained)) {
            if !matches!(asked.get(&lease.lease_id), Some(None)) {
                asked.insert(lease.lease_id.clone(), take_from(client, lease)?);
            }
        }
        left = left_after(client, drained, 1, AWAY)?;
        if left.is_empty() {
            return output::print(NOBODY);
        }
    }
    let refused = asked.into_values().flatten().map(|refusal| refusal.to_string());
    let last = format!("gpool: {}; gpool ps lists them", left.join(", "));
    let lines: Vec<String> = refused.chain([last]).collect();
    Err(Failure::Refused(ExitStatus::Failed, lines.join("\n")))
}

/// Whether its container has one of these GPUs, or an instance of one, and can lose it. What is not drained now is not meant: numbers
/// may have changed since.
fn has_one_of(lease: &LeaseView, gpus: &[GpuView], drained: &[DrainedGpu]) -> bool {
    let is_asked = |gpu: &GpuView| drained.iter().any(|its| its.uuid == gpu.uuid) && gpu.drained.is_some();
    let boards: Vec<u32> = gpus.iter().filter(|gpu| is_asked(gpu)).map(|gpu| gpu.index).collect();
    // An instance has the index of its board.
    let is_meant = |gpu: &GpuView| boards.contains(&gpu.index);
    let has = |gpu: &GpuView| lease.gpu_uuid == gpu.uuid || lease.gpus.iter().any(|its| its.gpu_uuid == gpu.uuid);
    let can_lose = matches!(lease.state, LeaseState::Active | LeaseState::Ending);
    can_lose && gpus.iter().any(|gpu| is_meant(gpu) && has(gpu))
}

/// Why it was refused, if it was.
fn take_from(client: &Client, lease: &LeaseView) -> Result<Option<ErrorBody>, Failure> {
    let path = lease_path(&lease.lease_id.0).map(|path| format!("{path}/evict"));
    match path.and_then(|path| client.post::<Value, LeaseView>(&path, &json!({}))) {
        Ok(lease) => output::print(&format!("{}\n", lease.container_id)).map(|()| None),
        Err(refusal) => Ok(Some(refusal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, uuid: &str, is_drained: bool) -> GpuView {
        let mut text = json!({
            "index": index, "uuid": uuid, "name": "H200", "driver_version": "1", "memory_total_bytes": 1, "memory_used_bytes": 0,
            "memory_leased_bytes": 0, "fraction_leased_permille": 0, "leases": 1
        });
        if is_drained {
            text["drained"] = json!({"since_unix_ms": 1, "uid": 0, "reason": ""});
        }
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn only_who_has_a_gpu_that_is_drained_now_is_meant() {
        let drained: Vec<DrainedGpu> = serde_json::from_value(
            json!([{"uuid": "GPU-3", "index": 3, "since_unix_ms": 1, "reason": "", "leases": 1}]),
        )
        .unwrap();
        let lease = crate::table::sample("c", 300);
        let on = |uuid: &str, gpus: &[GpuView]| {
            let mut lease = lease.clone();
            lease.gpu_uuid.0 = uuid.to_owned();
            has_one_of(&lease, gpus, &drained)
        };
        let there = [gpu(3, "GPU-3", true), gpu(3, "MIG-1", false), gpu(4, "GPU-4", true)];
        assert_eq!([on("GPU-3", &there), on("MIG-1", &there), on("GPU-4", &there)], [true, true, false]);
        assert!(!on("GPU-4", &[gpu(3, "GPU-4", false)]), "the number is another one's by now");
        assert!(!on("GPU-3", &[gpu(3, "GPU-3", false)]), "somebody else has opened it");
    }
}
