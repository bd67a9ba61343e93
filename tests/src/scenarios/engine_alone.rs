//! The private engine without gpool: if this fails, the machine is the cause, not gpool.

use crate::census::Census;
use crate::failure::{Result, ensure};
use crate::host::Engine;
use crate::image;
use crate::namespaces::Inside;
use crate::stage::Stage;
use std::time::Duration;

/// Runs a plain container, pauses it, and looks for leftovers.
pub fn run(inside: &Inside) -> Result<()> {
    let before = Census::take(&inside.cgroup_parent);
    let stage = Stage::of_this_program()?;
    let engine = Engine::start(&stage, &inside.cgroup_parent)?;
    engine.import_image(&stage)?;
    let said = engine.docker_text(&["run", "--rm", image::NAME, "echo", "hello"])?;
    ensure(said == "hello", || format!("the container said {said:?}"))?;
    engine.docker_text(&["run", "-d", "--name", "plain", image::NAME, "sleep", "1000"])?;
    engine.docker_text(&["pause", "plain"])?;
    engine.docker_text(&["unpause", "plain"])?;
    engine.remove_all_containers()?;
    engine.stop(Duration::from_secs(20))?;
    let left = Census::left_since(&before, &inside.cgroup_parent);
    ensure(left.is_empty(), || format!("left behind: {}", left.join(", ")))
}
