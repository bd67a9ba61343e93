//! A region in memory, and a bell.

use gpool_interposer_logic::region::Region;
use gpool_shared_region::{Control, Opening, REPORT_BYTES, Roster, SLOTS, Slot};
use loom::sync::{Condvar, Mutex};
use std::ops::Deref;
use std::sync::Arc;

/// As the report is laid out.
#[repr(C)]
#[derive(Default)]
struct Report {
    slots: [Slot; SLOTS],
    roster: Roster,
}

const _: () = assert!(size_of::<Report>() == REPORT_BYTES);

/// The files of one lease.
pub struct Lease {
    region: Region,
    control: *mut Control,
    report: *mut Report,
}

// SAFETY: both point to atomics and are only freed when nobody holds the lease any more.
unsafe impl Send for Lease {}
// SAFETY: as above.
unsafe impl Sync for Lease {}

impl Lease {
    /// One of which nothing is used.
    pub fn new() -> Arc<Self> {
        let (control, report) = (Box::into_raw(Box::default()), Box::into_raw(Box::<Report>::default()));
        // SAFETY: both live as long as the region, and nobody keeps what the region hands out beyond that; under loom a
        // slot is as long as its Slot.
        let region = unsafe { Region::in_memory(&*control, report.cast(), -1) };
        Arc::new(Self { region, control, report })
    }
}

impl Deref for Lease {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in `new`, and nobody uses the region any more.
        unsafe { drop((Box::from_raw(self.control), Box::from_raw(self.report))) };
    }
}

/// The FIFO: what was rung before it is heard is heard at once.
#[derive(Default)]
pub struct Bell {
    rings: Mutex<u32>,
    rung: Condvar,
}

impl Bell {
    /// Writes a byte.
    pub fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_one();
    }

    /// Waits for bytes and takes all.
    pub fn hear(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

/// An opening of the gate that lasts until then.
pub fn until(until_ns: u64) -> Opening {
    Opening { until_ns, depth_ns: 1000, burst_ns: 1000, is_left_open: false, heeds_leaving: false, stands_alone: false }
}
