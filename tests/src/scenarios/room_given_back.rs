//! A program without a lease ends that held most of a GPU: a container that needs its memory is started at once, and not
//! refused for what NVML said before. And on a GPU that is promised whole, a cap that was lowered below what its container
//! holds is raised again. And one command that is started behind another's end has what that one had, however slowly it goes.

use super::{finish, is_refused, sampler_rounds, simulated_gpu, wait_for, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{GpuView, LeaseState};
use std::process::{Child, Command};
use std::time::Duration;

/// Most of 24 GiB.
const HELD_MIB: u64 = 20 << 10;
/// More than is left.
const WANTED: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "8GiB")];
/// Times: NVML is asked each second, and one of these could be just before that.
const TURNS: u32 = 5;

/// Enters the groups of the only command that has a share, and stays there.
const OUTLIVING: &str =
    "for group in $(find /sys/fs/cgroup -type d -name 'gpool-run-*'); do echo $$ > $group/cgroup.procs; done
exec sleep 1000";
/// Less than a request waits for that, and more than it takes to ask.
const GOES_AFTER: Duration = Duration::from_millis(400);

/// Holds it, and ends, some times.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let given_back = (0..TURNS).try_for_each(|turn| one_goes_and_one_comes(&host, turn));
    let one_by_one = given_back.and_then(|()| a_command_waits_for_the_end_of_the_one_before(&host));
    let outcome = one_by_one.and_then(|()| a_lowered_cap_is_raised_again(&host));
    finish(host, outcome)
}

fn one_goes_and_one_comes(host: &Host, turn: u32) -> Result<()> {
    let reader = host.meter()?;
    let plain = simulated_gpu::start_with(host, &format!("plain-{turn}"), HELD_MIB)?;
    wait_for("the supervisor to see what is held", || {
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        Ok(gpus.iter().any(|gpu| gpu.memory_outside_bytes >= HELD_MIB << 20))
    })?;
    is_refused(host, &WANTED, &["GPOOL-E202", "in use outside all leases", "gpool ps --processes"])?;
    let shown = text(&host.gpool(&["gpu", "ls"])?.stdout);
    ensure(shown.contains("in use outside all leases"), || format!("gpool gpu ls says: {shown}"))?;
    plain.kill_init()?;
    while usage_of(&reader.read()?, &plain.id).bytes_now > 0 {
        std::thread::yield_now();
    }
    let ran = host.gpool(&["run", "--fraction", "0.3", "--memory", "8GiB", "--", "/bin/true"])?;
    ensure(ran.status.success(), || format!("turn {turn}: {}", text(&ran.stderr)))
}

/// The first one's end takes long: a process of its cgroup outlives it, for as long as is waited for, and for longer.
fn a_command_waits_for_the_end_of_the_one_before(host: &Host) -> Result<()> {
    let next = || host.gpool(&["run", "--fraction", "1", "--", "/bin/true"]);
    let mut outliving = one_that_outlives_its_command(host)?;
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(GOES_AFTER);
            outliving.kill()
        });
        next()
    });
    let _ = outliving.wait();
    let ran = ran?;
    ensure(ran.status.success(), || format!("behind one that ends: {}", text(&ran.stderr)))?;
    let mut outliving = one_that_outlives_its_command(host)?;
    let said = text(&next()?.stderr);
    outliving.kill().and_then(|()| outliving.wait()).context("a process of its cgroup")?;
    ensure(said.contains("GPOOL-E201"), || format!("something of it lives: {said}"))?;
    wait_for("its lease to end", || Ok(host.leases()?.is_empty()))
}

/// A command with all of the GPU that was killed just now, and a process in its cgroup that goes on.
fn one_that_outlives_its_command(host: &Host) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "1", "--", "sleep", "1000"]);
    let mut command = spawn_bound(&mut command).context("gpool run")?;
    wait_for("the command to run", || Ok(host.leases()?.iter().any(|lease| lease.state == LeaseState::Active)))?;
    let outliving = spawn_bound(Command::new("/bin/sh").args(["-c", OUTLIVING])).context("a process of its cgroup")?;
    let comm = format!("/proc/{}/comm", outliving.id());
    wait_for("it to be in the command's cgroup", || {
        Ok(std::fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n"))
    })?;
    command.kill().and_then(|()| command.wait()).context("gpool run")?;
    Ok(outliving)
}

fn a_lowered_cap_is_raised_again(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(3 << 10), ..Tenant::greedy(500) };
    let mistaken = tenant.run(host, "mistaken", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "4GiB")])?;
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "20GiB")];
    let neighbour = Tenant::greedy(500).run(host, "neighbour", &env)?;
    let both = [mistaken, neighbour];
    wait_until_running(host, &both)?;
    let [mistaken, neighbour] = both;
    let cap = |id: &str, bytes: &str| host.gpool(&["update", id, "--memory", bytes]);
    wait_for("the container to hold more than the lower cap", || {
        Ok(host.lease_of(&mistaken)?.memory_used_bytes > 3 << 30)
    })?;
    is_looked_at(host)?;
    succeeded("gpool update to a lower cap", cap(&mistaken.id, "2GiB")?)?;
    is_looked_at(host)?;
    let refused = cap(&neighbour.id, "21GiB")?;
    let said = text(&refused.stderr);
    ensure(said.contains("GPOOL-E202"), || format!("what another container holds was promised: {said}"))?;
    succeeded("gpool update back to the cap of before", cap(&mistaken.id, "4GiB")?).map(drop)
}

/// NVML has been asked again: a round that is begun after this sees what is there now, and the next is begun when it is over.
fn is_looked_at(host: &Host) -> Result<()> {
    let rounds = sampler_rounds(host)?;
    wait_for("NVML to be asked again", || Ok(sampler_rounds(host)? >= rounds + 2))
}
