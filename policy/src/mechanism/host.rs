//! What a host has, and what of it is free.

use super::Suitable;
use super::ask::words;
use super::compute_mode::ComputeMode;
use super::gates::Phase;
use crate::admission::Site;
use crate::mig::{Instance, Layout, Model};
use std::collections::BTreeSet;

words!(
    /// What an administrator has made of all GPUs of a host.
    Pool {
        /// Whatever the table chooses.
        Any = "any",
        /// The driver's time slices, for everybody.
        TimeSlice = "timeslice",
    }
);

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// It takes nobody in.
    pub in_maintenance: bool,
    /// How far the rollout of sharing has come here; absent: everything is open.
    pub phase: Option<Phase>,
    /// What its GPUs are used as.
    pub pool: Pool,
    /// Its GPUs are virtual ones: what NVML's virtualisation mode says.
    pub is_vgpu_guest: bool,
    /// What is known of the licence of those.
    pub vgpu_licence: Option<String>,
    /// MPS can be used.
    pub has_mps: bool,
    /// Memory can go to the host.
    pub has_spill: bool,
    /// Layouts of MIG may be changed now.
    pub window_is_open: bool,
    /// What is there.
    pub gpus: Vec<Gpu>,
}

/// A GPU of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// UUID, or a name in a plan.
    pub key: String,
    /// Product name.
    pub product: String,
    /// Its model, where that is known.
    pub model: Option<&'static Model>,
    /// All memory.
    pub memory_bytes: u64,
    /// Nothing speaks against using it.
    pub is_healthy: bool,
    /// How many processes it lets have contexts.
    pub compute_mode: ComputeMode,
    /// Share that is not promised.
    pub share_free_permille: u16,
    /// Memory that is neither promised nor held.
    pub memory_free_bytes: u64,
    /// Leases on it.
    pub leases: u16,
    /// Whose they are.
    pub teams: BTreeSet<String>,
    /// The longest kernels of batch tenants on it, in microseconds.
    pub longest_burst_us: Option<u64>,
    /// GPUs of the same number reach each other over NVLink.
    pub island: Option<u16>,
    /// GPUs of the same number are near the same processor.
    pub processor: Option<u16>,
    /// What MIG makes of it.
    pub mig: MigState,
}

/// MIG on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigState {
    /// It is on: the GPU serves nobody as a whole.
    pub is_on: bool,
    /// Who else divides it, so that gpool does not.
    pub owner: Option<String>,
    /// What there is.
    pub instances: Vec<MigInstance>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// Which, and where it lies.
    pub instance: Instance,
    /// Share of it that is not promised.
    pub share_free_permille: u16,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What of that is neither promised nor held.
    pub memory_free_bytes: u64,
    /// One lease has all of it.
    pub is_whole: bool,
    /// Whose it is, if it is somebody's.
    pub team: Option<String>,
    /// Leases on it.
    pub leases: u16,
}

impl MigInstance {
    /// One that nobody has.
    #[must_use]
    pub fn free(instance: Instance) -> Self {
        let memory_bytes = u64::from(instance.profile.memory_mib) << 20;
        Self {
            instance,
            share_free_permille: 1000,
            memory_bytes,
            memory_free_bytes: memory_bytes,
            is_whole: false,
            team: None,
            leases: 0,
        }
    }
}

impl MigState {
    /// Its instances as a layout of `model`.
    #[must_use]
    pub fn layout(&self, model: &Model) -> Layout {
        let instances = self.instances.iter().map(|one| one.instance);
        instances.fold(Layout::default(), |layout, one| {
            layout.with(model, one.profile, one.placement.start).unwrap_or(layout)
        })
    }
}

impl Gpu {
    /// An idle GPU of that model.
    #[must_use]
    pub fn idle(key: &str, model: &'static Model) -> Self {
        let memory_bytes = u64::from(model.memory_mib) << 20;
        Self {
            key: key.to_owned(),
            product: model.name.to_owned(),
            model: Some(model),
            memory_bytes,
            is_healthy: true,
            compute_mode: ComputeMode::Default,
            share_free_permille: 1000,
            memory_free_bytes: memory_bytes,
            leases: 0,
            teams: BTreeSet::new(),
            longest_burst_us: None,
            island: None,
            processor: None,
            mig: MigState::default(),
        }
    }

    /// Where it sits among the others.
    #[must_use]
    pub fn site(&self) -> Site {
        Site { product: self.product.clone(), island: self.island, processor: self.processor }
    }

    /// Whether it can be divided at all.
    #[must_use]
    pub fn has_mig(&self) -> bool {
        self.model.is_some_and(Model::has_mig)
    }
}

impl Host {
    /// The same host with the GPUs alone that will do.
    #[must_use]
    pub fn with_only(&self, suitable: &Suitable) -> Self {
        let will_do = |gpu: &&Gpu| suitable.has(&gpu.key, &gpu.product, gpu.memory_bytes);
        Self { gpus: self.gpus.iter().filter(will_do).cloned().collect(), ..self.clone() }
    }

    /// A host with these GPUs and everything open.
    #[must_use]
    pub fn with(gpus: Vec<Gpu>) -> Self {
        Self {
            in_maintenance: false,
            phase: None,
            pool: Pool::Any,
            is_vgpu_guest: false,
            vgpu_licence: None,
            has_mps: true,
            has_spill: false,
            window_is_open: false,
            gpus,
        }
    }

    /// The teams whose leases are on it.
    #[must_use]
    pub fn teams(&self) -> BTreeSet<&str> {
        let on_gpus = self.gpus.iter().flat_map(|gpu| gpu.teams.iter());
        let on_instances =
            self.gpus.iter().flat_map(|gpu| gpu.mig.instances.iter().filter_map(|one| one.team.as_ref()));
        on_gpus.chain(on_instances).map(String::as_str).collect()
    }
}
