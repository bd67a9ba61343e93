//! Two containers in one instance: their sizes, their times, what is shown of them, and a change while they run.

use super::{Containers, SHARED, instance, remove, said, share_of, wait_for};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::measure::worst_proportion_error_points;
use crate::meter::{now_ns, usage_of};
use crate::tenant::{Tenant, report};
use crate::trace::Recorder;
use gpool_protocol::{LeaseView, Mechanism};
use std::time::Duration;

/// How long GPU time is watched.
const WATCH: Duration = Duration::from_secs(6);
/// The large container's cap.
const LARGE_BYTES: u64 = 20 << 30;

/// Starts them all, and one in another instance and one on another GPU.
pub fn start(host: &Host) -> Result<Containers> {
    let modest = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let all = Containers {
        large: Tenant::greedy(2000).run(host, "large", &share_of("vision", "0.7", "20GiB"))?,
        small: Tenant::greedy(300).run(host, "small", &share_of("vision", "0.3", "25%"))?,
        beside: modest.run(host, "beside", &[("GPOOL_MIG_PROFILE", "2g.20gb"), ("GPOOL_TEAM", "speech")])?,
        elsewhere: modest.run(host, "elsewhere", &[("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "8GiB")])?,
    };
    for container in [&all.large, &all.small, &all.beside, &all.elsewhere] {
        wait_for("the tenants to work", || Ok(report(&container.log(&host.engine)?).is_ok()))?;
    }
    Ok(all)
}

/// What they were promised of the instance's memory and time; nobody else has any of it.
pub fn each_has_its_part(host: &Host, all: &Containers) -> Result<()> {
    let home = instance(host, SHARED)?;
    let quarter = home.memory_bytes / 4;
    for (container, cap_bytes) in [(&all.large, LARGE_BYTES), (&all.small, quarter)] {
        let lease = host.lease_of(container)?;
        let is_slice = (lease.mechanism, lease.mig_profile.as_deref(), lease.enforcement.as_str());
        ensure(is_slice == (Mechanism::Slice, Some(SHARED), "co-operative"), || format!("{lease:?}"))?;
        ensure(lease.gpu_uuid == home.uuid && lease.memory_cap_bytes == cap_bytes, || format!("{lease:?}"))?;
        let log = container.log(&host.engine)?;
        let own = format!("\"instance\":[{},0]", home.gpu_instance);
        ensure(log.contains(&own), || format!("{}: without {own}: {log}", container.name))?;
        let seen = report(&log)?;
        let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
        ensure(totals == (cap_bytes, cap_bytes), || format!("{} sees {totals:?}", container.name))?;
        // It has allocated until it was refused.
        let held = usage_of(&host.meter_of_instance(0, home.gpu_instance)?.read()?, &container.id).bytes_peak;
        ensure(held <= cap_bytes && held > cap_bytes - (1 << 30), || format!("{} held {held}", container.name))?;
        let nodes = host.engine.docker_text(&["exec", &container.name, "ls", "/dev", "/dev/nvidia-caps"])?;
        let counts = ["nvidia-cap", "nvidia0", "nvidia1", "gpool"].map(|name| nodes.matches(name).count());
        // The directory of the capabilities is named twice, and holds two.
        ensure(counts == [4, 1, 0, 1], || format!("{}: {nodes}", container.name))?;
    }
    have_shares(host, all, [0.7, 0.3])
}

/// Their parts of what the instance delivered, by its own meter; those outside are at work, and elsewhere.
fn have_shares(host: &Host, all: &Containers, shares: [f64; 2]) -> Result<()> {
    let meter = |profile: &str| host.meter_of_instance(0, instance(host, profile)?.gpu_instance);
    let recorders = [meter(SHARED)?, meter("2g.20gb")?, host.meter_of(1)?];
    let recorders = recorders.map(|reader| Recorder::start(reader, Duration::from_millis(5)));
    let from_ns = now_ns();
    std::thread::sleep(WATCH);
    let to_ns = now_ns();
    let [shared, beside, elsewhere] = recorders.map(Recorder::stop);
    let (shared, beside, elsewhere) = (shared?, beside?, elsewhere?);
    let entitled = [(all.large.id.as_str(), shares[0]), (all.small.id.as_str(), shares[1])];
    let error = worst_proportion_error_points(&shared, &entitled, from_ns, to_ns);
    let received = entitled.map(|(id, _)| shared.share(id, from_ns, to_ns));
    ensure(error <= 5.0, || format!("of {shares:?} they received {received:.3?}, off by {error:.2} points"))?;
    let busy = shared.busy(from_ns, to_ns);
    ensure(busy > 0.7, || format!("the shared instance was at work for {busy:.2} of the time"))?;
    for (trace, own) in [(&beside, &all.beside), (&elsewhere, &all.elsewhere)] {
        let (its, everybodys) = (trace.share(&own.id, from_ns, to_ns), trace.busy(from_ns, to_ns));
        ensure(its > 0.7 && its > 0.99 * everybodys, || format!("{} had {its:.2} of {everybodys:.2}", own.name))?;
        let strayed = shared.share(&own.id, from_ns, to_ns);
        ensure(strayed == 0.0, || format!("{} was in the shared instance", own.name))?;
    }
    Ok(())
}

/// People and programs see the instance and who shares it.
pub fn is_shown(host: &Host, all: &Containers) -> Result<()> {
    let home = instance(host, SHARED)?;
    let told = (home.lease_id.is_none(), home.slices.len(), home.team.as_deref(), home.share_leased_permille);
    ensure(told == (true, 2, Some("vision"), 1000), || format!("{home:?}"))?;
    let cap_bytes = LARGE_BYTES + home.memory_bytes / 4;
    ensure(home.memory_leased_bytes == cap_bytes, || format!("{home:?}"))?;
    said(&host.gpool(&["ps"])?, 0, &[SHARED, "co-operative", "70 %"])?;
    said(&host.gpool(&["mig", "show"])?, 0, &["2 slices, 100 % of team vision"])?;
    said(&host.gpool(&["gpu", "ls"])?, 0, &["MIG 3g.40gb", "100 %", "divided"])?;
    said(&host.gpool(&["inspect", &all.small.id])?, 0, &[SHARED, &home.uuid.0, "vision"])?;
    said(&host.gpool(&["explain", &all.small.id])?, 0, &[&home.uuid.0, "not compared with the device"])?;
    let request = "mode=slice,mig-profile=3g.40gb,team=vision,fraction=0.1";
    said(&host.gpool(&["explain", "--request", request])?, 75, &["of vision (0 % and", "0 of the 100 thousandths"])?;
    let uuid = format!("gpool_gpu_share_committed_ratio{{gpu_uuid=\"{}\"}} 1\n", home.uuid);
    said(&host.gpool(&["metrics"])?, 0, &[&uuid, "mechanism=\"slice\""])
}

/// A change of their parts takes effect, and never sells the instance twice.
pub fn is_changed(host: &Host, all: &Containers) -> Result<()> {
    said(&host.gpool(&["update", &all.small.id, "--fraction", "0.6"])?, 75, &["GPOOL-E201"])?;
    said(&host.gpool(&["update", &all.large.id, "--fraction", "0.4"])?, 0, &[])?;
    said(&host.gpool(&["update", &all.small.id, "--fraction", "0.6"])?, 0, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    have_shares(host, all, [0.4, 0.6])
}

/// `auto` gives a team's share inside the team's instance where another team is on the host: so much of it as comes to the
/// fraction of the GPU.
pub fn by_the_table(host: &Host, all: &Containers) -> Result<()> {
    let given = |team: &str| -> Result<LeaseView> {
        let env = [("GPOOL_MODE", "auto"), ("GPOOL_FRACTION", "0.1"), ("GPOOL_LIMIT", "0.2"), ("GPOOL_TEAM", team)];
        let container: Container = host.run_container(team, &env, &[], &["sleep", "600"])?;
        let lease = host.lease_of(&container)?;
        remove(host, team)?;
        Ok(lease)
    };
    let (inside, outside) = (given("vision")?, given("sound")?);
    // A tenth of seven compute slices is 234 thousandths of three.
    let parts = (inside.gpu_uuid == instance(host, SHARED)?.uuid, inside.fraction_permille, inside.limit_permille);
    ensure(parts == (true, 234, Some(467)), || format!("{inside:?}"))?;
    let is_whole = outside.mig_profile.is_none() && outside.mechanism == Mechanism::Slice;
    ensure(is_whole && outside.fraction_permille == 100, || format!("a team without an instance: {outside:?}"))?;
    for name in [&all.small.name, &all.beside.name, &all.elsewhere.name] {
        remove(host, name)?;
    }
    Ok(())
}
