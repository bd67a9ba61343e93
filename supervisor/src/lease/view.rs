//! Leases and GPUs as the socket shows them.

use super::account::GpuAccount;
use super::book::{Book, Held, Lease};
use super::figures::Figures;
use super::grant::InUse;
use super::read_ahead::{ReadAhead, Said};
use super::record::Record;
use super::stranded;
use crate::clock;
use crate::compute_modes::ComputeModes;
use crate::device::{Gpu, Kind};
use crate::drains::Drains;
use crate::health::Healths;
use crate::memory_limits::MemoryLimits;
use crate::region::Report;
use crate::silence::Silence;
use crate::sites::Sites;
use crate::time_slices::Verdicts;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::{ErrorBody, ErrorCode, GpuView, LeaseFault, LeaseGpuView, LeaseState, LeaseView, Mechanism};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How strongly a share is enforced. Not at all in a container that is not confined, and not while a process of it
/// uses a GPU past the shims or its MPS server. Who has whole GPUs or an instance has nobody beside it; who is among the
/// driver's time slices has no share, or one by their lengths while those of all its processes are set.
fn level_of(record: &Record, bypassing: u32, is_kept: bool) -> &'static str {
    match (record.unenforced, record.mechanism, bypassing) {
        _ if record.revocation.is_some() => "none",
        (true, ..) => "unenforced",
        (false, Mechanism::Exclusive | Mechanism::Mig, _) => "hardware",
        (false, Mechanism::TimeSlice, _) if record.is_kept_by_hardware() && is_kept => "driver",
        (false, Mechanism::TimeSlice, _) => "none",
        (false, Mechanism::Slice | Mechanism::Mps, 0) => "co-operative",
        (false, Mechanism::Slice | Mechanism::Mps, _) => "bypassed",
    }
}

impl Lease {
    /// For how long it has made no use of its GPUs; none where nobody knows.
    fn idle_seconds(&self) -> Option<u64> {
        let is_known = self.state == LeaseState::Active && self.signs.is_some();
        is_known.then(|| self.idleness.idle_ns(clock::now_ns()) / 1_000_000_000)
    }

    /// Until when it may stay, if it was told that it has to go.
    fn leaves_unix_ms(&self) -> Option<u64> {
        self.leaves_ns().into_iter().chain(self.time_over_ns()).min().map(clock::unix_ms_at)
    }

    /// The lease now.
    pub fn view(&self) -> LeaseView {
        self.view_with(self.said(&mut Report::new()))
    }

    /// The same where its processes have said this.
    pub fn view_with(&self, Said { figures, read_at_ns, .. }: Said) -> LeaseView {
        let is_kept = self.kept_until.is_some_and(|until| Instant::now() < until);
        let control = self.region.control();
        let context_bytes = control.context_bytes.load(Ordering::Relaxed);
        // As the shims count.
        let held_bytes = |place: usize| {
            let uncounted_bytes = control.uncounted_bytes[place].load(Ordering::Relaxed);
            figures.held[place].bytes(context_bytes).saturating_add(uncounted_bytes)
        };
        let of_gpu = |(place, (gpu_uuid, account)): (usize, (_, &GpuAccount))| LeaseGpuView {
            gpu_uuid,
            received_permille: account.received_permille(),
            charged_gpu_ns: account.charged_ns(),
            lag_ns: account.lag_ns(),

            memory_used_bytes: match self.record.mechanism.has_shims() {
                true => held_bytes(place),
                false => account.seen_bytes(),
            },
            memory_limit_bytes: account.memory_limit.kept_bytes().filter(|_| !self.record.has_lost_share()),
            energy_millijoules: account.energy_millijoules(),
        };
        let gpus: Vec<LeaseGpuView> =
            self.record.gpus().iter().cloned().zip(&self.accounts).enumerate().map(of_gpu).collect();
        let memory_used_bytes = gpus.iter().map(|gpu| gpu.memory_used_bytes).max().unwrap_or(0);
        let received: u64 = gpus.iter().map(|gpu| u64::from(gpu.received_permille)).sum();
        LeaseView {
            state: self.state,
            suspension: self.suspension_view(),
            received_permille: (received / gpus.len().max(1) as u64) as u16,
            charged_gpu_ns: gpus.iter().fold(0, |sum, gpu| sum.saturating_add(gpu.charged_gpu_ns)),
            charged_at_ns: self.accounts.first().map_or(0, GpuAccount::charged_at_ns),
            memory_used_bytes,
            memory_peak_bytes: self.peak_bytes(&figures, memory_used_bytes),
            gpus,
            spilled_bytes: self.spilled_bytes(&figures),
            allocations_spilled: figures.spills,
            program_faults: figures.faults,
            fault: self.fault(&figures),
            allocations_refused: figures.refused,
            unknown_versions: figures.unknown_versions,
            gate_wait_ns: figures.gate_wait_ns,
            requests: self.request_figures(),
            held_for: self.promise.held_for.clone(),
            launches: figures.launches,
            kernel_ns: self.kernel_ns(),
            idle_seconds: self.idle_seconds(),
            run_left_seconds: self.record.run_left_ns().map(|left_ns| left_ns.div_ceil(1_000_000_000)),
            leaves_unix_ms: self.leaves_unix_ms(),
            processes: self.processes.len() as u32,
            read_at_ns,
            init_pid: self.record.init.map(|init| init.pid),
            cgroup: self.record.cgroup.clone(),
            enforcement: level_of(&self.record, self.bypassing, is_kept).into(),
            ..view_of_record(&self.record)
        }
    }
}

impl Lease {
    /// What its processes cannot recover from, where `figures` are its own.
    fn fault(&self, figures: &Figures) -> Option<LeaseFault> {
        let is_there = figures.faults > self.retired.faults;
        self.record.fault.or(is_there.then_some(LeaseFault::ProgramFault))
    }
}

impl Held {
    /// The kept place, as a lease without a container.
    pub fn view(&self) -> LeaseView {
        view_of_record(&self.record)
    }
}

/// What a record says of a lease: its share, and nothing used.
pub fn view_of_record(record: &Record) -> LeaseView {
    let of_gpu = |gpu_uuid| LeaseGpuView {
        gpu_uuid,
        received_permille: 0,
        charged_gpu_ns: 0,
        lag_ns: 0,
        memory_used_bytes: 0,
        memory_limit_bytes: None,
        energy_millijoules: 0,
    };
    LeaseView {
        lease_id: record.lease_id.clone(),
        container_id: record.container_id.clone(),
        pod: record.pod.clone(),
        state: LeaseState::Held,
        gpu_uuid: record.gpu_uuid.clone(),
        gpus: record.gpus().iter().cloned().map(of_gpu).collect(),
        fraction_permille: record.fraction_permille,
        mechanism: record.mechanism,
        fault: record.fault,
        mig_profile: record.mig_profile.clone(),
        limit_permille: record.limit_permille,
        class: record.class,
        p99_ns: record.p99_ns,
        requests: None,
        held_for: None,
        priority: record.priority,
        beyond_budget: record.is_beyond_budget(),
        team: record.team.clone(),
        project: record.project.clone(),
        cost_center: record.cost_center.clone(),
        resource: record.resource.clone(),
        paused: record.paused,
        suspension: record.suspension.as_ref().map(|its| its.view(false)),
        received_permille: 0,
        charged_gpu_ns: 0,
        charged_at_ns: 0,
        memory_cap_bytes: record.memory_cap_bytes,
        spill_bytes: record.spill_bytes,
        spilled_bytes: 0,
        allocations_spilled: 0,
        program_faults: 0,
        memory_used_bytes: 0,
        memory_peak_bytes: record.written_peak(),
        allocations_refused: 0,
        unknown_versions: 0,
        gate_wait_ns: 0,
        launches: 0,
        kernel_ns: 0,
        idle_seconds: None,
        run_left_seconds: None,
        leaves_unix_ms: None,
        processes: 0,
        read_at_ns: 0,
        init_pid: None,
        cgroup: None,
        enforcement: level_of(record, 0, false).into(),
        uncounted_calls: record.uncounted_calls,
        owner_uid: record.owner_uid,
        created_unix_ms: record.created_unix_ms,
    }
}

impl Book {
    /// All leases, kept places and leases that are not taken over yet, where processes have said what was read `ahead`.
    pub fn views(&self, ahead: &ReadAhead) -> Vec<LeaseView> {
        let mut report = Report::new();
        let leases = self.leases.values().map(|lease| lease.view_with(ahead.said(lease, &mut report)));
        let kept = self.held.iter().map(Held::view);
        leases.chain(kept).chain(self.stranded.iter().map(stranded::view)).collect()
    }

    /// The one of those that `text` means, see [`Book::find`].
    ///
    /// # Errors
    /// Unknown, or not unique.
    pub fn view_of(&mut self, text: &str) -> Result<LeaseView, ErrorBody> {
        let found = self.running(text).map(|id| self.leases[&id].view());
        let kept = self.held.iter().find(|held| held.record.is_meant_by(text)).map(Held::view);
        match (found, kept.or_else(|| self.stranded_one(text).map(stranded::view))) {
            (Err(error), Some(other)) if error.code == ErrorCode::LeaseUnknown => Ok(other),
            (found, _) => found,
        }
    }

    /// The GPUs that are there, each with its place among `gpus` and with what is promised of it; `in_use`, the compute
    /// modes and the links are what NVML last said.
    pub fn gpu_views(
        &self,
        gpus: &[Gpu],
        in_use: &[InUse],
        (verdicts, limits, modes, sites): (&Verdicts, &MemoryLimits, &ComputeModes, &Sites),
        (silence, drains, healths): (&Silence, &Drains, &Healths),
    ) -> Vec<(usize, GpuView)> {
        let capacities = super::capacity::capacities(gpus, &[], &[], self, None);
        let view = |(index, (gpu, capacity)): (usize, (&Gpu, gpool_policy::admission::GpuCapacity))| GpuView {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            driver_version: gpu.driver_version.clone(),
            memory_total_bytes: gpu.memory_total_bytes,
            memory_headroom_bytes: gpu.memory_headroom_bytes,
            memory_used_bytes: in_use.get(index).map_or(0, |memory| memory.used_bytes),
            memory_outside_bytes: in_use.get(index).map_or(0, |memory| memory.outside_bytes),
            memory_leased_bytes: capacity.memory_leased_bytes,
            fraction_leased_permille: capacity.fraction_leased_permille,
            leases: self
                .leases
                .values()
                .filter(|lease| lease.gpus().any(|gpu| gpu == index) && !lease.record.has_no_share())
                .count() as u32,
            divided: gpu.kind == Kind::Divided,
            time_slices: verdicts.of(&gpu.uuid),
            memory_limits: limits.of(&gpu.uuid),
            compute_mode: Some(modes.of(index))
                .filter(|mode| *mode != ComputeMode::Default)
                .map(|mode| mode.to_string()),
            nvlink_island: sites.links_of(gpu).island,
            processor: sites.links_of(gpu).processor,
            drained: drains.of(gpu),
            silent: silence.is_silent(index),
            closed_for: None,
            health: healths.of(gpu),
            kernel_ns: self.kernel_ns(index),
            mechanism: (self.leases.values())
                .find(|lease| lease.gpus().any(|gpu| gpu == index) && !lease.record.has_no_share())
                .map(|lease| lease.record.mechanism),
        };
        let is_there = |(_, (gpu, _)): &(usize, (&Gpu, _))| gpu.kind != Kind::Gone;
        let placed = |(index, its): (usize, (&Gpu, _))| (index, view((index, its)));
        gpus.iter().zip(capacities).enumerate().filter(is_there).map(placed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_gpu_that_is_gone_moves_none_behind_it() {
        let gpu = |index: u32, kind| Gpu { kind, ..Gpu::sample(index) };
        let gpus = [gpu(0, Kind::Whole), gpu(1, Kind::Gone), gpu(2, Kind::Whole)];
        let nothing = Path::new("/nothing");
        let shown = Book::default().gpu_views(
            &gpus,
            &[5, 6, 7].map(|used_bytes| InUse { used_bytes, outside_bytes: used_bytes - 5 }),
            (
                &Verdicts::open(nothing, nothing, "a"),
                &MemoryLimits::default(),
                &ComputeModes::new(3),
                &Sites::default(),
            ),
            (&Silence::new(3, Vec::new()), &Drains::open(nothing), &Healths::open(nothing)),
        );
        let seen: Vec<_> =
            shown.iter().map(|(place, view)| (*place, view.uuid.0.as_str(), view.memory_used_bytes)).collect();
        assert_eq!(seen, [(0, "GPU-0", 5), (2, "GPU-2", 7)]);
        assert_eq!([shown[0].1.memory_outside_bytes, shown[1].1.memory_outside_bytes], [0, 2]);
    }
}
