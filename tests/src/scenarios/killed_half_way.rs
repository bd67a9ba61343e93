//! A run that is killed with SIGKILL at the worst moment: its container is frozen, and a frozen process of cgroup
//! version 1 does not die.

use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::Engine;
use crate::image;
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;
use std::process::Stdio;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a run, kills it, looks for leftovers, and runs again.
pub fn run() -> Result<()> {
    let mut first = another_run().arg("frozen").stdout(Stdio::null()).spawn().context("the first run")?;
    let cgroup_parent = cgroups::parent_name(first.id());
    let is_frozen = wait_until(|| cgroups::is_anything_frozen(&cgroup_parent));
    first.kill().context("the first run cannot be killed")?;
    first.wait().context("the first run")?;
    ensure(is_frozen, || "the first run froze no container".to_owned())?;
    let is_clean = wait_until(|| cgroups::directories(&cgroup_parent).is_empty());
    ensure(is_clean, || format!("left behind: {:?}", cgroups::directories(&cgroup_parent)))?;
    let second = another_run().arg("engine-alone").stdout(Stdio::null()).status().context("the second run")?;
    ensure(second.success(), || format!("the second run ended with {second}"))
}

/// The run that is killed.
pub fn freeze_and_wait(inside: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let engine = Engine::start(&stage, &inside.cgroup_parent)?;
    engine.import_image(&stage)?;
    engine.docker_text(&["run", "-d", "--name", "frozen", image::NAME, "sleep", "1000"])?;
    engine.docker_text(&["pause", "frozen"])?;
    std::thread::sleep(PATIENCE);
    Ok(())
}

fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
