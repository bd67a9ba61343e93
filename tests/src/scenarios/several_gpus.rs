//! Sixteen GPUs under one supervisor: a container with two of them beside containers with one each.

use super::finish;
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use crate::trace::{Recorder, Trace};
use gpool_protocol::{GpuView, LeaseGpuView};
use std::time::{Duration, Instant};

/// GPUs of the host.
const GPUS: u32 = 16;
/// How they are linked; see [`islands`].
const LINKS: [&str; 4] = ["--islands", "1,3,2", "--processors", "3"];
/// Docker 20.10 gives containers no annotations.
const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"gpus\", \"mode\", \"device\"]\n";
/// How long shares are watched.
const WATCH: Duration = Duration::from_secs(8);

/// Starts a gang and its rivals.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with_gpus(inside, (GPUS, &LINKS), CONFIGURATION)?;
    let outcome = islands(&host).and_then(|()| gang_and_singles(&host));
    finish(host, outcome)
}

/// GPU 0 is linked with none, 1 to 3 are with each other, and so are 4 and 5; each processor has six GPUs near it,
/// and the last one four.
fn islands(host: &Host) -> Result<()> {
    let is_given = |count: &str, mode: &[(&str, &str)], expected: &[u32]| -> Result<()> {
        let env = [&[("GPOOL_GPUS", count)], mode].concat();
        let container = host.run_container("linked", &env, &[], &["sleep", "600"])?;
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        let lease = host.lease_of(&container)?;
        let index = |own: &LeaseGpuView| gpus.iter().find(|gpu| gpu.uuid == own.gpu_uuid).map(|gpu| gpu.index);
        let given: Vec<u32> = lease.gpus.iter().filter_map(index).collect();
        ensure(given == expected, || format!("{env:?} is given GPUs {given:?} instead of {expected:?}"))?;
        host.engine.docker_text(&["rm", "-f", "linked"])?;
        super::wait_for("its place to be free", || Ok(host.leases()?.is_empty()))
    };
    let share: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "2GiB")];
    let whole = [("GPOOL_MODE", "exclusive")];
    is_given("1", &share, &[0])?;
    is_given("2", &share, &[1, 2])?;
    is_given("1", &[&share[..], &[("GPOOL_DEVICE", "7")]].concat(), &[7])?;
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let two = format!("8,{}", gpus[3].uuid);
    is_given("2", &[&share[..], &[("GPOOL_DEVICE", two.as_str())]].concat(), &[3, 8])?;
    is_given("1", &whole, &[0])?;
    is_given("2", &whole, &[4, 5])?;
    is_given("3", &whole, &[1, 2, 3])?;
    is_given("4", &whole, &[12, 13, 14, 15])
}

fn gang_and_singles(host: &Host) -> Result<()> {
    let modest = Tenant { allocate_mib: Some(512), ..Tenant::greedy(2000) };
    let env = [("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_GPUS", "2")];
    let gang = modest.run_with(host, "gang", &env, &["--all-gpus"])?;
    let homes = wait_for_work(host, &gang, 2)?;
    // Nobody else has a GPU yet: a big one for each of the others, so that the rivals can only join the gang.
    for index in 0..GPUS - 2 {
        let name = format!("filler-{index}");
        let env = [("GPOOL_FRACTION", "0.9"), ("GPOOL_MEMORY", "2GiB")];
        host.run_container(&name, &env, &[], &["sleep", "600"])?;
    }
    let rival = |name| modest.run(host, name, &[("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "2GiB")]);
    let rivals = [rival("rival-a")?, rival("rival-b")?];
    for rival in &rivals {
        let at = wait_for_work(host, rival, 1)?;
        ensure(homes.contains(&at[0]), || format!("{} is on GPU {} and not beside the gang", rival.name, at[0]))?;
    }
    let refused =
        host.try_run_container("no-room", &[("GPOOL_FRACTION", "0.2"), ("GPOOL_GPUS", "2")], &[], &["true"])?;
    ensure(!refused.status.success(), || "two GPUs with 20 % free each were found where there are none".to_owned())?;
    std::thread::sleep(Duration::from_secs(1));
    let recorders: Result<Vec<_>> =
        homes.iter().map(|&gpu| Ok(Recorder::start(host.meter_of(gpu)?, Duration::from_millis(5)))).collect();
    let recorders = recorders?;
    let from_ns = now_ns();
    std::thread::sleep(WATCH);
    let to_ns = now_ns();
    let traces: Result<Vec<Trace>> = recorders.into_iter().map(Recorder::stop).collect();
    for (trace, gpu) in traces?.iter().zip(&homes) {
        let busy = trace.busy(from_ns, to_ns);
        let share = trace.share(&gang.id, from_ns, to_ns) / busy;
        ensure((0.5..=0.7).contains(&share), || format!("on GPU {gpu} the gang got {share:.3} instead of 0.6"))?;
        ensure(busy >= 0.6, || format!("GPU {gpu} was busy for {busy:.3} of the time"))?;
    }
    Ok(())
}

/// The GPUs on which the container's kernels run, once there are `count`.
fn wait_for_work(host: &Host, container: &Container, count: usize) -> Result<Vec<u32>> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut at = Vec::new();
        for gpu in 0..GPUS {
            if usage_of(&host.meter_of(gpu)?.read()?, &container.id).kernels > 0 {
                at.push(gpu);
            }
        }
        if at.len() == count {
            return Ok(at);
        }
        if Instant::now() > deadline || !container.is_alive() {
            let said = container.log(&host.engine)?;
            return Err(Failure::new(format!("{} works on GPUs {at:?}; it said:\n{said}", container.name)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
