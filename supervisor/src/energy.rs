//! Whose the energy is that the GPUs draw, once a second: NVML counts it for each board, and the book has who worked, what was
//! promised to whom, and who has a context.
//!
//! A board that is divided counts for all its instances together, and nobody has figures of their work: its energy is nobody's
//! here.

use crate::device::{Gpu, Kind, Occupancy};
use crate::lease::{Book, Lease, Leases, Members, promised_permille};
use crate::region::Report;
use gpool_policy::TenantId;
use gpool_policy::energy::{Drawn, Floor, Part};
use gpool_shared_region::{Demand, SLOTS};
use std::collections::{BTreeMap, BTreeSet};

/// What was drawn over longer than this was drawn while nobody could see for whom: the board was silent.
const LONGEST_NS: u64 = 3_000_000_000;

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
    /// What was drawn since the last look. None for the first time, and when the counter began anew, as when a driver was loaded
    /// again.
    fn drawn(&mut self, (said_millijoules, now_ns): (u64, u64), is_anybody_there: bool) -> Option<Drawn> {
        let (last_millijoules, last_ns) = self.said.replace((said_millijoules, now_ns))?;
        let millijoules = said_millijoules.checked_sub(last_millijoules)?;
        let elapsed_ns = now_ns.saturating_sub(last_ns);
        // Who was there while it was silent nobody knows.
        self.floor.note(millijoules, elapsed_ns, is_anybody_there || elapsed_ns > LONGEST_NS);
        Some(Drawn { millijoules, floor_millijoules: self.floor.over(elapsed_ns), elapsed_ns })
    }
}

impl Energy {
    /// Divides what was drawn since the last look; to be called after what leases were charged has been noted. `occupancies` are
    /// NVML's answers of this second.
    pub fn look(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>]) {
        let gpus = leases.gpus();
        let charged = charged(&leases.book());
        for (place, (gpu, occupancy)) in gpus.iter().zip(occupancies).enumerate() {
            self.look_at(leases, (members, &charged), (place, gpu), occupancy.as_ref());
        }
    }

    fn look_at(
        &mut self,
        leases: &Leases,
        (members, charged): (&Members, &BTreeSet<TenantId>),
        (place, gpu): (usize, &Gpu),
        occupancy: Option<&Occupancy>,
    ) {
        // What it draws while it is divided is nobody's.
        if gpu.kind != Kind::Whole {
            self.gpus.remove(&place);
            return;
        }
        let Some((occupancy, said)) = occupancy.and_then(|its| Some((its, its.energy?))) else { return };
        let meter = self.gpus.entry(place).or_default();
        let Some(drawn) = meter.drawn(said, !occupancy.present.is_empty()) else { return };
        let mut book = leases.book();
        let all = book.energy_millijoules.entry(place).or_default();
        *all = all.saturating_add(drawn.millijoules);
        // What those had that have ended since is nobody's, and not their neighbours'.
        let departed_ns = book.departed_ns.remove(&place).unwrap_or(0);
        let mut parts = vec![Part { used_ns: departed_ns, ..Part::default() }];
        let (mut on_it, mut report) = (Vec::new(), Report::new());
        for lease in book.leases.values_mut().filter(|lease| lease.place_of(place).is_some()) {
            let is_on_it = |pids: &BTreeSet<_>| pids.iter().any(|pid| occupancy.present.contains(pid));
            let has_context = members.get(&lease.tenant).is_some_and(is_on_it);
            report.read(&lease.region, SLOTS);
            let is_running = report.taken().any(|(_, slot)| slot.demand() == Demand::Running);
            let is_at_work = is_running && !charged.contains(&lease.tenant);
            let reserved_permille = promised_permille(&lease.record);
            let Some(account) = lease.account_on(place) else { continue };
            parts.push(Part { reserved_permille, used_ns: account.take_used(), is_at_work, has_context });
            on_it.push(account);
        }
        if drawn.elapsed_ns > LONGEST_NS {
            return;
        }
        for (account, millijoules) in on_it.into_iter().zip(drawn.divide(&parts).into_iter().skip(1)) {
            account.note_energy(millijoules);
        }
    }
}

/// Those that were charged something of any of their GPUs since the last look. A process says that it has work and not where, so
/// that these are taken to have none on the others: they rest on them, and who works there would not be charged for it.
fn charged(book: &Book) -> BTreeSet<TenantId> {
    let with_charges = book.leases.values().filter(|lease| lease.accounts.iter().any(|account| account.has_used()));
    with_charges.map(|lease| lease.tenant).collect()
}

/// Keeps apart what a lease that ends has had since the last look.
pub fn note_departed(book: &mut Book, lease: &mut Lease) {
    for account in &mut lease.accounts {
        let departed = book.departed_ns.entry(account.gpu).or_default();
        *departed = departed.saturating_add(account.take_used());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_counter_that_begins_anew_gives_nothing_twice() {
        let mut meter = Meter::default();
        let mut drawn = |said, second| meter.drawn((said, second * S), false);
        let of = |millijoules, floor_millijoules| Some(Drawn { millijoules, floor_millijoules, elapsed_ns: S });
        assert_eq!(drawn(5_000_000, 1), None, "what was drawn before is not known to be anybody's");
        assert_eq!(drawn(5_000_300, 2), of(300, 0));
        assert_eq!(drawn(40, 3), None);
        assert_eq!(drawn(90, 4), of(50, 0));
        for second in 5..=12 {
            assert_eq!(drawn(90, second).map(|its| its.millijoules), Some(0));
        }
        // Of the ten seconds in which something was counted the mean is 35 milliwatts.
        assert_eq!(drawn(190, 13), of(100, 35));
        let mut silent = Meter::default();
        silent.drawn((50, S), false);
        assert!(silent.drawn((90_050, 1801 * S), false).is_some());
        assert_eq!(silent.floor, Floor::default(), "what was drawn while nobody looked says nothing");
    }
}
