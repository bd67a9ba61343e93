//! A program without a lease ends that held most of a GPU: a container that needs its memory is started at once, and not
//! refused for what NVML said before.

use super::{finish, is_refused, simulated_gpu, wait_for};
use crate::failure::{Result, ensure};
use crate::host::{Host, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use gpool_protocol::GpuView;

/// Most of 24 GiB.
const HELD_MIB: u64 = 20 << 10;
/// More than is left.
const WANTED: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "8GiB")];
/// Times: NVML is asked each second, and one of these could be just before that.
const TURNS: u32 = 5;

/// Holds it, and ends, some times.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = (0..TURNS).try_for_each(|turn| one_goes_and_one_comes(&host, turn));
    finish(host, outcome)
}

fn one_goes_and_one_comes(host: &Host, turn: u32) -> Result<()> {
    let reader = host.meter()?;
    let plain = simulated_gpu::start_with(host, &format!("plain-{turn}"), HELD_MIB)?;
    wait_for("the supervisor to see what is held", || {
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        Ok(gpus.iter().any(|gpu| gpu.memory_used_bytes >= HELD_MIB << 20))
    })?;
    is_refused(host, &WANTED, &["GPOOL-E202"])?;
    plain.kill_init()?;
    while usage_of(&reader.read()?, &plain.id).bytes_now > 0 {
        std::thread::yield_now();
    }
    let ran = host.gpool(&["run", "--fraction", "0.3", "--memory", "8GiB", "--", "/bin/true"])?;
    ensure(ran.status.success(), || format!("turn {turn}: {}", text(&ran.stderr)))
}
