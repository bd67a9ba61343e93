//! A process's place in the region.

use crate::announce;
use crate::contexts::gpus;
use crate::driver::Driver;
use crate::futex::Mutex;
use crate::memory;
use crate::region::Region;
use crate::registration::Registration;
use gpool_shared_region::atomic::{AtomicU32, Ordering};
use gpool_shared_region::{BurstTag, Demand, GPUS, Slot};

/// A process that has registered.
pub struct Place {
    /// The lease's files.
    pub region: Region,
    /// Where this process stands in them.
    pub registration: Registration,
    /// The real driver.
    pub driver: Driver,
    /// Held while something is told, which takes no time: bursts are locked over calls of the driver, and one that goes by while
    /// such a call does not return tells of its work too.
    pub(crate) telling: Mutex<()>,
}

impl Place {
    /// A place that is taken.
    pub fn new(region: Region, registration: Registration, driver: Driver) -> Self {
        Self { region, registration, driver, telling: Mutex::new(()) }
    }

    /// This process's slot.
    pub fn slot(&self) -> &'static Slot {
        self.region.slot(self.registration.slot)
    }

    /// Something is charged that may take less than its charge.
    pub fn note_inexact(&self) {
        self.slot().is_inexact.store(1, Ordering::Release);
    }

    /// Says until the answer is dropped that account and device may differ.
    #[inline(never)]
    pub fn change(&self) -> Change {
        let changing = &self.slot().changing;
        changing.fetch_add(1, Ordering::AcqRel);
        Change(changing)
    }

    /// What is charged for images grows by `bytes`, or shrinks by what these are the negative of.
    pub fn add_image_bytes(&self, bytes: u64) {
        memory::note_change(self.slot());
        self.slot().image_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Asks the supervisor to look.
    #[inline(never)]
    pub fn ring(&self) {
        self.region.ring(self.registration.slot);
    }

    /// States what this process wants.
    #[inline(never)]
    pub(crate) fn say(&self, demand: Demand, word: u32, estimated_end_ns: u64) {
        let _telling = self.telling.lock();
        announce::say(self.slot(), demand, word, estimated_end_ns);
    }

    /// What the lease's other processes have still to do on GPU `gpu`, as they say: there contexts take turns, so that what is issued now ends
    /// that much later. Nobody but their own lease goes by it.
    #[inline(never)]
    pub(crate) fn others_left_ns(&self, gpu: usize, now_ns: u64) -> u64 {
        let is_of_several = gpus(self.region.control()) > 1;
        let has_work_there = |slot: &&Slot| {
            !core::ptr::eq(*slot, self.slot())
                && slot.demand.load(Ordering::Acquire) != Demand::Idle as u32
                && slot.gpu_contexts[gpu % GPUS].load(Ordering::Relaxed) > 0
                && !(is_of_several && announce::last_gpu(slot) != Some(gpu))
        };
        let left_ns = |slot: &Slot| slot.estimated_end_ns.load(Ordering::Relaxed).saturating_sub(now_ns);
        self.region.slots().filter(has_work_there).map(left_ns).fold(0, u64::saturating_add)
    }

    /// States that this process wants nothing, unless that is said, or a thread stands somewhere: it says that it waits once it counts
    /// as a waiter. Whether it is news.
    #[must_use]
    #[inline(never)]
    pub(crate) fn say_idle(&self, word: u32, now_ns: u64) -> bool {
        let slot = self.slot();
        let _telling = self.telling.lock();
        let is_news =
            slot.waiters.load(Ordering::Acquire) == 0 && slot.demand.load(Ordering::Relaxed) != Demand::Idle as u32;
        if is_news {
            announce::say(slot, Demand::Idle, word, now_ns);
        }
        is_news
    }

    /// States that this process leaves the device when its work ends.
    pub(crate) fn say_leaving(&self, word: u32, estimated_end_ns: u64) {
        let _telling = self.telling.lock();
        announce::say_leaving(self.slot(), word, estimated_end_ns);
    }

    /// Tells of one burst. Of several GPUs it rings for each half of the ring, so that the
    /// supervisor reads it before it turns over, however many of them fill it: what is lost goes to one of them. On a single
    /// one nothing goes astray, and the supervisor is left in peace.
    #[inline(never)]
    pub(crate) fn publish(&self, tag: BurstTag, start_ns: u64, end_ns: u64, launches: u32) {
        let telling = self.telling.lock();
        let is_half_full = announce::publish(self.slot(), tag, start_ns, end_ns, launches);
        drop(telling);
        if is_half_full && gpus(self.region.control()) > 1 {
            self.ring();
        }
    }

    /// A burst has been opened behind the gate word `word`. Whether the supervisor has to be
    /// told: its lease's gate has been left open, and this process has not been heard of since.
    #[must_use]
    #[inline(never)]
    pub(crate) fn note_issue(&self, word: u32, now_ns: u64, estimated_end_ns: u64) -> bool {
        let slot = self.slot();
        let _telling = self.telling.lock();
        let is_first = slot.demand.load(Ordering::Relaxed) == Demand::Idle as u32
            || slot.demand_word.load(Ordering::Relaxed) != word;
        if slot.first_launch_word.load(Ordering::Relaxed) != word {
            slot.first_launch_ns.store(now_ns, Ordering::Relaxed);
            slot.first_launch_word.store(word, Ordering::Release);
        }
        announce::say_issued(slot, word, estimated_end_ns);
        is_first && self.region.control().is_left_open.load(Ordering::Relaxed) == 1
    }
}

/// A call is under way that changes what is held.
pub struct Change(&'static AtomicU32);

impl Drop for Change {
    #[inline(never)]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bursts::Bursts;
    use crate::fake_driver::{driver, region_with_bell};
    use crate::learning::Expectation;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    /// Otherwise what many GPUs did between two looks would be told of one of them.
    #[test]
    fn each_half_of_the_ring_rings_once_of_several_gpus() {
        let rings_after = |bursts: u64, gpus: u32| {
            let (mut heard, bell) = pipe().unwrap();
            let region = region_with_bell(bell.as_raw_fd());
            region.control().gpus.store(gpus, Ordering::Relaxed);
            let place = Place::new(region, Registration { slot: 3, process_id: 1, number: 1 }, driver());
            let (mut table, expectation) = (Bursts::new(), Expectation { cost_ns: 5, is_measured: true });
            (0..bursts).for_each(|number| {
                table.charge_unmeasured(&place, BurstTag::new((number % 8) as u8, 1), expectation, 10 * number + 10);
            });
            drop(bell);
            let mut rings = Vec::new();
            heard.read_to_end(&mut rings).unwrap();
            assert!(rings.iter().all(|slot| *slot == 3));
            rings.len()
        };
        assert_eq!([31, 33, 63, 64, 130].map(|bursts| rings_after(bursts, 8)), [0, 1, 1, 2, 4]);
        assert_eq!([33, 130].map(|bursts| rings_after(bursts, 1)), [0, 0]);
    }
}
