//! The process's contexts come and go, and whose they are.

use super::{Place, Process};
use crate::contexts::{self, Beginning, Contexts};
use crate::credit::Stripe;
use crate::memory::{self, Charge};
use crate::spill;
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUcontext, CUdevice};
use gpool_shared_region::BurstTag;

impl Process {
    /// A context has been made or was seen first, on GPU `gpu` of the lease.
    pub fn enter_context(&self, context: CUcontext, gpu: usize) -> BurstTag {
        self.entered(|contexts| contexts.enter(context, gpu))
    }

    /// The driver has made `part` as a part of the context `whole`, with whose memory and work its own count.
    pub fn enter_part(&self, part: CUcontext, whole: CUcontext) {
        self.entered(|contexts| {
            contexts.enter_part(part, whole);
            BurstTag::default()
        });
    }

    /// A part of a context has been destroyed. Its memory is the whole one's, and stays.
    pub fn part_gone(&self, part: CUcontext) {
        let Some(place) = self.place() else { return };
        if let Some(mut bursts) = self.bursts.take() {
            bursts.context_gone(place, part);
        }
        let mut contexts = self.contexts.lock();
        contexts.leave(part);
        self.context_count.store(contexts.count() as u32, Ordering::Release);
    }

    /// Charges a context that is about to be made on GPU `gpu` of the lease, and the libraries that it will load. Without
    /// room nothing is charged and nothing said.
    ///
    /// # Errors
    /// What did not fit.
    pub fn begin_context(&self, place: &Place, gpu: usize) -> Result<Beginning, Charge> {
        let mut contexts = self.contexts.lock();
        let libraries = Charge::Bytes(contexts.library_bytes());
        let try_one = |charge| match memory::try_reserve(&place.region, place.slot(), gpu, charge) {
            true => Ok(()),
            false => Err(charge),
        };
        try_one(Charge::Context)?;
        try_one(libraries).inspect_err(|_| memory::release(place.slot(), gpu, Charge::Context))?;
        place.add_image_bytes(contexts.library_bytes());
        Ok(contexts.begin(gpu))
    }

    /// It has been made.
    pub fn context_made(&self, place: &Place, begun: Beginning, context: CUcontext, gpu: usize) {
        let mut was_met = false;
        self.entered(|contexts| {
            let (tag, has_been) = contexts.made(begun, context, gpu);
            was_met = has_been;
            tag
        });
        if was_met {
            memory::release(place.slot(), gpu, Charge::Context);
        }
    }

    /// Enters a context whose beginning was not seen, as of one that an older runtime has made by the driver's table of functions
    /// for it (cuGetExportTable), and charges it: the device has it.
    pub fn meet_context(&self, place: &Place, context: CUcontext, gpu: usize) -> BurstTag {
        let mut is_charged = false;
        let tag = self.entered(|contexts| {
            let (tag, is_new) = contexts.meet(context, gpu);
            is_charged = is_new;
            tag
        });
        if is_charged {
            memory::add(place.slot(), gpu, Charge::Context);
        }
        tag
    }

    /// It has not, and takes nothing.
    pub fn context_refused(&self, place: &Place, begun: Beginning, gpu: usize) {
        let library_bytes = self.contexts.lock().refused(begun);
        place.add_image_bytes(library_bytes.wrapping_neg());
        memory::release(place.slot(), gpu, Charge::Context);
        memory::release(place.slot(), gpu, Charge::Bytes(library_bytes));
    }

    fn entered(&self, enter: impl FnOnce(&mut Contexts) -> BurstTag) -> BurstTag {
        let mut contexts = self.contexts.lock();
        let tag = enter(&mut contexts);
        let count = contexts.count() as u32;
        let before = self.context_count.swap(count, Ordering::AcqRel);
        drop(contexts);
        if before == 1
            && count > 1
            && let Some(place) = self.place()
        {
            // A default stream's handle has meant one stream so far; from now on it means one in each context.
            self.end_bursts(place, |_| {
                let holder = self.stripes.iter().find(|stripe| stripe.is_for_any_context());
                holder.and_then(Stripe::burst)
            });
        }
        tag
    }

    /// A context is about to be destroyed: what runs in it is ended, and nothing is asked about it until
    /// [`Process::context_gone`] or [`Process::context_stays`].
    pub fn leave_context(&self, context: CUcontext) {
        let Some(place) = self.place().filter(|_| !context.is_null()) else { return };
        let _relaxed = place.driver.relaxed_capture();
        let Some(mut bursts) = self.bursts.take() else { return };
        // Streams of it that are still to be destroyed go before it.
        self.catch_up(place, &mut bursts);
        self.end_locked(place, &mut bursts, |bursts| bursts.open_in(context, None));
        bursts.settle(place, &self.estimates);
        bursts.leave_context(context);
    }

    /// A context was not destroyed after all.
    pub fn context_stays(&self, context: CUcontext) {
        // A forked child has no watcher, and nobody who would give a lock back.
        if self.place().is_none() {
            return;
        }
        let has_work = self.bursts.take().is_some_and(|mut bursts| bursts.context_stays(context));
        if has_work {
            self.wake_watcher();
        }
    }

    /// A context has been destroyed: its memory went with it. The tag that it had, for what
    /// [`Handles::context_gone`](crate::handles::Handles::context_gone) finds.
    pub fn context_gone(&self, context: CUcontext) -> Option<BurstTag> {
        let place = self.place()?;
        if let Some(mut bursts) = self.bursts.take() {
            bursts.context_gone(place, context);
        }
        let mut contexts = self.contexts.lock();
        let tag = contexts.tag(context);
        let gpu = tag.map_or(0, BurstTag::gpu);
        let spilled_bytes = contexts.spilled_bytes(context);
        let allocated_bytes = contexts.leave(context).unwrap_or(0);
        self.context_count.store(contexts.count() as u32, Ordering::Release);
        let is_last = contexts.is_empty();
        drop(contexts);
        if is_last {
            memory::note_change(place.slot());
            place.slot().image_bytes.store(0, Ordering::Release);
        }
        let device_bytes = self.device_bytes[gpu].load(Ordering::Acquire);
        memory::release_context(place.slot(), gpu, allocated_bytes, device_bytes);
        if spilled_bytes > 0 {
            spill::release(place.slot(), spilled_bytes);
        }
        tag
    }

    /// `context` has one use more, which [`Process::detach_context`] ends.
    pub fn attach_context(&self, context: CUcontext) {
        self.contexts.lock().attach(context);
    }

    /// `context` has one use less; false if that was its last, with which it goes.
    pub fn detach_context(&self, context: CUcontext) -> bool {
        self.contexts.lock().detach(context)
    }

    /// Whether a default stream's handle means more than one stream.
    pub(crate) fn has_several_contexts(&self) -> bool {
        self.context_count.load(Ordering::Acquire) > 1
    }

    /// The context that has the memory of `context`, itself if it is no part; none if its beginning was not seen.
    pub fn whole_of(&self, context: CUcontext) -> Option<CUcontext> {
        self.contexts.lock().whole(context)
    }

    /// The context in which work on the streams of `context` is measured: of a green one the primary one.
    pub(crate) fn measured_in(&self, context: CUcontext) -> CUcontext {
        let whole = self.has_several_contexts().then(|| self.whole_of(context)).flatten();
        whole.unwrap_or(context)
    }

    /// Whether the current context lacks the charge of what goes along with managed memory. One that there is no room to tell apart
    /// does not.
    pub fn lacks_managed(&self) -> bool {
        let Some(place) = self.place() else { return false };
        let context = place.driver.current_context();
        self.tag_of(place, context);
        self.contexts.lock().has_managed(context) == Some(false)
    }

    /// It has been charged; false if another thread has done that meanwhile.
    pub fn note_managed(&self) -> bool {
        self.place().is_some_and(|place| self.contexts.lock().note_managed(place.driver.current_context()))
    }

    /// What the region calls the current context, `context`.
    pub(crate) fn tag_of(&self, place: &Place, context: CUcontext) -> BurstTag {
        if context.is_null() {
            return BurstTag::default();
        }
        if let Some(tag) = self.contexts.lock().tag(context) {
            return tag;
        }
        let device = place.driver.in_context(context, || place.driver.current_device()).flatten();
        let gpu = self.gpu_of(place, device);
        // One that another thread has destroyed stays current here, and takes nothing.
        if device.is_none() { self.enter_context(context, gpu) } else { self.meet_context(place, context, gpu) }
    }

    /// What the region calls the current context.
    pub fn current_tag(&self, place: &Place) -> BurstTag {
        self.tag_of(place, place.driver.current_context())
    }

    /// The index in the lease of `device`.
    pub fn gpu_of(&self, place: &Place, device: Option<CUdevice>) -> usize {
        contexts::gpu_of_device(place.region.control(), &place.driver, device)
    }

    /// The index in the lease of the GPU of the current context; the first without a context.
    pub fn current_gpu(&self, place: &Place) -> usize {
        match contexts::gpus(place.region.control()) {
            1 => 0,
            _ => self.current_tag(place).gpu(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{CONTEXTS, process};
    use crate::handles::{Held, Kind};

    #[test]
    fn what_lies_in_the_hosts_memory_goes_when_it_is_freed_or_with_its_context() {
        let process = process();
        let place = process.place().unwrap();
        place.region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        place.region.control().spill_bytes.store(100, Ordering::Relaxed);
        let begin = |context| process.context_made(place, process.begin_context(place, 0).unwrap(), context, 0);
        let spilled = || spill::used_bytes(&place.region);
        let allocate = |bytes| {
            assert!(spill::try_reserve(&place.region, place.slot(), bytes));
            let owner = process.spilled(place, bytes).unwrap().0;
            Held { owner, is_spilled: true, ..Held::new(Kind::Memory, bytes, bytes) }
        };
        begin(CONTEXTS[0]);
        let used_bytes = memory::used_bytes(&place.region, 0);
        let (freed, left) = (allocate(30), allocate(60));
        assert_eq!((spilled(), memory::used_bytes(&place.region, 0)), (90, used_bytes), "of the GPU it takes nothing");
        process.give_back(place, &freed);
        assert_eq!(spilled(), 60);
        begin(CONTEXTS[1]);
        process.context_gone(CONTEXTS[0]);
        assert_eq!(spilled(), 0, "beside another context");
        process.give_back(place, &left);
        assert_eq!(spilled(), 0, "it has gone with its context");
        process.context_gone(CONTEXTS[1]);
        allocate(100);
        process.context_gone(CONTEXTS[0]);
        assert_eq!(spilled(), 0, "with the last one");
    }
}
