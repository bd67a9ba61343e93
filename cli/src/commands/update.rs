//! `gpool update ID`

use crate::arguments::Change;
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, ErrorBody, ErrorCode, GpuView, LeaseUpdate, LeaseView, MemoryCap, lease_path};

/// Changes a lease and prints the container's id, as docker does.
pub fn run(client: &Client, change: &Change) -> Result<(), Failure> {
    let path = lease_path(&change.id)?;
    let update = LeaseUpdate {
        fraction_permille: change.fraction,
        limit_permille: change.limit,
        no_limit: change.no_limit,
        memory_bytes: change.memory.map(|cap| bytes(client, &path, cap)).transpose()?,
        spill_bytes: change.spill,
        class: change.class,
        p99_ns: change.p99,
        no_p99: change.no_p99,
        priority: change.priority,
        run_seconds: change.run_time,
        no_run_time: change.no_run_time,
    };
    let lease: LeaseView = client.patch(&path, &update)?;
    output::print(&format!("{}\n", lease.container_id))
}

/// A cap in bytes: one in per cent is of the smallest of the lease's GPUs, as at its start.
fn bytes(client: &Client, path: &str, cap: MemoryCap) -> Result<u64, ErrorBody> {
    if let MemoryCap::Bytes(bytes) = cap {
        return Ok(bytes);
    }
    let lease: LeaseView = client.get(path)?;
    let gpus: Vec<GpuView> = client.get("/v1/gpus")?;
    let total_bytes = smallest(&lease, &gpus).ok_or_else(|| {
        ErrorBody::new(
            ErrorCode::RequestInvalid,
            "how much memory the lease's GPU has is not known",
            "give the cap as a size, for example 4GiB",
        )
    })?;
    Ok(cap.bytes_of(total_bytes))
}

fn smallest(lease: &LeaseView, gpus: &[GpuView]) -> Option<u64> {
    let is_its = |gpu: &&GpuView| gpu.uuid == lease.gpu_uuid || lease.gpus.iter().any(|its| its.gpu_uuid == gpu.uuid);
    gpus.iter().filter(is_its).map(|gpu| gpu.memory_total_bytes).min()
}
