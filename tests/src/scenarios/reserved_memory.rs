//! A driver keeps a part of each GPU's memory for itself, which NVML's total has, and holds some of the rest, which no process
//! has: four quarters are of what can be sold, and each of them can be had in full.

use super::finish;
use crate::failure::{Context, Result, ensure};
use crate::host::Host;
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report_of};
use gpool_protocol::GpuView;
use std::fs;

const MIB: u64 = 1 << 20;
/// Of 24 GiB 64 MiB are sold to nobody, as a host has it that says nothing else.
const SOLD_BYTES: u64 = (24 << 30) - 64 * MIB;
const CHUNK_MIB: u64 = 64;
/// What a context is taken to cost until one has been seen.
const CONTEXT_MIB: u64 = 512;

/// Four containers with a quarter each, which take as much as they get.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with_gpu(inside, &["--reserved-memory", "569MiB", "--held-memory", "4MiB"])?;
    let outcome = sell_the_usual(&mut host).and_then(|()| fill(&host));
    finish(host, outcome)
}

/// The hosts of tests sell all of a simulated GPU.
fn sell_the_usual(host: &mut Host) -> Result<()> {
    const DROP_IN: &str = "/etc/gpool/conf.d/headroom.toml";
    let usual = gpool_configuration::Driver::default().headroom_bytes;
    fs::create_dir_all("/etc/gpool/conf.d").context(DROP_IN)?;
    fs::write(DROP_IN, format!("[driver]\nheadroom_bytes = {usual}\n")).context(DROP_IN)?;
    host.stop_supervisor()?;
    host.start_supervisor()
}

fn fill(host: &Host) -> Result<()> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    ensure(gpus[0].memory_total_bytes == SOLD_BYTES, || format!("of the GPU is sold: {gpus:?}"))?;
    let chunk = CHUNK_MIB.to_string();
    let tenant = Tenant { allocate_mib: Some(32 << 10), ..Tenant::greedy(500) };
    let start = |number: u32| {
        tenant.run_with(host, &format!("quarter-{number}"), &[("GPOOL_FRACTION", "0.25")], &["--chunk-mib", &chunk])
    };
    let quarters = (1..=4).map(start).collect::<Result<Vec<_>>>()?;
    for quarter in &quarters {
        let allocated = report_of(host, quarter)?.allocated_bytes;
        let least = SOLD_BYTES / 4 - (CONTEXT_MIB + CHUNK_MIB) * MIB;
        ensure(allocated >= least, || format!("{} had {allocated} bytes of {}", quarter.name, SOLD_BYTES / 4))?;
    }
    Ok(())
}
