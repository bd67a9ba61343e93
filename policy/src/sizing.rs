//! Which request would have been enough for somebody who asked for none, by what was seen of him in each minute.
//!
//! A share is for the minutes in which there was work: of a notebook that is idle all day it is what its owner needs when he is
//! there. What he would have used with the GPU to himself nobody can see while others keep it from him, so that these minutes are
//! counted.

use crate::levels::Levels;
use crate::mechanism::{BUSY_PERMILLE, NEARLY_WHOLE_PERMILLE};

/// A whole GPU.
const GPU_PERMILLE: u64 = 1000;
/// Shares are given in whole percents.
const STEP_PERMILLE: u64 = 10;
/// What is left beside the most memory that was seen: looks are a second apart, and what comes and goes between two of them nobody
/// sees.
const HEADROOM_PERCENT: u64 = 10;
/// Memory is given in steps of this, in bytes.
const STEP_BYTES: u64 = 256 << 20;
/// The least that a request can name.
const MIB_BYTES: u64 = 1 << 20;
/// A GPU that was at work for so much of the time had none left for who wanted more.
const FULL_PERMILLE: u64 = 900;
/// Of that others had at least so much, or it was nobody's doing but one's own.
const OTHERS_PERMILLE: u64 = 50;

/// What was seen of him on one GPU in a minute, or in an hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// For how long he had a context there.
    pub held_ns: u64,
    /// For how long of that nobody could see his work.
    pub unmetered_ns: u64,
    /// For how long he kept the GPU at work.
    pub busy_ns: u64,
    /// For how long all others did meanwhile.
    pub others_ns: u64,
    /// The most that he held of its memory.
    pub peak_bytes: u64,
    /// On how many GPUs he was at work at the same time, this one included, at most.
    pub at_once: u64,
}

impl Seen {
    /// Adds what was seen of him there at another time.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.held_ns, other.held_ns),
            (&mut self.unmetered_ns, other.unmetered_ns),
            (&mut self.busy_ns, other.busy_ns),
            (&mut self.others_ns, other.others_ns),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.at_once = self.at_once.max(other.at_once);
    }

    /// How long his work was looked at.
    fn metered_ns(self) -> u64 {
        self.held_ns.saturating_sub(self.unmetered_ns)
    }

    /// His part of the GPU's time, in thousandths, rounded up. What is told late may be more than there was.
    fn permille(self) -> u64 {
        permille(self.busy_ns, self.metered_ns()).min(GPU_PERMILLE)
    }

    /// Whether others may have kept the GPU from him.
    fn is_crowded(self) -> bool {
        let all_ns = self.busy_ns.saturating_add(self.others_ns);
        permille(all_ns, self.held_ns) >= FULL_PERMILLE && permille(self.others_ns, self.held_ns) >= OTHERS_PERMILLE
    }
}

fn permille(part_ns: u64, of_ns: u64) -> u64 {
    let part = u128::from(part_ns) * u128::from(GPU_PERMILLE);
    part.div_ceil(u128::from(of_ns.max(1))).try_into().unwrap_or(u64::MAX)
}

/// A request that would have been enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enough {
    /// GPUs.
    pub gpus: u64,
    /// Share of each, in thousandths; none where no work was seen.
    pub fraction_permille: Option<u64>,
    /// Memory of each.
    pub memory_bytes: u64,
    /// Whether whole GPUs serve him better: he works nearly all the time, or needs all of the memory.
    pub is_whole: bool,
}

/// All that was seen of somebody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizing {
    work: Levels,
    worked_ns: u64,
    metered_ns: u64,
    busy_ns: u64,
    crowded_ns: u64,
    peak_bytes: u64,
    /// GPUs at once, in thousandths.
    at_once: Levels,
    at_once_ns: u64,
}

impl Sizing {
    /// Notes what was seen in a minute, on each GPU.
    pub fn note(&mut self, minute: &[Seen]) {
        let sum = |of: fn(Seen) -> u64| minute.iter().map(|seen| of(*seen)).fold(0, u64::saturating_add);
        let most = |of: fn(Seen) -> u64| minute.iter().map(|seen| of(*seen)).max().unwrap_or(0);
        self.busy_ns = self.busy_ns.saturating_add(sum(|seen| seen.busy_ns));
        self.metered_ns = self.metered_ns.saturating_add(sum(Seen::metered_ns));
        self.crowded_ns = self.crowded_ns.saturating_add(sum(|seen| if seen.is_crowded() { seen.held_ns } else { 0 }));
        self.peak_bytes = self.peak_bytes.max(most(|seen| seen.peak_bytes));
        let (at_once, held_ns) = (most(|seen| seen.at_once), most(|seen| seen.held_ns));
        if at_once > 0 {
            self.at_once.note(at_once.saturating_mul(GPU_PERMILLE), held_ns);
            self.at_once_ns = self.at_once_ns.saturating_add(held_ns);
        }
        // One GPU's share is asked for, and the same of each.
        let for_ns = most(|seen| if seen.busy_ns > 0 { seen.metered_ns() } else { 0 });
        if for_ns > 0 {
            self.work.note(most(|seen| if seen.metered_ns() > 0 { seen.permille() } else { 0 }), for_ns);
            self.worked_ns = self.worked_ns.saturating_add(for_ns);
        }
    }

    /// His share of one GPU that was enough for `percent` of the time in which he worked, in thousandths.
    #[must_use]
    pub fn work_permille(&self, percent: u8) -> u64 {
        self.work.enough(self.worked_ns, percent)
    }

    /// For how long he had a context in minutes in which others may have kept the GPU from him, nanoseconds.
    #[must_use]
    pub fn crowded_ns(&self) -> u64 {
        self.crowded_ns
    }

    /// For how long anybody could see his work, nanoseconds.
    #[must_use]
    pub fn metered_ns(&self) -> u64 {
        self.metered_ns
    }

    /// For how long he kept GPUs at work, nanoseconds.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// The most that he held of a GPU's memory.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// What would have been enough for `percent` of the time in which he worked; for his memory all of the time, since who has too
    /// little of it fails. `memory_bytes` is what the GPUs have, if that is known.
    #[must_use]
    pub fn enough(&self, percent: u8, memory_bytes: Option<u64>) -> Enough {
        let work_permille = self.work_permille(percent);
        let share = |permille: u64| permille.div_ceil(STEP_PERMILLE).max(1) * STEP_PERMILLE;
        let duty_permille = permille(self.busy_ns, self.metered_ns);
        let with_headroom = self.peak_bytes.saturating_add(self.peak_bytes / 100 * HEADROOM_PERCENT);
        let steps = with_headroom.div_ceil(STEP_BYTES).max(1).saturating_mul(STEP_BYTES);
        // With all of a GPU's memory nobody is beside him, and what is left of the last MiB cannot be asked for.
        let has_no_room = memory_bytes.is_some_and(|all| steps > all);
        let has_worked = self.worked_ns > 0;
        let is_busy = work_permille >= u64::from(NEARLY_WHOLE_PERMILLE) || duty_permille >= u64::from(BUSY_PERMILLE);
        Enough {
            gpus: (self.at_once.enough(self.at_once_ns, percent) / GPU_PERMILLE).max(1),
            fraction_permille: has_worked.then(|| share(work_permille)),
            memory_bytes: memory_bytes.map_or(steps, |all| steps.min(all - all % MIB_BYTES)),
            is_whole: has_no_room || (has_worked && is_busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// A minute with so many seconds of work, and so much memory in MiB.
    fn minute(busy_s: u64, memory_mib: u64) -> Seen {
        let at_once = u64::from(busy_s > 0);
        Seen { held_ns: 60 * S, busy_ns: busy_s * S, peak_bytes: memory_mib * MIB, at_once, ..Seen::default() }
    }

    fn sizing(minutes: &[&[Seen]]) -> Sizing {
        let mut sizing = Sizing::default();
        minutes.iter().for_each(|minute| sizing.note(minute));
        sizing
    }

    #[test]
    fn a_share_is_enough_for_the_minutes_with_work_and_memory_for_all() {
        let mut minutes: Vec<[Seen; 1]> = vec![[minute(0, 3000)]; 980];
        minutes.extend([[minute(20, 2000)]; 19]);
        minutes.push([minute(50, 1000)]);
        let its = sizing(&minutes.iter().map(<[Seen; 1]>::as_slice).collect::<Vec<_>>());
        assert_eq!((its.work_permille(95), its.work_permille(96), its.work_permille(100)), (334, 834, 834));
        // 3300 MiB, in steps of 256.
        let want = Enough { gpus: 1, fraction_permille: Some(340), memory_bytes: 13 * 256 * MIB, is_whole: false };
        assert_eq!(its.enough(95, None), want);
        let full = its.enough(95, Some(3200 * MIB + 7));
        assert_eq!((full.memory_bytes, full.is_whole), (3200 * MIB, true), "there is no more");
        assert_eq!(its.enough(95, Some(13 * 256 * MIB)), want);
        assert_eq!((its.busy_ns(), its.peak_bytes(), its.crowded_ns()), (430 * S, 3000 * MIB, 0));
    }

    #[test]
    fn who_always_works_or_nearly_needs_all_has_a_whole_gpu() {
        let is_whole = |minutes: &[&[Seen]]| sizing(minutes).enough(95, None).is_whole;
        assert!(is_whole(&[&[minute(54, 1)], &[minute(0, 1)]]) && !is_whole(&[&[minute(53, 1)], &[minute(0, 1)]]));
        assert!(is_whole(&[&[minute(48, 1)]]) && !is_whole(&[&[minute(47, 1)]]));
        assert!(!is_whole(&[]));
    }

    #[test]
    fn several_gpus_are_those_at_work_at_once_and_the_share_is_the_most_of_one() {
        let both = |busy_s, memory_mib| Seen { at_once: 2, ..minute(busy_s, memory_mib) };
        let its = sizing(&[&[both(6, 10), both(30, 700), minute(0, 5)], &[minute(6, 10)]]);
        let want = Enough { gpus: 2, fraction_permille: Some(500), memory_bytes: 1024 * MIB, is_whole: false };
        assert_eq!(its.enough(95, None), want);
        assert_eq!(its.enough(50, None).fraction_permille, Some(100));
        // First on one, then on another, in the same minute.
        assert_eq!(sizing(&[&[minute(20, 1), minute(20, 1)]]).enough(95, None).gpus, 1);
        // One minute of forty.
        let mut mostly: Vec<[Seen; 1]> = vec![[minute(6, 10)]; 39];
        mostly.push([both(6, 10)]);
        let mostly = sizing(&mostly.iter().map(<[Seen; 1]>::as_slice).collect::<Vec<_>>());
        assert_eq!([95, 100].map(|percent| mostly.enough(percent, None).gpus), [1, 2]);
    }

    #[test]
    fn of_work_that_nobody_saw_no_share_is_told() {
        let hidden = Seen { unmetered_ns: 60 * S, ..minute(0, 600) };
        let its = sizing(&[&[hidden]]).enough(95, None);
        assert_eq!(its, Enough { gpus: 1, fraction_permille: None, memory_bytes: 768 * MIB, is_whole: false });
        assert_eq!(sizing(&[&[minute(0, 0)]]).enough(95, None).memory_bytes, 256 * MIB);
        // What is told late counts as work, and says nothing of a share.
        let late = sizing(&[&[Seen { busy_ns: S, ..Seen::default() }]]);
        assert_eq!((late.busy_ns(), late.enough(95, None).fraction_permille), (S, None));
        let beyond = sizing(&[&[Seen { held_ns: S, busy_ns: 3 * S, ..Seen::default() }]]);
        assert_eq!(beyond.work_permille(95), 1000);
        assert_eq!(sizing(&[&[Seen { busy_ns: 1, ..minute(0, 0) }]]).enough(95, None).fraction_permille, Some(10));
    }

    #[test]
    fn minutes_in_which_others_had_the_gpu_are_told() {
        let crowded =
            |busy_s, others_s| sizing(&[&[Seen { others_ns: others_s * S, ..minute(busy_s, 1) }]]).crowded_ns() > 0;
        assert!(crowded(24, 30) && crowded(0, 60));
        assert!(!crowded(23, 30), "there was time left");
        assert!(!crowded(58, 2), "it had nearly all of it itself");
    }
}
