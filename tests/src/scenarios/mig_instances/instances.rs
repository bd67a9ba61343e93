//! Containers in instances: each sees one GPU of its size, opens nobody else's, and has its time and its faults to itself.

use super::{is_refused, said, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, text};
use crate::meter::{MeterReader, now_ns, usage_of};
use crate::scenarios::other_daemons_are_masked;
use crate::tenant::{Tenant, report};
use gpool_protocol::{LeaseView, Mechanism, MigInstanceView};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long GPU time is watched.
const WATCH: Duration = Duration::from_secs(4);

/// One asks for a profile, one for memory.
pub fn two_containers(host: &mut Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let large = tenant.run(host, "large", &[("GPOOL_MIG_PROFILE", "3g.40gb")])?;
    let small = tenant.run(host, "small", &[("GPOOL_MODE", "mig"), ("GPOOL_MEMORY", "8GiB")])?;
    let homes = [home(host, &large, "3g.40gb")?, home(host, &small, "1g.10gb")?];
    for (container, home) in [&large, &small].into_iter().zip(&homes) {
        sees_its_size(host, container, home)?;
        other_daemons_are_masked(host, &container.name)?;
    }
    is_refused(host, &[("GPOOL_MIG_PROFILE", "3g.40gb")], &["GPOOL-E204", "no free instance of 3g.40gb"])?;
    capabilities(host, &large, &small)?;
    own_time(host, [(&large, &homes[0]), (&small, &homes[1])])?;
    is_accounted(host, &large, &homes[0])?;
    survives_a_restart(host, &large)?;
    fault(host, (&large, &homes[0]), (&small, &homes[1]))?;
    by_isolation(host)
}

/// The instance that a container has by its lease.
fn home(host: &Host, container: &Container, profile: &str) -> Result<MigInstanceView> {
    let lease = host.lease_of(container)?;
    let is_mig = lease.mechanism == Mechanism::Mig && lease.mig_profile.as_deref() == Some(profile);
    ensure(is_mig && lease.enforcement == "hardware", || format!("{lease:?}"))?;
    let gpus: Vec<gpool_protocol::MigGpuView> = host.client().get("/v1/mig")?;
    let found = gpus.into_iter().flat_map(|gpu| gpu.instances).find(|one| one.uuid == lease.gpu_uuid);
    let found = found.ok_or_else(|| Failure::new(format!("{} is no instance", lease.gpu_uuid)))?;
    ensure(found.lease_id == Some(lease.lease_id), || format!("{found:?} is not shown as leased"))?;
    Ok(found)
}

fn sees_its_size(host: &Host, container: &Container, home: &MigInstanceView) -> Result<()> {
    wait_for("the tenant to look", || Ok(report(&container.log(&host.engine)?).is_ok()))?;
    let seen = report(&container.log(&host.engine)?)?;
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (home.memory_bytes, home.memory_bytes), || format!("{} sees {totals:?}", container.name))?;
    let nodes = host.engine.docker_text(&["exec", &container.name, "ls", "/dev", "/dev/nvidia-caps"])?;
    ensure(nodes.matches("nvidia-cap").count() == 4 && nodes.matches("nvidia0").count() == 1, || nodes.clone())?;
    ensure(!nodes.contains("gpool"), || format!("{} has a region: {nodes}", container.name))
}

fn capability_nodes(host: &Host, container: &Container) -> Result<BTreeSet<String>> {
    let nodes = host.engine.docker_text(&["exec", &container.name, "ls", "/dev/nvidia-caps"])?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

/// Neither the neighbour's nodes nor copies of them can be opened, nor its UUID be used; its own can.
fn capabilities(host: &Host, own: &Container, neighbour: &Container) -> Result<()> {
    let (its, theirs) = (capability_nodes(host, own)?, capability_nodes(host, neighbour)?);
    ensure(its.len() == 2 && theirs.len() == 2 && its.is_disjoint(&theirs), || format!("{its:?} and {theirs:?}"))?;
    let open = |node: &str| -> Result<String> {
        let output = host.docker(&["exec", &own.name, "sh", "-c", &format!("cat {node}")])?;
        Ok(text(&output.stderr))
    };
    for node in &its {
        let answer = open(&format!("/dev/nvidia-caps/{node}"))?;
        // There is no driver behind a simulated node: this is the answer of a kernel that lets it be opened.
        ensure(answer.contains("No such device or address"), || format!("its own {node}: {answer}"))?;
    }
    for node in &theirs {
        let minor = node.trim_start_matches("nvidia-cap");
        let made = host.docker(&["exec", &own.name, "mknod", &format!("/tmp/{node}"), "c", "511", minor])?;
        ensure(made.status.success(), || text(&made.stderr))?;
        let answer = open(&format!("/tmp/{node}"))?;
        ensure(answer.contains("Operation not permitted"), || format!("a neighbour's {node}: {answer}"))?;
    }
    let uuid = format!("CUDA_VISIBLE_DEVICES={}", host.lease_of(neighbour)?.gpu_uuid);
    let output = host.docker(&["exec", "-e", &uuid, &own.name, "gpool-tenant"])?;
    // CUDA_ERROR_NO_DEVICE
    ensure(!output.status.success() && text(&output.stdout).contains("100"), || {
        format!("with the neighbour's UUID: {} {}", text(&output.stdout), text(&output.stderr))
    })
}

fn meter(host: &Host, home: &MigInstanceView) -> Result<MeterReader> {
    host.meter_of_instance(0, home.gpu_instance)
}

/// Both at work all the time, as no two are on one GPU.
fn own_time(host: &Host, both: [(&Container, &MigInstanceView); 2]) -> Result<()> {
    let busy = || -> Result<Vec<u64>> {
        both.iter().map(|(its, home)| Ok(usage_of(&meter(host, home)?.read()?, &its.id).busy_ns)).collect()
    };
    let (before, from_ns) = (busy()?, now_ns());
    std::thread::sleep(WATCH);
    let (after, elapsed_ns) = (busy()?, now_ns() - from_ns);
    for ((container, _), (before, after)) in both.iter().zip(before.iter().zip(&after)) {
        let part = (after - before) as f64 / elapsed_ns as f64;
        ensure(part > 0.7, || format!("{} was at work for {part:.2} of the time", container.name))?;
    }
    Ok(())
}

/// What `gpool ps` says that it holds is what its instance says.
fn is_accounted(host: &Host, container: &Container, home: &MigInstanceView) -> Result<()> {
    wait_for("its memory to be accounted", || {
        let held = meter(host, home)?.memory_used_bytes()?;
        Ok(host.lease_of(container)?.memory_used_bytes == held && held >= 512 << 20)
    })?;
    said(&host.gpool(&["ps"])?, 0, &["3g.40gb", "hardware"])?;
    for verb in [&["update", &container.id, "--fraction", "0.5"][..], &["pause", &container.id]] {
        said(&host.gpool(verb)?, 4, &["GPOOL-E302"])?;
    }
    Ok(())
}

fn survives_a_restart(host: &mut Host, container: &Container) -> Result<()> {
    let before = host.lease_of(container)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let after: LeaseView = host.lease_of(container)?;
    let same = (&before.lease_id, &before.gpu_uuid, before.mechanism, &before.mig_profile)
        == (&after.lease_id, &after.gpu_uuid, after.mechanism, &after.mig_profile);
    ensure(same, || format!("after a restart of the supervisor: {after:?}"))?;
    is_refused(host, &[("GPOOL_MIG_PROFILE", "3g.40gb")], &["GPOOL-E204"])
}

/// A fault of one instance ends whoever is in it, and nobody else notices.
fn fault(host: &Host, spared: (&Container, &MigInstanceView), struck: (&Container, &MigInstanceView)) -> Result<()> {
    let kernels = |of: (&Container, &MigInstanceView)| -> Result<u64> {
        Ok(usage_of(&meter(host, of.1)?.read()?, &of.0.id).kernels)
    };
    let number = struck.1.gpu_instance.to_string();
    let faulted = host.command("gpool-simgpu").args(["fault", "--gpu", "0", "--instance", &number]).output();
    let faulted = faulted.context("gpool-simgpu fault")?;
    ensure(faulted.status.success(), || text(&faulted.stderr))?;
    wait_for("the struck container to end", || Ok(!struck.0.is_alive()))?;
    let before = kernels(spared)?;
    wait_for("the other one to go on", || Ok(kernels(spared)? > before + 100))?;
    ensure(spared.0.is_alive(), || "the fault has spread".to_owned())
}

/// Who asks for isolation by hardware gets an instance that is large enough.
fn by_isolation(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_ISOLATION", "hardware")];
    let strict = host.run_container("strict", &env, &[], &["sleep", "600"])?;
    home(host, &strict, "2g.20gb")?;
    host.engine.docker_text(&["rm", "-f", "strict"]).map(drop)
}
