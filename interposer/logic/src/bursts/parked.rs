//! Bursts whose thread works elsewhere for a moment.
//!
//! A thread that goes to and fro between streams would end a burst at each turn, two events and what it takes to read them for a
//! kernel or two: cuDNN computes the gradients of a convolution on streams of its own, eighty times in a training step. The burst
//! that it leaves stays open, with what is left of its credit, and whoever launches on that stream next goes on with it.

use super::{Burst, Bursts, Spent, Spot, State};
use crate::credit::Credit;
use crate::driver::Driver;
use gpool_driver_abi::cuda::CUcontext;

/// Of so many turns ...
const TURNS: u32 = 64;
/// ... the first ones end bursts all the same. Of one that has been left, others' work may be a part of its length, so nothing is
/// learnt from it, and what launches cost may change.
const MEASURED_TURNS: u32 = 8;

/// What a burst was left with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parked {
    /// The gate word under which its credit was given.
    word: u32,
    /// Credit that is left.
    left_ns: u32,
}

impl Burst {
    /// Its credit that is left: its own if it has been left, else what its holder says.
    pub(super) fn left_ns(&self, held: impl FnOnce() -> u32) -> u32 {
        self.parked.map_or_else(held, |parked| parked.left_ns)
    }

    /// What became of its credit when it ends: `held`, unless it has been left, and that has been counted.
    pub(super) fn take_spent(&mut self, held: Spent) -> Spent {
        let counted = |parked: Parked| Spent { left_ns: parked.left_ns, launches: 0, is_mixed: false };
        self.parked.take().map_or(held, counted)
    }
}

impl Bursts {
    /// Leaves open burst `index` while its thread works at `spot`, if that is another stream and it may: the caller ends it if not.
    pub fn park(&mut self, index: usize, spent: Spent, spot: Spot, word: u32) -> bool {
        let burst = &mut self.table[index];
        let is_elsewhere = burst.stream != spot.stream || burst.context != spot.context;
        if burst.state != State::Open || !is_elsewhere || spent.left_ns == 0 {
            return false;
        }
        let turn = self.turns % TURNS;
        self.turns = self.turns.wrapping_add(1);
        if turn < MEASURED_TURNS {
            return false;
        }
        burst.parked = Some(Parked { word, left_ns: spent.left_ns });
        burst.launches += spent.launches;
        burst.is_mixed |= spent.is_mixed;
        (burst.is_exact, burst.was_left) = (false, true);
        true
    }

    /// The burst that was left at `spot` behind the gate word `word`, with the credit that is left of it beyond a launch that costs
    /// `cost_ns`. None if there is none, or less is left.
    pub fn unpark(&mut self, spot: Spot, cost_ns: u32, word: u32) -> Option<Credit> {
        let (index, parked) = self.parked_at(spot)?;
        let left_ns = parked.left_ns.checked_sub(cost_ns).filter(|_| parked.word == word)?;
        let burst = &mut self.table[index];
        let work = burst.work?;
        burst.parked = None;
        Some(Credit { burst: index, work, left_ns })
    }

    /// Ends what was left: at `spot`, where nobody can go on with it, and all that was left behind another gate word than `kept_word`.
    pub fn end_parked(&mut self, driver: &Driver, spot: Spot, kept_word: Option<u32>) {
        for index in 0..self.table.len() {
            let burst = &self.table[index];
            let is_here = burst.stream == spot.stream && burst.context == spot.context;
            if burst.parked.is_some_and(|parked| is_here || Some(parked.word) != kept_word) {
                self.close(driver, index, Spent::LONE);
            }
        }
    }

    /// Any burst of `context` that was left and whose work has ended.
    pub fn parked_and_drained(&self, driver: &Driver, context: CUcontext) -> Option<usize> {
        let is_left = |index: &usize| self.table[*index].parked.is_some();
        (0..self.table.len()).filter(is_left).find(|index| self.has_drained(driver, context, *index))
    }

    fn parked_at(&self, spot: Spot) -> Option<(usize, Parked)> {
        let is_there = |burst: &Burst| burst.stream == spot.stream && burst.context == spot.context;
        let there = self.table.iter().enumerate().filter(|(_, burst)| is_there(burst));
        there.filter_map(|(index, burst)| burst.parked.map(|parked| (index, parked))).next()
    }
}
