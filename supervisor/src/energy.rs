//! Whose the energy is that the GPUs draw, once a second: NVML counts it for each board, and the book has who worked, what was
//! promised to whom, and who has a context.
//!
//! A board that is divided counts for all its instances together, and nobody has figures of their work: its energy is nobody's
//! here.

use crate::clock;
use crate::device::Occupancy;
use crate::lease::{Leases, Members, promised_permille};
use gpool_policy::energy::{Floor, Part, divide};
use std::collections::{BTreeMap, BTreeSet};

/// What each GPU had drawn when it was looked at last.
#[derive(Debug, Default)]
pub struct Energy {
    gpus: BTreeMap<usize, Meter>,
}

/// One GPU's counter.
#[derive(Debug, Default)]
struct Meter {
    /// What it said, in millijoules, and when, CLOCK_MONOTONIC.
    said: Option<(u64, u64)>,
    floor: Floor,
}

impl Meter {
    /// What was drawn since the last look, of which so much is what the GPU draws with nobody on it. None for the first time, and
    /// when the counter began anew, as when a driver was loaded again.
    fn drawn(&mut self, said_millijoules: u64, now_ns: u64) -> Option<(u64, u64)> {
        let (last_millijoules, last_ns) = self.said.replace((said_millijoules, now_ns))?;
        let millijoules = said_millijoules.checked_sub(last_millijoules)?;
        let elapsed_ns = now_ns.saturating_sub(last_ns);
        self.floor.note(millijoules, elapsed_ns);
        Some((millijoules, self.floor.over(elapsed_ns)))
    }
}

impl Energy {
    /// Divides what was drawn since the last look; to be called after what leases were charged has been noted. `occupancies` are
    /// NVML's answers of this second.
    pub fn look(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>]) {
        let now_ns = clock::now_ns();
        let mut book = leases.book();
        for (gpu, occupancy) in occupancies.iter().enumerate() {
            let said = occupancy.as_ref().and_then(|its| Some((its, its.energy_millijoules?)));
            let drawn =
                said.and_then(|(its, said)| Some((its, self.gpus.entry(gpu).or_default().drawn(said, now_ns)?)));
            let Some((occupancy, (millijoules, floor))) = drawn else { continue };
            let drawn = book.energy_millijoules.entry(gpu).or_default();
            *drawn = drawn.saturating_add(millijoules);
            let mut on_it = Vec::new();
            let mut parts = Vec::new();
            for lease in book.leases.values_mut() {
                let is_on_it = |pids: &BTreeSet<_>| pids.iter().any(|pid| occupancy.present.contains(pid));
                let has_context = members.get(&lease.tenant).is_some_and(is_on_it);
                let reserved_permille = promised_permille(&lease.record);
                let Some(account) = lease.account_on(gpu) else { continue };
                parts.push(Part { reserved_permille, used_ns: account.take_used(), has_context });
                on_it.push(account);
            }
            for (account, millijoules) in on_it.into_iter().zip(divide(millijoules, floor, &parts)) {
                account.note_energy(millijoules);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_counter_that_begins_anew_gives_nothing_twice() {
        let mut meter = Meter::default();
        assert_eq!(meter.drawn(5_000_000, S), None, "what was drawn before is not known to be anybody's");
        assert_eq!(meter.drawn(5_000_300, 2 * S), Some((300, 0)));
        assert_eq!(meter.drawn(40, 3 * S), None);
        assert_eq!(meter.drawn(90, 4 * S), Some((50, 0)));
        // Of the ten seconds in which something was counted the mean is 35 milliwatts.
        for second in 5..=12 {
            assert!(meter.drawn(90, second * S).is_some_and(|(millijoules, _)| millijoules == 0));
        }
        assert_eq!(meter.drawn(190, 13 * S), Some((100, 35)));
    }
}
