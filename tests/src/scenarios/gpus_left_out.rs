//! Three GPUs of which gpool is to serve one, and another one that is not there: the others are neither shown nor leased.

use super::finish;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::Inside;
use gpool_protocol::{Event, EventKind, GpuView, Reloaded};
use std::fs;

const DROP_IN: &str = "/etc/gpool/conf.d/10-gpus.toml";
const ABSENT: &str = "GPU-aaaaaaaa-0000-4000-8000-000000000000";

/// Leaves two of three GPUs out.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 3, "")?;
    let outcome = leave_two_out(&mut host);
    finish(host, outcome)
}

fn leave_two_out(host: &mut Host) -> Result<()> {
    let all = shown(host)?;
    ensure(all.len() == 3, || format!("without the key not all GPUs are served: {all:?}"))?;
    // The middle one, so that its index is not its place.
    name(&[&all[1].uuid.0, ABSENT])?;
    let reloaded: Reloaded = host.client().post("/v1/configuration/reload", &())?;
    let waits = reloaded.needs_restart.iter().any(|change| change.key == "driver.gpus");
    ensure(waits && reloaded.applied.is_empty(), || format!("a reload says of the key: {reloaded:?}"))?;
    ensure(shown(host)?.len() == 3, || "the key is in force before a restart".to_owned())?;

    host.stop_supervisor()?;
    host.start_supervisor()?;
    let served = shown(host)?;
    ensure(served.len() == 1 && served[0].uuid == all[1].uuid && served[0].index == 1, || {
        format!("not GPU 1 alone is served: {served:?}")
    })?;
    let told: Vec<Event> = host.events_of(EventKind::GpuSilent)?;
    ensure(told.len() == 1 && told[0].message.contains(ABSENT), || {
        format!("the GPU that is not there is not told once: {told:?}")
    })?;
    nobody_shows_the_others(host, &all)?;
    two_of_its_halves_fill_it(host, &all)?;

    name(&["GPU-1"])?;
    let refused = host.command("gpool-supervisor").arg("--check-config").output().context("gpool-supervisor")?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure(
        refused.status.code() == Some(78) && said.contains("line 2") && said.contains("\"GPU-1\" is no UUID"),
        || format!("a name that is no UUID is not refused: {said}"),
    )?;
    fs::remove_file(DROP_IN).context(DROP_IN)
}

/// Names the GPUs to be served, in a drop-in.
fn name(uuids: &[&str]) -> Result<()> {
    fs::create_dir_all("/etc/gpool/conf.d").context(DROP_IN)?;
    fs::write(DROP_IN, format!("[driver]\ngpus = {uuids:?}\n")).context(DROP_IN)
}

fn shown(host: &Host) -> Result<Vec<GpuView>> {
    Ok(host.client().get("/v1/gpus")?)
}

fn nobody_shows_the_others(host: &Host, all: &[GpuView]) -> Result<()> {
    for arguments in [&["gpu", "ls"][..], &["metrics"], &["doctor"]] {
        let said = String::from_utf8_lossy(&host.gpool(arguments)?.stdout).into_owned();
        let others = [&all[0], &all[2]].into_iter().filter(|gpu| said.contains(gpu.uuid.0.as_str()));
        ensure(others.count() == 0, || format!("gpool {} shows what is left out:\n{said}", arguments.join(" ")))?;
        let tells_absent = said.contains(ABSENT);
        ensure(tells_absent == (arguments == ["doctor"]), || {
            format!("gpool {} on the GPU that is not there:\n{said}", arguments.join(" "))
        })?;
    }
    succeeded("gpool gpu ls", host.gpool(&["gpu", "ls"])?).map(drop)
}

/// Two containers with a half each are on the one that is served, and a third finds no room.
fn two_of_its_halves_fill_it(host: &Host, all: &[GpuView]) -> Result<()> {
    let half = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "1GiB")];
    for container in ["one", "other"] {
        let container = host.run_container(container, &half, &[], &["sleep", "600"])?;
        let home = host.lease_of(&container)?.gpu_uuid;
        ensure(home == all[1].uuid, || format!("a container is on {home}, which is left out"))?;
    }
    super::is_refused(host, &half, &["GPOOL-E201"])?;
    super::is_refused(host, &[("GPOOL_FRACTION", "0.5"), ("GPOOL_GPUS", "2")], &["GPOOL-E203"])
}
