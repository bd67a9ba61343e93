//! Whether every GPU lets several processes have contexts.

use super::{Outcome, Surroundings, first_of};

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(gpus) = &host.gpus else { return Outcome::skip("the supervisor knows, which does not answer") };
    let told = |gpu: &gpool_protocol::GpuView| Some(format!("GPU {}: {}", gpu.index, gpu.compute_mode.as_ref()?));
    let others: Vec<String> = gpus.iter().filter_map(told).collect();
    match others.is_empty() {
        true => Outcome::ok("every GPU is in the compute mode DEFAULT"),
        false => Outcome::warn(
            format!("not every GPU is in the compute mode DEFAULT: {}", first_of(&others)),
            "nvidia-smi -c DEFAULT, also where the host sets the mode at boot; until then EXCLUSIVE_PROCESS serves \
             mode=exclusive and mode=mps alone, and PROHIBITED nothing",
        ),
    }
}
