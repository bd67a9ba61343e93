//! What handles hold: the driver does not say how large a thing was when it goes, so this process remembers.
//!
//! A table of fixed size in memory that the loader clears and nobody touches before it is used: open addressing with
//! linear probing, so that nothing is allocated and a look-up is a few steps.

pub use gpool_shared_region::BurstTag;

/// Handles that one process can have remembered. 288 GiB in pieces of 2 MiB, each mapped once, take two for each piece.
pub const CAPACITY: usize = 1 << 19;

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing: the place is free.
    Free = 0,
    /// Memory, by its address.
    Memory,
    /// Memory without an address, by its handle.
    Physical,
    /// An address range that shows such memory, by its start.
    Mapping,
    /// An array or a mipmapped one.
    Array,
    /// Memory of another API.
    External,
    /// A module.
    Module,
    /// A library.
    Library,
    /// A context's limit on printf, by the context.
    PrintfLimit,
    /// A context's limit on malloc on the device, by the context.
    HeapLimit,
    /// A context's limit on the stack of a thread, by the context.
    StackLimit,
    /// An executable graph that allocates, by its handle and the device, see `graphs`.
    Graph,
}

/// One thing that is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The driver's handle, or an address.
    pub handle: u64,
    /// What it holds, in bytes; of a mapping, how long it is.
    pub bytes: u64,
    /// The tag of the context that it goes with, 0 for what belongs to none; with [`Held::PIECE`] and its index if its charge is that
    /// of a piece of the lease, and with [`Held::ON_DEVICE`] if it is charged to its GPU; of a mapping, the physical memory that it
    /// shows.
    pub owner: u64,
    /// References to physical memory that have not been released; of other things, those beyond the first; of a mapping,
    /// which unmapping of it is under way.
    pub references: u32,
    /// Mappings of physical memory.
    pub mappings: u32,
    /// Set by the table: tells it from what has had or will have the same handle; of a mapping, that of the memory.
    pub serial: u32,
    /// Calls under way, each of which ends a reference or a mapping of it if the driver succeeds.
    pub ending: u32,
    /// The index of its GPU in the lease.
    pub gpu: u8,
    /// What it is.
    pub kind: Kind,
    /// Another process may hold it too: it is never known to be gone.
    pub is_shared: bool,
    /// It came from elsewhere, and how large it is shows when it is mapped.
    pub is_imported: bool,
    /// It lies in the host's memory, for want of room within the cap, and is charged as that.
    pub is_spilled: bool,
}

impl Held {
    /// All zero.
    const FREE: Self = Self::new(Kind::Free, 0, 0);
    /// Tags of contexts are below that, and a piece's index stands above them.
    const TAG_BITS: u32 = 40;
    const TAG: u64 = (1 << Self::TAG_BITS) - 1;
    const PIECE: u64 = 1 << 63;
    const ON_DEVICE: u64 = 1 << 62;

    /// A thing of this size on the lease's first GPU.
    pub const fn new(kind: Kind, handle: u64, bytes: u64) -> Self {
        let (references, mappings, serial, ending) = (0, 0, 0, 0);
        let (gpu, is_shared, is_imported, is_spilled) = (0, false, false, false);
        let owner = 0;
        Self {
            handle,
            bytes,
            owner,
            references,
            mappings,
            serial,
            ending,
            gpu,
            kind,
            is_shared,
            is_imported,
            is_spilled,
        }
    }

    /// Calls are under way that end all that holds it. The driver may have let go of it, and its handle be another's.
    pub fn is_ending(&self) -> bool {
        let first = u32::from(self.kind != Kind::Physical);
        self.ending >= self.references.saturating_add(self.mappings).saturating_add(first)
    }

    /// Its charge is that of piece `index` of the lease, see `pieces`. It goes with the same context as before.
    pub fn charge_to_piece(&mut self, index: usize) {
        self.owner = Self::PIECE | (index as u64) << Self::TAG_BITS | self.owner & Self::TAG;
    }

    /// It was opened in the context with this tag, with which it goes, and is charged to its GPU.
    #[must_use]
    pub fn opened_in(self, tag: BurstTag) -> Self {
        Self { owner: Self::ON_DEVICE | tag.0 & Self::TAG, ..self }
    }

    /// The piece of the lease whose charge is its own.
    pub fn piece(&self) -> Option<usize> {
        let is_one = self.kind != Kind::Mapping && self.owner & Self::PIECE != 0;
        is_one.then_some(((self.owner & !Self::PIECE) >> Self::TAG_BITS) as usize)
    }

    /// Whether it is charged to its GPU and to no context.
    pub fn is_on_device(&self) -> bool {
        self.owner == 0 || self.owner & (Self::PIECE | Self::ON_DEVICE) == Self::ON_DEVICE
    }
}

/// The table; `CAPACITY` is a power of two.
pub struct Handles<const CAPACITY: usize> {
    places: [Held; CAPACITY],
    count: usize,
    last_serial: u32,
    pub(crate) longest_mapping_bytes: u64,
}

impl<const CAPACITY: usize> Handles<CAPACITY> {
    const MASK: usize = CAPACITY - 1;
    /// Some places stay free, so that every search ends.
    const LIMIT: usize = CAPACITY - CAPACITY / 8;

    /// An empty table. All zero.
    pub const fn new() -> Self {
        const { assert!(CAPACITY.is_power_of_two() && CAPACITY >= 8) };
        Self { places: [Held::FREE; CAPACITY], count: 0, last_serial: 0, longest_mapping_bytes: 0 }
    }

    /// What `handle` of this kind holds.
    #[inline(never)] // many call these three
    pub fn find(&mut self, kind: Kind, handle: u64) -> Option<&mut Held> {
        let place = &mut self.places[self.place_of(kind, handle)];
        (place.kind == kind).then_some(place)
    }

    /// Remembers `held` instead of what its handle meant before; false if there is no room.
    #[inline(never)]
    pub fn put(&mut self, held: Held) -> bool {
        let place = self.place_of(held.kind, held.handle);
        if self.places[place].kind == Kind::Free {
            if self.count >= Self::LIMIT {
                return false;
            }
            self.count += 1;
        }
        self.places[place] = held;
        true
    }

    /// Remembers what has just been made. What its handle meant before must have gone: that is given back, and who lets
    /// go of it later finds that it is something else.
    #[inline(never)]
    pub fn hold(&mut self, held: Held) -> Option<Held> {
        let before = self.take(held.kind, held.handle);
        let serial = self.next_serial();
        self.put(Held { serial, ..held });
        before
    }

    /// A number that nothing here has; not 0.
    pub(crate) fn next_serial(&mut self) -> u32 {
        self.last_serial = self.last_serial.checked_add(1).unwrap_or(1);
        self.last_serial
    }

    /// The driver is asked to let go of `handle`, until [`Handles::let_go`] says what came of it: what it is.
    #[inline(never)]
    pub fn leaving(&mut self, kind: Kind, handle: u64) -> Option<Held> {
        let held = self.find(kind, handle)?;
        held.ending = held.ending.saturating_add(1);
        Some(*held)
    }

    /// The driver has let go of `held`, as [`Handles::leaving`] found it, or has not: what is to be given back, if this was
    /// the one who let go of it last. Of threads that race to free one thing, and of those that come when its handle means
    /// something else, none is. How it is charged may have changed since it was found.
    #[inline(never)]
    pub fn let_go(&mut self, held: &Held, is_gone: bool) -> Option<Held> {
        let now = self.find(held.kind, held.handle).filter(|now| now.serial == held.serial)?;
        now.ending = now.ending.saturating_sub(1);
        if !is_gone {
            return None;
        }
        if now.references > 0 {
            now.references -= 1;
            return None;
        }
        self.take(held.kind, held.handle)
    }

    /// Forgets a handle: what it held.
    #[inline(never)]
    pub fn take(&mut self, kind: Kind, handle: u64) -> Option<Held> {
        let mut hole = self.place_of(kind, handle);
        let taken = self.places[hole];
        if taken.kind != kind {
            return None;
        }
        self.count -= 1;
        // What was pushed past the hole moves back, or a search for it would end at the hole.
        let mut next = (hole + 1) & Self::MASK;
        while self.places[next].kind != Kind::Free {
            let moved = self.places[next];
            let home = Self::home(moved.kind, moved.handle);
            if next.wrapping_sub(home) & Self::MASK >= next.wrapping_sub(hole) & Self::MASK {
                self.places[hole] = moved;
                hole = next;
            }
            next = (next + 1) & Self::MASK;
        }
        self.places[hole] = Held::FREE;
        Some(taken)
    }

    /// The context with this tag has gone, and with it memory that was opened in it, or made there and charged to a piece: each is
    /// taken out. All places are looked at, so where there is no such memory it is not to be called.
    #[cold]
    pub fn context_gone(&mut self, tag: BurstTag, mut gone: impl FnMut(&Held)) {
        let mut place = 0;
        while place < CAPACITY {
            let Held { kind, handle, owner, .. } = self.places[place];
            let is_its = kind == Kind::Memory && owner > Held::TAG && owner & Held::TAG == tag.0;
            if is_its && let Some(held) = self.take(kind, handle) {
                gone(&held);
                // Another may have moved here.
                continue;
            }
            place += 1;
        }
    }

    /// Multiplicative hashing. Source: Knuth, The Art of Computer Programming 3, 6.4.
    fn home(kind: Kind, handle: u64) -> usize {
        let mixed = (handle ^ (kind as u64) << 57).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & Self::MASK
    }

    /// Where the handle is, or the free place where it would be.
    #[inline(never)]
    fn place_of(&self, kind: Kind, handle: u64) -> usize {
        let mut place = Self::home(kind, handle);
        loop {
            let held = &self.places[place & Self::MASK];
            if held.kind == Kind::Free || held.kind == kind && held.handle == handle {
                return place & Self::MASK;
            }
            place += 1;
        }
    }
}

impl<const CAPACITY: usize> Default for Handles<CAPACITY> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_handle_means_one_thing_of_each_kind() {
        let mut handles = Handles::<8>::new();
        assert!(handles.put(Held::new(Kind::Array, 7, 100)) && handles.put(Held::new(Kind::External, 7, 200)));
        assert!(handles.put(Held::new(Kind::Array, 7, 300)), "the driver gives a handle again");
        assert_eq!(handles.take(Kind::Array, 7).map(|held| held.bytes), Some(300));
        assert_eq!(handles.take(Kind::Array, 7), None);
        assert_eq!(handles.find(Kind::External, 7).map(|held| held.bytes), Some(200));
        assert!(handles.find(Kind::Physical, 0).is_none(), "a free place is nothing");
    }

    #[test]
    fn what_is_let_go_of_is_given_back_once() {
        let mut handles = Handles::<8>::new();
        let memory = |bytes| Held::new(Kind::Memory, 7, bytes);
        assert_eq!(handles.hold(memory(100)), None);
        let [one, other, refused] = [(); 3].map(|()| handles.leaving(Kind::Memory, 7).unwrap());
        assert!(handles.let_go(&refused, false).is_none() && handles.let_go(&one, true).is_some());
        assert!(handles.let_go(&other, true).is_none(), "another thread was faster");
        handles.hold(memory(100));
        let stale = handles.leaving(Kind::Memory, 7).unwrap();
        assert_eq!(
            handles.hold(memory(300)).map(|before| before.bytes),
            Some(100),
            "the driver gave the address again"
        );
        assert!(handles.let_go(&stale, true).is_none(), "whoever has made it anew has been given it back");
        handles.find(Kind::Memory, 7).unwrap().references += 1;
        let twice = handles.leaving(Kind::Memory, 7).unwrap();
        assert!(!twice.is_ending(), "another has it");
        assert!(handles.let_go(&twice, true).is_none());
        assert!(handles.leaving(Kind::Memory, 7).unwrap().is_ending());
        assert!(handles.let_go(&twice, true).is_some(), "opened twice, closed twice");
    }

    #[test]
    fn a_full_table_says_so_and_loses_nothing() {
        let mut handles = Handles::<16>::new();
        let kept: Vec<u64> = (1..100).filter(|handle| handles.put(Held::new(Kind::Array, *handle, *handle))).collect();
        assert_eq!(kept.len(), 14);
        assert!(kept.iter().all(|handle| handles.take(Kind::Array, *handle).is_some()));
        assert!(handles.put(Held::new(Kind::Array, 100, 1)), "there is room again");
    }

    #[test]
    fn what_was_opened_or_shared_goes_with_its_context() {
        let mut handles = Handles::<16>::new();
        let [one, other] = [7, 8].map(|number| BurstTag::new(1, number));
        let memory = |handle| Held::new(Kind::Memory, handle, 2 << 20);
        let shared = |handle, tag: BurstTag, piece| {
            let mut held = Held { owner: tag.0, ..memory(handle) };
            held.charge_to_piece(piece);
            held
        };
        let of_one = [shared(1, one, 0), shared(2, one, 191), memory(3).opened_in(one), memory(4).opened_in(one)];
        let kept = [shared(5, other, 3), memory(6).opened_in(other), memory(7), Held { owner: one.0, ..memory(8) }];
        assert_eq!(of_one.map(|held| held.piece()), [Some(0), Some(191), None, None]);
        assert_eq!(of_one.map(|held| held.is_on_device()), [false, false, true, true]);
        assert_eq!(kept.map(|held| held.is_on_device()), [false, true, true, false]);
        of_one.iter().chain(&kept).for_each(|held| assert!(handles.put(*held)));
        let mut gone = Vec::new();
        handles.context_gone(one, |held| gone.push(*held));
        gone.sort_by_key(|held| held.handle);
        assert_eq!(gone, of_one);
        assert!(kept.iter().all(|held| handles.take(held.kind, held.handle) == Some(*held)));
    }

    #[test]
    fn it_does_what_a_map_does() {
        let (mut handles, mut map) = (Handles::<64>::new(), HashMap::new());
        let mut state = 1u64;
        for step in 0..50_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // As the driver's handles and addresses are: far apart and aligned.
            let handle = (state >> 40) % 70 * (2 << 20);
            if state >> 63 == 0 {
                if handles.put(Held::new(Kind::Mapping, handle, step)) {
                    map.insert(handle, step);
                }
            } else {
                let taken = handles.take(Kind::Mapping, handle).map(|held| held.bytes);
                assert_eq!(taken, map.remove(&handle));
            }
            let probe = (state >> 33) % 70 * (2 << 20);
            assert_eq!(handles.find(Kind::Mapping, probe).map(|held| held.bytes), map.get(&probe).copied());
        }
        assert!(map.len() > 10);
    }
}
