//! Bursts that outlive a wait.
//!
//! A program that waits for its work after each few launches would pay two events, and what it takes to read them, for each
//! wait. So its burst rests while the device has nothing of it, and goes on with the next launch; what it has rested is not
//! charged. When the work ended, the host's clock says: when the wait returned, less how late waits of this program return,
//! which one wait in some milliseconds measures by events, as if there were no rest.

use super::{Burst, Bursts, Grant, Spent, Spot, State};
use crate::announce::publish;
use gpool_shared_region::{GPUS, Slot};

/// Bursts that may rest at once.
const RESTING_MOST: usize = 16;
/// A burst is told to the supervisor so long after it was opened at the latest, rests included.
const LENGTH_MOST_NS: u64 = 2_000_000;
/// How late waits return is measured so often.
const SAMPLE_NS: u64 = 8_000_000;
/// What returns later than this does so for the host's sake, and says nothing of the next wait.
const LATE_MOST_NS: u64 = 250_000;
/// The least that a measurement moves what is known, which is the median: one that is far off says no more than one that
/// is off.
const LATE_STEP_NS: u64 = 1000;

/// What is known of a program's waits.
pub(super) struct Waits {
    /// Bursts that rest.
    pub(super) resting: usize,
    /// How long after the end of the work a wait returns, about the median.
    late_ns: u64,
    /// Until when that is taken to be so.
    known_until_ns: u64,
    /// Whether the last wait for an event has found the device with nothing to do, so that the next should be measured.
    is_asked: bool,
    sample: Sample,
}

/// The burst that shows how late a wait returns.
#[derive(Clone, Copy)]
struct Sample {
    /// Its number; 0 for none.
    number: u64,
    begun_ns: u64,
    /// 0 until it has been measured.
    length_ns: u64,
}

const NO_SAMPLE: Sample = Sample { number: 0, begun_ns: 0, length_ns: 0 };

impl Waits {
    pub(super) const fn new() -> Self {
        Self { resting: 0, late_ns: 0, known_until_ns: 0, is_asked: false, sample: NO_SAMPLE }
    }

    /// The burst with this number began at `begun_ns` and was `length_ns` long. Whoever finds that out, the program when its
    /// wait returns or the watcher before: samples of quick returns alone would be no samples.
    pub(super) fn note_measured(&mut self, number: u64, begun_ns: u64, length_ns: u64) {
        if number == self.sample.number {
            (self.sample.begun_ns, self.sample.length_ns) = (begun_ns, length_ns);
        }
    }

    fn learn(&mut self, late_ns: u64, now_ns: u64) {
        let late_ns = late_ns.min(LATE_MOST_NS);
        let step_ns = (self.late_ns / 8).max(LATE_STEP_NS);
        self.late_ns = match self.known_until_ns {
            0 => late_ns,
            _ if late_ns > self.late_ns => late_ns.min(self.late_ns + step_ns),
            _ => late_ns.max(self.late_ns.saturating_sub(step_ns)),
        };
        self.known_until_ns = now_ns + SAMPLE_NS;
    }
}

impl Bursts {
    /// Whether burst `index` may rest when its work ends.
    pub fn may_rest(&self, index: usize, now_ns: u64) -> bool {
        let burst = &self.table[index];
        let is_short = now_ns < burst.opened_ns + LENGTH_MOST_NS;
        burst.state == State::Open
            && is_short
            && now_ns < self.waits.known_until_ns
            && self.waits.resting < RESTING_MOST
    }

    /// A wait for an event has found the device with nothing to do: the next one is to be measured.
    pub fn ask_for_sample(&mut self) {
        self.waits.is_asked = true;
    }

    /// Whether a measurement has been asked for; true once.
    pub fn take_sample_asked(&mut self) -> bool {
        core::mem::take(&mut self.waits.is_asked)
    }

    /// Open burst `index` is ended before a wait, to show how late that returns; its number.
    pub fn begin_sample(&mut self, index: usize) -> u64 {
        self.waits.sample = Sample { number: self.table[index].sequence, ..NO_SAMPLE };
        self.waits.sample.number
    }

    /// The wait before which the burst with this number was ended has returned at `now_ns`. If it has ended, and is
    /// settled, that was so late.
    pub fn end_sample(&mut self, number: u64, now_ns: u64) {
        let Sample { number: sampled, begun_ns, length_ns } = self.waits.sample;
        if number == sampled && length_ns != 0 {
            self.waits.learn(now_ns.saturating_sub(begun_ns).saturating_sub(length_ns), now_ns);
        }
    }

    /// The program has waited until `now_ns` for open burst `index`, and does not launch meanwhile.
    pub fn rest(&mut self, index: usize, spent: Spent, now_ns: u64) {
        let burst = &mut self.table[index];
        let last_end_ns = &mut self.last_ends_ns[burst.tag.gpu() % GPUS];
        // What was before it on the device has been measured for itself.
        let begun_ns = burst.resumed_ns.max(*last_end_ns).min(now_ns);
        if burst.ended_ns == 0 {
            burst.opened_ns = begun_ns;
        } else {
            burst.rested_ns += begun_ns - burst.resumed_ns;
        }
        burst.ended_ns = now_ns - self.waits.late_ns.min((now_ns - begun_ns) / 8 * 7);
        burst.launches += spent.launches;
        burst.is_mixed |= spent.is_mixed;
        burst.state = State::Resting;
        *last_end_ns = burst.ended_ns.max(*last_end_ns);
        self.live -= 1;
        self.waits.resting += 1;
        self.estimate_end(now_ns);
    }

    /// Goes on with the burst that rests on the spot's stream, in place of opening one; none if none does, or not for long
    /// enough, or if the launch is to be measured by itself.
    pub fn resume(&mut self, slot: &Slot, spot: Spot, grant: Grant, now_ns: u64) -> Option<usize> {
        let credit_ns = grant.credit_ns.filter(|_| self.waits.resting > 0)?;
        let index = self.resting_on(spot)?;
        if now_ns >= self.table[index].opened_ns + LENGTH_MOST_NS {
            self.end_rest_of(index, slot);
            return None;
        }
        let estimate_ns = self.learning.real_ns(credit_ns.into());
        let burst = &mut self.table[index];
        burst.state = State::Open;
        // Its length is not that of its launches.
        burst.is_exact = false;
        burst.rested_ns += now_ns.saturating_sub(burst.ended_ns);
        (burst.resumed_ns, burst.seen_ns) = (now_ns, now_ns);
        (burst.expected_ns, burst.estimate_ns) = (credit_ns.into(), estimate_ns);
        burst.seen_left_ns = credit_ns.saturating_sub(grant.expectation.cost_ns);
        let end_ns = &mut self.estimated_ends_ns[burst.tag.gpu() % GPUS];
        *end_ns = now_ns.max(*end_ns) + estimate_ns;
        self.live += 1;
        self.waits.resting -= 1;
        Some(index)
    }

    fn resting_on(&self, spot: Spot) -> Option<usize> {
        let is_there = |burst: &Burst| burst.context == spot.context && burst.stream == spot.stream;
        self.table.iter().position(|burst| burst.state == State::Resting && is_there(burst))
    }

    /// Ends what rests since `until_ns` or longer, and tells it to `slot`. Asks the driver nothing.
    pub fn end_resting(&mut self, slot: &Slot, until_ns: u64) {
        if self.waits.resting == 0 {
            return;
        }
        for index in 0..self.table.len() {
            if self.table[index].state == State::Resting && self.table[index].ended_ns <= until_ns {
                self.end_rest_of(index, slot);
            }
        }
    }

    fn end_rest_of(&mut self, index: usize, slot: &Slot) {
        let burst = self.table[index];
        let busy_ns = burst.ended_ns.saturating_sub(burst.opened_ns).saturating_sub(burst.rested_ns);
        publish(slot, burst.tag, burst.ended_ns - busy_ns, burst.ended_ns, burst.launches);
        self.table[index].state = State::Free;
        self.waits.resting -= 1;
    }
}
