//! MIG: a GPU is divided by gpool, containers have instances of it, and neither they nor who divides gets in another's way.

mod dividing;
mod instances;
mod occupied;

use super::{finish, is_refused, said, wait_for};
use crate::failure::{Failure, Result};
use crate::host::Host;
use crate::namespaces::Inside;
use gpool_protocol::{MigGpuView, MigInstanceView};
use std::process::Output;

/// The environment may ask for an instance here: Debian's docker has no annotations.
const CONFIGURATION: &str =
    "[policy.env]\nallow = [\"fraction\", \"memory\", \"mode\", \"mig-profile\", \"isolation\"]\n";
/// The board that is divided.
const MODEL: &str = "A100-80GB";
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
        \"1g.10gb\": 2
  halves:
    - devices: all
      mig-enabled: true
      mig-devices:
        \"3g.40gb\": 2
  impossible:
    - devices: all
      mig-enabled: true
      mig-devices:
        \"3g.40gb\": 2
        \"1g.10gb\": 1
  seventh:
    - devices: all
      mig-enabled: true
      mig-devices:
        \"1g.10gb\": 1
  whole:
    - devices: all
      mig-enabled: false
";
/// Where they are.
const FILE: &str = "/run/gpool-mig.yaml";

/// Divides, uses and undivides a GPU.
pub fn run(inside: &Inside) -> Result<()> {
    std::fs::write(FILE, LAYOUTS).map_err(|cause| Failure::new(format!("{FILE}: {cause}")))?;
    let mut host = Host::start_with_model(inside, (1, MODEL), CONFIGURATION)?;
    let outcome = dividing::before_anybody_is_there(&host)
        .and_then(|()| occupied::without_a_lease(&host))
        .and_then(|()| instances::two_containers(&mut host))
        .and_then(|()| dividing::under_leases(&host))
        .and_then(|()| dividing::by_somebody_else(&host));
    finish(host, outcome)
}

/// What there is of the only GPU.
fn shown(host: &Host) -> Result<MigGpuView> {
    let mut gpus: Vec<MigGpuView> = host.client().get("/v1/mig")?;
    gpus.pop().ok_or_else(|| Failure::new("the host has no GPU with MIG"))
}

/// The first instance of that profile.
fn instance(host: &Host, profile: &str) -> Result<MigInstanceView> {
    let found = shown(host)?.instances.into_iter().find(|instance| instance.profile == profile);
    found.ok_or_else(|| Failure::new(format!("there is no instance of {profile}")))
}

fn profiles(host: &Host) -> Result<Vec<String>> {
    let mut profiles: Vec<String> = shown(host)?.instances.into_iter().map(|instance| instance.profile).collect();
    profiles.sort_unstable();
    Ok(profiles)
}

fn mig(host: &Host, verb: &str, layout: &str, more: &[&str]) -> Result<Output> {
    host.gpool(&[&["mig", verb, "--file", FILE, "--config", layout], more].concat())
}
