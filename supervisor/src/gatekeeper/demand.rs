//! What the processes of a lease want together.

use crate::clock;
use crate::region::Report;
use gpool_shared_region::{Demand, GPUS, SLOTS};

/// Who is woken when its gate opens looks again within microseconds, and where its machine is busy within milliseconds.
const HEED_NS: u64 = 5_000_000;

/// What they want, all together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Somebody stands at the gate.
    pub waiting: bool,
    /// And has seen its present word.
    pub waiting_here: bool,
    /// Somebody works behind it.
    pub running: bool,
    /// When all that they have issued is expected to end; 0 for nothing.
    pub end_ns: u64,
}

/// Who stands at the gate and does not look at it, by slot: registration and gate word of a process that is stopped, or is being
/// dumped. What it wants is not waited for, or its lease would never be idle. It counts anew with the next word that it says.
pub struct Unheeding([Option<(u64, u32)>; SLOTS]);

impl Default for Unheeding {
    fn default() -> Self {
        Self([None; SLOTS])
    }
}

impl Unheeding {
    /// What the processes of `report` want of the gate with the word `word`, which is open since `open_since_ns`, if it is, of a lease
    /// of so many `gpus`.
    pub fn wanted(&mut self, report: &Report, word: u32, open_since_ns: Option<u64>, gpus: usize) -> Wanted {
        let now_ns = clock::now_ns();
        let has_had_time = open_since_ns.is_some_and(|since_ns| now_ns >= since_ns.saturating_add(HEED_NS));
        let mut wanted = Wanted::default();
        for (index, slot) in report.taken() {
            match slot.demand() {
                Demand::Idle => {}
                Demand::Running => wanted.running = true,
                Demand::Waiting => {
                    let said = (slot.registration(), slot.demand_word());
                    let is_here = slot.demand_word() == word;
                    if has_had_time && !is_here {
                        self.0[index] = Some(said);
                    }
                    if self.0[index] != Some(said) {
                        wanted.waiting = true;
                        wanted.waiting_here |= is_here;
                    } else if slot.estimated_end_ns() > now_ns {
                        // It does not see the end of what it has issued either.
                        wanted.running = true;
                    }
                }
            }
        }
        wanted.end_ns = if wanted.waiting || wanted.running { end_ns(report, gpus, now_ns) } else { 0 };
        wanted
    }
}

/// Whether some processes work, and all of those leave: none goes on, and none stands at the gate.
pub fn all_leave(report: &Report, word: u32) -> bool {
    let mut at_work = report.taken().map(|(_, slot)| slot).filter(|slot| slot.demand() != Demand::Idle).peekable();
    at_work.peek().is_some() && at_work.all(|slot| slot.demand() == Demand::Running && slot.leaving_word() == word)
}

/// When the last work of those that have some is expected to end, of a lease of so many `gpus`; 0 if there is none. Contexts of one GPU
/// take turns there: it takes as long as what all of them have left. Each counts on all GPUs on which it has contexts.
pub fn end_ns(report: &Report, gpus: usize, now_ns: u64) -> u64 {
    let (mut latest_ns, mut left_ns) = (0u64, [0u64; GPUS]);
    for (_, slot) in report.taken().filter(|(_, slot)| slot.demand() != Demand::Idle) {
        latest_ns = latest_ns.max(slot.estimated_end_ns());
        let its_ns = slot.estimated_end_ns().saturating_sub(now_ns);
        for (_, left_ns) in left_ns.iter_mut().enumerate().take(gpus).filter(|(gpu, _)| slot.gpu_contexts(*gpu) > 0) {
            *left_ns = left_ns.saturating_add(its_ns);
        }
    }
    let most_ns = left_ns.into_iter().max().unwrap_or(0);
    if most_ns == 0 { latest_ns } else { latest_ns.max(now_ns.saturating_add(most_ns)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{ControlPage, RegionHost};
    use gpool_shared_region::SLOT_BYTES;
    use std::os::unix::fs::FileExt;

    const MS: u64 = 1_000_000;
    const WORD: u32 = 7;

    struct Lease {
        region: RegionHost,
        unheeding: Unheeding,
        _dir: tempfile::TempDir,
    }

    impl Lease {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let region = RegionHost::create_unmounted(dir.path(), &ControlPage::of_half());
            Self { region, unheeding: Unheeding::default(), _dir: dir }
        }

        /// What the process in slot `slot`, with a context on the lease's first GPU, says.
        fn says(&self, slot: usize, demand: Demand, word: u32, end_ns: u64) {
            let at = |offset: u64| (slot * SLOT_BYTES) as u64 + offset;
            let file = self.region.report_file();
            file.write_all_at(&(slot as u64 + 1).to_le_bytes(), at(0)).unwrap();
            [(40, gpool_shared_region::VERSION), (1856, 1)]
                .iter()
                .for_each(|(offset, word)| file.write_all_at(&word.to_le_bytes(), at(*offset)).unwrap());
            file.write_all_at(&end_ns.to_le_bytes(), at(72)).unwrap();
            file.write_all_at(&word.to_le_bytes(), at(68)).unwrap();
            file.write_all_at(&(demand as u32).to_le_bytes(), at(64)).unwrap();
        }

        fn report(&self) -> Report {
            let mut report = Report::new();
            report.read(&self.region, SLOTS);
            report
        }

        /// What they want of the gate that is open since `ago_ns`, if it is.
        fn wanted(&mut self, ago_ns: Option<u64>) -> Wanted {
            let since_ns = ago_ns.map(|ago_ns| clock::now_ns() - ago_ns);
            let report = self.report();
            self.unheeding.wanted(&report, WORD, since_ns, 1)
        }
    }

    #[test]
    fn on_one_gpu_the_work_of_several_processes_takes_as_long_as_all_of_it() {
        let lease = Lease::new();
        let now_ns = clock::now_ns();
        (0..3).for_each(|slot| lease.says(slot, Demand::Running, WORD, now_ns + 10 * MS));
        assert_eq!(end_ns(&lease.report(), 1, now_ns), now_ns + 30 * MS);
        lease.says(1, Demand::Idle, WORD, now_ns + 10 * MS);
        assert_eq!(end_ns(&lease.report(), 1, now_ns), now_ns + 20 * MS);
        // What is over counts as it was said, and nothing is none.
        assert_eq!(end_ns(&lease.report(), 1, now_ns + 40 * MS), now_ns + 10 * MS);
        (0..3).for_each(|slot| lease.says(slot, Demand::Waiting, WORD, 0));
        assert_eq!(end_ns(&lease.report(), 1, now_ns), 0);
        lease.says(0, Demand::Running, WORD, u64::MAX);
        lease.says(1, Demand::Running, WORD, u64::MAX);
        assert_eq!(end_ns(&lease.report(), 1, now_ns), u64::MAX, "whatever somebody claims");
    }

    #[test]
    fn who_stands_at_the_gate_and_does_not_look_keeps_nobody_from_being_idle() {
        let mut lease = Lease::new();
        lease.says(0, Demand::Waiting, WORD - 1, 0);
        assert!(lease.wanted(Some(0)).waiting, "it is being woken");
        assert!(lease.wanted(None).waiting);
        assert_eq!(lease.wanted(Some(HEED_NS)), Wanted::default());
        // The gate has closed, and opens again for another process.
        assert_eq!(lease.wanted(None), Wanted::default());
        lease.says(1, Demand::Running, WORD, 5);
        assert_eq!(lease.wanted(Some(0)), Wanted { running: true, end_ns: 5, ..Wanted::default() });
        lease.says(1, Demand::Idle, WORD, 0);
        assert_eq!(lease.wanted(Some(0)), Wanted::default());
        // It goes on.
        lease.says(0, Demand::Waiting, WORD, 0);
        assert!(lease.wanted(Some(HEED_NS)).waiting_here);
    }

    #[test]
    fn what_it_has_issued_is_still_waited_for() {
        let mut lease = Lease::new();
        let end_ns = clock::now_ns() + 60_000 * MS;
        lease.says(0, Demand::Waiting, WORD - 1, end_ns);
        let wanted = lease.wanted(Some(HEED_NS));
        assert_eq!((wanted.waiting, wanted.running), (false, true));
        assert!(wanted.end_ns >= end_ns);
    }
}
