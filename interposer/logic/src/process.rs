//! One process of a tenant: its place in the region, its credit and its bursts.

use crate::bursts::Bursts;
use crate::contexts::Contexts;
use crate::credit::{STRIPES, Stripe};
use crate::driver::{self, Driver};
use crate::estimates::Estimates;
use crate::futex::{Mutex, Turn};
use crate::handles::{Held, Kind};
use crate::memory::{self, Charge};
use crate::parking::Parking;
use crate::pieces::Holds;
pub use crate::place::{Change, Place};
use crate::records::Records;
use crate::region::{Region, RegionError};
use crate::registration;
use crate::spill;
use crate::stuck::Left;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use gpool_shared_region::{BurstTag, Control, GPUS};

mod end;
mod in_contexts;

/// What a process needs to take its place.
struct Start {
    control: &'static Control,
    driver: Driver,
    /// Once a place has been asked for.
    region: Option<Region>,
}

// SAFETY: the page and the region hold only atomics, and the driver's functions may be called from any thread.
unsafe impl Send for Start {}

/// The state of one process; a static in the shim.
pub struct Process {
    pub(crate) stripes: [Stripe; STRIPES],
    pub(crate) estimates: Estimates,
    pub(crate) records: Records,
    /// Locked before `contexts` where both are.
    pub(crate) bursts: Turn<Bursts>,
    /// 1 while whoever has the bursts does not get on.
    pub(crate) is_stuck: AtomicU32,
    pub(crate) left: Left,
    contexts: Mutex<Contexts>,
    /// Charged memory that belongs to a GPU and to no context: it outlives them all.
    device_bytes: [AtomicU64; GPUS],
    /// Locked last.
    pub(crate) pieces: Mutex<Holds>,
    /// Contexts that there are, for the slow path.
    context_count: AtomicU32,
    pub(crate) watcher_parking: Parking,
    pub(crate) watcher_started: AtomicU32,
    #[cfg(test)]
    pub(crate) watcher_rest: crate::watcher::Rest,
    pub(crate) stopping: AtomicU32,
    /// Look-ups refused because this shim does not know the version; programs look up before they register.
    unknown_versions: AtomicU32,
    /// 1 once memory may be charged to this process.
    is_confirmed: AtomicU32,
    control: AtomicPtr<Control>,
    /// The same page, from [`Process::begin`] on, also in a forked child.
    pub(crate) page: AtomicPtr<Control>,
    /// What a process that has initialised the driver needs to take its place.
    start: Mutex<Option<Start>>,
    /// Threads that have something to launch, and sleep because enough is on the device.
    pub(crate) sleepers: AtomicU32,
    /// Captures of streams that have begun and not ended.
    pub(crate) captures: AtomicU32,
    /// 1 in a forked child.
    is_forked: AtomicU32,
    place: UnsafeCell<MaybeUninit<Place>>,
}

// SAFETY: `place` is written once under `start`, before `control` is published with release; everything else is
// atomic or behind a mutex.
unsafe impl Sync for Process {}

impl Process {
    /// Where in a process the address of its lease's page stands, null before [`Process::begin`], and where in that the word which
    /// is 1 while the lease is suspended: as [`Process::touch`], for who has no register to spare.
    pub const PAGE_OFFSET: usize = core::mem::offset_of!(Process, page);
    /// See [`Process::PAGE_OFFSET`].
    pub const IS_SUSPENDED_OFFSET: usize = core::mem::offset_of!(Control, is_suspended);

    /// A process that has not initialised CUDA.
    pub const fn new() -> Self {
        Self {
            stripes: [const { Stripe::new() }; STRIPES],
            estimates: Estimates::new(),
            records: Records::new(),
            bursts: Turn::new(Bursts::new()),
            is_stuck: AtomicU32::new(0),
            left: Left::new(),
            contexts: Mutex::new(Contexts::new()),
            device_bytes: [const { AtomicU64::new(0) }; GPUS],
            pieces: Mutex::new(Holds::new()),
            context_count: AtomicU32::new(0),
            watcher_parking: Parking::new(),
            watcher_started: AtomicU32::new(0),
            #[cfg(test)]
            watcher_rest: crate::watcher::Rest::new(),
            stopping: AtomicU32::new(0),
            unknown_versions: AtomicU32::new(0),
            is_confirmed: AtomicU32::new(0),
            control: AtomicPtr::new(core::ptr::null_mut()),
            page: AtomicPtr::new(core::ptr::null_mut()),
            start: Mutex::new(None),
            sleepers: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            is_forked: AtomicU32::new(0),
            place: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The supervisor's page, once registered.
    #[inline(always)]
    pub(crate) fn control(&self) -> Option<&Control> {
        // SAFETY: null, or the region's control page, which is never unmapped.
        unsafe { self.control.load(Ordering::Acquire).as_ref() }
    }

    /// This process's place. The first to need it takes one; none before [`Process::begin`], in a forked child, and
    /// while all are taken.
    #[inline(never)] // dozens of entry points call it
    pub fn place(&self) -> Option<&Place> {
        if self.control().is_none() && !self.register() {
            return None;
        }
        // SAFETY: `control` is published after `place` is written, and `place` is never written again.
        Some(unsafe { (*self.place.get()).assume_init_ref() })
    }

    /// Finds the lease's page, through which a place can be had, and does nothing the second time. Most programs that
    /// initialise the driver look around and leave, and need none.
    ///
    /// # Errors
    /// As [`Region::page`]: the process must then not get a working driver.
    pub fn begin(&self, driver: Driver) -> Result<(), RegionError> {
        // The page of memory is written before it is read, which costs the start one fault and not two.
        let mut start = self.start.lock();
        if self.control().is_none() && start.is_none() {
            let control = Region::page()?;
            self.page.store(core::ptr::from_ref(control).cast_mut(), Ordering::Release);
            if let Some(mut bursts) = self.bursts.take() {
                bursts.set_blocking(driver::launches_block());
            }
            *start = Some(Start { control, driver, region: None });
        }
        drop(start);
        // What has been counted so far is told.
        if self.unknown_versions.load(Ordering::Relaxed) > 0 {
            self.register();
        }
        Ok(())
    }

    /// The lease's memory cap in bytes, for who asks how large the device is: that takes no place, and is answered to those
    /// for whom there was none. None before [`Process::begin`].
    pub fn cap_bytes(&self) -> Option<u64> {
        // SAFETY: null, or the supervisor's page, which is never unmapped.
        let page = unsafe { self.page.load(Ordering::Acquire).as_ref() }?;
        Some(page.memory_cap_bytes.load(Ordering::Relaxed))
    }

    /// Takes a place in the region; false where there is none to be had.
    #[cold]
    #[inline(never)]
    pub(crate) fn register(&self) -> bool {
        // Its lock may be held by a thread that a forked child does not have.
        if self.is_forked.load(Ordering::Acquire) != 0 {
            return false;
        }
        let mut start = self.start.lock();
        if self.control().is_some() {
            return true;
        }
        let Some(Start { control, driver, mut region }) = start.take() else { return false };
        region = region.or_else(|| Region::behind(control).ok());
        match (region.as_ref().and_then(|region| registration::register(region).ok()), region) {
            (Some(registration), Some(region)) => self.adopt(Place::new(region, registration, driver)),
            (_, region) => *start = Some(Start { control, driver, region }),
        }
        self.control().is_some()
    }

    /// Takes a place that is already there; a process that registers does this, and tests with a region in memory.
    pub fn adopt(&self, place: Place) {
        let control: *const Control = place.region.control();
        place.slot().unknown_versions.store(self.unknown_versions.load(Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: nobody reads `place` before `control` is published, and callers adopt once.
        unsafe { (*self.place.get()).write(place) };
        self.page.store(control.cast_mut(), Ordering::Release);
        self.control.store(control.cast_mut(), Ordering::Release);
    }

    /// Whether memory may be charged to this process: the supervisor would see its end. The first to ask waits for that,
    /// so that a start need not.
    #[inline(always)]
    pub fn may_be_charged(&self, place: &Place) -> bool {
        self.is_confirmed.load(Ordering::Acquire) != 0 || self.confirm(place)
    }

    #[cold]
    #[inline(never)]
    fn confirm(&self, place: &Place) -> bool {
        let _start = self.start.lock();
        if self.is_confirmed.load(Ordering::Acquire) == 0 {
            let is_confirmed = registration::confirm(&place.region, &place.registration);
            self.is_confirmed.store(u32::from(is_confirmed), Ordering::Release);
        }
        self.is_confirmed.load(Ordering::Acquire) != 0
    }

    /// A look-up was refused because this shim does not know the version of the function.
    pub fn note_unknown_version(&self) {
        let count = self.unknown_versions.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if let Some(place) = self.place() {
            place.slot().unknown_versions.store(count, Ordering::Relaxed);
        }
    }

    /// `bytes` were allocated in the current context: its tag.
    pub fn allocated(&self, place: &Place, bytes: u64) -> BurstTag {
        self.made(place, bytes, false).0
    }

    /// The same of what is about to be in the host's memory; none if there is no context, or it is one too many to be known, so that
    /// nobody would see it go.
    pub fn spilled(&self, place: &Place, bytes: u64) -> Option<BurstTag> {
        let is_there = !place.driver.current_context().is_null();
        let (tag, is_known) = if is_there { self.made(place, bytes, true) } else { Default::default() };
        is_known.then_some(tag)
    }

    /// What was `spilled` is not there after all; false if its context has gone, and its charge with it.
    pub fn unspilled(&self, tag: BurstTag, bytes: u64) -> bool {
        self.contexts.lock().subtract(tag, bytes, true)
    }

    /// Whether the context is there that has this tag, as [`Held::owner`] has it.
    pub fn has_context(&self, tag: u64) -> bool {
        self.contexts.lock().has(BurstTag(tag))
    }

    #[inline(never)]
    fn made(&self, place: &Place, bytes: u64, are_spilled: bool) -> (BurstTag, bool) {
        let context = place.driver.current_context();
        let known = self.contexts.lock().add(context, bytes, are_spilled);
        known.map_or_else(
            || {
                // Seen for the first time.
                let tag = self.tag_of(place, context);
                (tag, self.contexts.lock().add(context, bytes, are_spilled).is_some())
            },
            |tag| (tag, true),
        )
    }

    /// `held` is no longer: its charge is taken back, unless that has gone with its context.
    pub fn give_back(&self, place: &Place, held: &Held) {
        if let Some(piece) = held.piece() {
            return self.leave_piece(place, piece);
        }
        if held.kind == Kind::Library {
            return self.release_contexts(place, held.bytes);
        }
        let owner = BurstTag(held.owner);
        if held.is_on_device() {
            return self.release_on_device(place, usize::from(held.gpu), held.bytes);
        }
        if self.contexts.lock().subtract(owner, held.bytes, held.is_spilled) {
            if held.is_spilled {
                return spill::release(place.slot(), held.bytes);
            }
            if held.kind == Kind::Module {
                place.add_image_bytes(held.bytes.wrapping_neg());
            }
            memory::release(place.slot(), owner.gpu(), Charge::Bytes(held.bytes));
        }
    }

    /// Charges `bytes` of a library in each context that there is or comes; false, with nothing charged and nothing said,
    /// where one of their GPUs has no room.
    pub fn charge_contexts(&self, place: &Place, bytes: u64) -> bool {
        let (slot, charge) = (place.slot(), Charge::Bytes(bytes));
        let try_one = |gpu| {
            place.add_image_bytes(bytes);
            memory::try_reserve(&place.region, slot, gpu, charge)
        };
        let is_charged = self.contexts.lock().add_to_all(bytes, try_one, |gpu| {
            place.add_image_bytes(bytes.wrapping_neg());
            memory::release(slot, gpu, charge);
        });
        if !is_charged {
            place.add_image_bytes(bytes.wrapping_neg());
        }
        is_charged
    }

    /// Takes back what [`Process::charge_contexts`] has charged, and what contexts made since have been charged for it.
    pub fn release_contexts(&self, place: &Place, bytes: u64) {
        self.contexts.lock().subtract_from_all(bytes, |gpu| {
            place.add_image_bytes(bytes.wrapping_neg());
            memory::release(place.slot(), gpu, Charge::Bytes(bytes));
        });
    }

    /// What was charged in its context stays charged until the process ends, whatever becomes of it.
    pub fn keep(&self, place: &Place, held: &Held) {
        let owner = BurstTag(held.owner);
        if held.owner != 0 && self.contexts.lock().subtract(owner, held.bytes, false) {
            self.device_bytes[owner.gpu()].fetch_add(held.bytes, Ordering::AcqRel);
        }
        place.note_inexact();
    }

    /// Charges `bytes` that belong to GPU `gpu` of the lease and to no context; false, with nothing charged and nothing
    /// said, above the cap.
    pub fn reserve_on_device(&self, place: &Place, gpu: usize, bytes: u64) -> bool {
        // Before the charge, so that no context that goes meanwhile takes it along.
        self.device_bytes[gpu].fetch_add(bytes, Ordering::AcqRel);
        let is_reserved = memory::try_reserve(&place.region, place.slot(), gpu, Charge::Bytes(bytes));
        if !is_reserved {
            self.device_bytes[gpu].fetch_sub(bytes, Ordering::AcqRel);
        }
        is_reserved
    }

    /// Charges `bytes` that the device holds already, cap or not.
    pub fn add_on_device(&self, place: &Place, gpu: usize, bytes: u64) {
        self.device_bytes[gpu].fetch_add(bytes, Ordering::AcqRel);
        memory::add(place.slot(), gpu, Charge::Bytes(bytes));
    }

    /// Takes back what [`Process::reserve_on_device`] has charged.
    pub fn release_on_device(&self, place: &Place, gpu: usize, bytes: u64) {
        memory::release(place.slot(), gpu, Charge::Bytes(bytes));
        self.device_bytes[gpu].fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Makes sure that the watcher looks at what has been issued.
    pub(crate) fn wake_watcher(&self) {
        if self.watcher_started.load(Ordering::Relaxed) == 0 {
            self.start_watcher();
        }
        self.watcher_parking.call();
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{driver, region};
    use crate::registration::Registration;

    #[test]
    fn refused_look_ups_are_counted_before_and_after_the_process_registers() {
        let process = Process::new();
        process.note_unknown_version();
        process.note_unknown_version();
        let registration = Registration { slot: 0, process_id: 1, number: 1 };
        process.adopt(Place::new(region(), registration, driver()));
        let slot = process.place().unwrap().slot();
        assert_eq!(slot.unknown_versions.load(Ordering::Relaxed), 2);
        process.note_unknown_version();
        assert_eq!(slot.unknown_versions.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn who_has_no_place_takes_one_to_wait_for_a_suspended_lease_and_none_for_another() {
        let process: &'static Process = Box::leak(Box::new(Process::new()));
        process.touch();
        let control = {
            let region = region();
            let control = region.control();
            process.page.store(core::ptr::from_ref(control).cast_mut(), Ordering::Release);
            *process.start.lock() = Some(Start { control, driver: driver(), region: Some(region) });
            control
        };
        process.touch();
        assert!(process.control().is_none(), "it has done nothing that needs one");
        control.is_suspended.store(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let touching = scope.spawn(|| process.touch());
            let is_said =
                || process.control().is_some() && process.place().unwrap().slot().demand.load(Ordering::Acquire) == 2;
            while !is_said() {
                std::thread::yield_now();
            }
            assert!(!touching.is_finished());
            control.is_suspended.store(0, Ordering::Relaxed);
            control.close_gate();
            crate::futex::wake(&control.gate, i32::MAX);
            touching.join().unwrap();
        });
    }

    #[test]
    fn what_belongs_to_no_context_outlives_them_all() {
        let process = crate::fake_driver::process();
        let place = process.place().unwrap();
        place.region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let context = crate::fake_driver::CONTEXTS[0];
        process.enter_context(context, 0);
        assert!(memory::try_reserve(&place.region, place.slot(), 0, Charge::Context));
        assert!(memory::try_reserve(&place.region, place.slot(), 0, Charge::Bytes(300)));
        process.allocated(place, 300);
        assert!(process.reserve_on_device(place, 0, 500));
        assert!(!process.reserve_on_device(place, 0, 201), "above the cap");
        assert_eq!(place.slot().refused.load(Ordering::Relaxed), 0, "pools may give back first, so nothing is said");
        process.context_gone(context);
        assert_eq!(memory::used_bytes(&place.region, 0), 500);
        process.add_on_device(place, 0, 600);
        assert_eq!(memory::used_bytes(&place.region, 0), 1100, "what is held is said, cap or not");
        process.release_on_device(place, 0, 1100);
        assert_eq!(memory::used_bytes(&place.region, 0), 0);
    }

    /// An older runtime makes its contexts by a table of the driver's functions, past the shim.
    #[test]
    fn a_context_whose_beginning_was_not_seen_is_charged_once_it_is_met_and_given_back_once() {
        let process = crate::fake_driver::process();
        let place = process.place().unwrap();
        place.region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let contexts = || place.slot().gpu_contexts[0].load(Ordering::Relaxed);
        let context = crate::fake_driver::CONTEXTS[0];
        for _ in 0..2 {
            process.allocated(place, 100);
            assert_eq!(contexts(), 1);
        }
        process.context_gone(context);
        assert_eq!(contexts(), 0);
        let begun = process.begin_context(place, 0).unwrap();
        process.allocated(place, 100);
        assert_eq!(contexts(), 2, "met by a callback while it is made");
        process.context_made(place, begun, context, 0);
        assert_eq!(contexts(), 1);
        process.meet_context(place, context, 0);
        process.context_gone(context);
        assert_eq!(contexts(), 0);
    }

    #[test]
    fn what_may_be_held_elsewhere_outlives_its_context_and_libraries_are_charged_in_each() {
        let process = crate::fake_driver::process();
        let place = process.place().unwrap();
        place.region.control().memory_cap_bytes.store(1000, Ordering::Relaxed);
        let context = crate::fake_driver::CONTEXTS[0];
        process.context_made(place, process.begin_context(place, 0).unwrap(), context, 0);
        let allocate = |bytes| {
            assert!(memory::try_reserve(&place.region, place.slot(), 0, Charge::Bytes(bytes)));
            Held { owner: process.allocated(place, bytes).0, ..Held::new(Kind::Memory, bytes, bytes) }
        };
        let (kept, freed, left) = (allocate(100), allocate(200), allocate(300));
        process.keep(place, &kept);
        process.give_back(place, &freed);
        assert!(process.charge_contexts(place, 50) && !process.charge_contexts(place, 900));
        let image_bytes = || place.slot().image_bytes.load(Ordering::Relaxed);
        assert_eq!((memory::used_bytes(&place.region, 0), image_bytes()), (450, 50));
        process.release_contexts(place, 50);
        assert_eq!((memory::used_bytes(&place.region, 0), image_bytes()), (400, 0));
        process.context_gone(context);
        assert_eq!(memory::used_bytes(&place.region, 0), 100);
        process.give_back(place, &left);
        assert_eq!(memory::used_bytes(&place.region, 0), 100, "it went with its context");
    }
}
