//! Three containers whose tenants are all pid 1, killed with SIGKILL at random for half a minute and started again:
//! the simulated GPU's state and all accounts stay right.

use super::{finish, wait_for};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_device_model::Meter;
use gpool_protocol::{EventKind, LeaseState, LeaseView};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long containers are killed.
const DURATION: Duration = Duration::from_secs(30);
/// Name, share, cap in GiB and kernel length in microseconds.
const TENANTS: [(&str, &str, u64, u64); 3] =
    [("one", "0.3", 4, 300), ("two", "0.4", 8, 2000), ("three", "0.2", 2, 5000)];
/// Killed memory must be free after this.
const FREED: Duration = Duration::from_secs(30);
/// So many containers are killed at least.
const LEAST_KILLS: u32 = 12;

/// Kills, looks, starts again.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = kill_for_a_while(&host);
    finish(host, outcome)
}

fn kill_for_a_while(host: &Host) -> Result<()> {
    let reader = host.meter()?;
    for (name, fraction, gib, kernel_us) in TENANTS {
        let env = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", &format!("{gib}GiB"))];
        Tenant::greedy(kernel_us).run(host, name, &env)?;
    }
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let start = Instant::now();
    let mut kills = 0;
    while start.elapsed() < DURATION || kills < LEAST_KILLS {
        let (name, ..) = TENANTS[random.below(3) as usize];
        let container = Container::inspect(&host.engine, name)?;
        container.kill_init()?;
        kills += 1;
        // Sometimes the next container starts while this one is still being buried.
        std::thread::sleep(Duration::from_millis(random.below(300)));
        start_anew(host, &container)?;
        // From being killed in its very first calls to being killed in the middle of its work.
        std::thread::sleep(Duration::from_millis(random.below(900)));
        caps_hold(host, &reader)?;
    }
    println!("    {kills} kills");
    accounts_agree(host, &reader)?;
    nothing_stays(host, &reader)
}

/// Starts a container that was killed. While docker has not noticed that it has ended, a start does nothing.
fn start_anew(host: &Host, killed: &Container) -> Result<()> {
    wait_for("another start", || {
        host.engine.docker_text(&["start", &killed.name])?;
        let pid = Container::inspect(&host.engine, &killed.name)?.init_pid;
        Ok(pid != 0 && pid != killed.init_pid)
    })
}

/// By the hardware's own meter no container ever held a byte above its cap.
fn caps_hold(host: &Host, reader: &MeterReader) -> Result<()> {
    let meter = reader.read()?;
    for (name, _, gib, _) in TENANTS {
        let container = Container::inspect(&host.engine, name)?;
        let peak = usage_of(&meter, &container.id).bytes_peak;
        ensure(peak <= gib << 30, || format!("{name} held {peak} bytes of a cap of {gib} GiB"))?;
    }
    conserved(&meter)
}

/// The owners' times are the device's busy time, to the nanosecond.
fn conserved(meter: &Meter) -> Result<()> {
    let owners: u64 = meter.owners.values().map(|owner| owner.busy_ns).sum();
    ensure(owners == meter.busy_ns, || format!("owners sum to {owners} ns, the device was busy {} ns", meter.busy_ns))
}

/// With everybody running, the supervisor's accounts are what the hardware says.
fn accounts_agree(host: &Host, reader: &MeterReader) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (leases, meter) = (host.leases()?, reader.read()?);
        let outcome = agree(&leases, &meter);
        if outcome.is_ok() || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn agree(leases: &[LeaseView], meter: &Meter) -> Result<()> {
    let ids: BTreeSet<&str> = leases.iter().map(|lease| lease.container_id.0.as_str()).collect();
    ensure(leases.len() == 3 && ids.len() == 3, || format!("a lease is lost or doubled: {leases:?}"))?;
    for lease in leases {
        let held = usage_of(meter, &lease.container_id.0).bytes_now;
        ensure(lease.state == LeaseState::Active && lease.processes == 1, || format!("not running: {lease:?}"))?;
        ensure(held > 0 && lease.memory_used_bytes == held, || {
            format!("the supervisor says {} bytes, the device {held}: {lease:?}", lease.memory_used_bytes)
        })?;
    }
    Ok(())
}

/// After the last kill nothing is held, by anybody's account.
fn nothing_stays(host: &Host, reader: &MeterReader) -> Result<()> {
    for (name, ..) in TENANTS {
        Container::inspect(&host.engine, name)?.kill_init()?;
    }
    let deadline = Instant::now() + FREED;
    loop {
        let held = reader.memory_used_bytes()?;
        let running = host.leases()?.into_iter().filter(|lease| lease.state != LeaseState::Held).count();
        let processes = reader.processes()?.len();
        if (held, running, processes) == (0, 0, 0) {
            break;
        }
        let left = format!("{held} bytes, {running} leases and {processes} processes are left after the last kill");
        ensure(Instant::now() < deadline, || left)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut breaches = Vec::new();
    host.client()
        .stream("/v1/events?after=0", |line| {
            let event: Option<gpool_protocol::Event> = serde_json::from_str(line).ok();
            breaches.extend(event.filter(|event| event.kind == EventKind::Breach));
            true
        })
        .map_err(|error| Failure::new(error.to_string()))?;
    ensure(breaches.is_empty(), || format!("breaches: {breaches:?}"))
}

/// xorshift64*: the same kills in every run, as far as time allows.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % limit
    }
}
