//! Whether NVML answers for every GPU: one that has fallen off its bus takes no containers.

use super::{Outcome, Surroundings, first_of};
use crate::commands::gpu::named;

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(silent) = &host.silent else {
        return Outcome::skip("the supervisor knows, which does not answer or is older");
    };
    match silent.first() {
        None => Outcome::ok("NVML answers for every GPU"),
        Some(first) => {
            let all: Vec<String> = silent.iter().map(named).collect();
            Outcome::fail(first_of(&all), first.remedy.clone())
        }
    }
}
