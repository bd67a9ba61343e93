//! How much of what a process launches runs beside other work of its own, on other streams.
//!
//! What is outstanding is reckoned one after the other, as if each burst began when the one before it ends. Where streams run beside each
//! other, as a collective beside the kernels of a model, that is too much, and launches would be held back for work that holds nothing up.

use super::{Burst, Bursts, STREAMS, State};
use core::ptr::null_mut;
use gpool_driver_abi::cuda::{CUcontext, CUstream};
use gpool_shared_region::GPUS;

/// Times of the past that are remembered as having had work: while a long kernel runs, so many shorter ones beside it with pauses
/// between them.
const SPANS: usize = 8;
/// What was measured together decides once it is so much, nanoseconds.
const WINDOW_NS: u64 = 20_000_000;
/// Less than this is no overlap, but what clocks and events are off by.
const LEAST_PERMILLE: u64 = 30;
/// Of bursts that had nothing beside them so small a part counts.
const ALONE: u64 = 8;
/// However much there is, an eighth of what is outstanding counts.
const MOST_PERMILLE: u64 = 875;

/// The overlap on one GPU.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// Apart from each other, the oldest first.
    spans: [(u64, u64); SPANS],
    count: usize,
    /// Of the window so far: how long any burst ran, and how long each did, together.
    any_ns: u64,
    each_ns: u64,
    /// By so much less than one after the other the bursts of the windows before took.
    saved_permille: u64,
}

impl Overlap {
    /// None. All zero, as [`Bursts::new`] says.
    pub const NONE: Self = Self { spans: [(0, 0); SPANS], count: 0, any_ns: 0, each_ns: 0, saved_permille: 0 };

    /// A burst ran from `begun_ns` to `ended_ns`. It counts in full if it `was_beside` work of another stream, or shows itself that it was.
    fn note(&mut self, begun_ns: u64, ended_ns: u64, was_beside: bool) {
        let (mut joined, mut kept, mut beside_ns) = ((begun_ns, ended_ns), 0, 0);
        for index in 0..self.count {
            let (from_ns, until_ns) = self.spans[index];
            beside_ns += until_ns.min(ended_ns).saturating_sub(from_ns.max(begun_ns));
            if until_ns < begun_ns || ended_ns < from_ns {
                self.spans[kept] = self.spans[index];
                kept += 1;
            } else {
                joined = (joined.0.min(from_ns), joined.1.max(until_ns));
            }
        }
        if kept == SPANS {
            // What ran beside it then counts as if it had not.
            self.spans.copy_within(1.., 0);
            kept -= 1;
        }
        self.spans[kept] = joined;
        self.count = kept + 1;
        // A program that has nothing to run beside for a while, as in the forward half of a step, is not to learn it anew each time;
        // who has it no more is to forget it.
        let weight = if was_beside || beside_ns > 0 { 1 } else { ALONE };
        let length_ns = ended_ns.saturating_sub(begun_ns) / weight;
        self.any_ns += length_ns.saturating_sub(beside_ns);
        self.each_ns += length_ns;
        if self.each_ns >= WINDOW_NS {
            let saved_permille = (self.each_ns - self.any_ns) * 1000 / self.each_ns;
            self.saved_permille = (self.saved_permille * 3 + saved_permille.min(MOST_PERMILLE)) / 4;
            (self.any_ns, self.each_ns) = (0, 0);
        }
    }

    fn saved_permille(&self) -> Option<u64> {
        (self.saved_permille >= LEAST_PERMILLE).then_some(self.saved_permille)
    }
}

/// What is outstanding on a GPU whose streams run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// When all of it is expected to end.
    pub end_ns: u64,
    /// When what is on the stream in question is, or as much of the device's time has gone by as all of it needs, if that is later.
    pub own_end_ns: u64,
    /// When the last of the bursts is that the other streams are at now. What is queued behind them is no measure: two streams would let
    /// each other go ahead without end.
    pub others_end_ns: u64,
}

impl Bursts {
    /// Burst `index` ran for so long on its GPU, until then.
    pub(super) fn note_overlap(&mut self, index: usize, begun_ns: u64, ended_ns: u64) {
        let Burst { tag, of, stream, .. } = self.table[index];
        let is_elsewhere = |its: &Burst| (its.of, its.stream) != (of, stream);
        let mut was_beside = false;
        for burst in self.table.iter_mut().filter(|its| its.state.is_live() && its.tag.gpu() == tag.gpu()) {
            if is_elsewhere(burst) {
                was_beside = true;
            } else {
                // It has begun by now at the earliest.
                burst.begins_ns = burst.begins_ns.max(ended_ns);
            }
        }
        self.overlaps[tag.gpu() % GPUS].note(begun_ns, ended_ns, was_beside);
    }

    /// What is outstanding on GPU `gpu` of the lease, and on `own` of its streams, which is one of a context; of a burst that is open `left_ns` is
    /// what may never be launched. None where streams do not run beside each other, or there are too many of them: then it is one after
    /// the other.
    #[inline(never)]
    pub fn outlook(
        &self,
        gpu: usize,
        own: (CUcontext, CUstream),
        left_ns: &dyn Fn(usize) -> u32,
        now_ns: u64,
    ) -> Option<Outlook> {
        let gpu = gpu % GPUS;
        let saved_permille = self.overlaps[gpu].saved_permille()?;
        // When what is on each stream is expected to end; the first is the one in question.
        let mut chains = [(own, 0); STREAMS];
        let (mut count, mut others_end_ns) = (1, now_ns);
        for index in self.in_order(State::is_live, Burst::issued).iter() {
            let burst = &self.table[index];
            if burst.tag.gpu() % GPUS != gpu {
                continue;
            }
            let stream = (burst.of, burst.stream);
            let known = chains[..count].iter().position(|chain| chain.0 == stream);
            let place = known.unwrap_or(count);
            if place == STREAMS {
                return None;
            }
            count = count.max(place + 1);
            let unspent_ns = if burst.state == State::Open { self.learning.real_ns(left_ns(index).into()) } else { 0 };
            // However late the one before it is, what stands behind that has yet to run.
            let begins_ns = burst.begins_ns.max(chains[place].1);
            let end_ns = (begins_ns + burst.estimate_ns.saturating_sub(unspent_ns)).max(now_ns);
            if known.is_none() {
                others_end_ns = others_end_ns.max(end_ns);
            }
            chains[place] = (stream, end_ns);
        }
        // What has gone by unmeasured is on some stream.
        let gone_by_ns = self.gone_by_ends_ns[gpu].max(now_ns);
        let each_ns: u64 = chains[..count].iter().map(|chain| chain.1.saturating_sub(now_ns)).sum();
        let all_ns = each_ns + (gone_by_ns - now_ns);
        let shared_end_ns = now_ns + all_ns * (1000 - saved_permille) / 1000;
        let own_end_ns = chains[0].1.max(shared_end_ns).max(gone_by_ns);
        let end_ns = chains[..count].iter().fold(own_end_ns, |latest, chain| latest.max(chain.1));
        Some(Outlook { end_ns, own_end_ns, others_end_ns })
    }

    /// When the work issued to GPU `gpu` of the lease ends, at least `now_ns`, as is told to others: where streams run beside each other, sooner than
    /// one after the other.
    pub(super) fn told_end_on(&self, gpu: usize, now_ns: u64) -> u64 {
        let end_ns = self.estimated_end_on(gpu, now_ns);
        if end_ns == now_ns {
            return now_ns;
        }
        let outlook = self.outlook(gpu, (null_mut(), null_mut()), &|_| 0, now_ns);
        outlook.map_or(end_ns, |outlook| outlook.end_ns.min(end_ns))
    }
}
