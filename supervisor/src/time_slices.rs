//! Shares that the hardware keeps: the driver's time slices of the channel groups of `mode=timeslice` containers, set from
//! outside, in the ratio of what was promised. Nothing in the container has a part in it.
//!
//! Whether the hardware heeds them is firmware's business, so it is tried on two processes of our own before the first
//! container is promised anything, once for each driver and GPU and boot.

mod channel_groups;
mod control_file;
mod keeper;
mod load;
mod self_test;

pub use keeper::keep;
pub use load::main as load;
pub use self_test::test_all;

use crate::bell::Bell;
use gpool_protocol::{GpuUuid, TimeSlices};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is known of each GPU, and a bell for the thread that keeps the slices. Its locks are taken last of all.
#[derive(Debug, Default)]
pub struct Verdicts {
    by_gpu: Mutex<BTreeMap<GpuUuid, TimeSlices>>,
    bell: Bell,
}

impl Verdicts {
    fn by_gpu(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, TimeSlices>> {
        self.by_gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the test said of a GPU; none before it has ended, or where nobody wants it.
    pub fn of(&self, gpu: &GpuUuid) -> Option<TimeSlices> {
        self.by_gpu().get(gpu).cloned()
    }

    /// Whether the hardware of a GPU keeps shares.
    pub fn keeps(&self, gpu: &GpuUuid) -> bool {
        self.by_gpu().get(gpu).is_some_and(|verdict| verdict.kept)
    }

    fn note(&self, gpu: GpuUuid, verdict: TimeSlices) {
        self.by_gpu().insert(gpu, verdict);
    }

    /// Shares have changed: look now.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Waits until somebody rings, or for so long.
    fn wait(&self, patience: Duration) {
        self.bell.wait(patience);
    }
}
