//! The configured layout after a boot, and maintenance windows.

use super::{SHARED, instances, is_refused, said, share_of, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use gpool_protocol::{Event, EventKind};
use std::process::Stdio;

/// What says that this boot's first start is over.
const MARK: &str = "/run/gpool/mig-boot-id";
/// A trace of another program that divides GPUs.
const OWNER: &str = "/etc/nvidia-mig-manager";

fn profiles(host: &Host) -> Result<Vec<String>> {
    let mut profiles: Vec<String> = instances(host)?.into_iter().map(|one| one.profile).collect();
    profiles.sort_unstable();
    Ok(profiles)
}

fn told(host: &Host, kind: EventKind) -> Result<Event> {
    let found = host.events()?.into_iter().find(|event| event.kind == kind);
    found.ok_or_else(|| Failure::new(format!("no event of the kind {kind:?}")))
}

/// The first start is one after a boot: there were no instances.
pub fn made_at_the_first_start(host: &Host) -> Result<()> {
    ensure(profiles(host)? == ["2g.20gb", SHARED], || format!("{:?}", profiles(host)))?;
    let event = told(host, EventKind::MigApplied)?;
    ensure(event.uid.is_none() && event.message.contains("after the boot"), || format!("{event:?}"))?;
    said(&host.gpool(&["mig", "drift"])?, 0, &["2g.20gb + 3g.40gb", "no"])?;
    said(&host.gpool(&["mig", "drift", "--config", "halves"])?, 10, &["yes"])
}

/// Outside a window somebody has to say that leases may be waited for, within one nobody has to.
pub fn in_a_window(host: &Host) -> Result<()> {
    let slice = host.run_container("slice", &share_of("vision", "0.5", "4GiB"), &[], &["sleep", "600"])?;
    said(&host.gpool(&["mig", "apply", "--config", "halves"])?, 4, &["GPOOL-E107", "1 lease(s)", "--drain"])?;
    ensure(profiles(host)? == ["2g.20gb", SHARED], || "a refused layout has changed something".to_owned())?;
    let windows = "/etc/gpool/conf.d";
    std::fs::create_dir_all(windows).context(windows)?;
    let file = format!("{windows}/10-windows.toml");
    std::fs::write(&file, "[mig]\nwindows = [\"Mon-Sun 00:00-24:00\"]\n").context(&file)?;
    said(&host.gpool(&["config", "reload"])?, 0, &["mig.windows"])?;
    let mut draining = host.command("gpool");
    draining.args(["mig", "apply", "--config", "halves"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let draining = draining.spawn().context("gpool mig apply")?;
    wait_for("nobody to be let in", || {
        let output = host.try_run_container("late", &share_of("vision", "0.1", "1GiB"), &[], &["true"])?;
        host.engine.docker_text(&["rm", "-f", "late"])?;
        Ok(!output.status.success())
    })?;
    ensure(slice.is_alive(), || "a window has ended a container".to_owned())?;
    host.engine.docker_text(&["rm", "-f", &slice.name])?;
    let drained = draining.wait_with_output().context("gpool mig apply")?;
    said(&drained, 0, &["a maintenance window is open", "3g.40gb"])?;
    ensure(profiles(host)? == [SHARED, SHARED], || format!("{:?}", profiles(host)))?;
    std::fs::remove_file(&file).context(&file)?;
    said(&host.gpool(&["config", "reload"])?, 0, &["mig.windows"])?;
    is_refused(host, &[("GPOOL_MIG_PROFILE", "2g.20gb")], &["GPOOL-E204"])
}

/// Only the first start after a boot makes the layout, and not where another program divides.
pub fn after_a_boot(host: &mut Host) -> Result<()> {
    said(&host.gpool(&["mig", "apply", "--config", "whole"])?, 0, &["off"])?;
    restart(host)?;
    ensure(profiles(host)?.is_empty(), || "a restart has divided GPUs".to_owned())?;
    boot(host)?;
    ensure(profiles(host)? == ["2g.20gb", SHARED], || format!("after a boot: {:?}", profiles(host)))?;
    boot(host)?;
    let event = told(host, EventKind::MigNotApplied)?;
    ensure(event.message.contains("has instances already"), || format!("{event:?}"))?;
    said(&host.gpool(&["mig", "apply", "--config", "whole"])?, 0, &["off"])?;
    std::fs::create_dir(OWNER).context(OWNER)?;
    let outcome = boot(host).and_then(|()| told(host, EventKind::MigNotApplied));
    std::fs::remove_dir(OWNER).context(OWNER)?;
    let event = outcome?;
    ensure(event.message.contains(OWNER), || format!("{event:?}"))?;
    ensure(profiles(host)?.is_empty(), || "another program's GPUs were divided".to_owned())?;
    // While containers run that were leased before, nobody divides either.
    let share = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")];
    let container: Container = host.run_container("early", &share, &[], &["sleep", "600"])?;
    boot(host)?;
    ensure(profiles(host)?.is_empty() && container.is_alive(), || "GPUs were divided under a lease".to_owned())
}

fn restart(host: &mut Host) -> Result<()> {
    host.kill_supervisor()?;
    host.start_supervisor()
}

/// As after a boot, which empties the directory that the mark is in.
fn boot(host: &mut Host) -> Result<()> {
    host.kill_supervisor()?;
    std::fs::remove_file(MARK).context(MARK)?;
    host.start_supervisor()
}
