//! Bursts that outlive waits.
//!
//! A program that waits for its work after each few launches would pay two events, and what it takes to read them, for each
//! wait. So its burst rests while the device has nothing of it, and goes on with the next launch. What is told of it is one
//! period at a time, from a launch to the return of the wait for it, by the host's clock, less what of such periods is no work.
//! That is learnt from one wait in some milliseconds, which is measured by events as if there were no rest.

use super::{Burst, Bursts, Grant, Spent, Spot, State};
use crate::place::Place;
use gpool_driver_abi::cuda::{CUcontext, CUstream};
use gpool_shared_region::GPUS;

/// One wait of each kind is measured so often.
const SAMPLE_NS: u64 = 8_000_000;
/// The length of an older burst is not known exactly enough, nor where it lies: events count in 32-bit floats, anchors age.
const AGE_MOST_NS: u64 = 100_000_000;
/// A period with more than this beside its work had another reason for it than the wait, and says nothing of the next one.
const LATE_MOST_NS: u64 = 250_000;
/// The least that a measurement moves what is known, which is the median: one that is far off says no more than one that
/// is off.
const LATE_STEP_NS: u64 = 1000;

/// Kinds of waits: for one stream, and for what may be more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// For the stream of the burst.
    Stream,
    /// For its context.
    Context,
    /// For an event behind which nothing is known to have been launched.
    Event,
    /// For an event behind which more has been launched, on whichever stream.
    EventAhead,
}

impl Kind {
    /// Whether it is for an event.
    pub fn is_event(self) -> bool {
        matches!(self, Self::Event | Self::EventAhead)
    }
}

const KINDS: usize = 4;

/// What is known of one kind of a program's waits.
#[derive(Clone, Copy)]
struct Late {
    /// How long in all a period is beside its work, before this and until the wait returns; about the median.
    ns: u64,
    /// Until when that is taken to be so.
    known_until_ns: u64,
}

/// What is known of a program's waits.
pub(super) struct Waits {
    late: [Late; KINDS],
    /// Whether the last wait for an event, of each kind, has found the device with nothing to do, so that the next should be
    /// measured.
    is_asked: [bool; KINDS],
    /// The burst that shows how late a wait returns, by its number; 0 for none.
    sampled: u64,
    /// When its work would have ended if it had begun at once; 0 until that is known.
    sample_end_ns: u64,
}

impl Waits {
    pub(super) const fn new() -> Self {
        let late = [Late { ns: 0, known_until_ns: 0 }; KINDS];
        Self { late, is_asked: [false; KINDS], sampled: 0, sample_end_ns: 0 }
    }

    /// The burst with this number began at `begun_ns` and was `length_ns` long. Whoever finds that out, the program when its
    /// wait returns or the watcher before: samples of quick returns alone would be no samples.
    pub(super) fn note_length(&mut self, number: u64, begun_ns: u64, length_ns: u64) {
        if number == self.sampled {
            self.sample_end_ns = begun_ns + length_ns;
        }
    }

    fn is_known(&self, kind: Kind, now_ns: u64) -> bool {
        now_ns < self.late[kind as usize].known_until_ns
    }

    /// Where it is more than is believed nothing is known, and bursts are measured by events.
    fn learn(&mut self, kind: Kind, late_ns: u64, now_ns: u64) {
        if late_ns > LATE_MOST_NS {
            return;
        }
        let late = &mut self.late[kind as usize];
        let step_ns = (late.ns / 8).max(LATE_STEP_NS);
        late.ns = match late.known_until_ns {
            0 => late_ns,
            _ if late_ns > late.ns => late_ns.min(late.ns + step_ns),
            _ => late_ns.max(late.ns.saturating_sub(step_ns)),
        };
        late.known_until_ns = now_ns + SAMPLE_NS;
    }

    /// What of a period of `length_ns` was no work. A wait that may have been for something else as well is not believed to
    /// have been late by more than half of it.
    fn late_of(&self, kind: Kind, length_ns: u64) -> u64 {
        let most_ns = if kind == Kind::Stream { length_ns / 8 * 7 } else { length_ns / 2 };
        self.late[kind as usize].ns.min(most_ns)
    }
}

impl Burst {
    /// Whether it has rested.
    fn has_rested(&self) -> bool {
        self.resumed_ns != self.opened_ns
    }
}

impl Bursts {
    /// Whether burst `index` may be left open when the program begins to wait for it: not while something stands before it on
    /// its stream, whose time is not its own.
    pub fn may_rest(&self, index: usize, kind: Kind, now_ns: u64) -> bool {
        let burst = &self.table[index];
        let is_known = self.waits.is_known(kind, now_ns) || burst.has_rested();
        burst.state == State::Open && !burst.is_behind && is_known
    }

    /// Whether other work of the process stands before a launch on this stream.
    pub(super) fn is_occupied(&self, of: CUcontext, stream: CUstream) -> bool {
        let is_there = |burst: &Burst| burst.of == of && burst.stream == stream;
        self.live > 0 && self.table.iter().any(|burst| burst.state.is_live() && is_there(burst))
    }

    /// Whether it is known how late waits of this kind return.
    pub fn knows(&self, kind: Kind, now_ns: u64) -> bool {
        self.waits.is_known(kind, now_ns)
    }

    /// A wait for an event has found the device with nothing to do: the next one of its kind is to be measured.
    pub fn ask_for_sample(&mut self, kind: Kind) {
        self.waits.is_asked[kind as usize] = true;
    }

    /// Whether a measurement has been asked for; true once.
    pub fn take_sample_asked(&mut self, kind: Kind) -> bool {
        core::mem::take(&mut self.waits.is_asked[kind as usize])
    }

    /// Open burst `index` is ended before a wait for it, to show how late that returns; its number, 0 where it shows nothing.
    pub fn begin_sample(&mut self, index: usize) -> u64 {
        let burst = &self.table[index];
        let is_fresh = burst.state == State::Open && !burst.has_rested() && !burst.is_behind;
        (self.waits.sampled, self.waits.sample_end_ns) = (if is_fresh { burst.sequence } else { 0 }, 0);
        self.waits.sampled
    }

    /// The wait before which the burst with this number was ended has returned at `now_ns`. If it has ended, and is
    /// settled, that was so late.
    pub fn end_sample(&mut self, number: u64, kind: Kind, now_ns: u64) {
        if number == self.waits.sampled && self.waits.sample_end_ns != 0 {
            self.waits.learn(kind, now_ns.saturating_sub(self.waits.sample_end_ns), now_ns);
            self.waits.sampled = 0;
        }
    }

    /// The program has waited until `now_ns` for open burst `index`, which [`Bursts::may_rest`] has left open, and launches
    /// nothing meanwhile: tells the supervisor what it did since it was opened or resumed.
    pub fn rest(&mut self, place: &Place, index: usize, kind: Kind, spent: Spent, now_ns: u64) {
        let is_known = self.waits.is_known(kind, now_ns);
        let burst = &mut self.table[index];
        let length_ns = now_ns.saturating_sub(burst.resumed_ns);
        let ended_ns = burst.resumed_ns + length_ns - self.waits.late_of(kind, length_ns);
        place.publish(burst.tag, burst.resumed_ns, ended_ns, burst.launches + spent.launches);
        burst.launches = 0;
        // The next one is measured.
        burst.state = if is_known { State::Resting } else { State::Free };
        let last_end_ns = &mut self.last_ends_ns[burst.tag.gpu() % GPUS];
        *last_end_ns = ended_ns.max(*last_end_ns);
        self.live -= 1;
        self.estimate_end(now_ns);
    }

    /// Goes on with the burst that rests on the spot's stream, in place of opening one; none if none does, or it is old, or if
    /// the launch is to be measured by itself, or is the first behind its gate.
    pub fn resume(&mut self, spot: Spot, grant: Grant, now_ns: u64) -> Option<usize> {
        let credit_ns = grant.credit_ns.filter(|_| !self.is_first(spot, grant))?;
        let is_it = |burst: &Burst| burst.of == spot.of && burst.stream == spot.stream;
        let index = self.table.iter().position(|burst| burst.state == State::Resting && is_it(burst))?;
        if now_ns >= self.table[index].opened_ns + AGE_MOST_NS {
            self.table[index].state = State::Free;
            return None;
        }
        let is_behind = self.is_occupied(spot.of, spot.stream);
        let estimate_ns = self.learning.real_ns(credit_ns.into());
        let burst = &mut self.table[index];
        burst.state = State::Open;
        // Whoever waits for what was before does not take this for it.
        self.last_sequence += 1;
        burst.sequence = self.last_sequence;
        // Its length will not be that of its launches.
        burst.is_exact = false;
        burst.is_behind = is_behind;
        burst.word = grant.word;
        (burst.resumed_ns, burst.begins_ns, burst.seen_ns) = (now_ns, now_ns, now_ns);
        (burst.expected_ns, burst.estimate_ns) = (credit_ns.into(), estimate_ns);
        burst.seen_left_ns = credit_ns.saturating_sub(grant.expectation.cost_ns);
        let end_ns = &mut self.estimated_ends_ns[burst.tag.gpu() % GPUS];
        *end_ns = now_ns.max(*end_ns) + estimate_ns;
        self.live += 1;
        Some(index)
    }

    /// Forgets what rests: it has been told, and its stream or context may be about to go.
    pub fn forget_resting(&mut self) {
        for burst in self.table.iter_mut().filter(|burst| burst.state == State::Resting) {
            burst.state = State::Free;
        }
    }
}
