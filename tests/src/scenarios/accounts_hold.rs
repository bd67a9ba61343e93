//! What is held counts over a restart, also where that is hard to see: what one holds whom the supervisor has never known counts until the
//! device has it back, however long the end of that one takes, and so does what was taken past the shim. By the hardware's meter nobody ever
//! has more than his cap.

use super::{finish_found, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use gpool_device_model::DeviceParameters;
use gpool_protocol::LeaseView;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

const REAL: &str = "/dev/gpool/real/libcuda.so.1";
const MIB: u64 = 1 << 20;
const CAP_BYTES: u64 = 8192 * MIB;
/// Some looks of the supervisor, of which there is one a second, and more where processes end.
const LOOKS: Duration = Duration::from_secs(3);
/// Until a heartbeat is stale, and more.
const STALE: Duration = Duration::from_millis(2500);

/// Both in one container.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = in_one_container(&mut host);
    finish_found(host, outcome)
}

fn in_one_container(host: &mut Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("held", &env, &["--init"], &["sleep", "100000"])?;
    // One that lives in peace shows what a context costs.
    start(host, &["--allocate-mib", "64"])?;
    std::thread::sleep(LOOKS);
    end_all(host, &container)?;
    whom_nobody_has_known(host, &container)?;
    past_the_shim_over_a_restart(host, &container)
}

/// It comes while there is no supervisor, and its end takes longer than the next one needs to see that its lock is gone.
fn whom_nobody_has_known(host: &mut Host, container: &Container) -> Result<()> {
    host.kill_supervisor()?;
    std::thread::sleep(STALE);
    start(host, &["--allocate-mib", "6000", "--slow-end-mib", "1500"])?;
    wait_for("the unknown one to hold something", || Ok(held(host, container)? > 6000 * MIB))?;
    start(host, &["--allocate-mib", "4000", "--chunk-mib", "4000", "--retry-allocation-ms", "1"])?;
    host.start_supervisor()?;
    let first = host.meter()?.processes()?.into_iter().find(|(_, bytes)| *bytes > 6000 * MIB).map(|(pid, _)| pid);
    let first = first.and_then(|pid| Pid::from_raw(pid.cast_signed())).context("the unknown one's pid")?;
    kill_process(first, Signal::KILL).context("kill")?;
    wait_for("the other one to have its room", || Ok((4000 * MIB..6000 * MIB).contains(&held(host, container)?)))?;
    is_within(host, container)?;
    end_all(host, container)
}

/// A supervisor that begins has not seen it, and does not for long where its process never stands still.
fn past_the_shim_over_a_restart(host: &mut Host, container: &Container) -> Result<()> {
    start(host, &["--beside", REAL, "--beside-mib", "3000", "--churn", "0", "--chunk-mib", "2", "--threads", "4"])?;
    wait_for("the one beside to hold something", || Ok(held(host, container)? > 3000 * MIB))?;
    std::thread::sleep(LOOKS);
    host.kill_supervisor()?;
    host.start_supervisor()?;
    start(host, &["--retry-allocation-ms", "1"])?;
    fills_and_stays(host, container)?;
    end_all(host, container)
}

fn start(host: &Host, options: &[&str]) -> Result<()> {
    host.engine.docker_text(&[&["exec", "-d", "held", "gpool-tenant"], options].concat()).map(drop)
}

/// All but what could hold no more is had at last, and nothing beyond.
fn fills_and_stays(host: &Host, container: &Container) -> Result<()> {
    let context_bytes = DeviceParameters::default().context_bytes;
    wait_for("the cap to be nearly full", || Ok(held(host, container)? + 2 * context_bytes > CAP_BYTES))?;
    std::thread::sleep(Duration::from_secs(2));
    is_within(host, container)
}

fn is_within(host: &Host, container: &Container) -> Result<()> {
    let most = usage_of(&host.meter()?.read()?, &container.id).bytes_peak;
    ensure(most <= CAP_BYTES, || format!("{} MiB were held of a cap of {}", most / MIB, CAP_BYTES / MIB))
}

fn end_all(host: &Host, container: &Container) -> Result<()> {
    is_within(host, container)?;
    host.engine.docker_text(&["exec", "held", "killall", "-9", "gpool-tenant"])?;
    // What the dead held is charged until the supervisor has seen that the device has it back.
    let is_over = |lease: &LeaseView| lease.processes == 0 && lease.memory_used_bytes == 0;
    wait_for("all to have ended", || Ok(held(host, container)? == 0 && is_over(&host.lease_of(container)?)))
}

fn held(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).bytes_now)
}
