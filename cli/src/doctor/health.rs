//! Whether GPUs are sound by their own figures.

use super::{Outcome, Surroundings, first_of};
use crate::commands::gpu::unhealthy;

/// What no reset mends, and fails the check.
const BROKEN: &str = "remap-failure";

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(gpus) = &host.gpus else {
        return Outcome::skip("the supervisor knows, which does not answer");
    };
    let found: Vec<_> = gpus.iter().flat_map(unhealthy).collect();
    let sentences: Vec<String> = found.iter().map(|(sentence, _)| sentence.clone()).collect();
    let mut remedies: Vec<String> = Vec::new();
    for (_, finding) in &found {
        if !remedies.contains(&finding.remedy) {
            remedies.push(finding.remedy.clone());
        }
    }
    match (found.is_empty(), gpus.iter().any(|gpu| gpu.health.is_some())) {
        (true, true) => Outcome::ok("no GPU shows that anything is wrong with it"),
        (true, false) => {
            Outcome::skip("no GPU has told of its health: NVML has no such figures here, or [health] poll_seconds is 0")
        }
        (false, _) if found.iter().any(|(_, finding)| finding.kind == BROKEN) => {
            Outcome::fail(first_of(&sentences), remedies.join("; "))
        }
        (false, _) => Outcome::warn(first_of(&sentences), remedies.join("; ")),
    }
}
