//! The main job, as the demo shows it.

use crate::demo;
use crate::failure::{Failure, Result};
use crate::namespaces::Inside;

/// Plays the demo and requires every judged promise.
pub fn run(inside: &Inside) -> Result<()> {
    match demo::play_and_judge(inside)? {
        true => Ok(()),
        false => Err(Failure::new("a promise of the main job does not hold")),
    }
}
