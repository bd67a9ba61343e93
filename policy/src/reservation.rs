//! Parts of GPUs that are kept free for somebody: on which GPUs they are, and how much of each nobody else is given.
//!
//! What those who may have a reservation have already counts towards it, wherever it is, so that it and they together are never more
//! than was reserved. The rest is kept where it is free, and there rather where they are; else where least is missing. That may be
//! another GPU at any moment, so who may not have it is let in where none lacks more afterwards ([`lacking_more`]), and nowhere else.

use crate::admission::{Demand, GpuCapacity, Part};
use crate::queue::{Taken, capped_bytes, lack};
use std::cmp::Reverse;

/// A GPU that a reservation is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Which.
    pub gpu: usize,
    /// What is reserved of it.
    pub whole: Part,
    /// What nobody else is given there: without what those have who may have it.
    pub kept: Part,
    /// What of that others have still.
    pub missing: Part,
}

impl Seat {
    /// What is kept, as if it were leased; none where those who may have it have all of it.
    #[must_use]
    pub fn taken(&self) -> Option<Taken> {
        (!self.kept.is_none()).then(|| Taken { indices: vec![self.gpu], demand: Demand::exactly(self.kept) })
    }
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is reserved of each of its GPUs, and how many they are.
    pub demand: Demand,
    /// The GPUs that will do.
    pub among: Vec<usize>,
}

/// What somebody has of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Having {
    /// Which.
    pub gpu: usize,
    /// How much.
    pub part: Part,
    /// Which of the reservations he may have.
    pub may: Vec<usize>,
}

/// Where each of `asks` is, on as many GPUs as it asks for, or on all that will do if they are fewer. What somebody has counts for one
/// of those that he may have. They are seated one after the other; where that leaves something missing, in the order in which least is,
/// of those that put one before the others.
#[must_use]
pub fn keep(gpus: &[GpuCapacity], asks: &[Ask], having: &[Having]) -> Vec<Vec<Seat>> {
    let mut order: Vec<usize> = (0..asks.len()).collect();
    let mut best = keep_in(&order, gpus, asks, having);
    for first in 1..asks.len() {
        if is_whole(&best) {
            break;
        }
        order.sort_unstable_by_key(|ask| (*ask != first, *ask));
        let other = keep_in(&order, gpus, asks, having);
        if lack_of(gpus, &other) < lack_of(gpus, &best) {
            best = other;
        }
    }
    best
}

/// Which of the reservations lack more `after` something than they did `before`.
#[must_use]
pub fn lacking_more(before: &[Vec<Seat>], after: &[Vec<Seat>]) -> Vec<usize> {
    let lacks_more = |ask: &usize| !missing_of(&before[*ask]).holds(missing_of(&after[*ask]));
    (0..before.len().min(after.len())).filter(lacks_more).collect()
}

/// What others have of a reservation still.
#[must_use]
pub fn missing_of(seats: &[Seat]) -> Part {
    seats.iter().fold(Part::default(), |sum, seat| sum.plus(seat.missing))
}

fn is_whole(all: &[Vec<Seat>]) -> bool {
    all.iter().flatten().all(|seat| seat.missing.is_none())
}

/// How much is missing altogether, in thousandths of GPUs.
fn lack_of(gpus: &[GpuCapacity], all: &[Vec<Seat>]) -> u64 {
    let of = |seat: &Seat| {
        let total = gpus[seat.gpu].memory_total_bytes.max(1);
        let of_memory = u128::from(seat.missing.bytes) * 1000 / u128::from(total);
        u64::from(seat.missing.permille).saturating_add(u64::try_from(of_memory).unwrap_or(u64::MAX))
    };
    all.iter().flatten().map(of).fold(0, u64::saturating_add)
}

fn keep_in(order: &[usize], gpus: &[GpuCapacity], asks: &[Ask], having: &[Having]) -> Vec<Vec<Seat>> {
    let (mut gpus, mut having) = (gpus.to_vec(), having.to_vec());
    let mut all = vec![Vec::new(); asks.len()];
    for ask in order {
        let mut held = vec![Part::default(); gpus.len()];
        let is_its = |its: &&mut Having| its.may.contains(ask);
        having.iter_mut().filter(is_its).for_each(|its| held[its.gpu] = held[its.gpu].plus(its.part));
        let before = held.clone();
        let seats = seats(&gpus, &asks[*ask], &mut held);
        // What was counted for this one is for no other.
        let mut counted: Vec<Part> = before.iter().zip(&held).map(|(before, left)| before.minus(*left)).collect();
        for its in having.iter_mut().filter(is_its) {
            let part = its.part.common(counted[its.gpu]);
            its.part = its.part.minus(part);
            counted[its.gpu] = counted[its.gpu].minus(part);
        }
        seats.iter().filter_map(Seat::taken).for_each(|taken| taken.enter(&mut gpus));
        all[*ask] = seats;
    }
    all
}

/// Where one is. `held` is what those who may have it have of each GPU; what is counted for it is taken out of that.
fn seats(gpus: &[GpuCapacity], ask: &Ask, held: &mut [Part]) -> Vec<Seat> {
    let mut left = ask.among.clone();
    let mut seats = Vec::new();
    for _ in 0..ask.demand.gpus.max(1) {
        let all_held = held.iter().fold(Part::default(), |sum, its| sum.plus(*its));
        let best = left.iter().copied().min_by_key(|index| {
            let gpu = &gpus[*index];
            let part = part_of(gpu, &ask.demand);
            let there = part.common(held[*index]);
            let kept = part.minus(there).minus(all_held.minus(held[*index]));
            // Of those on which nothing is missing: where they are already, then the fullest, as leases are placed.
            let free = (gpu.share_free_permille(), gpu.memory_free_bytes());
            (lack(gpu, &Demand::exactly(kept)), Reverse((there.permille, there.bytes)), free, gpu.key.clone())
        });
        let Some(index) = best else { break };
        left.retain(|other| *other != index);
        let whole = part_of(&gpus[index], &ask.demand);
        let mut kept = whole;
        let elsewhere = (0..held.len()).filter(|other| *other != index);
        for place in std::iter::once(index).chain(elsewhere) {
            let counted = kept.common(held[place]);
            kept = kept.minus(counted);
            held[place] = held[place].minus(counted);
        }
        seats.push(Seat { gpu: index, whole, kept, missing: missing(&gpus[index], kept) });
    }
    seats.sort_by_key(|seat| seat.gpu);
    seats
}

/// What is reserved of a GPU.
fn part_of(gpu: &GpuCapacity, demand: &Demand) -> Part {
    let bytes = capped_bytes(demand, gpu).min(gpu.memory_total_bytes);
    Part { permille: demand.guaranteed_permille(), bytes }
}

/// What of a part is not free: all of it beside whom nobody has a share.
fn missing(gpu: &GpuCapacity, part: Part) -> Part {
    part.minus(gpu.part_free())
}

#[cfg(test)]
mod tests;
