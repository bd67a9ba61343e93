//! Leases for programs.

use super::{all_gpus, driver_limit_bytes, state_name};
use crate::output::csv;
use gpool_protocol::{LeaseFault, LeaseView};

/// The same figures for programs: permille, bytes and nanoseconds, ids in full.
pub fn render_csv(leases: &[LeaseView]) -> String {
    const HEADER: [&str; 33] = [
        "container_id",
        "lease_id",
        "gpu_uuid",
        "fraction_permille",
        "received_permille",
        "memory_used_bytes",
        "memory_cap_bytes",
        "allocations_refused",
        "gate_wait_ns",
        "charged_gpu_ns",
        "processes",
        "state",
        "enforcement",
        "gpu_uuids",
        "limit_permille",
        "class",
        "priority",
        "team",
        "paused",
        "uncounted_calls",
        "mechanism",
        "fault",
        "owner_uid",
        "memory_peak_bytes",
        "idle_seconds",
        "project",
        "cost_center",
        "run_left_seconds",
        "suspension",
        "memory_limit_bytes",
        "spill_bytes",
        "spilled_bytes",
        "allocations_spilled",
    ];
    csv(
        &HEADER,
        leases.iter().map(|lease| {
            vec![
                lease.container_id.to_string(),
                lease.lease_id.to_string(),
                lease.gpu_uuid.to_string(),
                lease.fraction_permille.to_string(),
                lease.received_permille.to_string(),
                lease.memory_used_bytes.to_string(),
                lease.memory_cap_bytes.to_string(),
                lease.allocations_refused.to_string(),
                lease.gate_wait_ns.to_string(),
                lease.charged_gpu_ns.to_string(),
                lease.processes.to_string(),
                state_name(lease.state).to_owned(),
                lease.enforcement.clone(),
                all_gpus(lease).collect::<Vec<_>>().join(" "),
                lease.limit_permille.map(|limit| limit.to_string()).unwrap_or_default(),
                lease.class.to_string(),
                lease.priority.to_string(),
                lease.team.clone().unwrap_or_default(),
                lease.paused.to_string(),
                lease.uncounted_calls.to_string(),
                lease.mechanism.to_string(),
                lease.fault.map_or("", LeaseFault::text).to_owned(),
                lease.owner_uid.to_string(),
                lease.memory_peak_bytes.to_string(),
                lease.idle_seconds.map(|seconds| seconds.to_string()).unwrap_or_default(),
                lease.project.clone().unwrap_or_default(),
                lease.cost_center.clone().unwrap_or_default(),
                lease.run_left_seconds.map(|seconds| seconds.to_string()).unwrap_or_default(),
                lease.suspension.as_ref().map_or("", |its| its.stage.text()).to_owned(),
                driver_limit_bytes(lease).map(|bytes| bytes.to_string()).unwrap_or_default(),
                lease.spill_bytes.to_string(),
                lease.spilled_bytes.to_string(),
                lease.allocations_spilled.to_string(),
            ]
        }),
    )
}
