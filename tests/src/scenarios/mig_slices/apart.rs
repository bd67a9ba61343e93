//! Who does not get into a shared instance, and what does not get out of it.

use super::{Containers, SHARED, instance, is_alive, is_refused, share_of, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, text};
use crate::meter::usage_of;
use crate::tenant::{Tenant, report};
use gpool_protocol::LeaseView;

/// The cause is named, and nothing else is given.
pub fn others_are_refused(host: &Host, all: &Containers) -> Result<()> {
    is_refused(host, &share_of("speech", "0.1", "1GiB"), &["GPOOL-E204", "belongs to the team vision"])?;
    is_refused(host, &share_of("vision", "0.1", "1GiB"), &["GPOOL-E204", "has 0 of the 100 thousandths free"])?;
    is_refused(host, &[("GPOOL_MIG_PROFILE", SHARED)], &["GPOOL-E204", "no free instance of 3g.40gb"])?;
    let own = [("GPOOL_MODE", "slice"), ("GPOOL_MIG_PROFILE", "2g.20gb"), ("GPOOL_FRACTION", "0.1")];
    is_refused(host, &own, &["GPOOL-E204", "names no team"])?;
    let whole = [&own[..], &[("GPOOL_TEAM", "speech")]].concat();
    is_refused(host, &whole, &["GPOOL-E204", "is one container's as a whole"])?;
    // Nothing is promised to who asks for what is left, but there must be memory.
    let idle = [&share_of("vision", "0.1", "100%")[..], &[("GPOOL_PRIORITY", "scavenger")]].concat();
    is_refused(host, &idle, &["GPOOL-E204", "MiB free"])?;
    let neighbour = format!("CUDA_VISIBLE_DEVICES={}", instance(host, "2g.20gb")?.uuid);
    let output = host.docker(&["exec", "-e", &neighbour, &all.small.name, "gpool-tenant"])?;
    // CUDA_ERROR_NO_DEVICE
    ensure(!output.status.success() && text(&output.stdout).contains("100"), || {
        format!("with the neighbour's UUID: {} {}", text(&output.stdout), text(&output.stderr))
    })
}

/// A supervisor that was killed finds shares, team and caps again.
pub fn survives_a_restart(host: &mut Host, all: &Containers) -> Result<()> {
    let leases = |host: &Host| -> Result<Vec<LeaseView>> {
        [&all.large, &all.small].into_iter().map(|its| host.lease_of(its)).collect()
    };
    let before = leases(host)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    for (before, after) in before.iter().zip(&leases(host)?) {
        let same = |lease: &LeaseView| {
            let share = (lease.fraction_permille, lease.memory_cap_bytes);
            (lease.lease_id.clone(), lease.gpu_uuid.clone(), lease.mig_profile.clone(), share, lease.team.clone())
        };
        ensure(same(before) == same(after), || format!("{before:?} and after a restart {after:?}"))?;
    }
    ensure(instance(host, SHARED)?.slices.len() == 2, || "a slice was lost".to_owned())?;
    goes_on(host, &all.small)?;
    is_refused(host, &share_of("speech", "0.1", "1GiB"), &["GPOOL-E204", "belongs to the team vision"])
}

/// A fault of one's own work, and a SIGKILL, end who had it; the others in the instance and beside it go on.
pub fn ends_alone(host: &Host, all: &Containers) -> Result<()> {
    let number = instance(host, SHARED)?.gpu_instance.to_string();
    let struck = host.lease_of(&all.large)?.init_pid.map(|pid| pid.to_string()).unwrap_or_default();
    let mut fault = host.command("gpool-simgpu");
    fault.args(["fault", "--gpu", "0", "--instance", &number, "--process", &struck]);
    let faulted = fault.output().context("gpool-simgpu fault")?;
    ensure(faulted.status.success(), || text(&faulted.stderr))?;
    wait_for("the struck container to end", || Ok(!all.large.is_alive()))?;
    others_go_on(host, all)?;
    super::remove(host, &all.large.name)?;
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let next = tenant.run(host, "next", &share_of("vision", "0.4", "4GiB"))?;
    wait_for("the next tenant to work", || Ok(report(&next.log(&host.engine)?).is_ok()))?;
    next.kill_init()?;
    wait_for("the killed container to end", || Ok(!next.is_alive()))?;
    others_go_on(host, all)?;
    super::remove(host, &next.name)
}

fn others_go_on(host: &Host, all: &Containers) -> Result<()> {
    goes_on(host, &all.small)?;
    [&all.small, &all.beside, &all.elsewhere].into_iter().try_for_each(is_alive)
}

/// More of its kernels run.
fn goes_on(host: &Host, container: &Container) -> Result<()> {
    let meter = host.meter_of_instance(0, instance(host, SHARED)?.gpu_instance)?;
    let kernels = || -> Result<u64> { Ok(usage_of(&meter.read()?, &container.id).kernels) };
    let before = kernels()?;
    wait_for("the others to go on", || Ok(kernels()? > before + 100))
}
