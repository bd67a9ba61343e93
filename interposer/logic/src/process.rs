//! One process of a tenant: its place in the region, its credit and its bursts.

use crate::bursts::Bursts;
use crate::clock;
use crate::driver::Driver;
use crate::futex::{self, Mutex};
use crate::gate::{STRIPES, Stripe};
use crate::region::{Region, RegionError};
use crate::registration::{self, Registration};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use gpool_driver_abi::cuda::CUcontext;
use gpool_shared_region::{Control, Demand, Slot};

/// How long the end of the process may wait for a look in progress.
const STOP_LIMIT_NS: u64 = 100_000_000;

/// A process that has registered.
pub struct Place {
    /// The lease's files.
    pub region: Region,
    /// Where this process stands in them.
    pub registration: Registration,
    /// The real driver.
    pub driver: Driver,
}

impl Place {
    /// This process's slot.
    pub fn slot(&self) -> &'static Slot {
        self.region.slot(self.registration.slot)
    }

    /// Asks the supervisor to look.
    pub fn ring(&self) {
        self.region.ring(self.registration.slot);
    }

    /// States what this process wants; called with the bursts locked.
    pub(crate) fn say(&self, demand: Demand, word: u32, estimated_end_ns: u64) {
        let slot = self.slot();
        slot.estimated_end_ns.store(estimated_end_ns, Ordering::Relaxed);
        slot.demand_word.store(word, Ordering::Relaxed);
        slot.demand.store(demand as u32, Ordering::Release);
    }

    /// A burst has been opened behind the gate word `word`; called with the bursts locked.
    pub(crate) fn note_issue(&self, word: u32, now_ns: u64, estimated_end_ns: u64) {
        let slot = self.slot();
        if slot.first_launch_word.load(Ordering::Relaxed) != word {
            slot.first_launch_ns.store(now_ns, Ordering::Relaxed);
            slot.first_launch_word.store(word, Ordering::Release);
        }
        self.say(Demand::Running, word, estimated_end_ns);
    }
}

/// The state of one process; a static in the shim.
pub struct Process {
    pub(crate) stripes: [Stripe; STRIPES],
    pub(crate) bursts: Mutex<Bursts>,
    /// 1 while the watcher is parked.
    pub(crate) watcher_parked: AtomicU32,
    pub(crate) watcher_started: AtomicU32,
    pub(crate) stopping: AtomicU32,
    control: AtomicPtr<Control>,
    start: Mutex<()>,
    place: UnsafeCell<MaybeUninit<Place>>,
}

// SAFETY: `place` is written once under `start`, before `control` is published with release; everything else is
// atomic or behind a mutex.
unsafe impl Sync for Process {}

impl Process {
    /// A process that has not initialised CUDA.
    pub const fn new() -> Self {
        Self {
            stripes: [const { Stripe::new() }; STRIPES],
            bursts: Mutex::new(Bursts::new()),
            watcher_parked: AtomicU32::new(0),
            watcher_started: AtomicU32::new(0),
            stopping: AtomicU32::new(0),
            control: AtomicPtr::new(core::ptr::null_mut()),
            start: Mutex::new(()),
            place: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The supervisor's page, once registered.
    #[inline(always)]
    pub(crate) fn control(&self) -> Option<&Control> {
        // SAFETY: null, or the region's control page, which is never unmapped.
        unsafe { self.control.load(Ordering::Acquire).as_ref() }
    }

    /// This process's place, once registered.
    pub fn place(&self) -> Option<&Place> {
        self.control()?;
        // SAFETY: `control` is published after `place` is written, and `place` is never written again.
        Some(unsafe { (*self.place.get()).assume_init_ref() })
    }

    /// Finds the region and takes a place in it; does nothing the second time.
    ///
    /// # Errors
    /// As [`Region::open`] and [`registration::register`]: the process must then not get a working driver.
    pub fn register(&self, driver: Driver) -> Result<(), RegionError> {
        if self.control().is_some() {
            return Ok(());
        }
        let _start = self.start.lock();
        if self.control().is_some() {
            return Ok(());
        }
        let region = Region::open()?;
        let registration = registration::register(&region)?;
        self.adopt(Place { region, registration, driver });
        Ok(())
    }

    /// Takes a place that is already there; `register` does this, and tests with a region in memory.
    pub fn adopt(&self, place: Place) {
        let control: *const Control = place.region.control();
        // SAFETY: nobody reads `place` before `control` is published, and callers adopt once.
        unsafe { (*self.place.get()).write(place) };
        self.control.store(control.cast_mut(), Ordering::Release);
    }

    /// A context is about to be destroyed.
    pub fn leave_context(&self, context: CUcontext) {
        let Some(place) = self.place() else { return };
        self.before_wait();
        let mut bursts = self.bursts.lock();
        bursts.settle(&place.driver, place.slot());
        bursts.leave_context(&place.driver, context);
    }

    /// Makes sure that the watcher looks at what has been issued.
    pub(crate) fn wake_watcher(&self) {
        if self.watcher_started.load(Ordering::Relaxed) == 0 {
            self.start_watcher();
        }
        if self.watcher_parked.swap(0, Ordering::AcqRel) == 1 {
            futex::wake(&self.watcher_parked, 1);
        }
    }

    /// The process is ending: the watcher makes no more driver calls. Waits a moment for a look in progress.
    pub fn stop(&self) {
        self.stopping.store(1, Ordering::Release);
        let limit_ns = clock::now_ns() + STOP_LIMIT_NS;
        while self.bursts.try_lock().is_none() && clock::now_ns() < limit_ns {
            clock::sleep_until_ns(clock::now_ns() + 100_000);
        }
    }

    /// A forked child has no driver and no place: locks may be held by threads that it does not have, and its
    /// parent's slot is not its own.
    pub fn forked(&self) {
        self.control.store(core::ptr::null_mut(), Ordering::Release);
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}
