//! Whether the hardware keeps shares by the lengths of time slices, where that is wanted.

use super::{Outcome, Surroundings, first_of};

pub fn check(host: &Surroundings) -> Outcome {
    if !host.configuration().policy.timeslice_shares {
        return Outcome::ok("no container is kept to a share by time slices ([policy] timeslice_shares)");
    }
    let Ok(gpus) = &host.gpus else { return Outcome::skip("the supervisor knows, which does not answer") };
    let said = |index: u32, text: &str| format!("GPU {index}: {text}");
    let untried = |gpu: &&gpool_protocol::GpuView| !gpu.divided && gpu.time_slices.is_none();
    let unkept: Vec<String> = (gpus.iter())
        .filter_map(|gpu| Some(said(gpu.index, &gpu.time_slices.as_ref().filter(|tried| !tried.kept)?.told)))
        .chain(gpus.iter().filter(untried).map(|gpu| said(gpu.index, "not tried yet")))
        .collect();
    if !unkept.is_empty() {
        return Outcome::warn(
            format!("shares of time slices are refused: {}", first_of(&unkept)),
            "ask for mode=slice on those GPUs; what could not be tried is tried again, each minute at first",
        );
    }
    let kept: Vec<String> =
        gpus.iter().filter_map(|gpu| Some(said(gpu.index, &gpu.time_slices.as_ref()?.told))).collect();
    Outcome::ok(format!("the hardware keeps shares by time slices: {}", first_of(&kept)))
}
