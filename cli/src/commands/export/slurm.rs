//! As Slurm's files say it.

use super::{boards, branch, least_memory_bytes, products, word};
use crate::exit::Failure;
use gpool_protocol::{ErrorBody, ErrorCode, GpuView};
use std::fmt::Write as _;

/// The host's own name as Slurm takes it for the node's: up to the first dot.
///
/// # Errors
/// The kernel does not say it.
pub fn this_node() -> Result<String, Failure> {
    const NAME: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(NAME).map_err(|cause| {
        Failure::from(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("{NAME} cannot be read ({cause})"),
            "say --node NAME",
        ))
    })?;
    Ok(name.trim_end().split('.').next().unwrap_or_default().to_owned())
}

/// The boards that are not divided.
fn whole(gpus: &[GpuView]) -> Vec<GpuView> {
    boards(gpus).filter(|gpu| !gpu.divided).cloned().collect()
}

/// How many GPUs take new shares now.
pub fn in_service(gpus: &[GpuView]) -> usize {
    // In another compute mode than the default one no shares can be had.
    let is_closed =
        |gpu: &GpuView| gpu.silent || gpu.drained.is_some() || gpu.compute_mode.is_some() || gpu.closed_for.is_some();
    whole(gpus).iter().filter(|gpu| !is_closed(gpu)).count()
}

/// The lines of its files for the node `name`, on which one GPU is worth `per_gpu`; `absent` GPUs of it are not known.
pub fn lines(gpus: &[GpuView], absent: usize, name: &str, per_gpu: u16) -> String {
    let whole = whole(gpus);
    let divided = boards(gpus).count() - whole.len();
    let count = whole.len() * usize::from(per_gpu);
    let mut text = "\
# slurm.conf, once for the cluster
GresTypes=gpool
SelectType=select/cons_tres
# Where there is a slurmdbd:
#AccountingStorageTRES=gres/gpool

# slurm.conf, at the end of this node's line, which slurmd -C prints the rest of
"
    .to_owned();
    let gpus_are = |number: usize, one: &str, several: &str| match number {
        1 => format!("1 GPU that {one}"),
        _ => format!("{number} GPUs that {several}"),
    };
    if divided > 0 {
        let _ = writeln!(text, "# Not counted: {}.", gpus_are(divided, "is divided with MIG", "are divided with MIG"));
    }
    if absent > 0 {
        let _ = writeln!(text, "# Not counted: {}.", gpus_are(absent, "does not answer", "do not answer"));
    }
    let features = features(&whole);
    let features = if features.is_empty() { String::new() } else { format!(" Feature={}", features.join(",")) };
    let _ = writeln!(text, "NodeName={name} Gres=gpool:{count}{features}");
    let _ = write!(text, "\n# gres.conf\nNodeName={name} Name=gpool Count={count}\n");
    text
}

/// What `--constraint` may name: each product, the whole GiB of the smallest GPU, and the driver's branch.
fn features(gpus: &[GpuView]) -> Vec<String> {
    let mut features: Vec<String> = products(gpus).keys().map(|name| word(name, "_").to_lowercase()).collect();
    features.extend(least_memory_bytes(gpus).map(|bytes| format!("gpu_{}gib", bytes >> 30)));
    features.extend(branch(gpus).map(|branch| format!("driver_{branch}")));
    features
}
