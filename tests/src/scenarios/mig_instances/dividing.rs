//! Who may divide, when, and into what.

use super::{FILE, instance, is_refused, mig, profiles, said, shown, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, SIMULATED_GPU, text};
use gpool_protocol::{EventKind, LeaseView};
use gpool_simulated_hardware::{Board, Layout, Store};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// An undivided GPU is shared as a whole; a divided one is not, and is as its layout says.
pub fn before_anybody_is_there(host: &Host) -> Result<()> {
    ensure(!shown(host)?.enabled, || "MIG is on already".to_owned())?;
    said(&mig(host, "drift", "mixed", &[])?, 10, &["MIG off", "yes"])?;
    said(&mig(host, "apply", "impossible", &[])?, 2, &["GPOOL-E106", "nearest"])?;
    said(&host.gpool(&["mig", "apply", "--file", FILE])?, 2, &["GPOOL-E101", "--config"])?;
    let mut stranger = host.command("gpool");
    stranger.args(["mig", "apply", "--file", FILE, "--config", "mixed"]).uid(65534).gid(65534);
    said(&stranger.output().context("gpool as nobody")?, 77, &["GPOOL-E401", "ask root"])?;
    somebody_elses(host)?;
    said(&mig(host, "apply", "mixed", &[])?, 0, &["3g.40gb", "2g.20gb", "1g.10gb"])?;
    let there = shown(host)?;
    let starts: Vec<(&str, u8)> = there.instances.iter().map(|one| (one.profile.as_str(), one.start)).collect();
    ensure(starts == [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)], || format!("{starts:?}"))?;
    said(&mig(host, "drift", "mixed", &[])?, 0, &["no"])?;
    said(&mig(host, "drift", "halves", &[])?, 10, &["yes"])?;
    is_refused(host, &[("GPOOL_FRACTION", "0.2")], &["GPOOL-E204", "divided with MIG"])?;
    is_refused(host, &[("GPOOL_MODE", "exclusive")], &["GPOOL-E204", "divided with MIG"])?;
    is_refused(host, &[("GPOOL_MIG_PROFILE", "9g.1gb")], &["GPOOL-E204", "9g.1gb"])?;
    is_refused(host, &[("GPOOL_MODE", "mig")], &["GPOOL-E101", "how large"])
}

/// Where another program divides GPUs, gpool only reads.
fn somebody_elses(host: &Host) -> Result<()> {
    let marker = "/etc/nvidia-mig-manager";
    std::fs::create_dir(marker).context(marker)?;
    let refused = mig(host, "apply", "mixed", &[])?;
    let told = host.gpool(&["mig", "show"])?;
    std::fs::remove_dir(marker).context(marker)?;
    said(&refused, 4, &["GPOOL-E107", marker])?;
    said(&told, 0, &["only reads"])
}

/// While somebody has an instance nothing is changed; draining lets nobody in and waits for the end.
pub fn under_leases(host: &Host) -> Result<()> {
    let before = profiles(host)?;
    said(&mig(host, "apply", "halves", &[])?, 4, &["GPOOL-E107", "--drain"])?;
    said(&mig(host, "apply", "halves", &["--drain", "1"])?, 4, &["GPOOL-E107"])?;
    ensure(profiles(host)? == before, || "a refused layout has changed something".to_owned())?;
    // The last attempt's closing is over by itself.
    wait_for("the GPU to be open again", || {
        let output = host.try_run_container("again", &[("GPOOL_MIG_PROFILE", "2g.20gb")], &[], &["true"])?;
        host.engine.docker_text(&["rm", "-f", "again"])?;
        Ok(output.status.success())
    })?;
    let mut draining = host.command("gpool");
    draining.args(["mig", "apply", "--file", FILE, "--config", "halves", "--drain", "60"]);
    let draining = draining.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("gpool mig apply")?;
    wait_for("nobody to be let in", || {
        let output = host.try_run_container("late", &[("GPOOL_MIG_PROFILE", "2g.20gb")], &[], &["true"])?;
        host.engine.docker_text(&["rm", "-f", "late"])?;
        Ok(!output.status.success())
    })?;
    for lease in host.client().get::<Vec<LeaseView>>("/v1/leases")? {
        // Kept places have no container any more.
        host.docker(&["rm", "-f", &lease.container_id.0])?;
    }
    said(&draining.wait_with_output().context("gpool mig apply")?, 0, &["3g.40gb"])?;
    ensure(profiles(host)? == ["3g.40gb", "3g.40gb"], || format!("{:?}", profiles(host)))?;
    let applied = host.events()?.into_iter().find(|event| event.kind == EventKind::MigApplied);
    ensure(applied.is_some_and(|event| event.uid == Some(0)), || "no event says who divided the GPU".to_owned())
}

/// Instances that go without gpool are seen, and told; MIG off gives the GPU back to slices.
pub fn by_somebody_else(host: &Host) -> Result<()> {
    let gone = instance(host, "3g.40gb")?;
    let layout = Layout::new(SIMULATED_GPU);
    let store = Store::open_device(layout.root(), 0).context("the simulated GPU")?;
    let board = Board { layout: &layout, minor: 0, store: &store };
    let taken = board.destroy_compute(gone.gpu_instance).and_then(|()| board.destroy(gone.gpu_instance));
    ensure(taken.is_ok(), || format!("{taken:?}"))?;
    wait_for("the drift to be seen", || Ok(profiles(host)? == ["3g.40gb"]))?;
    said(&mig(host, "drift", "halves", &[])?, 10, &["3g.40gb + 3g.40gb", "yes"])?;
    let told = host.events()?.into_iter().find(|event| event.kind == EventKind::MigChanged);
    ensure(told.is_some_and(|event| event.message.contains(&gone.uuid.0)), || "no event says what is gone".to_owned())?;
    said(&mig(host, "apply", "whole", &[])?, 0, &["off"])?;
    let share = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "4GiB")];
    host.run_container("share", &share, &[], &["sleep", "1000"])?;
    said(&mig(host, "apply", "mixed", &[])?, 4, &["GPOOL-E107"])?;
    is_refused(host, &[("GPOOL_MIG_PROFILE", "1g.10gb")], &["GPOOL-E204", "maintenance window"])?;
    evicted(host, "share")?;
    said(&mig(host, "apply", "mixed", &[])?, 0, &["1g.10gb"])?;
    host.run_container("part", &[("GPOOL_MIG_PROFILE", "3g.40gb")], &[], &["sleep", "1000"])?;
    evicted(host, "part")?;
    host.run_container("next", &[("GPOOL_MIG_PROFILE", "3g.40gb")], &[], &["sleep", "1000"]).map(drop)
}

/// The GPU is taken from a container, which lives on and is in nobody's way any more.
fn evicted(host: &Host, name: &str) -> Result<()> {
    let container = Container::inspect(&host.engine, name)?;
    said(&host.gpool(&["evict", &container.id])?, 0, &[&container.id])?;
    wait_for("its share to be free", || Ok(host.lease_of(&container)?.fraction_permille == 0))?;
    let opened = host.docker(&["exec", name, "sh", "-c", "true < /dev/nvidia0"])?;
    let answer = text(&opened.stderr);
    ensure(answer.contains("Operation not permitted") && container.is_alive(), || format!("{name}: {answer}"))
}
