//! `gpool update ID`

use crate::arguments::Change;
use crate::exit::Failure;
use crate::follower::say;
use crate::output;
use gpool_protocol::{
    Client, ErrorBody, ErrorCode, GpuView, LeaseUpdate, LeaseView, MemoryCap, format_permille, lease_path,
};

const NS_PER_MS: u64 = 1_000_000;
/// A pause between two kernels that people notice, as for the trap `ceiling-below-kernel`.
const LONG_PAUSE_MS: u64 = 1000;

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
    if let Some(warning) =
        lease.limit_permille.filter(|_| change.limit.is_some()).and_then(|limit| coarse(&lease, limit))
    {
        say(&format!("gpool: {warning}"));
    }
    output::print(&format!("{}\n", lease.container_id))
}

/// That a limit holds over times that people notice only, since what is launched cannot be taken back.
fn coarse(lease: &LeaseView, limit_permille: u16) -> Option<String> {
    let apart_ms = lease.kernel_ns.saturating_mul(1000) / u64::from(limit_permille.max(1)) / NS_PER_MS;
    (apart_ms >= LONG_PAUSE_MS).then(|| {
        format!(
            "its kernels take {} ms, so with a limit of {} it is {}.{} s from one to the next",
            lease.kernel_ns / NS_PER_MS,
            format_permille(limit_permille.into()),
            apart_ms / 1000,
            apart_ms % 1000 / 100
        )
    })
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
