//! Two of one team beside each other, and who is not let onto their GPU.

use super::{Team, asks, finds_its_daemon, is_refused, parts, wait_for_work};
use crate::failure::{Result, ensure};
use crate::host::{Host, text};
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, Mechanism};

/// Both on one GPU at the same time, each with 1.2 times its share.
pub fn two_of_a_team(host: &Host) -> Result<Team> {
    let tenant = Tenant { allocate_mib: Some(512), ..Tenant::greedy(1000) };
    let first = tenant.run(host, "first", &asks("vision", "0.3", "4GiB"))?;
    // Its container outlives its program.
    let command = format!("{}; sleep 1000", tenant.command().join(" "));
    let second = host.run_container("second", &asks("vision", "0.5", "6GiB"), &[], &["sh", "-c", &command])?;
    let gpus = [wait_for_work(host, &first)?, wait_for_work(host, &second)?];
    ensure(gpus[0] == gpus[1], || format!("they are on GPUs {gpus:?}"))?;
    let gpu = gpus[0];
    ensure(host.events_of(EventKind::MpsStarted)?.len() == 1, || "they are not under one daemon".to_owned())?;

    let switched_ns = || -> Result<u64> { Ok(host.meter_of(gpu)?.read()?.switch_ns) };
    let before = switched_ns()?;
    let had = parts(host, gpu, &[&first, &second])?;
    // 36 and 60 per cent of the threads, by the device's own meter.
    let is_near = |part: f64, wanted: f64| (part / wanted - 1.0).abs() < 0.1;
    ensure(is_near(had[0], 0.36) && is_near(had[1], 0.6), || format!("they have {had:.2?} of the GPU"))?;
    ensure(switched_ns()? == before, || "they had the GPU in turns".to_owned())?;

    let lease = host.lease_of(&second)?;
    ensure(lease.mechanism == Mechanism::Mps && lease.enforcement == "co-operative", || format!("{lease:?}"))?;
    let listed = text(&host.gpool(&["gpu", "ls"])?.stdout);
    ensure(listed.contains("2 (mps)"), || format!("gpool gpu ls says {listed}"))?;
    finds_its_daemon(host, &first.name)?;
    Ok(Team { first, second, gpu })
}

/// Both GPUs have servers of others by now.
pub fn others_are_kept_away(host: &Host) -> Result<()> {
    is_refused(host, &asks("audio", "0.1", "1GiB"), &[], &["GPOOL-E201", "an MPS server of another team or user"])?;
    let same_team = asks("vision", "0.1", "1GiB");
    is_refused(host, &same_team, &["--user", "1000"], &["GPOOL-E201", "an MPS server of another team or user"])?;
    is_refused(host, &[("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")], &[], &["GPOOL-E201"])?;
    is_refused(host, &[("GPOOL_MODE", "exclusive")], &[], &["GPOOL-E201", "under an MPS server"])?;
    is_refused(host, &asks("vision", "0.3", "1GiB"), &[], &["GPOOL-E201"])?;
    is_refused(host, &asks("vision", "0.1", "20GiB"), &[], &["GPOOL-E202"])
}
