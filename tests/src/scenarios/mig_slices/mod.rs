//! Slices inside a MIG instance: two containers of a team share one, and nobody else is in it or in their way. And what
//! becomes of layouts after a boot and in maintenance windows.

mod apart;
mod layouts;
mod sharing;

use super::{finish, is_refused, said, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::Inside;
use gpool_protocol::{MigGpuView, MigInstanceView};

/// What the environment may ask for here: Debian's docker has no annotations. And the layout that is made after a boot.
const CONFIGURATION: &str = "[mig]\nlayout = \"/run/gpool-mig.yaml\"\nconfig = \"mixed\"\n\
    [policy.env]\nallow = [\"fraction\", \"limit\", \"memory\", \"mode\", \"mig-profile\", \"priority\", \"team\"]\n";
/// The boards: the first is divided, the second stays whole.
const BOARDS: (u32, &str) = (2, "A100-80GB");
/// Layouts, in mig-parted's format.
const LAYOUTS: &str = "\
version: v1
mig-configs:
  mixed:
    - devices: [0]
      mig-enabled: true
      mig-devices:
        \"3g.40gb\": 1
        \"2g.20gb\": 1
  halves:
    - devices: [0]
      mig-enabled: true
      mig-devices:
        \"3g.40gb\": 2
  whole:
    - devices: all
      mig-enabled: false
";
const FILE: &str = "/run/gpool-mig.yaml";
/// The profile of the instance that is shared.
const SHARED: &str = "3g.40gb";

/// Shares an instance, then changes layouts.
pub fn run(inside: &Inside) -> Result<()> {
    std::fs::write(FILE, LAYOUTS).context(FILE)?;
    let mut host = Host::start_with_model(inside, BOARDS, CONFIGURATION)?;
    let outcome = layouts::made_at_the_first_start(&host)
        .and_then(|()| share(&mut host))
        .and_then(|()| layouts::in_a_window(&host))
        .and_then(|()| layouts::after_a_boot(&mut host));
    finish(host, outcome)
}

fn share(host: &mut Host) -> Result<()> {
    let all = sharing::start(host)?;
    sharing::each_has_its_part(host, &all)?;
    apart::others_are_refused(host, &all)?;
    sharing::is_shown(host, &all)?;
    sharing::is_changed(host, &all)?;
    apart::survives_a_restart(host, &all)?;
    apart::ends_alone(host, &all)?;
    sharing::by_the_table(host, &all)
}

/// The containers of the scenario.
struct Containers {
    /// 70 % of the instance.
    large: Container,
    /// 30 % of it.
    small: Container,
    /// All of another instance.
    beside: Container,
    /// Half of the other GPU.
    elsewhere: Container,
}

/// The instances of the first GPU.
fn instances(host: &Host) -> Result<Vec<MigInstanceView>> {
    let gpus: Vec<MigGpuView> = host.client().get("/v1/mig")?;
    Ok(gpus.into_iter().filter(|gpu| gpu.index == 0).flat_map(|gpu| gpu.instances).collect())
}

/// The instance of the first GPU with that profile.
fn instance(host: &Host, profile: &str) -> Result<MigInstanceView> {
    let found = instances(host)?.into_iter().find(|one| one.profile == profile);
    found.ok_or_else(|| Failure::new(format!("there is no instance of {profile}")))
}

/// What the environment of a share of the shared instance says.
fn share_of<'a>(team: &'a str, fraction: &'a str, memory: &'a str) -> [(&'static str, &'a str); 5] {
    [
        ("GPOOL_MODE", "slice"),
        ("GPOOL_MIG_PROFILE", SHARED),
        ("GPOOL_TEAM", team),
        ("GPOOL_FRACTION", fraction),
        ("GPOOL_MEMORY", memory),
    ]
}

/// Takes a container away and waits until its place is free.
fn remove(host: &Host, name: &str) -> Result<()> {
    let container = Container::inspect(&host.engine, name)?;
    host.engine.docker_text(&["rm", "-f", name])?;
    wait_for("a place to be free", || Ok(host.leases()?.iter().all(|lease| lease.container_id.0 != container.id)))
}

fn is_alive(container: &Container) -> Result<()> {
    ensure(container.is_alive(), || format!("{} has ended", container.name))
}
