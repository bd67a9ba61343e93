//! `gpool export`: what this host has, in the words of what drives it.

mod labels;
mod slurm;

use crate::arguments::ExportVerb;
use crate::exit::Failure;
use crate::output;
use crate::table::is_mig_instance;
use gpool_protocol::{Client, GpuView, SilentGpu};
use std::collections::BTreeMap;

/// Runs a verb of `gpool export`.
pub fn run(client: &Client, verb: &ExportVerb) -> Result<(), Failure> {
    let gpus: Vec<GpuView> = client.get("/v1/gpus")?;
    match verb {
        ExportVerb::Slurm { per_gpu, in_service: true, .. } => {
            output::print(&format!("{}\n", slurm::in_service(&gpus) * usize::from(*per_gpu)))
        }
        ExportVerb::Slurm { node, per_gpu, .. } => {
            let silent: Vec<SilentGpu> = client.get("/v1/gpus/silent")?;
            let absent = silent.iter().filter(|its| its.uuid.is_none()).count();
            let name = node.clone().map_or_else(slurm::this_node, Ok)?;
            output::print(&slurm::lines(&gpus, absent, &name, *per_gpu))
        }
        ExportVerb::Labels => output::print(&labels::lines(&gpus)),
    }
}

/// The boards, divided or not.
fn boards(gpus: &[GpuView]) -> impl Iterator<Item = &GpuView> {
    gpus.iter().filter(|gpu| !is_mig_instance(gpu))
}

/// How many boards there are of each product.
fn products(gpus: &[GpuView]) -> BTreeMap<&str, usize> {
    let mut products = BTreeMap::new();
    for gpu in boards(gpus) {
        *products.entry(gpu.name.as_str()).or_default() += 1;
    }
    products
}

/// The memory of the smallest board, in bytes.
fn least_memory_bytes(gpus: &[GpuView]) -> Option<u64> {
    boards(gpus).map(|gpu| gpu.memory_total_bytes).min()
}

/// The number before the first dot of the driver's version.
fn branch(gpus: &[GpuView]) -> Option<&str> {
    gpus.first()?.driver_version.split('.').next().filter(|branch| !branch.is_empty())
}

/// The name with `between` in place of what stands between its letters and digits.
fn word(name: &str, between: &str) -> String {
    let parts = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use gpool_protocol::{ContainerId, Drain, GpuUuid};

    fn gpu(index: u32, name: &str, memory_total_mib: u64) -> GpuView {
        samples::gpu(index, name, memory_total_mib << 20)
    }

    /// Two of a kind that reach each other, one of another kind, and a divided one with an instance.
    fn mixed() -> Vec<GpuView> {
        let pair = |index| GpuView { nvlink_island: Some(0), ..gpu(index, "NVIDIA H200", 143_771) };
        let divided = GpuView { divided: true, ..gpu(3, "NVIDIA A100-SXM4-80GB", 81_920) };
        let instance = GpuView { uuid: GpuUuid("MIG-1".into()), ..gpu(3, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9_728) };
        vec![pair(0), pair(1), gpu(2, "NVIDIA A100-SXM4-80GB", 81_920), divided, instance]
    }

    #[test]
    fn slurm_counts_what_is_not_divided_and_knows_what_it_is() {
        let one = [gpu(0, "NVIDIA H200", 143_771)];
        let want = "\
# slurm.conf, once for the cluster
GresTypes=gpool
SelectType=select/cons_tres
# Where there is a slurmdbd:
#AccountingStorageTRES=gres/gpool

# slurm.conf, at the end of this node's line, which slurmd -C prints the rest of
NodeName=node1 Gres=gpool:10 Feature=nvidia_h200,gpu_140gib,driver_580

# gres.conf
NodeName=node1 Name=gpool Count=10
";
        assert_eq!(slurm::lines(&one, 0, "node1", 10), want);
        let want = "\
# Not counted: 1 GPU that is divided with MIG.
# Not counted: 2 GPUs that do not answer.
NodeName=big Gres=gpool:12 Feature=nvidia_a100_sxm4_80gb,nvidia_h200,gpu_80gib,driver_580

# gres.conf
NodeName=big Name=gpool Count=12
";
        let mixed_node = slurm::lines(&mixed(), 2, "big", 4);
        assert!(mixed_node.ends_with(want), "{mixed_node}");
        let only_divided = slurm::lines(&mixed()[3..], 0, "node1", 10);
        assert!(only_divided.contains("NodeName=node1 Gres=gpool:0\n"), "{only_divided}");
        let none = slurm::lines(&[], 0, "bare", 10);
        assert!(none.contains("NodeName=bare Gres=gpool:0\n") && none.contains("Name=gpool Count=0\n"), "{none}");
    }

    #[test]
    fn in_service_is_what_takes_new_leases() {
        let mut gpus = mixed();
        assert_eq!(slurm::in_service(&gpus), 3);
        gpus[0].drained = Some(Drain { since_unix_ms: 1, uid: Some(0), reason: "new fans".into(), fault: None });
        gpus[1].silent = true;
        assert_eq!(slurm::in_service(&gpus), 1);
        let for_its_sake = GpuView { closed_for: Some(ContainerId("3f9a".repeat(16))), ..gpus[2].clone() };
        assert_eq!(slurm::in_service(&[for_its_sake]), 0);
        gpus[2].compute_mode = Some("EXCLUSIVE_PROCESS".into());
        assert_eq!(slurm::in_service(&gpus), 0);
    }

    #[test]
    fn labels_are_such_as_kubernetes_takes() {
        let want = "\
gpool.io/node=true
gpool.io/gpu.count=1
gpool.io/gpu.product=NVIDIA-H200
gpool.io/gpu.memory=143771
gpool.io/product.NVIDIA-H200=1
gpool.io/driver.major=580
gpool.io/mig=false
gpool.io/nvlink=false
";
        assert_eq!(labels::lines(&[gpu(0, "NVIDIA H200", 143_771)]), want);
        let want = "\
gpool.io/node=true
gpool.io/gpu.count=4
gpool.io/gpu.product=mixed
gpool.io/gpu.memory=81920
gpool.io/product.NVIDIA-A100-SXM4-80GB=2
gpool.io/product.NVIDIA-H200=2
gpool.io/driver.major=580
gpool.io/mig=true
gpool.io/nvlink=true
";
        assert_eq!(labels::lines(&mixed()), want);
        let none = "gpool.io/node=false\ngpool.io/gpu.count=0\ngpool.io/mig=false\ngpool.io/nvlink=false\n";
        assert_eq!(labels::lines(&[]), none);
        let long = labels::lines(&[gpu(0, &"RTX (Pro) ".repeat(12), 1)]);
        for line in long.lines() {
            let (key, value) = line.split_once('=').unwrap();
            let (_, name) = key.split_once('/').unwrap();
            let is_end = |byte: Option<char>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            for text in [name, value] {
                assert!(text.len() <= 63 && is_end(text.chars().next()) && is_end(text.chars().last()), "{line}");
            }
        }
    }
}
