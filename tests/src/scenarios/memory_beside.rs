//! A program that came through the shim and takes memory past it as well: from the next look of the supervisor on that
//! counts against its cap, whatever it asks for then, and goes with it.

use super::finish;
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report};
use std::time::{Duration, Instant};

const REAL: &str = "/dev/gpool/real/libcuda.so.1";
const MIB: u64 = 1 << 20;
const CAP_BYTES: u64 = 4096 * MIB;
const BESIDE_MIB: u64 = 1500;
const CHUNK_MIB: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes a part of its cap past the shim and then as much as it gets.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = take_and_fill(&host);
    finish(host, outcome)
}

fn take_and_fill(host: &Host) -> Result<()> {
    let reader = host.meter()?;
    let (beside, chunk) = (BESIDE_MIB.to_string(), CHUNK_MIB.to_string());
    let more = ["--beside", REAL, "--beside-mib", &beside, "--chunk-mib", &chunk, "--retry-allocation-ms", "5"];
    let env = [("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "4GiB")];
    let tenant = Tenant { allocate_mib: Some(32 << 10), ..Tenant::greedy(500) };
    let container = tenant.run_with(host, "beside", &env, &more)?;
    let allocated = eventually(|| Ok(report(&container.log(&host.engine)?)?.allocated_bytes))?;
    let said = container.log(&host.engine)?;
    ensure(said.contains("\"told\":true"), || format!("the program was not told: {said}"))?;
    let bytes_now = || Ok::<_, crate::failure::Failure>(usage_of(&reader.read()?, &container.id));
    let usage = bytes_now()?;
    ensure(usage.bytes_now >= allocated + BESIDE_MIB * MIB, || format!("the meter shows {} bytes", usage.bytes_now))?;
    // It goes on asking, in looks of the supervisor and between them, while what a context costs is learnt.
    std::thread::sleep(Duration::from_secs(3));
    let usage = bytes_now()?;
    ensure(usage.bytes_peak <= CAP_BYTES, || format!("{} bytes were held", usage.bytes_peak))?;
    let least = CAP_BYTES - 2 * CHUNK_MIB * MIB;
    eventually(|| {
        let (held, charged) = (bytes_now()?.bytes_now, host.lease_of(&container)?.memory_used_bytes);
        ensure(held >= least, || format!("no more than {held} bytes could be had"))?;
        ensure(charged >= held && charged <= CAP_BYTES, || format!("{charged} bytes are charged for {held}"))
    })?;
    container.kill_init()?;
    eventually(|| nothing_is_held(&reader, &container))
}

fn nothing_is_held(reader: &MeterReader, container: &Container) -> Result<()> {
    let left = usage_of(&reader.read()?, &container.id).bytes_now;
    ensure(left == 0, || format!("{left} bytes stay after SIGKILL"))
}

fn eventually<T>(mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = check();
        if outcome.is_ok() || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
