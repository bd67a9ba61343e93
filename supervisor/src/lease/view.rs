//! Leases and GPUs as the socket shows them.

use super::book::{Book, Held, Lease};
use crate::device::Gpu;
use crate::region::Report;
use gpool_protocol::{ErrorBody, ErrorCode, GpuView, LeaseState, LeaseView};
use std::sync::atomic::Ordering;

/// What enforces a share today.
const ENFORCEMENT: &str = "co-operative";

impl Lease {
    /// The lease now.
    pub fn view(&self) -> LeaseView {
        let figures = self.figures(&mut Report::new());
        let context_bytes = self.region.control().context_bytes.load(Ordering::Relaxed);
        LeaseView {
            lease_id: self.record.lease_id.clone(),
            container_id: self.record.container_id.clone(),
            state: self.state,
            gpu_uuid: self.record.gpu_uuid.clone(),
            fraction_permille: self.record.fraction_permille,
            received_permille: self.received_permille(),
            charged_gpu_ns: self.charged_ns(),
            memory_cap_bytes: self.record.memory_cap_bytes,
            memory_used_bytes: figures.allocated_bytes.saturating_add(figures.contexts.saturating_mul(context_bytes)),
            allocations_refused: figures.refused,
            gate_wait_ns: figures.gate_wait_ns,
            launches: figures.launches,
            processes: self.processes.len() as u32,
            init_pid: self.record.init.map(|init| init.pid),
            cgroup: self.record.cgroup.clone(),
            enforcement: ENFORCEMENT.into(),
            owner_uid: self.record.owner_uid,
            created_unix_ms: self.record.created_unix_ms,
        }
    }
}

impl Held {
    /// The kept place, as a lease without a container.
    pub fn view(&self) -> LeaseView {
        LeaseView {
            lease_id: self.record.lease_id.clone(),
            container_id: self.record.container_id.clone(),
            state: LeaseState::Held,
            gpu_uuid: self.record.gpu_uuid.clone(),
            fraction_permille: self.record.fraction_permille,
            received_permille: 0,
            charged_gpu_ns: 0,
            memory_cap_bytes: self.record.memory_cap_bytes,
            memory_used_bytes: 0,
            allocations_refused: 0,
            gate_wait_ns: 0,
            launches: 0,
            processes: 0,
            init_pid: None,
            cgroup: None,
            enforcement: ENFORCEMENT.into(),
            owner_uid: self.record.owner_uid,
            created_unix_ms: self.record.created_unix_ms,
        }
    }
}

impl Book {
    /// All leases and kept places.
    pub fn views(&self) -> Vec<LeaseView> {
        self.leases.values().map(Lease::view).chain(self.held.iter().map(Held::view)).collect()
    }

    /// The lease or the kept place that `text` means, see [`Book::find`].
    ///
    /// # Errors
    /// Unknown, or not unique.
    pub fn view_of(&mut self, text: &str) -> Result<LeaseView, ErrorBody> {
        let found = self.find(text).map(|lease| lease.view());
        let means =
            |held: &&Held| held.record.lease_id.0.starts_with(text) || held.record.container_id.0.starts_with(text);
        match (found, self.held.iter().find(means)) {
            (Err(error), Some(held)) if error.code == ErrorCode::LeaseUnknown && !text.is_empty() => Ok(held.view()),
            (found, _) => found,
        }
    }

    /// The GPUs with what is promised of them; `used_bytes` is what NVML last said.
    pub fn gpu_views(&self, gpus: &[Gpu], used_bytes: &[u64]) -> Vec<GpuView> {
        let capacities = super::capacity::capacities(gpus, &[], self, None);
        let view = |(index, (gpu, capacity)): (usize, (&Gpu, gpool_policy::admission::GpuCapacity))| GpuView {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            driver_version: gpu.driver_version.clone(),
            memory_total_bytes: gpu.memory_total_bytes,
            memory_used_bytes: used_bytes.get(index).copied().unwrap_or(0),
            memory_leased_bytes: capacity.memory_leased_bytes,
            fraction_leased_permille: capacity.fraction_leased_permille,
            leases: self.leases.values().filter(|lease| lease.gpu == index).count() as u32,
        };
        gpus.iter().zip(capacities).enumerate().map(view).collect()
    }
}
