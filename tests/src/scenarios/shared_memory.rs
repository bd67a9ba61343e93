//! Memory that one process of a container makes and another opens, by each of the driver's ways: the cap holds to the
//! byte by the hardware's meter, and whoever of the two is killed first, what the other keeps stays charged.

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use std::time::{Duration, Instant};

const WAYS: [&str; 4] = ["mapped", "unmapped", "external", "ipc"];
const SHARED_MIB: u64 = 1024;
const CAP_BYTES: u64 = 8 << 30;
const PATIENCE: Duration = Duration::from_secs(10);

/// Shares by each way, and kills the two in both orders.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = share_by_all(&host);
    finish(host, outcome)
}

fn share_by_all(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("sharing", &env, &[], &["sleep", "1000"])?;
    let reader = host.meter()?;
    for way in WAYS {
        for first in ["--share", "--open"] {
            share_and_kill(host, &container, &reader, way, first)?;
        }
    }
    Ok(())
}

fn share_and_kill(host: &Host, container: &Container, reader: &MeterReader, way: &str, first: &str) -> Result<()> {
    let what = |text: &str| format!("{way}, {first} killed first: {text}");
    let share = format!("exec gpool-tenant --share {way} --chunk-mib {SHARED_MIB} > /tmp/said 2>&1");
    host.engine.docker_text(&["exec", "-d", "sharing", "sh", "-c", &share])?;
    eventually(|| {
        let said = host.engine.docker_text(&["exec", "sharing", "cat", "/tmp/said"]).unwrap_or_default();
        ensure(said.contains("\"opened\""), || what(&format!("the memory was not opened: {said:?}")))
    })?;
    let held = || Ok::<_, Failure>(usage_of(&reader.read()?, &container.id).bytes_now);
    // Two contexts and one piece of memory, whoever has it; charged to both.
    let context = reader.processes()?.iter().map(|(_, bytes)| *bytes).min().unwrap_or_default();
    let both = held()?;
    ensure(both == 2 * context + (SHARED_MIB << 20), || what(&format!("both hold {both} bytes")))?;
    charged_at_least(host, container, both, &what)?;
    // Whoever takes the rest does not get what two are charged for.
    fill(host, container, reader, &what)?;
    kill(first)?;
    let one = context + (SHARED_MIB << 20);
    eventually(|| {
        let left = held()?;
        ensure(left == one, || what(&format!("{left} bytes are held instead of {one}")))?;
        ensure(host.lease_of(container)?.processes == 1, || what("the lease does not know of the end"))
    })?;
    charged_at_least(host, container, one, &what)?;
    fill(host, container, reader, &what)?;
    kill(if first == "--share" { "--open" } else { "--share" })?;
    eventually(|| {
        let (left, lease) = (held()?, host.lease_of(container)?);
        let is_empty = left == 0 && lease.memory_used_bytes == 0 && lease.processes == 0;
        ensure(is_empty, || what(&format!("{left} bytes are left, and {} charged", lease.memory_used_bytes)))
    })
}

/// Takes all that is left, looks whether that is within the cap, and gives it back.
fn fill(host: &Host, container: &Container, reader: &MeterReader, what: &dyn Fn(&str) -> String) -> Result<()> {
    let command = ["exec", "sharing", "gpool-tenant", "--chunk-mib", "64", "--seconds", "1", "--kernel-us", "500"];
    host.engine.docker_text(&command)?;
    let peak = usage_of(&reader.read()?, &container.id).bytes_peak;
    ensure(peak <= CAP_BYTES, || what(&format!("{peak} bytes were held")))?;
    ensure(peak > CAP_BYTES / 2, || what(&format!("no more than {peak} bytes could be had")))
}

/// The account never shows less than the device.
fn charged_at_least(host: &Host, container: &Container, held: u64, what: &dyn Fn(&str) -> String) -> Result<()> {
    let charged = host.lease_of(container)?.memory_used_bytes;
    ensure(charged >= held, || what(&format!("{charged} bytes are charged for {held}")))
}

/// Kills the tenant that was started with this option.
fn kill(option: &str) -> Result<()> {
    let is_it = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"gpool-tenant"))
            && words.any(|word| word == option.as_bytes())
    };
    let all = std::fs::read_dir("/proc").context("/proc")?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it);
    let pid = pids.next().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(format!("no tenant was started with {option}")))?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).context(format!("kill {option}"))
}

fn eventually(check: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = check();
        if outcome.is_ok() || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
