//! Memory that one process of a container makes and another opens, by each of the driver's ways: the cap holds to the
//! byte by the hardware's meter, both are charged for it once, and whoever of the two is killed first, what the other keeps
//! stays charged.

use super::{finish, start_knowing_contexts};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use std::time::{Duration, Instant};

/// The driver's ways, and how often two processes are charged for what they share: a pool is charged to who has it by
/// what it holds, and nothing tells whose memory is that comes without a name.
const WAYS: [(&str, u64); 6] =
    [("mapped", 1), ("unmapped", 1), ("external", 1), ("ipc", 1), ("pool", 2), ("unnamed", 2)];
/// The same of what shows no size before it is mapped, with a driver that maps physical memory only as a whole: who has
/// imported it without a name and does not map it is charged nothing, until NVML shows that it holds it.
const WHOLE_MAPS: [(&str, u64); 3] = [("mapped", 1), ("unmapped", 1), ("unnamed", 1)];
const SHARED_MIB: u64 = 1024;
const CAP_BYTES: u64 = 8 << 30;
const PATIENCE: Duration = Duration::from_secs(10);

/// Shares by each way, and kills the two in both orders.
pub fn run(inside: &Inside) -> Result<()> {
    // Who shares does not show what a context costs, and the account is compared to the byte.
    let host = start_knowing_contexts(inside)?;
    let outcome = share_by_all(&host);
    finish(host, outcome)
}

fn share_by_all(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("sharing", &env, &[], &["sleep", "1000"])?;
    let reader = host.meter()?;
    let share_by = |ways: &[(&str, u64)]| {
        ways.iter().try_for_each(|way| {
            let mut both = ["--share", "--open"].into_iter();
            both.try_for_each(|first| share_and_kill(host, &container, &reader, *way, first))
        })
    };
    share_by(&WAYS)?;
    host.map_only_whole()?;
    share_by(&WHOLE_MAPS).context("with a driver that maps only as a whole")
}

fn share_and_kill(
    host: &Host,
    container: &Container,
    reader: &MeterReader,
    (way, times): (&str, u64),
    first: &str,
) -> Result<()> {
    let what = |text: &str| format!("{way}, {first} killed first: {text}");
    let share = format!("exec gpool-tenant --share {way} --chunk-mib {SHARED_MIB} > /tmp/said 2>&1");
    host.engine.docker_text(&["exec", "-d", "sharing", "sh", "-c", &share])?;
    eventually(|| {
        let said = host.engine.docker_text(&["exec", "sharing", "cat", "/tmp/said"]).unwrap_or_default();
        ensure(said.contains("\"opened\""), || what(&format!("the memory was not opened: {said:?}")))
    })?;
    let held = || Ok::<_, Failure>(usage_of(&reader.read()?, &container.id).bytes_now);
    // Two contexts and one piece of memory, whoever has it.
    let context = reader.processes()?.iter().map(|(_, bytes)| *bytes).min().unwrap_or_default();
    let both = held()?;
    ensure(both == 2 * context + (SHARED_MIB << 20), || what(&format!("both hold {both} bytes")))?;
    charged(host, container, both + (times - 1) * (SHARED_MIB << 20), &what)?;
    // Whoever takes the rest gets no more.
    fill(host, container, reader, &what)?;
    kill(first)?;
    let one = context + (SHARED_MIB << 20);
    eventually(|| {
        let left = held()?;
        ensure(left == one, || what(&format!("{left} bytes are held instead of {one}")))?;
        ensure(host.lease_of(container)?.processes == 1, || what("the lease does not know of the end"))?;
        charged(host, container, one, &what)
    })?;
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

/// The account shows this.
fn charged(host: &Host, container: &Container, expected: u64, what: &dyn Fn(&str) -> String) -> Result<()> {
    let charged = host.lease_of(container)?.memory_used_bytes;
    ensure(charged == expected, || what(&format!("{charged} bytes are charged instead of {expected}")))
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
