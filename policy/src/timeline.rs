//! What measured bursts cost.
//!
//! A burst is a stretch of time in which one context of one tenant had work on the device. The hardware slices time
//! between contexts that have work, so a moment `dt` in which tenant `i` has `k_i` such contexts costs it
//! `dt * k_i / sum k`. One that has stood before the device has a time slice of it to itself when it comes onto it.
//! Bursts are reported in any order and late; each one changes what the others that overlap it have to pay, and the
//! timeline answers with those changes.

mod segment;
mod time_slice;

use std::collections::BTreeMap;

use crate::TenantId;
use segment::{Holder, Segment};
use time_slice::TimeSlice;

/// One measured burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Who ran.
    pub tenant: TenantId,
    /// Which of its contexts; unique within the tenant.
    pub context: u64,
    /// First nanosecond with work on the device, `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// First nanosecond without, `CLOCK_MONOTONIC`.
    pub end_ns: u64,
}

/// A change of what a tenant has been charged, in nanoseconds of GPU time. Negative when a burst of somebody else
/// turns out to have shared the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Who is charged.
    pub tenant: TenantId,
    /// By how much its total changes.
    pub ns: i64,
}

/// What became of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken as reported.
    Accepted,
    /// Taken in part: it ended after now, or was longer than [`Bounds::longest_burst_ns`] (its end was kept).
    Clamped,
    /// Not taken: it ended before it started.
    Reversed,
    /// Not taken: it started at or after now.
    Future,
}

/// A burst as it was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// What became of it.
    pub verdict: Verdict,
    /// The part of it in which its tenant had reported no work before, whoever else had some: how much longer the tenant
    /// is now known to have kept the device busy. Nobody's bursts but its own change that.
    pub busy_ns: u64,
    /// What was looked at for it: segments, and the contexts that share them. For one tenant and [`PERIOD_NS`] about
    /// [`EFFORT`] at most.
    pub effort: usize,
}

/// What a tenant had of the device between two times. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// How long it had work there.
    pub busy_ns: u64,
    /// What that costs it: less where others had work, too.
    pub charged_ns: u64,
    /// How long others had work there and it had none.
    pub others_ns: u64,
}

/// What of a burst was entered.
struct Covered {
    /// Up to where.
    to_ns: u64,
    /// How much of that none of its tenant's contexts had used.
    busy_ns: i64,
    effort: usize,
}

/// Limits of what is remembered and believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How far before the newest time seen overlaps are still corrected.
    pub horizon_ns: u64,
    /// The longest burst that is believed.
    pub longest_burst_ns: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        // Shorter, what others had of a long burst would be charged twice.
        Self { horizon_ns: 10_000_000_000, longest_burst_ns: 10_000_000_000 }
    }
}

/// The recent past of one device: disjoint segments, each with the contexts that had work in it.
///
/// The charges of a segment always sum to its length, exactly: the length is cut at `length * j / k` for the prefixes
/// `j` of its contexts, so every remainder is carried to the next tenant.
#[derive(Clone, Debug)]
pub struct Timeline {
    bounds: Bounds,
    newest_ns: u64,
    /// Before this everything is final; always at or before the first segment.
    settled_ns: u64,
    /// By start.
    window: BTreeMap<u64, Segment>,
    past: BTreeMap<TenantId, Past>,
    time_slice: TimeSlice,
}

/// What is remembered of one tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// The end of its latest burst. Nothing before it is charged a second time once it is final.
    charged_until_ns: u64,
    /// Since when its effort is counted.
    since_ns: u64,
    effort: usize,
}

/// Segments remembered; a flood of crumbs makes the past final earlier instead of making every burst dearer.
const SEGMENTS: usize = 16_384;
/// What is looked at for the bursts of one tenant in one period. An honest one needs some thousand, or two for each segment
/// when a kernel of seconds ends. Beyond that its bursts are charged whole, like those before the horizon: whoever reports
/// more pays for what others had of it, and costs everybody else no time.
pub const EFFORT: usize = 1 << 18;
/// Stretches in which the same contexts had work, that are looked at to find out who else was on the device. Of each burst; so that is
/// within what [`EFFORT`] is for as many bursts as are read in its period.
pub const LOOKED_BACK: usize = 64;
/// The period of [`EFFORT`].
pub const PERIOD_NS: u64 = 100_000_000;

impl Timeline {
    /// An empty timeline.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            newest_ns: 0,
            settled_ns: 0,
            window: BTreeMap::new(),
            past: BTreeMap::new(),
            time_slice: TimeSlice::default(),
        }
    }

    /// Forgets what is remembered of `tenant` alone; what it shared with others stays.
    pub fn forget(&mut self, tenant: TenantId) {
        self.past.remove(&tenant);
    }

    /// Enters a burst. The changes are added to `deltas`, at most one per tenant, none of them zero.
    ///
    /// A stretch that the same context has already reported costs nothing a second time. The part of a burst that
    /// lies before the horizon is charged in full, because who else ran then is no longer known, but only from the end
    /// of the tenant's latest burst on: nobody can report the same past again and again.
    pub fn add(&mut self, now_ns: u64, burst: Burst, deltas: &mut Vec<Delta>) -> Entered {
        self.enter(now_ns, burst, 0, deltas)
    }

    /// The same of a burst that has stood before the device, from `queued_ns` on, and begins when it came onto it: for a time slice of the
    /// hardware it has the device to itself, whoever else has work. How long that is shows by how long others are known to have been on it.
    pub fn add_arrival(&mut self, now_ns: u64, burst: Burst, queued_ns: u64, deltas: &mut Vec<Delta>) -> Entered {
        let waited_ns = self.others_ns(burst.tenant, (queued_ns, burst.start_ns.min(now_ns)));
        self.time_slice.note_wait(now_ns, waited_ns);
        // Also where nobody is known to have been there: whoever had to leave the device for it reports that when he is done.
        self.enter(now_ns, burst, self.time_slice.least_ns(), deltas)
    }

    /// For how long others than `tenant` had work between two times and it had none, as far as they have reported it; of that the last
    /// [`LOOKED_BACK`] stretches alone.
    #[must_use]
    pub fn others_ns(&self, tenant: TenantId, within: (u64, u64)) -> u64 {
        self.looked_back_ns(within, |segment| !segment.holds(tenant))
    }

    /// For how long `tenant` alone had work between two times, in whatever contexts, as far as it has reported it; of that the last
    /// [`LOOKED_BACK`] stretches alone.
    #[must_use]
    pub fn own_ns(&self, tenant: TenantId, within: (u64, u64)) -> u64 {
        self.looked_back_ns(within, |segment| segment.is_only_of(tenant))
    }

    fn looked_back_ns(&self, (from_ns, to_ns): (u64, u64), counts: impl Fn(&Segment) -> bool) -> u64 {
        let segments = self.window.range(..to_ns).rev().take(LOOKED_BACK);
        let within = segments.take_while(|(_, segment)| segment.end_ns > from_ns);
        let counted = within.filter(|(_, segment)| counts(segment));
        counted.map(|(&begin_ns, segment)| segment.end_ns.min(to_ns).saturating_sub(begin_ns.max(from_ns))).sum()
    }

    /// From when on that is, of a time that ends then.
    #[must_use]
    pub fn looked_back_to_ns(&self, to_ns: u64) -> u64 {
        self.window.range(..to_ns).rev().nth(LOOKED_BACK - 1).map_or(0, |(begin_ns, _)| *begin_ns)
    }

    /// Of a burst that has the device to itself for the first `alone_ns`.
    fn enter(&mut self, now_ns: u64, burst: Burst, alone_ns: u64, deltas: &mut Vec<Delta>) -> Entered {
        self.settle(now_ns);
        self.bound_segments();
        if burst.start_ns > burst.end_ns {
            return Entered { verdict: Verdict::Reversed, busy_ns: 0, effort: 0 };
        }
        if burst.start_ns >= now_ns {
            return Entered { verdict: Verdict::Future, busy_ns: 0, effort: 0 };
        }
        let (start, end) = (self.believed_start_ns(now_ns, burst), burst.end_ns.min(now_ns));
        let verdict = if (start, end) == (burst.start_ns, burst.end_ns) { Verdict::Accepted } else { Verdict::Clamped };

        let first = deltas.len();
        let past = self.past.entry(burst.tenant).or_default();
        if now_ns.saturating_sub(past.since_ns) >= PERIOD_NS {
            (past.since_ns, past.effort) = (now_ns, 0);
        }
        let unknown = start.max(past.charged_until_ns);
        past.charged_until_ns = end.max(past.charged_until_ns);
        let most_effort = EFFORT.saturating_sub(past.effort);
        let covered = self.cover(burst, (start.max(self.settled_ns), end), alone_ns, most_effort, deltas);
        // Before what is remembered, and behind what it was worth to look at.
        let alone_ns = length(unknown, end.min(self.settled_ns)) + length(unknown.max(covered.to_ns), end);
        segment::charge(deltas, burst.tenant, alone_ns);
        if let Some(past) = self.past.get_mut(&burst.tenant) {
            past.effort += covered.effort;
        }
        segment::drop_zeroes(deltas, first);
        let busy_ns = u64::try_from(covered.busy_ns + alone_ns).unwrap_or(0);
        Entered { verdict, busy_ns, effort: covered.effort }
    }

    /// The start of a burst, as far as it is believed.
    #[must_use]
    pub fn believed_start_ns(&self, now_ns: u64, burst: Burst) -> u64 {
        burst.start_ns.max(burst.end_ns.min(now_ns).saturating_sub(self.bounds.longest_burst_ns))
    }

    /// What `tenant` had of the device between two times, as far as it is remembered and has been reported by now.
    #[must_use]
    pub fn use_of(&self, tenant: TenantId, from_ns: u64, to_ns: u64) -> Use {
        let before = self.window.range(..from_ns).next_back();
        let mut sum = Use::default();
        for (&begin_ns, segment) in before.into_iter().chain(self.window.range(from_ns..to_ns.max(from_ns))) {
            let length_ns = segment.end_ns.min(to_ns).saturating_sub(begin_ns.max(from_ns));
            let (own, all) = segment.part_of(tenant);
            if segment.holds(tenant) {
                sum.busy_ns += length_ns;
                sum.charged_ns += u64::try_from(u128::from(length_ns) * own / all).unwrap_or(length_ns);
            } else {
                sum.others_ns += length_ns;
            }
        }
        sum
    }

    /// Before this nothing is remembered.
    #[must_use]
    pub fn remembered_from_ns(&self) -> u64 {
        self.settled_ns
    }

    /// Number of segments remembered.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.window.len()
    }

    /// Marks a stretch as used by the burst's context, the first `alone_ns` of the burst by it alone, or as much of that as may be
    /// looked at.
    fn cover(
        &mut self,
        burst: Burst,
        (start, end): (u64, u64),
        alone_ns: u64,
        most_effort: usize,
        deltas: &mut Vec<Delta>,
    ) -> Covered {
        let (mut at, mut busy_ns, mut effort) = (start, 0, 0);
        let alone_until = burst.start_ns.saturating_add(alone_ns).clamp(start, end.max(start));
        if start < end && most_effort > 0 {
            [start, alone_until, end].into_iter().for_each(|border| self.cut(border, deltas));
        }
        while at < end && effort < most_effort {
            let arrives = at < alone_until;
            let end = if arrives { alone_until } else { end };
            let holder = Holder { tenant: burst.tenant, context: burst.context, arrives };
            effort += 1;
            match self.window.range_mut(at..end).next() {
                Some((&begin, segment)) if begin == at => {
                    effort += segment.holders();
                    if !segment.holds(burst.tenant) {
                        busy_ns += length(at, segment.end_ns);
                    }
                    segment.enter(at, holder, deltas);
                    at = segment.end_ns;
                }
                next => {
                    let stop = next.map_or(end, |(&begin, _)| begin);
                    segment::charge(deltas, burst.tenant, length(at, stop));
                    busy_ns += length(at, stop);
                    self.window.insert(at, Segment::new(stop, holder));
                    at = stop;
                }
            }
        }
        Covered { to_ns: at, busy_ns, effort }
    }

    /// Makes `at` a border between segments.
    fn cut(&mut self, at: u64, deltas: &mut Vec<Delta>) {
        let Some((&begin, segment)) = self.window.range_mut(..at).next_back() else { return };
        if segment.end_ns > at {
            let rest = segment.cut(begin, at, deltas);
            self.window.insert(at, rest);
        }
    }

    /// Forgets segments that ended before the horizon.
    fn settle(&mut self, now_ns: u64) {
        self.newest_ns = self.newest_ns.max(now_ns);
        let horizon = self.newest_ns.saturating_sub(self.bounds.horizon_ns);
        while let Some(oldest) = self.window.first_entry() {
            if oldest.get().end_ns > horizon {
                self.settled_ns = self.settled_ns.max(horizon.min(*oldest.key()));
                return;
            }
            oldest.remove();
        }
        self.settled_ns = self.settled_ns.max(horizon);
    }

    /// Makes the oldest segments final while there are too many.
    fn bound_segments(&mut self) {
        while self.window.len() > SEGMENTS
            && let Some((_, oldest)) = self.window.pop_first()
        {
            self.settled_ns = self.settled_ns.max(oldest.end_ns);
        }
    }
}

fn length(start: u64, end: u64) -> i64 {
    i64::try_from(end.saturating_sub(start)).unwrap_or(i64::MAX)
}
