//! The instances of one board, and what may be made and taken away.

use super::models::{MigModel, MigProfile};
use serde::{Deserialize, Serialize};

/// Why something is not done; NVML has a code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigRefusal {
    /// The board has no MIG, or it is off.
    NotSupported,
    /// No such profile, start or instance.
    Invalid,
    /// No room, or as many of the profile as there may be.
    NoRoom,
    /// Something is in the way: a process, or what has to go first.
    InUse,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// By which the driver calls it; given again when it is gone.
    pub id: u32,
    /// The id of its profile.
    pub profile_id: u32,
    /// The first of its memory slices.
    pub start: u8,
    /// Whether its compute instance is there, whose id is 0.
    pub has_compute: bool,
}

/// MIG on one board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigState {
    /// Whether it is on.
    pub is_on: bool,
    /// Whether it is to be on when nobody uses the board any more.
    pub is_pending: bool,
    /// By id.
    pub instances: Vec<GpuInstance>,
}

impl MigProfile {
    fn mask(&self, start: u8) -> u16 {
        ((1 << self.memory_slices) - 1) << start
    }

    fn instance_id(&self, model: &MigModel, start: u8) -> u32 {
        u32::from(model.memory_slices / self.memory_slices) - 1 + u32::from(start / self.memory_slices)
    }
}

impl MigModel {
    /// The profile with this id.
    pub fn profile(&self, id: u32) -> Option<&'static MigProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }
}

impl MigState {
    /// The instance with this id.
    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    /// Turns MIG on or off, at once if nobody uses the board, as `is_busy` says; else it is to be when they have gone.
    /// True if it is done.
    pub fn set(&mut self, is_on: bool, is_busy: bool) -> Result<bool, MigRefusal> {
        if !self.instances.is_empty() {
            return Err(MigRefusal::InUse);
        }
        self.is_pending = is_on;
        self.is_on = if is_busy { self.is_on } else { is_on };
        Ok(self.is_on == is_on)
    }

    /// Where another instance of `profile` could start.
    pub fn free_starts(&self, model: &MigModel, profile: &MigProfile) -> Vec<u8> {
        let its = |instance: &GpuInstance| model.profile(instance.profile_id);
        let of_it = self.instances.iter().filter(|instance| instance.profile_id == profile.id).count();
        let compute: u8 = self.instances.iter().filter_map(its).map(|profile| profile.compute_slices).sum();
        if of_it >= usize::from(profile.most) || compute + profile.compute_slices > model.compute_slices {
            return Vec::new();
        }
        let masks = self.instances.iter().filter_map(|one| Some(its(one)?.mask(one.start)));
        let taken = masks.fold(0, |all, mask| all | mask);
        profile.starts.iter().copied().filter(|start| profile.mask(*start) & taken == 0).collect()
    }

    /// Makes a GPU instance at `start`, or at the first start that is free, and says which it is.
    pub fn create(&mut self, model: &MigModel, profile_id: u32, start: Option<u8>) -> Result<u32, MigRefusal> {
        if !self.is_on {
            return Err(MigRefusal::NotSupported);
        }
        let profile = model.profile(profile_id).ok_or(MigRefusal::Invalid)?;
        if start.is_some_and(|start| !profile.starts.contains(&start)) {
            return Err(MigRefusal::Invalid);
        }
        let free = self.free_starts(model, profile);
        let fits = |at: &u8| start.is_none_or(|start| start == *at);
        let start = free.into_iter().find(fits).ok_or(MigRefusal::NoRoom)?;
        let id = profile.instance_id(model, start);
        self.instances.push(GpuInstance { id, profile_id, start, has_compute: false });
        self.instances.sort_by_key(|instance| instance.id);
        Ok(id)
    }

    /// Makes the compute instance of a GPU instance, or takes it away.
    pub fn set_compute(&mut self, id: u32, is_there: bool) -> Result<(), MigRefusal> {
        let instance = self.instances.iter_mut().find(|instance| instance.id == id).ok_or(MigRefusal::Invalid)?;
        match (instance.has_compute, is_there) {
            (true, true) => return Err(MigRefusal::NoRoom),
            (false, false) => return Err(MigRefusal::Invalid),
            (true, false) | (false, true) => instance.has_compute = is_there,
        }
        Ok(())
    }

    /// Takes a GPU instance away, whose compute instance has to be gone.
    pub fn destroy(&mut self, id: u32) -> Result<(), MigRefusal> {
        let instance = self.instance(id).ok_or(MigRefusal::Invalid)?;
        if instance.has_compute {
            return Err(MigRefusal::InUse);
        }
        self.instances.retain(|instance| instance.id != id);
        Ok(())
    }
}
