//! A private host to try things on by hand: `gpool-integration playground` gives a shell with `docker` and `gpool`.

use super::finish;
use crate::failure::{Context, Result};
use crate::host::Host;
use crate::namespaces::{Inside, PATH};
use std::process::Command;

/// Starts everything and a shell, which reads what to do from stdin.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let programs = host.stage.program("");
    let mut shell = Command::new("/bin/bash");
    shell.env("PATH", format!("{}:{PATH}", programs.display())).env("DOCKER_HOST", host.engine.address());
    let shown = shell.status().context("the shell").map(drop);
    finish(host, shown)
}
