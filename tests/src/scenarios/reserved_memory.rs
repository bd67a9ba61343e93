//! A driver keeps a part of each GPU's memory for itself, which NVML's total has: four quarters are of what can be had, and
//! each of them can be had in full.

use super::finish;
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report_of};
use gpool_protocol::GpuView;

const MIB: u64 = 1 << 20;
const USABLE_BYTES: u64 = 24 << 30;
const CHUNK_MIB: u64 = 64;
/// What a context is taken to cost until one has been seen.
const CONTEXT_MIB: u64 = 512;

/// Four containers with a quarter each, which take as much as they get.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with_gpu(inside, &["--reserved-memory", "569MiB"])?;
    let outcome = fill(&host);
    finish(host, outcome)
}

fn fill(host: &Host) -> Result<()> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    ensure(gpus[0].memory_total_bytes == USABLE_BYTES, || format!("of the GPU is sold: {gpus:?}"))?;
    let chunk = CHUNK_MIB.to_string();
    let tenant = Tenant { allocate_mib: Some(32 << 10), ..Tenant::greedy(500) };
    let start = |number: u32| {
        tenant.run_with(host, &format!("quarter-{number}"), &[("GPOOL_FRACTION", "0.25")], &["--chunk-mib", &chunk])
    };
    let quarters = (1..=4).map(start).collect::<Result<Vec<_>>>()?;
    for quarter in &quarters {
        let allocated = report_of(host, quarter)?.allocated_bytes;
        let least = USABLE_BYTES / 4 - (CONTEXT_MIB + CHUNK_MIB) * MIB;
        ensure(allocated >= least, || format!("{} had {allocated} bytes of {}", quarter.name, USABLE_BYTES / 4))?;
    }
    Ok(())
}
