//! What each function, graph and kind of copy is expected to cost: a fixed table, read by every launch without a
//! lock, written on the slow path only, under the mutex of the bursts.
//!
//! An entry is an estimate, never a charge: a reader that meets a write half done uses a wrong number once.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Places that a key may take: one cache line of them.
const WAYS: usize = 4;
/// Lines of the table: 4096 entries in all.
const SETS: usize = 1024;
/// No launch costs less, so that one wrong measurement cannot fill the device's queue: real drivers take longer to
/// issue one.
pub const LEAST_NS: u32 = 250;
/// Costs saturate here, above two seconds; the bit above says that an entry must be measured anew.
const MOST_NS: u32 = STALE - 1;
const STALE: u32 = 1 << 31;
/// Measurements of one piece of work that are lately.
pub const LATELY: u32 = 4;

/// What a piece of work is, as far as its cost is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work(usize);

impl Work {
    /// A launch of a function, a kernel or an executable graph, by its handle.
    #[inline(always)]
    pub fn handle(handle: *mut core::ffi::c_void) -> Self {
        // Handles are aligned, and a key is never zero.
        Self(handle as usize | 1)
    }

    /// A copy or a memset of `bytes`: one key for each kind and power of two, below all addresses.
    #[inline(always)]
    pub fn bytes(kind: Bytes, bytes: u64) -> Self {
        Self(((kind as usize) << 8) | ((bytes.max(1).ilog2() as usize) << 1) | 1)
    }

    /// Whether it is a copy or a memset, whose call may last as long as its work.
    pub(crate) fn is_bytes(self) -> bool {
        self.0 < 1 << 12
    }

    /// The number by which it is known; never zero.
    #[inline(always)]
    pub(crate) fn key(self) -> usize {
        self.0
    }

    #[cfg(test)]
    pub(crate) const fn numbered(number: usize) -> Self {
        Self((number << 12) | 1)
    }
}

/// Work that is known by its length and not by a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Bytes {
    /// Device to device.
    Copy = 1,
    /// To an address that may be on either side.
    CopyAny = 2,
    /// Filling device memory.
    Set = 3,
    /// Rows or arrays, device to device; slower than one piece of as many bytes.
    Rows = 4,
    /// Rows or arrays, where a side may be on the host.
    RowsAny = 5,
    /// From one GPU to another.
    Peer = 6,
    /// From or to the host, as the program says.
    Host = 7,
    /// Unpacked on the device.
    Unpack = 8,
}

/// Shorter copies on the device and memsets pass: they take the GPU for less time than it takes to issue them, and
/// measuring them would cost more than they do.
pub const LEAST_DEVICE_BYTES: u64 = 256 << 10;
/// Shorter copies pass of which only the driver knows whether a side lies on the host: most of them do, and run on a
/// copy engine.
pub const LEAST_ANY_BYTES: u64 = 1 << 20;

impl Bytes {
    /// From how many bytes on such work stands at the gate.
    #[inline(always)]
    pub const fn least_bytes(self) -> u64 {
        match self {
            Self::Copy | Self::Set | Self::Rows | Self::Peer | Self::Unpack => LEAST_DEVICE_BYTES,
            Self::CopyAny | Self::RowsAny => LEAST_ANY_BYTES,
            // On a copy engine, while the multiprocessors are somebody else's.
            Self::Host => u64::MAX,
        }
    }
}

/// An entry, as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// GPU time of one launch.
    pub cost_ns: u32,
    /// Whether it must be measured anew.
    pub is_stale: bool,
}

struct Entry {
    key: AtomicUsize,
    cost_ns: AtomicU32,
    /// Of how many further measurements one that is far longer is believed. In what would be padding.
    believed: AtomicU32,
}

impl Entry {
    const fn free() -> Self {
        Self { key: AtomicUsize::new(0), cost_ns: AtomicU32::new(0), believed: AtomicU32::new(0) }
    }
}

/// The entries that share a cache line.
#[repr(align(64))]
struct Set([Entry; WAYS]);

/// The table of one process.
pub struct Estimates {
    sets: [Set; SETS],
    /// The way that gives way next.
    victim: AtomicU32,
}

impl Estimates {
    /// Nothing known. All zero, so that it takes no room in a library's file.
    pub const fn new() -> Self {
        Self { sets: [const { Set([const { Entry::free() }; WAYS]) }; SETS], victim: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn set(&self, work: Work) -> &Set {
        // Fibonacci hashing: the top bits of the product with 2^64 / golden ratio. Handles lie at even distances, some
        // of which the product alone would send to few lines; the shift breaks them.
        let key = work.0 as u64;
        let hash = (key ^ (key >> 12)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2());
        &self.sets[hash as usize % SETS]
    }

    #[inline(always)]
    fn entry(&self, work: Work) -> Option<&Entry> {
        self.set(work).0.iter().find(|entry| entry.key.load(Ordering::Relaxed) == work.0)
    }

    /// What `work` costs, for the hot path: more than any credit if that is unknown or must be measured anew.
    #[inline(always)]
    pub fn cost_ns(&self, work: Work) -> u32 {
        // Written out: this runs for every launch, and a compiler that saves space makes a loop of it.
        let [first, second, third, fourth] = &self.set(work).0;
        let is_it = |entry: &Entry| entry.key.load(Ordering::Relaxed) == work.0;
        let entry = if is_it(first) {
            first
        } else if is_it(second) {
            second
        } else if is_it(third) {
            third
        } else if is_it(fourth) {
            fourth
        } else {
            return u32::MAX;
        };
        entry.cost_ns.load(Ordering::Relaxed)
    }

    /// What is known of `work`.
    pub fn get(&self, work: Work) -> Option<Estimate> {
        let word = self.entry(work)?.cost_ns.load(Ordering::Relaxed);
        // Stale and zero: forgotten.
        (word & MOST_NS != 0).then_some(Estimate { cost_ns: word & MOST_NS, is_stale: word & STALE != 0 })
    }

    /// Enters what `work` costs; the bursts' mutex is held.
    pub fn put(&self, work: Work, cost_ns: u64) {
        let cost_ns = cost_ns.clamp(LEAST_NS.into(), MOST_NS.into()) as u32;
        if let Some(entry) = self.entry(work) {
            entry.cost_ns.store(cost_ns, Ordering::Relaxed);
            entry.believed.store(entry.believed.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            return;
        }
        let set = self.set(work);
        let entry = set.0.iter().find(|entry| entry.key.load(Ordering::Relaxed) == 0).unwrap_or_else(|| {
            let victim = self.victim.load(Ordering::Relaxed);
            self.victim.store(victim.wrapping_add(1), Ordering::Relaxed);
            &set.0[victim as usize % WAYS]
        });
        // In this order a reader in between finds the old key or no credit.
        entry.cost_ns.store(STALE, Ordering::Relaxed);
        entry.believed.store(0, Ordering::Relaxed);
        entry.key.store(work.0, Ordering::Release);
        entry.cost_ns.store(cost_ns, Ordering::Release);
    }

    /// `work` has taken far longer than what is entered; whether it had lately, too. The bursts' mutex is held.
    pub fn was_longer_lately(&self, work: Work) -> bool {
        self.entry(work).is_some_and(|entry| entry.believed.swap(LATELY, Ordering::Relaxed) > 0)
    }

    /// `work` took no longer than this; the bursts' mutex is held. One that was measured first while others had their turns on the
    /// device may be entered with many times that. What is entered comes a quarter of the way, and not nearer than to twice as
    /// much: one function may be short now and long then.
    pub fn bound(&self, work: Work, most_ns: u64) {
        let Some(known) = self.get(work).filter(|known| !known.is_stale) else { return };
        let cost_ns = u64::from(known.cost_ns);
        if cost_ns > most_ns.saturating_mul(2) {
            self.put(work, cost_ns - (cost_ns - most_ns) / 4);
        }
    }

    /// The handle of `work` goes away and may come back as another one.
    pub fn forget(&self, work: Work) {
        if let Some(entry) = self.entry(work) {
            entry.cost_ns.store(STALE, Ordering::Relaxed);
        }
    }

    /// All entries must be measured anew; the bursts' mutex is held. A few microseconds.
    pub fn doubt_all(&self) {
        for entry in self.sets.iter().flat_map(|set| &set.0) {
            if entry.key.load(Ordering::Relaxed) != 0 {
                entry.cost_ns.store(entry.cost_ns.load(Ordering::Relaxed) | STALE, Ordering::Relaxed);
            }
        }
    }
}

impl Default for Estimates {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(index: usize) -> Work {
        Work::handle((0x7f00_0000_1000 + index * 0x150) as *mut core::ffi::c_void)
    }

    #[test]
    fn what_was_put_is_found_until_doubted_or_forgotten() {
        let table = Box::new(Estimates::new());
        assert_eq!((table.cost_ns(work(1)), table.get(work(1))), (u32::MAX, None));
        table.put(work(1), 5000);
        table.put(work(2), u64::MAX);
        assert_eq!((table.cost_ns(work(1)), table.cost_ns(work(2))), (5000, MOST_NS));
        table.doubt_all();
        assert!(table.cost_ns(work(1)) >= STALE, "no credit is enough");
        assert_eq!(table.get(work(1)), Some(Estimate { cost_ns: 5000, is_stale: true }));
        table.put(work(1), 1);
        assert_eq!(table.cost_ns(work(1)), LEAST_NS);
        assert_eq!([table.was_longer_lately(work(1)), table.was_longer_lately(work(1))], [false, true]);
        table.bound(work(1), 10_000);
        assert_eq!(table.cost_ns(work(1)), LEAST_NS, "it took less already");
        table.put(work(1), 90_000);
        table.bound(work(1), 10_000);
        table.bound(work(3), 10_000);
        assert_eq!((table.cost_ns(work(1)), table.get(work(3))), (70_000, None));
        (0..20).for_each(|_| table.bound(work(1), 10_000));
        assert!((15_000..=20_000).contains(&table.cost_ns(work(1))), "{}", table.cost_ns(work(1)));
        (0..LATELY).for_each(|_| table.put(work(1), 300));
        assert!(!table.was_longer_lately(work(1)));
        table.doubt_all();
        table.bound(work(1), 250);
        assert_eq!(table.get(work(1)), Some(Estimate { cost_ns: 300, is_stale: true }), "it is measured anew");
        table.forget(work(1));
        assert_eq!(table.get(work(1)), None);
        assert!(table.cost_ns(work(1)) >= STALE);
    }

    #[test]
    fn two_thousand_functions_have_a_place_and_more_than_fit_do_no_harm() {
        let table = Box::new(Estimates::new());
        (0..2000).for_each(|index| table.put(work(index), 1000 + index as u64));
        let kept = (0..2000).filter(|&index| table.cost_ns(work(index)) == 1000 + index as u32).count();
        assert!(kept >= 1900, "{kept} of 2000 kept");
        (0..20_000).for_each(|index| table.put(work(index), 1000 + index as u64));
        assert!((0..20_000).all(|index| [1000 + index as u32, u32::MAX].contains(&table.cost_ns(work(index)))));
    }

    #[test]
    fn copies_are_told_apart_by_kind_and_size() {
        let sizes = [1u64 << 18, 1 << 20, 1 << 30, u64::MAX];
        let keys: std::collections::BTreeSet<usize> =
            [Bytes::Copy, Bytes::CopyAny, Bytes::Set, Bytes::Rows, Bytes::RowsAny, Bytes::Peer]
                .into_iter()
                .flat_map(|kind| sizes.map(|bytes| Work::bytes(kind, bytes).key()))
                .collect();
        assert_eq!(keys.len(), 24);
        assert!(keys.iter().all(|&key| key < 4096), "no handle lies in the first page");
    }
}
