//! A lease's report file as the supervisor holds it, and clearing places in it.
//!
//! Reading takes no lock that its container can hold, writing does (see [`aside`](super::aside)). So what is to be cleared is
//! cleared aside, and taken for cleared at once by whoever reads here. Until then its processes find the place taken.

use super::aside::{Errand, Owner};
use gpool_shared_region::{SLOT_BYTES, SLOTS};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a slot says what its process wants and has counted: refusals, look-ups that failed, its demand and its end,
/// threads at the gate, waits and launches, allocations that have gone to the host's memory, and a lost context.
const DEMAND: [Range<usize>; 6] = [24..40, 44..48, 64..80, 84..88, 96..112, 2000..2024];
/// In the place of a registration's number where there is none.
const UNKNOWN: u64 = u64::MAX;

/// By slot, the registration whose place is to be cleared; 0 where nothing is to be.
type Marks = [AtomicU64; SLOTS];

/// The report of one lease.
pub struct ReportFile {
    file: File,
    /// Slots to be freed.
    freed: Marks,
    /// Slots of dead processes that want nothing any more.
    silent: Marks,
    /// Marks in both.
    marked: AtomicUsize,
    /// By slot, what is to be done once nothing is left to be cleared.
    after: Mutex<BTreeMap<usize, Box<dyn FnOnce() + Send>>>,
    errand: Errand,
}

impl ReportFile {
    /// One that has been opened for reading and writing.
    pub fn new(owner: Owner, file: File) -> Self {
        let [freed, silent] = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        let (marked, after, errand) = (AtomicUsize::new(0), Mutex::default(), Errand::new(owner));
        Self { file, freed, silent, marked, after, errand }
    }

    /// The file, whose record locks name the processes. Not to be written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads its beginning; returns how many bytes there were.
    pub fn read(&self, buffer: &mut [u8]) -> usize {
        // Looked at before: what is cleared meanwhile is read as cleared, or taken for it.
        let marks = self.marks();
        let length = self.file.read_at(buffer, 0).unwrap_or(0);
        if let Some(marks) = marks {
            for (slot, marks) in buffer[..length].chunks_mut(SLOT_BYTES).zip(marks.iter()) {
                clear_copy(slot, *marks);
            }
        }
        length
    }

    /// The number under which slot `index` is taken; 0 if it is free, none if the tenant has cut the file.
    pub fn registration(&self, index: usize) -> Option<u64> {
        let freed = self.freed[index].load(Ordering::SeqCst);
        self.written_registration(index).map(|number| if number == freed { 0 } else { number })
    }

    fn written_registration(&self, index: usize) -> Option<u64> {
        let mut word = [0u8; 8];
        let read = self.file.read_exact_at(&mut word, (index * SLOT_BYTES) as u64);
        read.is_ok().then_some(u64::from_le_bytes(word))
    }

    /// What is to be cleared, if anything is.
    fn marks(&self) -> Option<[(u64, u64); SLOTS]> {
        let load = |index: usize| (self.freed[index].load(Ordering::SeqCst), self.silent[index].load(Ordering::SeqCst));
        (self.marked.load(Ordering::SeqCst) > 0).then(|| std::array::from_fn(load))
    }

    /// Frees slot `index`.
    pub fn free(self: &Arc<Self>, index: usize) {
        self.mark(&self.freed[index], index);
    }

    /// Takes back what the process of slot `index` wanted and counted; what it held stays.
    pub fn silence(self: &Arc<Self>, index: usize) {
        self.mark(&self.silent[index], index);
    }

    fn mark(self: &Arc<Self>, mark: &AtomicU64, index: usize) {
        let number = self.written_registration(index).filter(|number| *number != 0).unwrap_or(UNKNOWN);
        // Counted before it can be found, so that the count never falls below what is there.
        self.marked.fetch_add(1, Ordering::SeqCst);
        if mark.swap(number, Ordering::SeqCst) != 0 {
            self.marked.fetch_sub(1, Ordering::SeqCst);
        }
        Errand::ask(self, |report| &report.errand, Self::clear);
    }

    /// Clears all that is to be. What cannot be written stays as it is, which costs a slot, or leaves a demand of nobody, which
    /// the scheduler's bounds take for one that has fallen silent.
    fn clear(&self) {
        for index in 0..SLOTS {
            let silent = self.silent[index].load(Ordering::SeqCst);
            let freed = self.freed[index].load(Ordering::SeqCst);
            if freed != 0 {
                // Once it is free another process may have it, to which this does not apply.
                self.unmark(&self.silent[index], silent);
                if self.is_still(index, freed) {
                    let _ = self.write_freed(index);
                }
                self.unmark(&self.freed[index], freed);
            } else if silent != 0 {
                if self.is_still(index, silent) {
                    let _ = self.write_silent(index);
                }
                self.unmark(&self.silent[index], silent);
            }
        }
        if self.is_clear() {
            let due = std::mem::take(&mut *self.after());
            due.into_values().for_each(|then| then());
        }
    }

    /// Whether slot `index` is the marked one's. While the supervisor stood still its container may have freed it and taken it anew.
    fn is_still(&self, index: usize, marked: u64) -> bool {
        marked != UNKNOWN && self.written_registration(index) == Some(marked)
    }

    /// Has `then` done once everything that is to be cleared now is, in place of what was to be done for this slot; false if nothing is.
    pub fn once_cleared(self: &Arc<Self>, index: usize, then: impl FnOnce() + Send + 'static) -> bool {
        if self.is_clear() {
            return false;
        }
        self.after().insert(index, Box::new(then));
        // It may have been cleared between the two.
        Errand::ask(self, |report| &report.errand, Self::clear);
        true
    }

    fn after(&self) -> MutexGuard<'_, BTreeMap<usize, Box<dyn FnOnce() + Send>>> {
        self.after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a mark away, unless it is none or another by now.
    fn unmark(&self, mark: &AtomicU64, number: u64) {
        if number != 0 && mark.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.marked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The registration goes last, so that no new process takes the slot while it is being cleared.
    fn write_freed(&self, index: usize) -> io::Result<()> {
        let (start, zeros) = ((index * SLOT_BYTES) as u64, [0u8; SLOT_BYTES - 8]);
        self.file.write_all_at(&zeros, start + 8)?;
        self.file.write_all_at(&zeros[..8], start)
    }

    fn write_silent(&self, index: usize) -> io::Result<()> {
        let (start, zeros) = ((index * SLOT_BYTES) as u64, [0u8; SLOT_BYTES]);
        DEMAND
            .into_iter()
            .try_for_each(|range| self.file.write_all_at(&zeros[range.clone()], start + range.start as u64))
    }

    /// Whether it has kept a thread waiting for so long.
    pub fn keeps_waiting(&self, time: Duration) -> bool {
        self.errand.takes(time)
    }

    /// Whether everything that was to be cleared is.
    pub fn is_clear(&self) -> bool {
        self.marked.load(Ordering::SeqCst) == 0
    }
}

/// Does with the copy of a slot what is to be done with the slot. One that another registration has is another's.
fn clear_copy(slot: &mut [u8], (freed, silent): (u64, u64)) {
    let Some(number) = slot.first_chunk().map(|word| u64::from_le_bytes(*word)) else { return };
    if number != 0 && number == freed {
        slot.fill(0);
    } else if number != 0 && number == silent {
        for range in DEMAND {
            let end = range.end.min(slot.len());
            slot[range.start.min(end)..end].fill(0);
        }
    }
}
