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

use gpool_protocol::{GpuUuid, TimeSlices};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is known of each GPU, and a bell for the thread that keeps the slices. Its lock is taken last of all.
#[derive(Debug, Default)]
pub struct Verdicts {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    by_gpu: BTreeMap<GpuUuid, TimeSlices>,
    is_rung: bool,
}

impl Verdicts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the test said of a GPU; none before it has ended, or where nobody wants it.
    pub fn of(&self, gpu: &GpuUuid) -> Option<TimeSlices> {
        self.state().by_gpu.get(gpu).cloned()
    }

    /// Whether the hardware of a GPU keeps shares.
    pub fn keeps(&self, gpu: &GpuUuid) -> bool {
        self.state().by_gpu.get(gpu).is_some_and(|verdict| verdict.kept)
    }

    fn note(&self, gpu: GpuUuid, verdict: TimeSlices) {
        self.state().by_gpu.insert(gpu, verdict);
    }

    /// Shares have changed: look now.
    pub fn ring(&self) {
        self.state().is_rung = true;
        self.rung.notify_all();
    }

    /// Waits until somebody rings, or for so long.
    fn wait(&self, patience: Duration) {
        let (mut state, deadline) = (self.state(), Instant::now() + patience);
        while !std::mem::take(&mut state.is_rung) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.rung.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
