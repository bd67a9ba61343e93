//! What a launch spends on the hot path: GPU time, as far as it is expected, out of the burst that its thread has
//! open. Credit is an estimate, never a charge.

use crate::bursts::Spent;
use crate::estimates::Work;
use crate::futex;
use gpool_driver_abi::cuda::{CUcontext, CUstream};
use gpool_shared_region::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Credit lines; a thread picks one by its thread pointer. A prime.
pub const STRIPES: usize = 61;
/// One launch in a line's account; the credit lies below it.
const ONE_LAUNCH: u64 = 1 << 32;
/// A default stream's handle as a line remembers it while the process has several contexts: no stream's handle, so
/// that the hot path leaves the launch to the slow one, which looks at the context.
const BY_CONTEXT: usize = usize::MAX - 1;

/// Whether `stream` means another stream in each context: NULL and CU_STREAM_LEGACY.
pub(crate) fn is_default(stream: CUstream) -> bool {
    stream as usize <= 1
}

/// The per-thread default stream as a handle (CU_STREAM_PER_THREAD); only its own thread can name it.
pub(crate) const STREAM_PER_THREAD: usize = 2;

/// Whether `stream` is that.
pub(crate) fn is_per_thread(stream: CUstream) -> bool {
    stream as usize == STREAM_PER_THREAD
}

/// Launch credit of the threads that map to it, alone on its cache line.
#[repr(align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Stripe {
    /// The gate word that the credit belongs to; the all-ones word never occurs with credit.
    word: AtomicU32,
    /// Launches so far in the upper half, credit in nanoseconds that is left in the lower.
    account: AtomicU64,
    stream: AtomicUsize,
    /// The open burst that the credit belongs to, plus one.
    burst: AtomicU32,
    /// The first launch of the burst.
    work: AtomicUsize,
    /// The bits in which others differed from it.
    differs: AtomicUsize,
    context: AtomicUsize,
    /// Launches on earlier credit, modulo 2^32.
    earlier: AtomicU32,
    /// The last [`Look`]: its time but for the two lowest bits, which are what it says.
    look: AtomicU64,
    /// Its launches.
    looked: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Stripe>() == 64);

impl Stripe {
    /// No credit.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            account: AtomicU64::new(0),
            stream: AtomicUsize::new(0),
            burst: AtomicU32::new(0),
            work: AtomicUsize::new(0),
            differs: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            earlier: AtomicU32::new(0),
            look: AtomicU64::new(0),
            looked: AtomicU32::new(0),
        }
    }

    /// The hot path: whether a launch of `work` on `stream`, which costs `cost_ns`, passes on the credit of this line, with
    /// that spent. The gate's word is read each time, so that after a change at most the launch passes that has read it
    /// before.
    #[inline(always)]
    pub fn admits(&self, gate: &AtomicU32, stream: CUstream, work: Work, cost_ns: impl FnOnce() -> u32) -> bool {
        self.is_for(stream, gate.load(Ordering::Relaxed)) && self.spend(work, cost_ns())
    }

    /// Whether the credit was given for `stream` behind the gate word `word`.
    #[inline(always)]
    pub fn is_for(&self, stream: CUstream, word: u32) -> bool {
        self.stream.load(Ordering::Relaxed) == stream as usize && self.word.load(Ordering::Relaxed) == word
    }

    /// Whether the credit was given for the default stream `stream` of `context`, one of several.
    pub(crate) fn is_for_context(&self, stream: CUstream, context: CUcontext, word: u32) -> bool {
        self.stream.load(Ordering::Relaxed) == BY_CONTEXT + stream as usize
            && self.context.load(Ordering::Relaxed) == context as usize
            && self.word.load(Ordering::Relaxed) == word
    }

    /// Whether there is credit for a default stream, whichever context is current.
    pub(crate) fn is_for_any_context(&self) -> bool {
        self.burst().is_some() && self.stream.load(Ordering::Relaxed) <= 1
    }

    /// The open burst that the credit belongs to.
    pub(crate) fn burst(&self) -> Option<usize> {
        self.burst.load(Ordering::Relaxed).checked_sub(1).map(|burst| burst as usize)
    }

    /// Spends `cost_ns` on a launch of `work`; false, with nothing spent, when that is not left.
    #[inline(always)]
    pub fn spend(&self, work: Work, cost_ns: u32) -> bool {
        let account = self.account.load(Ordering::Relaxed);
        // Credit without a burst is credit that this thread wrote back after it had been revoked.
        if (account as u32) < cost_ns || self.burst.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Two threads on one line may both pass on one credit.
        self.account.store(account + ONE_LAUNCH - u64::from(cost_ns), Ordering::Relaxed);
        let differs = self.differs.load(Ordering::Relaxed);
        self.differs.store(differs | (work.key() ^ self.work.load(Ordering::Relaxed)), Ordering::Relaxed);
        true
    }

    /// Gives `credit_ns` for the launches that follow the first, which is `work`.
    pub fn grant(&self, word: u32, stream: CUstream, context: Option<CUcontext>, credit: Credit) {
        let by_context = if context.is_some() { BY_CONTEXT } else { 0 };
        self.word.store(word, Ordering::Relaxed);
        self.stream.store(by_context + stream as usize, Ordering::Relaxed);
        self.context.store(context.map_or(0, |context| context as usize), Ordering::Relaxed);
        self.work.store(credit.work.key(), Ordering::Relaxed);
        self.differs.store(0, Ordering::Relaxed);
        self.burst.store(credit.burst as u32 + 1, Ordering::Relaxed);
        self.account.store(ONE_LAUNCH + u64::from(credit.left_ns), Ordering::Release);
    }

    /// Takes the credit away; the burst it belonged to, and what became of it.
    pub fn revoke(&self) -> Option<(usize, Spent)> {
        // The burst first: from then on the thread spends nothing more, so one launch at most is not counted.
        let burst = self.burst.swap(0, Ordering::AcqRel);
        let account = self.account.swap(0, Ordering::AcqRel);
        let earlier = self.earlier.load(Ordering::Relaxed).wrapping_add((account / ONE_LAUNCH) as u32);
        self.earlier.store(earlier, Ordering::Relaxed);
        let burst = burst.checked_sub(1)? as usize;
        let is_mixed = self.differs.load(Ordering::Relaxed) != 0;
        // At least the launch with which it was given.
        let launches = ((account / ONE_LAUNCH) as u32).max(1);
        Some((burst, Spent { left_ns: account as u32, launches, is_mixed }))
    }

    /// Whether the credit belongs to `burst`.
    pub fn holds(&self, burst: usize) -> bool {
        self.burst() == Some(burst)
    }

    /// Launches and credit; changes with each launch.
    pub(crate) fn account(&self) -> u64 {
        self.account.load(Ordering::Relaxed)
    }

    /// The last look after a wait for an event.
    pub(crate) fn last_look(&self) -> Look {
        let look = self.look.load(Ordering::Relaxed);
        let launches = self.looked.load(Ordering::Relaxed);
        Look { at_ns: look & !3, launches, has_found_more: look & 1 != 0, has_blocked: look & 2 != 0 }
    }

    /// There was another one.
    pub(crate) fn note_look(&self, look: Look) {
        let says = u64::from(look.has_found_more) | u64::from(look.has_blocked) << 1;
        self.looked.store(look.launches, Ordering::Relaxed);
        self.look.store(look.at_ns & !3 | says, Ordering::Relaxed);
    }

    /// Launches on credit so far, modulo 2^32.
    #[inline(always)]
    pub(crate) fn launches(&self) -> u32 {
        let launches = (self.account() / ONE_LAUNCH) as u32;
        self.earlier.load(Ordering::Relaxed).wrapping_add(launches)
    }

    /// Credit that is left.
    pub fn left_ns(&self) -> u32 {
        self.account.load(Ordering::Relaxed) as u32
    }
}

#[cfg(not(loom))]
impl Default for Stripe {
    fn default() -> Self {
        Self::new()
    }
}

/// What was found after a wait for an event behind which there was more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// When that was asked.
    pub(crate) at_ns: u64,
    /// What had been launched on the line by then, modulo 2^32.
    pub(crate) launches: u32,
    /// That had not ended.
    pub(crate) has_found_more: bool,
    /// The wait had taken its time.
    pub(crate) has_blocked: bool,
}

/// Credit to be given.
pub struct Credit {
    /// The burst it belongs to.
    pub burst: usize,
    /// The launch that opened the burst.
    pub work: Work,
    /// Credit for those that follow.
    pub left_ns: u32,
}

/// The line of the calling thread.
#[inline(always)]
pub(crate) fn stripe_index() -> usize {
    let pointer = futex::this_thread();
    // Threads' control blocks lie at the ends of stacks mapped one after the other, so many pages apart: modulo a prime,
    // as many neighbours as there are stripes differ, whatever the distance; a hash lets some of eight collide.
    (pointer >> 12) as u32 as usize % STRIPES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_spent_counted_and_told_apart() {
        let stripe = Stripe::new();
        let [a, b] = [Work::numbered(1), Work::numbered(2)];
        assert!(!stripe.spend(a, 0), "no burst");
        stripe.grant(3, 7 as CUstream, None, Credit { burst: 5, work: a, left_ns: 1000 });
        assert!(stripe.is_for(7 as CUstream, 3) && !stripe.is_for(7 as CUstream, 5));
        assert_eq!(stripe.launches(), 1);
        assert!(stripe.spend(a, 600) && !stripe.spend(a, 600) && !stripe.spend(b, u32::MAX));
        assert_eq!(stripe.launches(), 2);
        assert!(stripe.holds(5) && stripe.left_ns() == 400);
        assert_eq!(stripe.revoke(), Some((5, Spent { left_ns: 400, launches: 2, is_mixed: false })));
        assert_eq!(stripe.revoke(), None);
        stripe.grant(3, 7 as CUstream, None, Credit { burst: 0, work: a, left_ns: 1000 });
        assert!(stripe.spend(b, 1000));
        assert_eq!(stripe.revoke(), Some((0, Spent { left_ns: 0, launches: 2, is_mixed: true })));
        assert_eq!((stripe.launches(), stripe.revoke(), stripe.launches()), (4, None, 4));
    }

    #[test]
    fn a_default_stream_among_several_contexts_is_nobodys_on_the_hot_path() {
        let stripe = Stripe::new();
        let (one, two) = (64 as CUcontext, 128 as CUcontext);
        for stream in [0 as CUstream, 1 as CUstream] {
            stripe.grant(3, stream, Some(one), Credit { burst: 0, work: Work::numbered(1), left_ns: 1 });
            assert!(!stripe.is_for(stream, 3) && !stripe.is_for_any_context());
            assert!(stripe.is_for_context(stream, one, 3));
            assert!(!stripe.is_for_context(stream, two, 3) && !stripe.is_for_context(stream, one, 5));
        }
    }
}
