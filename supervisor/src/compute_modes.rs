//! The compute mode of each GPU, as NVML last said. Whoever administers the host may change it at any time; gpool never does.

use gpool_policy::mechanism::ComputeMode;
use std::sync::{Mutex, PoisonError};

/// What is known of all GPUs. Its lock is taken last of all.
#[derive(Debug)]
pub struct ComputeModes(Mutex<Vec<ComputeMode>>);

impl ComputeModes {
    /// Of so many GPUs none has said anything yet.
    pub fn new(gpus: usize) -> Self {
        Self(Mutex::new(vec![ComputeMode::Default; gpus]))
    }

    /// NVML says this of GPU `gpu`.
    pub fn note(&self, gpu: usize, mode: ComputeMode) {
        if let Some(place) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(gpu) {
            *place = mode;
        }
    }

    /// The mode of GPU `gpu`.
    pub fn of(&self, gpu: usize) -> ComputeMode {
        let modes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        modes.get(gpu).copied().unwrap_or(ComputeMode::Default)
    }
}
