//! Answers of the driver after which a context cannot be used any more: the supervisor hears of them, since the program itself may
//! not say why it ended.

use crate::clock;
use crate::driver::CUDA_SUCCESS;
use crate::place::Place;
use gpool_driver_abi::cuda::{CUresult, ends_context};
use gpool_shared_region::atomic::Ordering;

/// The first such answer, and the GPU of the lease that it was about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fault {
    gpu: usize,
    result: CUresult,
}

impl Fault {
    /// No such answer yet.
    pub const NONE: Self = Self { gpu: 0, result: CUDA_SUCCESS };

    /// Takes an answer about GPU `gpu` of the lease.
    #[inline(never)]
    pub fn note(&mut self, gpu: usize, result: CUresult) {
        if self.result == CUDA_SUCCESS && ends_context(result) {
            *self = Self { gpu, result };
        }
    }

    /// Tells the supervisor, who hears of one for each process.
    pub fn tell(&mut self, place: &Place) {
        if self.result != CUDA_SUCCESS {
            place.say_fault(core::mem::replace(self, Self::NONE));
        }
    }
}

impl Place {
    #[cold]
    #[inline(never)]
    fn say_fault(&self, fault: Fault) {
        let slot = self.slot();
        let _telling = self.telling.lock();
        if slot.fault.load(Ordering::Relaxed) == 0 {
            slot.fault_gpu.store(fault.gpu as u32, Ordering::Relaxed);
            slot.fault_ns.store(clock::now_ns(), Ordering::Relaxed);
            slot.fault.store(fault.result.cast_unsigned(), Ordering::Release);
        }
    }
}
