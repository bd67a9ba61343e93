//! Tenants that attack: what an image can set, what a container can flood, and whom it can reach. Neither a neighbour nor
//! the supervisor is harmed, and nothing of gpool's runs with what the image chose.

mod confinement;
mod flood;
mod image_environment;
mod privilege;

use super::finish;
use crate::failure::Result;
use crate::host::Host;
use crate::namespaces::Inside;

/// All of it on one host.
pub fn run(inside: &Inside) -> Result<()> {
    image_environment::prepare()?;
    let low_level = format!("[runtime]\nlow_level = [\"{}\"]\n", image_environment::LOW_LEVEL);
    let host = Host::start_with(inside, 1, &low_level)?;
    let outcome = attack(&host);
    finish(host, outcome)
}

fn attack(host: &Host) -> Result<()> {
    privilege::is_least(host)?;
    image_environment::reaches_nobody(host)?;
    confinement::is_asked_for(host)?;
    flood::harms_nobody(host)
}
