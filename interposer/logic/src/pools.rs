//! What pools of stream-ordered memory are charged: what they hold of the device, allocated or not.
//!
//! The driver says how much a pool holds only after it has grown. So every allocation first charges the most that it
//! can make its pool grow by, and afterwards the charge is set to what the pool holds, plus what others that are still
//! under way have charged. It is therefore never below what the pool holds. Where there is no room for that, an allocation is
//! given what its pool holds and nothing uses, by the sums that the driver tells: it need not grow for it.

/// Pools that one process can have.
pub const POOLS: usize = 256;

/// A pool takes device memory in pieces of this size.
const PIECE_BYTES: u64 = 32 << 20;

/// The most that an allocation of `bytes` makes its pool grow by.
pub fn growth_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES
}

/// One pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// The driver's handle; 0: the place is free.
    pub handle: usize,
    /// The ordinal of the device that its memory is on.
    pub device: i32,
    /// The index of its GPU in the lease.
    pub gpu: u8,
    /// Its memory is the host's and not charged.
    pub is_on_host: bool,
    /// The program has destroyed it; it goes when nothing is allocated of it any more.
    pub is_destroyed: bool,
    /// What is charged for it, in bytes, allocations under way included.
    charged_bytes: u64,
    /// What allocations under way have charged.
    pending_bytes: u64,
    /// Of graphs: for which stream it keeps all that it holds, see [`Pool::kept_bytes`].
    keeper: u64,
    /// What launches of graphs have left allocated, freed since or not.
    left_bytes: u64,
}

/// As a keeper: it holds nothing, or for several streams.
const NOBODY: u64 = 0;
const SEVERAL: u64 = u64::MAX;

impl Pool {
    const FREE: Self = Self::new(0, 0, 0, false);

    /// What graphs hold of a device is a pool with this handle, which no pool has: they lie at even addresses.
    pub const fn handle_of_graphs(device: i32) -> usize {
        device as usize * 2 + 1
    }

    /// It is what graphs hold of its device, see [`Pool::handle_of_graphs`].
    pub fn is_of_graphs(&self) -> bool {
        !self.handle.is_multiple_of(2)
    }

    /// One that holds nothing.
    pub const fn new(handle: usize, device: i32, gpu: usize, is_on_host: bool) -> Self {
        let (gpu, is_destroyed, charged_bytes, pending_bytes) = (gpu as u8, false, 0, 0);
        let (keeper, left_bytes) = (NOBODY, 0);
        Self { handle, device, gpu, is_on_host, is_destroyed, charged_bytes, pending_bytes, keeper, left_bytes }
    }

    /// Graphs launched into `stream` make it hold more.
    pub fn keep_for(&mut self, stream: u64) {
        // One of them may be zero.
        let stream = stream.wrapping_add(1);
        self.keeper = if [NOBODY, stream].contains(&self.keeper) { stream } else { SEVERAL };
    }

    /// A graph is launched that leaves `bytes` allocated, and has left `own_bytes` before.
    pub fn leave(&mut self, bytes: u64, own_bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(own_bytes).saturating_add(bytes);
    }

    /// How much it keeps for a graph in `stream` that has left `own_bytes` before: all that it is charged for and others have
    /// not left, or nothing where other streams have some of it.
    pub fn kept_bytes(&self, stream: u64, own_bytes: u64) -> u64 {
        if self.keeper != stream.wrapping_add(1) {
            return 0;
        }
        self.charged_bytes.saturating_sub(self.left_bytes.saturating_sub(own_bytes))
    }

    /// An allocation begins that has charged `bytes`.
    pub fn begin(&mut self, bytes: u64) {
        self.charged_bytes += bytes;
        self.pending_bytes += bytes;
    }

    /// Something begins that is given `bytes` of what it is charged for already: until it is finished, they stay charged.
    pub fn reuse(&mut self, bytes: u64) {
        self.pending_bytes += bytes;
    }

    /// As [`Pool::reuse`], of the `unused_bytes` that it holds beside what is in use; false, with nothing changed, where those that are
    /// under way may need them.
    pub fn reuse_unused(&mut self, unused_bytes: u64, bytes: u64) -> bool {
        let is_there = unused_bytes.saturating_sub(self.pending_bytes) >= bytes;
        if is_there {
            self.reuse(bytes);
        }
        is_there
    }

    /// An allocation that had charged `bytes` has failed, and its charge was taken back.
    pub fn abandon(&mut self, bytes: u64) {
        self.charged_bytes = self.charged_bytes.saturating_sub(bytes);
        self.finish(bytes);
    }

    /// An allocation that had charged `bytes` has ended, and nobody knows what the pool holds. Its charge stays, and the
    /// next one who knows corrects it.
    pub fn finish(&mut self, bytes: u64) {
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
    }

    /// An allocation that had charged `finished_bytes` has ended, or none if 0, and the pool holds `held_bytes`: how
    /// the charge must change.
    pub fn settle(&mut self, finished_bytes: u64, held_bytes: u64) -> i64 {
        self.finish(finished_bytes);
        let before = self.charged_bytes;
        if held_bytes == 0 {
            self.keeper = NOBODY;
        }
        // What was left and freed may have been trimmed.
        self.left_bytes = self.left_bytes.min(held_bytes);
        // While others are under way, what they have grown it by is in both figures: no reason to charge more.
        self.charged_bytes = before.min(held_bytes.saturating_add(self.pending_bytes)).max(held_bytes);
        self.charged_bytes.wrapping_sub(before) as i64
    }

    /// How much of the `held_bytes` that it holds is not charged.
    pub fn uncharged(&self, held_bytes: u64) -> u64 {
        held_bytes.saturating_sub(self.charged_bytes)
    }

    /// Whether it holds nothing and nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.charged_bytes == 0
    }
}

/// The pools of one process.
pub struct Pools([Pool; POOLS]);

impl Pools {
    /// None yet. All zero.
    pub const fn new() -> Self {
        Self([Pool::FREE; POOLS])
    }

    /// The pool with this handle.
    pub fn find(&mut self, handle: usize) -> Option<&mut Pool> {
        self.0.iter_mut().find(|pool| pool.handle == handle && handle != 0)
    }

    /// Enters a pool, or what it is now if its handle was known; false if there is no room.
    pub fn enter(&mut self, pool: Pool) -> bool {
        let known = self.0.iter().position(|known| known.handle == pool.handle);
        let place = known.or_else(|| self.0.iter().position(|known| known.handle == 0));
        place.map(|place| self.0[place] = pool).is_some()
    }

    /// Forgets a pool.
    pub fn leave(&mut self, handle: usize) {
        if let Some(pool) = self.find(handle) {
            *pool = Pool::FREE;
        }
    }

    /// What is charged for all that are on GPU `gpu` of the lease.
    pub fn charged_bytes(&mut self, gpu: u8) -> u64 {
        let its = self.all().filter(|pool| pool.gpu == gpu);
        its.fold(0, |sum, pool| sum.saturating_add(pool.charged_bytes))
    }

    /// All that there are.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.0.iter_mut().filter(|pool| pool.handle != 0)
    }
}

impl Default for Pools {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_pool_is_charged_what_it_holds() {
        let mut pool = Pool::new(1, 0, 0, false);
        assert_eq!([1, 32 * MIB, 33 * MIB].map(growth_bytes), [32 * MIB, 32 * MIB, 64 * MIB]);
        pool.begin(32 * MIB);
        assert_eq!(pool.settle(32 * MIB, 32 * MIB), 0);
        pool.begin(32 * MIB);
        assert_eq!(pool.settle(32 * MIB, 32 * MIB), -(32 * MIB as i64), "there was room in it");
        assert_eq!(pool.settle(0, 0), -(32 * MIB as i64), "it has given back");
        assert!(pool.is_empty());
        pool.begin(32 * MIB);
        assert_eq!(pool.settle(32 * MIB, 64 * MIB), 32 * MIB as i64, "it has grown by more");
    }

    #[test]
    fn what_all_pools_of_a_gpu_hold_could_come_back_there() {
        let mut pools = Pools::new();
        for (handle, gpu, bytes) in [(2, 0, 32), (4, 1, 64), (6, 0, 96)] {
            assert!(pools.enter(Pool::new(handle, 0, gpu, false)));
            pools.find(handle).unwrap().begin(bytes * MIB);
        }
        assert_eq!([0, 1, 2].map(|gpu| pools.charged_bytes(gpu)), [128 * MIB, 64 * MIB, 0]);
    }

    #[test]
    fn the_charge_is_never_below_what_is_held_while_others_allocate() {
        let mut pool = Pool::new(1, 0, 0, false);
        let (mut charged, mut held) = (0i64, 0u64);
        for round in 0..100u64 {
            let (first, second) = (growth_bytes(round * MIB), growth_bytes(round * 7 * MIB));
            pool.begin(first);
            pool.begin(second);
            charged += (first + second) as i64;
            held += if round % 3 == 0 { 0 } else { second };
            charged += pool.settle(second, held);
            assert!(charged >= held as i64);
            held += if round % 2 == 0 { first } else { 0 };
            assert!(charged >= held as i64, "the first is still charged");
            charged += pool.settle(first, held);
            assert_eq!(charged, held as i64);
            held /= 2;
            charged += pool.settle(0, held);
        }
    }

    #[test]
    fn what_a_pool_holds_and_nothing_uses_is_given_to_one_only() {
        let mut pool = Pool::new(1, 0, 0, false);
        pool.begin(64 * MIB);
        assert!(!pool.reuse_unused(32 * MIB, MIB), "it may be what the one under way takes");
        pool.settle(64 * MIB, 64 * MIB);
        assert!(pool.reuse_unused(32 * MIB, 20 * MIB));
        assert!(!pool.reuse_unused(32 * MIB, 20 * MIB), "that is the first one's until it has ended");
        assert_eq!(pool.settle(0, 64 * MIB), 0, "and nothing is charged for it");
        pool.finish(20 * MIB);
        assert!(pool.reuse_unused(20 * MIB, 20 * MIB));
        assert_eq!((pool.uncharged(64 * MIB), pool.uncharged(96 * MIB)), (0, 32 * MIB), "it has grown all the same");
    }

    #[test]
    fn what_nobody_could_tell_is_corrected_by_the_next_who_can() {
        let mut pool = Pool::new(1, 0, 0, false);
        pool.begin(64 * MIB);
        pool.finish(64 * MIB);
        pool.begin(32 * MIB);
        pool.abandon(32 * MIB);
        assert!(!pool.is_empty(), "the first may have been made");
        assert_eq!(pool.settle(0, 32 * MIB), -(32 * MIB as i64), "nothing of it is under way");
        assert_eq!(pool.settle(0, 0), -(32 * MIB as i64));
        assert!(pool.is_empty());
    }

    #[test]
    fn what_graphs_hold_is_one_streams_until_another_has_some_of_it() {
        let mut pool = Pool::new(Pool::handle_of_graphs(0), 0, 0, false);
        assert!(pool.is_of_graphs() && !Pool::new(16, 0, 0, false).is_of_graphs());
        pool.keep_for(0);
        pool.settle(0, 32 * MIB);
        let kept = |pool: &Pool| [0, 16].map(|stream| pool.kept_bytes(stream, 0));
        assert_eq!(kept(&pool), [32 * MIB, 0]);
        pool.keep_for(0);
        pool.leave(8 * MIB, 0);
        pool.leave(8 * MIB, 8 * MIB);
        assert_eq!((kept(&pool), pool.kept_bytes(0, 8 * MIB)), ([24 * MIB, 0], 32 * MIB));
        pool.reuse(24 * MIB);
        assert_eq!(pool.settle(0, 8 * MIB), 0, "somebody has trimmed what is to be used again");
        assert_eq!(pool.settle(24 * MIB, 8 * MIB), -(24 * MIB as i64));
        pool.keep_for(16);
        assert_eq!(kept(&pool), [0; 2]);
        pool.settle(0, 0);
        pool.keep_for(16);
        pool.settle(0, 64 * MIB);
        assert_eq!(kept(&pool), [0, 64 * MIB], "it had given all back");
    }

    #[test]
    fn pools_come_and_go() {
        let mut pools = Pools::new();
        assert!((1..=POOLS).all(|handle| pools.enter(Pool::new(handle, 0, 0, false))));
        assert!(!pools.enter(Pool::new(POOLS + 1, 0, 0, false)), "there is no room");
        assert!(pools.enter(Pool::new(7, 1, 1, false)), "a handle is given again");
        pools.leave(9);
        assert!(pools.find(9).is_none() && pools.find(0).is_none());
        assert_eq!((pools.all().count(), pools.find(7).map(|pool| pool.gpu)), (POOLS - 1, Some(1)));
    }
}
