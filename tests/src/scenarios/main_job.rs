//! The main job, as the demo shows it.

use crate::demo::{self, Bounds};
use crate::failure::{Failure, Result};
use crate::namespaces::Inside;

/// Plays the demo and requires every judged promise; shares only as a busy machine can keep them. `make demo` and the
/// benchmarks hold them against what is promised.
pub fn run(inside: &Inside) -> Result<()> {
    match demo::play_and_judge(inside, Bounds::UNBROKEN)? {
        true => Ok(()),
        false => Err(Failure::new("a promise of the main job does not hold")),
    }
}
