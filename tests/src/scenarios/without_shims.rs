//! Whole GPUs and the driver's time slices: containers with the driver itself, metered by NVML, and kept away from those
//! whom they cannot be beside.

use super::{finish, other_daemons_are_masked, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report};
use gpool_protocol::{EventKind, GpuView, LeaseState, LeaseView, Mechanism};
use std::time::{Duration, Instant};

/// The environment may ask for a mode here: Debian's docker has no annotations.
const CONFIGURATION: &str = "[policy]\ntimeslice = true\n[policy.env]\nallow = [\"fraction\", \"memory\", \"gpus\", \"mode\", \
                             \"isolation\", \"team\"]\n";
/// How long anything may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);
/// The device tells of nobody later than this.
const LATE: Duration = Duration::from_secs(4);
/// How long busy time is compared with what the device's meter says.
const WATCH: Duration = Duration::from_secs(6);

/// Runs one container on a whole GPU of two, then two in time slices.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, CONFIGURATION)?;
    let outcome = compute_modes(&host)
        .and_then(|()| whole_gpu(&mut host))
        .and_then(|()| time_slices(&host))
        .and_then(|()| host.nothing_found_by_the_guard());
    let outcome = outcome.and_then(|()| shares_of_time_slices(&mut host));
    finish(host, outcome)
}

/// A GPU that lets one process have a context is nobody's in part, one that lets none is nobody's.
fn compute_modes(host: &Host) -> Result<()> {
    const EXCLUSIVE_PROCESS: u32 = 3;
    const PROHIBITED: u32 = 2;
    let share = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "2GiB")];
    let set = |modes: [u32; 2]| -> Result<()> {
        (0..).zip(modes).try_for_each(|(gpu, mode)| host.set_compute_mode(gpu, mode))?;
        let names = modes.map(|mode| match mode {
            PROHIBITED => Some("PROHIBITED".to_owned()),
            EXCLUSIVE_PROCESS => Some("EXCLUSIVE_PROCESS".to_owned()),
            _ => None,
        });
        super::wait_for("the compute modes to be seen", || {
            let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
            Ok(gpus.into_iter().map(|gpu| gpu.compute_mode).collect::<Vec<_>>() == names)
        })
    };
    set([EXCLUSIVE_PROCESS, PROHIBITED])?;
    let told = ["GPOOL-E204", "EXCLUSIVE_PROCESS", "PROHIBITED", "nvidia-smi -c DEFAULT"];
    is_refused(host, &share, &told)?;
    is_refused(host, &[("GPOOL_MODE", "timeslice")], &told)?;
    is_refused(host, &[("GPOOL_MODE", "auto"), ("GPOOL_FRACTION", "0.2")], &told)?;
    let examined = text(&host.gpool(&["doctor"])?.stdout);
    ensure(examined.contains("GPU 0: EXCLUSIVE_PROCESS, GPU 1: PROHIBITED"), || {
        format!("gpool doctor says {examined}")
    })?;
    let whole = host.run_container("only", &[("GPOOL_MODE", "exclusive")], &[], &["sleep", "600"])?;
    let first: Vec<GpuView> = host.client().get("/v1/gpus")?;
    ensure(host.lease_of(&whole)?.gpu_uuid == first[0].uuid, || "it has a GPU that lets nobody in".to_owned())?;
    host.engine.docker_text(&["rm", "-f", "only"])?;
    wait_for_end(host, &whole)?;
    set([0, 0])?;
    let shared = host.run_container("shared", &share, &[], &["sleep", "600"])?;
    host.engine.docker_text(&["rm", "-f", "shared"])?;
    wait_for_end(host, &shared)
}

fn whole_gpu(host: &mut Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let alone = tenant.run(host, "alone", &[("GPOOL_MODE", "exclusive")])?;
    let gpu = wait_for_work(host, &alone)?;
    let lease = host.lease_of(&alone)?;
    ensure(lease.mechanism == Mechanism::Exclusive && lease.enforcement == "hardware", || format!("{lease:?}"))?;
    has_the_driver_itself(host, &alone, lease.memory_cap_bytes)?;

    let beside = tenant.run(host, "beside", &[("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "2GiB")])?;
    other_daemons_are_masked(host, "alone")?;
    other_daemons_are_masked(host, "beside")?;
    ensure(wait_for_work(host, &beside)? != gpu, || "a share was sold of a GPU that is whole".to_owned())?;
    is_refused(host, &[("GPOOL_MODE", "exclusive")], &["GPOOL-E201", "share it by slices", "has all of it"])?;
    is_refused(host, &[("GPOOL_MODE", "timeslice")], &["GPOOL-E201"])?;
    let mps = [("GPOOL_MODE", "mps"), ("GPOOL_FRACTION", "0.1"), ("GPOOL_TEAM", "vision")];
    is_refused(host, &mps, &["GPOOL-E105", "[policy] mps"])?;
    is_refused(host, &[("GPOOL_FRACTION", "0.1"), ("GPOOL_GPUS", "2"), ("GPOOL_MEMORY", "1GiB")], &["GPOOL-E201"])?;
    is_refused(host, &[("GPOOL_FRACTION", "0.1"), ("GPOOL_ISOLATION", "hardware")], &["GPOOL-E204", "no MIG"])?;
    for verb in [&["update", &alone.id, "--fraction", "0.5"][..], &["pause", &alone.id]] {
        let said = host.gpool(verb)?;
        ensure(text(&said.stderr).contains("GPOOL-E302"), || format!("gpool {verb:?}: {}", text(&said.stderr)))?;
    }
    let explained = host.gpool(&["explain", "--request", "fraction=0.1,isolation=hardware"])?;
    let (said, row) = (text(&explained.stderr), text(&explained.stdout));
    ensure(explained.status.code() == Some(75) && said.contains("GPOOL-E204") && row.contains("A3"), || {
        format!("gpool explain --request says {row}\n{said}")
    })?;
    is_metered(host, &alone, gpu)?;
    is_metered_once_across_a_restart(host, &alone, gpu)?;
    let taken_over = host.lease_of(&alone)?;
    ensure(taken_over.lease_id == lease.lease_id && taken_over.mechanism == Mechanism::Exclusive, || {
        format!("after a restart of the supervisor: {taken_over:?}")
    })?;
    is_refused(host, &[("GPOOL_MODE", "exclusive")], &["GPOOL-E201"])?;
    host.engine.docker_text(&["rm", "-f", "alone"])?;
    wait_for_end(host, &alone)?;
    is_whole_until_nobody_is_on_it(host)?;
    short_programs_are_metered(host)
}

/// A GPU that is taken from a container is another's once no process of the container is left on it. A frozen one lives on
/// until it is thawed, where it is version 1 of cgroups that has frozen it: there it does not even take SIGKILL.
fn is_whole_until_nobody_is_on_it(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    // Its container outlives its program.
    let program = format!("({}); sleep 100000", tenant.command().join(" "));
    let whole = [("GPOOL_MODE", "exclusive")];
    let taken = host.run_container("taken", &whole, &[], &["sh", "-c", &program])?;
    let gpu = wait_for_work(host, &taken)?;
    host.engine.docker_text(&["pause", "taken"])?;
    succeeded("gpool evict", host.gpool(&["evict", &taken.id])?)?;
    let held = || -> Result<u64> { Ok(usage_of(&host.meter_of(gpu)?.read()?, &taken.id).bytes_now) };
    if held()? > 0 {
        let lease = host.lease_of(&taken)?;
        ensure(lease.state == LeaseState::Revoked && lease.fraction_permille == 1000, || {
            format!("of a GPU that it is still on the evicted container has {lease:?}")
        })?;
        is_refused(host, &whole, &["GPOOL-E201"])?;
    }
    host.engine.docker_text(&["unpause", "taken"])?;
    wait_for("its share to be free", || Ok(host.lease_of(&taken)?.fraction_permille == 0))?;
    ensure(held()? == 0 && taken.is_alive(), || "its share is free and its program is on the GPU".to_owned())?;
    let next = tenant.run(host, "next", &whole)?;
    ensure(wait_for_work(host, &next)? == gpu, || "the next container is on another GPU".to_owned())?;
    host.engine.docker_text(&["rm", "-f", "taken", "next"])?;
    wait_for_end(host, &next)
}

/// Two beside each other on the GPU that is free again.
fn time_slices(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let env = [("GPOOL_MODE", "timeslice")];
    let both = [tenant.run(host, "one", &env)?, tenant.run(host, "other", &env)?];
    let gpus = [wait_for_work(host, &both[0])?, wait_for_work(host, &both[1])?];
    ensure(gpus[0] == gpus[1], || format!("they are on GPUs {gpus:?}"))?;
    let lease = host.lease_of(&both[0])?;
    ensure(lease.enforcement == "none" && lease.fraction_permille == 0, || format!("{lease:?}"))?;
    other_daemons_are_masked(host, "one")?;
    is_refused(host, &[("GPOOL_FRACTION", "0.9"), ("GPOOL_MEMORY", "1GiB")], &["GPOOL-E201"])?;
    let busy = |container: &Container| -> Result<u64> {
        Ok(usage_of(&host.meter_of(gpus[0])?.read()?, &container.id).busy_ns)
    };
    let before = [busy(&both[0])?, busy(&both[1])?];
    std::thread::sleep(WATCH);
    let grown = [busy(&both[0])? - before[0], busy(&both[1])? - before[1]];
    let part = grown[0] as f64 / (grown[0] + grown[1]) as f64;
    ensure((0.3..=0.7).contains(&part), || format!("the driver gave one of two {part:.2} of the time"))
}

/// Where fractions of time slices are wanted, they are promised only once the hardware was seen to keep them. The simulated
/// one has no channel groups: it cannot be tried, which is said, and nothing is promised.
fn shares_of_time_slices(host: &mut Host) -> Result<()> {
    let share = [("GPOOL_MODE", "timeslice"), ("GPOOL_FRACTION", "0.3")];
    is_refused(host, &share, &["GPOOL-E105", "[policy] timeslice_shares"])?;
    // A GPU that containers have is not tried.
    host.engine.docker_text(&["rm", "-f", "one", "other", "beside"])?;
    host.kill_supervisor()?;
    let files = "/etc/gpool/conf.d";
    std::fs::create_dir_all(files).context(files)?;
    std::fs::write(format!("{files}/50-shares.toml"), "[policy]\ntimeslice_shares = true\n").context(files)?;
    host.start_supervisor()?;
    let is_tried = |event: &gpool_protocol::Event| event.message.contains("could not be tried");
    let tried = || host.events_of(EventKind::TimeSlicesTried).map(|events| events.into_iter().find(is_tried));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match tried()? {
            Some(_) => break,
            None if Instant::now() > deadline => return Err(Failure::new("time slices were not tried")),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    is_refused(host, &share, &["GPOOL-E105", "gpool doctor"])?;
    let beside = Tenant::greedy(1000).run(host, "third", &[("GPOOL_MODE", "timeslice")])?;
    wait_for_work(host, &beside)?;
    let examined = text(&host.gpool(&["doctor"])?.stdout).to_owned();
    ensure(examined.contains("shares of time slices are refused"), || format!("gpool doctor says {examined}"))
}

/// No shim, no region, no other GPU, and all of the memory.
fn has_the_driver_itself(host: &Host, container: &Container, memory_bytes: u64) -> Result<()> {
    let nodes = host.engine.docker_text(&["exec", &container.name, "ls", "/dev"])?;
    let gpus: Vec<&str> =
        nodes.split_whitespace().filter(|name| name.strip_prefix("nvidia").is_some_and(is_number)).collect();
    ensure(gpus.len() == 1 && !nodes.contains("gpool"), || format!("/dev has {nodes}"))?;
    let deadline = Instant::now() + PATIENCE;
    let seen = loop {
        match report(&container.log(&host.engine)?) {
            Ok(seen) => break seen,
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (memory_bytes, memory_bytes), || format!("it sees {totals:?} of {memory_bytes} bytes"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What `gpool ps` says that it has used agrees with the device's own meter.
fn is_metered(host: &Host, container: &Container, gpu: u32) -> Result<()> {
    let ratio = metered(host, container, gpu)?;
    // NVML's samples come late by up to two seconds at both ends.
    ensure((0.5..=1.5).contains(&ratio), || format!("it was metered {ratio:.2} of what the device says"))?;
    let lease: LeaseView = host.lease_of(container)?;
    ensure(lease.memory_used_bytes >= 512 << 20, || format!("it holds {} bytes", lease.memory_used_bytes))
}

/// Programs that have come and gone between two looks are their lease's as well.
fn short_programs_are_metered(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(16), ..Tenant::greedy(1000) };
    let program = format!("while :; do {} & p=$!; sleep 0.4; kill -9 $p; done", tenant.command().join(" "));
    let short = host.run_container("short", &[("GPOOL_MODE", "exclusive")], &[], &["sh", "-c", &program])?;
    let gpu = wait_for_work(host, &short)?;
    // What the device tells at first may be of somebody before.
    std::thread::sleep(LATE);
    let ratio = metered(host, &short, gpu)?;
    ensure((0.5..=1.5).contains(&ratio), || format!("short programs were metered {ratio:.2} of what the device says"))?;
    host.engine.docker_text(&["rm", "-f", "short"])?;
    wait_for_end(host, &short)
}

/// What a lease is said to have used over a while, over what the device says.
fn metered(host: &Host, container: &Container, gpu: u32) -> Result<f64> {
    let now = || -> Result<(u64, u64)> {
        let seen_ns = host.lease_of(container)?.charged_gpu_ns;
        Ok((seen_ns, usage_of(&host.meter_of(gpu)?.read()?, &container.id).busy_ns))
    };
    let before = now()?;
    std::thread::sleep(WATCH);
    let after = now()?;
    Ok((after.0 - before.0) as f64 / (after.1 - before.1) as f64)
}

/// The device remembers ten seconds of what it was used for, and a supervisor that has just started asks for all of that.
fn is_metered_once_across_a_restart(host: &mut Host, container: &Container, gpu: u32) -> Result<()> {
    let busy_ns = |host: &Host| -> Result<u64> { Ok(usage_of(&host.meter_of(gpu)?.read()?, &container.id).busy_ns) };
    let before = (host.lease_of(container)?.charged_gpu_ns, busy_ns(host)?);
    host.kill_supervisor()?;
    host.start_supervisor()?;
    std::thread::sleep(WATCH);
    let after = (host.lease_of(container)?.charged_gpu_ns, busy_ns(host)?);
    let (metered_ms, had_ms) = ((after.0 - before.0) / 1_000_000, (after.1 - before.1) / 1_000_000);
    // What it was told late before comes in as well, up to two seconds.
    ensure((had_ms / 2..=had_ms + 2500).contains(&metered_ms), || {
        format!("across a restart {metered_ms} ms were metered of {had_ms} ms that the device says")
    })
}

fn is_refused(host: &Host, env: &[(&str, &str)], parts: &[&str]) -> Result<()> {
    let output = host.try_run_container("refused", env, &[], &["true"])?;
    let said = text(&output.stderr);
    ensure(!output.status.success(), || format!("{env:?} was granted"))?;
    host.engine.docker_text(&["rm", "-f", "refused"])?;
    let missing = parts.iter().find(|part| !said.contains(**part));
    ensure(missing.is_none(), || format!("{env:?}: {said:?} lacks {missing:?}"))
}

/// The GPU on which its kernels run, once there are some.
fn wait_for_work(host: &Host, container: &Container) -> Result<u32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for gpu in 0..2 {
            if usage_of(&host.meter_of(gpu)?.read()?, &container.id).kernels > 0 {
                return Ok(gpu);
            }
        }
        if Instant::now() > deadline || !container.is_alive() {
            let said = container.log(&host.engine)?;
            return Err(Failure::new(format!("{} does not work; it said:\n{said}", container.name)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Its place is kept for a while for a restart.
fn wait_for_end(host: &Host, container: &Container) -> Result<()> {
    let is_its = |lease: &LeaseView| lease.container_id.0 == container.id;
    wait_for(&format!("the end of the lease of {}", container.name), || Ok(!host.leases()?.iter().any(is_its)))
}
