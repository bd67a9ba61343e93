//! Processes of one container, eight at a time, that take memory by every allocator, give it back and take it again, and share it, each
//! killed with SIGKILL at a random moment: never a byte above the cap by the hardware's meter, nothing lost at the end.

use super::finish;
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::report;
use gpool_device_model::DeviceParameters;
use std::time::{Duration, Instant};

/// Kills in `make test`, and in `make test-long`.
const KILLS: u32 = 300;
const LONG_KILLS: u32 = 10_000;
const CAP_BYTES: u64 = 8 << 30;
/// The dead are buried after this.
const PATIENCE: Duration = Duration::from_secs(10);

/// A few hundred kills.
pub fn run(inside: &Inside) -> Result<()> {
    run_with(inside, KILLS)
}

/// Ten thousand.
pub fn run_long(inside: &Inside) -> Result<()> {
    run_with(inside, LONG_KILLS)
}

fn run_with(inside: &Inside, kills: u32) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = storm(&host, kills);
    finish(host, outcome)
}

fn storm(host: &Host, kills: u32) -> Result<()> {
    let reader = host.meter()?;
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    // Its first process buries those whose parents were killed before them.
    let container = host.run_container("storm", &env, &["--init"], &["sleep", "100000"])?;
    // One that lives in peace shows what a context costs.
    let peace = ["exec", "storm", "gpool-tenant", "--allocate-mib", "64", "--seconds", "4"];
    host.engine.docker_text(&peace)?;
    let start = Instant::now();
    let said = host.engine.docker_text(&["exec", "storm", "gpool-tenant", "--storm", &kills.to_string()])?;
    let took = start.elapsed();
    ensure(said.contains(&format!("\"kills\":{kills}")), || format!("the storm ended with {said:?}"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (held, lease) = (usage_of(&reader.read()?, &container.id).bytes_now, host.lease_of(&container)?);
        if (held, lease.memory_used_bytes, lease.processes) == (0, 0, 0) {
            break;
        }
        ensure(Instant::now() < deadline, || {
            format!("{held} bytes are held and {} charged to {} processes", lease.memory_used_bytes, lease.processes)
        })?;
        std::thread::sleep(Duration::from_millis(50));
    }
    // Whether nothing is lost shows in what one process gets then.
    let fill = ["exec", "storm", "gpool-tenant", "--nvml", "--chunk-mib", "2", "--seconds", "2", "--kernel-us", "500"];
    let allocated = report(&host.engine.docker_text(&fill)?)?.allocated_bytes;
    let usage = usage_of(&reader.read()?, &container.id);
    let over = usage.bytes_peak.saturating_sub(CAP_BYTES);
    println!("    {kills} kills in {:.0} s; over the cap {over} bytes, had at the end {allocated}", took.as_secs_f64());
    ensure(over == 0, || format!("held {} bytes of a cap of {CAP_BYTES}", usage.bytes_peak))?;
    let usable = CAP_BYTES - DeviceParameters::default().context_bytes;
    ensure(allocated * 100 >= usable * 99, || format!("only {allocated} bytes of {usable} can be had at the end"))
}
