//! `gpool explain` of a lease without shims: gpool opens no gate for it, so its scheduler knows nothing of it.

use crate::table::format_duration;
use gpool_protocol::{GpuExplanation, Mechanism, format_permille};

/// What it was promised, and by what.
pub fn promise(mechanism: Mechanism, fraction_permille: u16) -> String {
    match fraction_permille {
        0 => format!("mechanism {mechanism}, no share"),
        share => format!("mechanism {mechanism}, share {}", format_permille(share.into())),
    }
}

/// Who gives it its turns on one GPU, and what it has had there, where NVML has figures of that.
pub fn facts(mechanism: Mechanism, gpu: &GpuExplanation) -> String {
    let by_whom = match mechanism {
        Mechanism::Exclusive => "it has the whole GPU",
        Mechanism::TimeSlice => "the driver gives it its turns",
        Mechanism::Mig => "it has its instance, which the hardware keeps apart",
        Mechanism::Mps => "its MPS server gives it its part",
        Mechanism::Slice => "gpool gives it its turns",
    };
    let line = |name: &str, value: &str| format!("  {:14}{value}\n", format!("{name}:"));
    let charged = (mechanism != Mechanism::Mig).then(|| line("charged", &format_duration(gpu.charged_gpu_ns)));
    line("state", by_whom) + &charged.unwrap_or_default()
}
