//! `gpool gpu drain --evict`: whoever is left on a drained GPU loses it.

use super::drain::{AWAY, NOBODY, left_after};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use crate::table::state_name;
use gpool_protocol::{Client, DrainedGpu, ErrorBody, GpuView, LeaseId, LeaseState, LeaseView, lease_path};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A container that is being made is taken them from when it runs, and one that was told may take a while to end: so many times, a
/// second apart, it is looked again whether somebody is left.
const LOOKS: u32 = 30;
/// One that has not come to its start by then may never: its engine may wait for minutes, and its lease is ended as by `gpool evict`.
const LOOKS_TO_START: u32 = 2;

/// Takes GPUs from all containers that have them, prints their ids, and waits until no lease is left.
///
/// # Errors
/// Some are left, each with the reason if it was refused; or nobody answers.
pub fn evict(client: &Client, drained: &[DrainedGpu]) -> Result<(), Failure> {
    let mut asked: BTreeMap<LeaseId, Option<ErrorBody>> = BTreeMap::new();
    let mut left = Vec::new();
    for look in 0..LOOKS {
        let leases = there(client, drained);
        asked.retain(|id, _| leases.iter().any(|lease| lease.lease_id == *id));
        for lease in leases.iter().filter(|lease| can_lose(lease.state, look)) {
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
    let last = format!("gpool: {}{}; gpool ps lists them", left.join(", "), named(&there(client, drained)));
    let lines: Vec<String> = refused.chain([last]).collect();
    Err(Failure::Refused(ExitStatus::Failed, lines.join("\n")))
}

/// The leases on these GPUs. While the supervisor is restarted there are none, and the next look waits for it.
fn there(client: &Client, drained: &[DrainedGpu]) -> Vec<LeaseView> {
    let leases: Vec<LeaseView> = client.get("/v1/leases").unwrap_or_default();
    let gpus: Vec<GpuView> = client.get("/v1/gpus").unwrap_or_default();
    leases.into_iter().filter(|lease| has_one_of(lease, &gpus, drained)).collect()
}

/// Whether it can lose its GPUs at this look.
fn can_lose(state: LeaseState, look: u32) -> bool {
    match state {
        LeaseState::Active | LeaseState::Ending => true,
        LeaseState::Pending => look >= LOOKS_TO_START,
        LeaseState::Revoked | LeaseState::Held | LeaseState::Stranded => false,
    }
}

/// Who is left, each with its state, as the end of a sentence.
fn named(left: &[LeaseView]) -> String {
    let all: Vec<String> =
        left.iter().map(|its| format!("{} ({})", its.container_id.short(), state_name(its.state))).collect();
    if all.is_empty() { String::new() } else { format!("; left are {}", all.join(", ")) }
}

/// Whether its container has one of these GPUs, or an instance of one. What is not drained now is not meant: numbers
/// may have changed since.
fn has_one_of(lease: &LeaseView, gpus: &[GpuView], drained: &[DrainedGpu]) -> bool {
    let is_asked = |gpu: &GpuView| drained.iter().any(|its| its.uuid == gpu.uuid) && gpu.drained.is_some();
    let boards: Vec<u32> = gpus.iter().filter(|gpu| is_asked(gpu)).map(|gpu| gpu.index).collect();
    // An instance has the index of its board.
    let is_meant = |gpu: &GpuView| boards.contains(&gpu.index);
    let has = |gpu: &GpuView| lease.gpu_uuid == gpu.uuid || lease.gpus.iter().any(|its| its.gpu_uuid == gpu.uuid);
    gpus.iter().any(|gpu| is_meant(gpu) && has(gpu))
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
    fn a_container_that_does_not_come_to_its_start_loses_its_lease() {
        let at =
            |look| [LeaseState::Active, LeaseState::Ending, LeaseState::Pending].map(|state| can_lose(state, look));
        assert_eq!([at(0), at(1), at(2)], [[true, true, false], [true, true, false], [true; 3]]);
        assert!(
            ![LeaseState::Revoked, LeaseState::Held, LeaseState::Stranded].into_iter().any(|its| can_lose(its, 29))
        );
        let mut left = [crate::table::sample("a", 300), crate::table::sample("b", 300)];
        left[1].state = LeaseState::Pending;
        assert_eq!(
            (named(&left), named(&[])),
            ("; left are aaaaaaaaaaaa (active), bbbbbbbbbbbb (pending)".to_owned(), String::new())
        );
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
