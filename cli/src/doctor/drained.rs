//! Whether somebody keeps GPUs from new leases, and has perhaps forgotten it.

use super::{Outcome, Surroundings, first_of};
use crate::commands::gpu::named_drained;

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(drained) = &host.drained else {
        return Outcome::skip("the supervisor knows, which does not answer or is older");
    };
    match drained.is_empty() {
        true => Outcome::ok("no GPU is drained"),
        false => {
            let all: Vec<String> = drained.iter().map(named_drained).collect();
            Outcome::warn(first_of(&all), "end it when it is over: gpool gpu undrain, that of a fault with --fault")
        }
    }
}
