//! Version 2 of cgroups alone: device rules as programs of the kernel, its freezer and its way to kill.

use super::crun;
use super::podman::{Way, together};
use super::wait_for_room;
use crate::cgroups;
use crate::failure::Result;
use crate::host::{Host, Podman};
use crate::namespaces::Inside;
use crate::scenarios::{bypass, finish};

/// Podman asks for a controller that version 1 holds on a hybrid machine.
const NO_PIDS: &str = "--pids-limit=0";

/// docker and podman with runc. crun 1.8 raises a limit before it loads device rules, for which root lacks a capability on
/// some machines.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::only_version_2()?;
    let host = Host::start_with(inside, 2, "")?;
    let podman = host.podman()?;
    let outcome = crun::leased(&host)
        // Else the places that are kept would send the next ones to the other GPU.
        .and_then(|()| wait_for_room(&host))
        .and_then(|()| with_podman(&host, &podman));
    let cleared = podman.clear();
    finish(host, outcome.and(cleared))
}

fn with_podman(host: &Host, podman: &Podman) -> Result<()> {
    let hooks = Podman::hooks(false);
    let ways = [
        Way {
            name: "wrapped-runc",
            global: &["--runtime=gpool"],
            request: &[NO_PIDS, "--annotation=gpool.io/fraction=0.3"],
            share: 0.3,
        },
        Way {
            name: "hooked-runc",
            global: &["--runtime=runc", &hooks],
            request: &[NO_PIDS, "--annotation=gpool.io/fraction=0.5"],
            share: 0.5,
        },
    ];
    together(host, podman, &ways)
}

/// The scenario `bypass` there.
pub fn guard(inside: &Inside) -> Result<()> {
    cgroups::only_version_2()?;
    bypass::run(inside)
}
