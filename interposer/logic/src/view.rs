//! The region as somebody reads it who takes no part: NVML in the container.

use crate::activity;
use crate::clock;
use crate::contexts;
use crate::memory;
use crate::region::{Region, RegionError};
use core::sync::atomic::Ordering;
use gpool_shared_region::Slot;

/// A read-only use of the lease's region.
pub struct RegionView(Region);

/// A process of the lease, as it sees itself, with what it has on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The process's own pid.
    pub process_id: u32,
    /// Device memory that it holds, contexts included.
    pub bytes: u64,
    /// How busy it keeps the lease's part of the GPU, in percent.
    pub percent: u32,
}

impl RegionView {
    /// Opens the region.
    ///
    /// # Errors
    /// As [`Region::to_read`].
    pub fn open() -> Result<Self, RegionError> {
        Region::to_read().map(Self)
    }

    /// The index in the lease of the GPU with `uuid`; none if that is not the lease's. `uuid` is only asked for where
    /// the lease has several GPUs.
    pub fn gpu(&self, uuid: impl FnOnce() -> Option<[u8; 16]>) -> Option<usize> {
        let control = self.0.control();
        match contexts::gpus(control) {
            1 => Some(0),
            _ => contexts::gpu_of_uuid(control, &uuid()?),
        }
    }

    /// (used, total) of the lease in bytes on one of its GPUs, contexts included.
    pub fn memory_bytes(&self, gpu: usize) -> (u64, u64) {
        let cap = memory::cap_bytes(&self.0);
        (memory::used_bytes(&self.0, gpu).min(cap), cap)
    }

    /// How busy the lease keeps its part of a GPU, in percent: 100 when it has all that it is entitled to, or more.
    pub fn percent(&self, gpu: usize) -> u32 {
        let now_ns = clock::now_ns();
        self.part(self.members(gpu).map(|slot| activity::busy_permille(slot, gpu, now_ns)).sum())
    }

    /// Calls `show` for every process of the lease that has a context on a GPU.
    pub fn each_member(&self, gpu: usize, mut show: impl FnMut(Member)) {
        let now_ns = clock::now_ns();
        for slot in self.members(gpu) {
            show(Member {
                process_id: slot.process_id.load(Ordering::Relaxed),
                bytes: memory::held_bytes(&self.0, slot, gpu),
                percent: self.part(activity::busy_permille(slot, gpu, now_ns)),
            });
        }
    }

    fn members(&self, gpu: usize) -> impl Iterator<Item = &'static Slot> + '_ {
        let has_context = move |slot: &&Slot| {
            slot.registration.load(Ordering::Acquire) != 0 && slot.gpu_contexts[gpu].load(Ordering::Relaxed) != 0
        };
        self.0.slots().filter(has_context)
    }

    /// Thousandths of the GPU as percent of the lease's part of it, rounded up.
    fn part(&self, permille: u64) -> u32 {
        let whole = match self.0.control().fraction_permille.load(Ordering::Relaxed) {
            0 => 1000,
            fraction => u64::from(fraction),
        };
        (permille.saturating_mul(100).div_ceil(whole)).min(100) as u32
    }
}

/// The bytes of a UUID as NVML writes it: `GPU-` and 32 hexadecimal digits with dashes between.
pub fn uuid_from_text(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(b"GPU-")?;
    let mut bytes = [0u8; 16];
    let mut count = 0;
    for digit in digits.iter().filter(|byte| **byte != b'-') {
        let value = (*digit as char).to_digit(16)? as u8;
        *bytes.get_mut(count / 2)? |= value << (4 * (1 - count % 2));
        count += 1;
    }
    (count == 32).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_those_with_a_context_and_busy_by_what_they_are_entitled_to() {
        let view = RegionView(crate::fake_driver::region());
        view.0.control().context_bytes.store(100, Ordering::Relaxed);
        for (index, (registration, contexts)) in [(5, 1), (6, 0), (0, 1), (7, 2)].into_iter().enumerate() {
            let slot = view.0.slot(index);
            slot.registration.store(registration, Ordering::Relaxed);
            slot.process_id.store(index as u32 + 40, Ordering::Relaxed);
            slot.gpu_contexts[1].store(contexts, Ordering::Relaxed);
            slot.gpu_bytes[1].store(1000, Ordering::Relaxed);
        }
        let mut seen = Vec::new();
        view.each_member(1, |member| seen.push((member.process_id, member.bytes, member.percent)));
        assert_eq!(seen, [(40, 1100, 0), (43, 1200, 0)]);
        view.each_member(0, |member| panic!("{member:?} is on another GPU"));
        assert_eq!([0, 1, 400, 1000].map(|permille| view.part(permille)), [0, 1, 40, 100]);
        view.0.control().fraction_permille.store(250, Ordering::Relaxed);
        assert_eq!([0, 1, 125, 250, 900].map(|permille| view.part(permille)), [0, 1, 50, 100, 100]);
    }

    #[test]
    fn nvmls_uuids_are_read() {
        let bytes = uuid_from_text(b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff").unwrap();
        assert_eq!((bytes[0], bytes[9], bytes[15]), (1, 10, 255));
        for wrong in [&b"MIG-01020304-0506-0708-090a-0b0c0d0e0f10"[..], b"GPU-0102", b"GPU-zz", b""] {
            assert_eq!(uuid_from_text(wrong), None);
        }
    }
}
