//! How much of what a process launches runs beside other work of its own, on other streams.
//!
//! What is outstanding is reckoned one after the other, as if each burst began when the one before it ends. Where streams run beside each
//! other, as a collective beside the kernels of a model, that is too much, and launches would be held back for work that holds nothing up.

use super::{Burst, Bursts, Line, STREAMS, State};
use gpool_shared_region::GPUS;

/// Times of the past that are remembered as having had work: while a long kernel runs, so many shorter ones beside it with pauses
/// between them.
const SPANS: usize = 8;
/// A pause shorter than this is none: between two bursts of one stream lie two events, 6 to 12 us on an H200 (driver 580).
const PAUSE_NS: u64 = 20_000;
/// What was measured together decides once it is so much, nanoseconds.
const WINDOW_NS: u64 = 20_000_000;
/// What decides at once counts as so many of that at most.
const WINDOWS_MOST: u64 = 8;
/// Less than this is no overlap, but what clocks and events are off by.
const LEAST_PERMILLE: u64 = 30;
/// Of bursts that had nothing beside them so small a part counts.
const ALONE: u64 = 8;
/// However much there is, an eighth of what is outstanding counts.
const MOST_PERMILLE: u64 = 875;

/// Work that was measured: how long any of it ran, how long each did, together, and from when until when.
#[derive(Clone, Copy)]
struct Sum {
    any_ns: u64,
    each_ns: u64,
    begun_ns: u64,
    ended_ns: u64,
}

/// The overlap on one GPU.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// Apart from each other, the oldest first.
    spans: [(u64, u64); SPANS],
    count: usize,
    /// Of the window so far.
    any_ns: u64,
    each_ns: u64,
    /// Bursts that have ended before one of another stream that was launched before them. Whether they ran beside that one shows
    /// when it has ended, however long it is.
    early: Sum,
    /// By so much less than one after the other the bursts of the windows before took.
    saved_permille: u64,
}

/// What else a process had on a GPU when a burst ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    None,
    /// Work of other streams.
    Some,
    /// Such that was launched before it.
    Earlier,
}

impl Overlap {
    /// None. All zero, as [`Bursts::new`] says.
    pub const NONE: Self = Self {
        spans: [(0, 0); SPANS],
        count: 0,
        any_ns: 0,
        each_ns: 0,
        early: Sum { any_ns: 0, each_ns: 0, begun_ns: 0, ended_ns: 0 },
        saved_permille: 0,
    };

    /// Remembers a time that had work. How much of it is known to have had some already.
    fn remember(&mut self, begun_ns: u64, ended_ns: u64) -> u64 {
        let (mut joined, mut kept, mut beside_ns) = ((begun_ns, ended_ns), 0, 0);
        for index in 0..self.count {
            let (from_ns, until_ns) = self.spans[index];
            beside_ns += until_ns.min(ended_ns).saturating_sub(from_ns.max(begun_ns));
            if until_ns + PAUSE_NS < begun_ns || ended_ns + PAUSE_NS < from_ns {
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
        beside_ns
    }

    /// A burst ran from `begun_ns` to `ended_ns`. It counts in full if there were others, or it shows itself that there were.
    fn note(&mut self, begun_ns: u64, ended_ns: u64, others: Others) {
        let beside_ns = self.remember(begun_ns, ended_ns);
        let mut each_ns = ended_ns.saturating_sub(begun_ns);
        let mut any_ns = each_ns.saturating_sub(beside_ns);
        let early = &mut self.early;
        if others == Others::Earlier {
            let is_first = early.each_ns == 0;
            early.begun_ns = if is_first { begun_ns } else { early.begun_ns.min(begun_ns) };
            early.ended_ns = if is_first { ended_ns } else { early.ended_ns.max(ended_ns) };
            early.any_ns += any_ns;
            early.each_ns += each_ns;
            return;
        }
        if early.each_ns > 0 {
            let is_around = begun_ns <= early.begun_ns && early.ended_ns <= ended_ns;
            // Within a long one there may have been more pauses than are remembered.
            any_ns = if is_around { each_ns.max(early.any_ns) } else { any_ns + early.any_ns };
            each_ns += early.each_ns;
            (early.any_ns, early.each_ns) = (0, 0);
        } else if others == Others::None && beside_ns == 0 {
            // A program that has nothing to run beside for a while, as in the forward half of a step, is not to learn it anew each
            // time; who has it no more is to forget it.
            (any_ns, each_ns) = (any_ns / ALONE, each_ns / ALONE);
        }
        self.any_ns += any_ns;
        self.each_ns += each_ns;
        if self.each_ns >= WINDOW_NS {
            let saved_permille = self.each_ns.saturating_sub(self.any_ns) * 1000 / self.each_ns;
            for _ in 0..(self.each_ns / WINDOW_NS).min(WINDOWS_MOST) {
                self.saved_permille = (self.saved_permille * 3 + saved_permille.min(MOST_PERMILLE)) / 4;
            }
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
    /// When what is on the stream in question is.
    pub line_end_ns: u64,
    /// The same, or when as much of the device's time has gone by as all of it needs, if that is later.
    pub own_end_ns: u64,
    /// When the last of the bursts is that the other streams are at now. What is queued behind them is no measure: two streams would let
    /// each other go ahead without end.
    pub others_end_ns: u64,
}

impl Outlook {
    /// How much more the stream in question may get without holding up whoever waits for all of it to end: what other streams are at
    /// holds the device as long.
    pub fn room_beside_ns(&self) -> u64 {
        self.others_end_ns.saturating_sub(self.line_end_ns)
    }
}

impl Bursts {
    /// Burst `index` ran for so long on its GPU, until then.
    pub(super) fn note_overlap(&mut self, index: usize, begun_ns: u64, ended_ns: u64) {
        let Burst { tag, sequence, .. } = self.table[index];
        let (line, mut others) = (self.table[index].line(), Others::None);
        for burst in self.table.iter_mut().filter(|its| its.state.is_live() && its.tag.gpu() == tag.gpu()) {
            if burst.line() == line {
                // It has begun by now at the earliest.
                burst.begins_ns = burst.begins_ns.max(ended_ns);
            } else if burst.sequence < sequence {
                others = Others::Earlier;
            } else if others == Others::None {
                others = Others::Some;
            }
        }
        self.overlaps[tag.gpu() % GPUS].note(begun_ns, ended_ns, others);
    }

    /// What is outstanding on GPU `gpu` of the lease, and on `own` of its streams, if one is in question; of a burst that is open `left_ns`
    /// is what may never be launched. None where streams do not run beside each other: then it is one after the other.
    #[inline(never)]
    pub fn outlook(
        &self,
        gpu: usize,
        own: Option<Line>,
        left_ns: &dyn Fn(usize) -> u32,
        now_ns: u64,
    ) -> Option<Outlook> {
        let gpu = gpu % GPUS;
        let saved_permille = self.overlaps[gpu].saved_permille()?;
        // When what is on each stream is expected to end; the first is the one in question. Those that are too many are one after the
        // other with the last one.
        let mut chains = [(own, 0); STREAMS];
        let (mut count, mut others_end_ns) = (usize::from(own.is_some()), now_ns);
        for index in self.in_order(State::is_live, Burst::issued).iter() {
            let burst = &self.table[index];
            if burst.tag.gpu() % GPUS != gpu {
                continue;
            }
            let line = Some(burst.line());
            let known = chains[..count].iter().position(|chain| chain.0 == line);
            let place = known.unwrap_or(count.min(STREAMS - 1));
            let unspent_ns = if burst.state == State::Open { self.learning.real_ns(left_ns(index).into()) } else { 0 };
            // However late the one before it is, what stands behind that has yet to run.
            let before_ns = if place < count { chains[place].1 } else { 0 };
            let begins_ns = burst.begins_ns.max(before_ns);
            let end_ns = (begins_ns + burst.estimate_ns.saturating_sub(unspent_ns)).max(now_ns);
            if place == count {
                (count, chains[place].0) = (count + 1, line);
                others_end_ns = others_end_ns.max(end_ns);
            }
            chains[place].1 = end_ns;
        }
        // What has gone by unmeasured is on some stream.
        let gone_by_ns = self.gone_by_ends_ns[gpu].max(now_ns);
        let each_ns: u64 = chains[..count].iter().map(|chain| chain.1.saturating_sub(now_ns)).sum();
        let all_ns = each_ns + (gone_by_ns - now_ns);
        let shared_end_ns = now_ns + all_ns * (1000 - saved_permille) / 1000;
        let line_end_ns = if own.is_some() { chains[0].1.max(now_ns) } else { now_ns };
        let own_end_ns = line_end_ns.max(shared_end_ns).max(gone_by_ns);
        let end_ns = chains[..count].iter().fold(own_end_ns, |latest, chain| latest.max(chain.1));
        Some(Outlook { end_ns, line_end_ns, own_end_ns, others_end_ns })
    }

    /// When the work issued to GPU `gpu` of the lease ends, at least `now_ns`, as is told to others: where streams run beside each other, sooner than
    /// one after the other. Of a burst that is open `left_ns` is what it will not get.
    #[inline(never)]
    pub fn told_end_on(&self, gpu: usize, left_ns: &dyn Fn(usize) -> u32, now_ns: u64) -> u64 {
        let end_ns = self.estimated_end_on(gpu, now_ns);
        if end_ns == now_ns {
            return now_ns;
        }
        let end_ns = end_ns.saturating_sub(self.unspent_ns(gpu, left_ns));
        self.outlook(gpu, None, left_ns, now_ns).map_or(end_ns, |outlook| outlook.end_ns.min(end_ns))
    }
}
