//! Whether the driver itself keeps memory caps, so that what goes past the shims is bound by them, too.

use super::{Outcome, Surroundings, first_of};
use gpool_protocol::MemoryLimitsState;

pub fn check(host: &Surroundings) -> Outcome {
    if !host.configuration().driver.memory_limits {
        return Outcome::ok("memory caps of slices are kept by shims alone ([driver] memory_limits)");
    }
    let Ok(gpus) = &host.gpus else { return Outcome::skip("the supervisor knows, which does not answer") };
    let of = |state: MemoryLimitsState| -> Vec<String> {
        let its = gpus.iter().filter_map(|gpu| Some((gpu.index, gpu.memory_limits.as_ref()?)));
        its.filter(|(_, limits)| limits.state == state)
            .map(|(index, limits)| format!("GPU {index}: {}", limits.told))
            .collect()
    };
    let refused = of(MemoryLimitsState::Refused);
    if !refused.is_empty() {
        return Outcome::warn(
            format!("memory caps are kept by shims alone: {}", first_of(&refused)),
            "put that in order, or let [driver] memory_limits in config.toml be false; it is tried again for each container",
        );
    }
    match [MemoryLimitsState::Kept, MemoryLimitsState::Untried, MemoryLimitsState::Absent].map(of) {
        [kept, ..] if !kept.is_empty() => Outcome::ok(format!("the driver keeps memory caps: {}", first_of(&kept))),
        [_, untried, _] if !untried.is_empty() => {
            Outcome::ok(format!("the driver may keep memory caps: {}", first_of(&untried)))
        }
        [_, _, absent] if !absent.is_empty() => {
            Outcome::ok(format!("memory caps are kept by shims alone: {}", first_of(&absent)))
        }
        _ => Outcome::ok("no GPU is shared by slices as a whole"),
    }
}
