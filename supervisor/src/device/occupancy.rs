//! Who is on a GPU, and whom it lets in.

use super::inventory::{Gpu, Kind, NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use crate::clock;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::HostPid;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::collections::{BTreeMap, BTreeSet};

/// Who holds what of a GPU's memory at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupancy {
    /// All memory in use.
    pub used_bytes: u64,
    /// Whether that was as much before and after the processes were listed.
    pub is_still: bool,
    /// By process, contexts included. Processes whose memory NVML does not tell are left out.
    pub by_process: BTreeMap<HostPid, u64>,
    /// The same as NVML lists it, without what contexts take beside that.
    pub listed: BTreeMap<HostPid, u64>,
    /// All processes that have a context.
    pub present: BTreeSet<HostPid>,
    /// Pids that have come to another process since NVML listed them first: what it says of them it says of the one before.
    pub inherited: BTreeSet<HostPid>,
    /// How many may have one.
    pub compute_mode: ComputeMode,
    /// What it has drawn since its driver was loaded, in millijoules, and when that was said, CLOCK_MONOTONIC; none of an instance,
    /// or of a board that does not count it.
    pub energy: Option<(u64, u64)>,
}

impl Occupancy {
    /// What the process that has this pid now holds; none if NVML does not tell.
    pub fn bytes_of(&self, pid: HostPid) -> Option<u64> {
        self.by_process.get(&pid).copied().filter(|_| !self.inherited.contains(&pid))
    }

    /// The same as NVML lists it.
    pub fn listed_bytes_of(&self, pid: HostPid) -> Option<u64> {
        self.listed.get(&pid).copied().filter(|_| !self.inherited.contains(&pid))
    }

    /// Takes these for pids that have come to other processes. Who does not use a device, as `uses_device` says, has no
    /// context either.
    pub fn note_inherited(&mut self, inherited: BTreeSet<HostPid>, uses_device: impl Fn(HostPid) -> bool) {
        self.present.retain(|pid| !inherited.contains(pid) || uses_device(*pid));
        self.inherited = inherited;
    }
}

/// A GPU's compute mode. One that cannot be read, as on MIG instances, keeps nobody out.
fn compute_mode(device: &Device<'_>) -> ComputeMode {
    match device.compute_mode() {
        Ok(NvmlComputeMode::ExclusiveProcess | NvmlComputeMode::ExclusiveThread) => ComputeMode::ExclusiveProcess,
        Ok(NvmlComputeMode::Prohibited) => ComputeMode::Prohibited,
        Ok(NvmlComputeMode::Default) | Err(_) => ComputeMode::Default,
    }
}

impl NvmlInventory {
    /// Who holds what on a GPU or MIG instance now.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn occupancy(&self, gpu: &Gpu) -> Result<Occupancy, InventoryError> {
        let device = match &gpu.kind {
            Kind::Instance(_) => self.nvml().device_by_uuid(gpu.uuid.0.as_str()),
            Kind::Whole | Kind::Divided | Kind::Gone => self.nvml().device_by_index(gpu.index),
        };
        let device = device.map_err(unanswered("a GPU by its index or UUID"))?;
        let used_bytes = || device.memory_info().map(|memory| memory.used).map_err(unanswered("a GPU's memory"));
        let before_bytes = used_bytes()?;
        let processes = device.running_compute_processes().map_err(unanswered("a GPU's processes"))?;
        let used_bytes = used_bytes()?;
        let present = processes.iter().map(|process| HostPid(process.pid)).collect();
        let listed: BTreeMap<_, _> = processes
            .into_iter()
            .filter_map(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some((HostPid(process.pid), bytes)),
                UsedGpuMemory::Unavailable => None,
            })
            .collect();
        let compute_mode = compute_mode(&device);
        let is_whole = matches!(gpu.kind, Kind::Whole);
        let energy =
            is_whole.then(|| device.total_energy_consumption().ok()).flatten().map(|its| (its, clock::now_ns()));
        let (is_still, by_process) = (used_bytes == before_bytes, listed.clone());
        let inherited = BTreeSet::new();
        Ok(Occupancy { used_bytes, is_still, by_process, listed, present, inherited, compute_mode, energy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_dead_process_is_not_said_of_the_one_that_has_its_pid() {
        let [shell, worker, other] = [HostPid(7), HostPid(8), HostPid(9)];
        let mut occupancy = Occupancy {
            used_bytes: 60,
            is_still: true,
            by_process: BTreeMap::from([(shell, 10), (worker, 20), (other, 30)]),
            listed: BTreeMap::new(),
            present: BTreeSet::from([shell, worker, other]),
            inherited: BTreeSet::new(),
            compute_mode: ComputeMode::Default,
            energy: None,
        };
        assert_eq!(occupancy.bytes_of(shell), Some(10));
        occupancy.note_inherited(BTreeSet::from([shell, worker]), |pid| pid == worker);
        assert_eq!([shell, worker, other].map(|pid| occupancy.bytes_of(pid)), [None, None, Some(30)]);
        assert_eq!(
            occupancy.present,
            BTreeSet::from([worker, other]),
            "who has the device open may have a context of its own"
        );
    }
}
