//! Looks between two usual ones, when the kernel has said that a GPU's device is opened: a program that ends within a second would
//! be seen by nobody else.

use super::brief::BriefNews;
use super::{Charge, Guard, bypass_sentence, charges, consequence};
use crate::clock;
use crate::device::Occupancy;
use crate::lease::{Leases, Members};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_configuration::BypassAction;
use gpool_policy::TenantId;
use gpool_protocol::{EventKind, GuardedProcess, HostPid, format_seconds};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A look takes so long at most, but for who has a context.
const LOOK: Duration = Duration::from_millis(40);

/// After a device is opened it is looked at these times, the time since in milliseconds: a driver may take long to open it, and the
/// program to do something with it.
const LOOKS_MS: [u64; 7] = [5, 25, 60, 130, 270, 550, 900];
/// Between two looks lie at least so many times what the first took, and so long.
const REST: u32 = 9;
const LEAST_REST: Duration = Duration::from_millis(15);

/// When the guard looks because a device was opened.
#[derive(Debug, Default)]
pub struct EarlyLooks {
    opened: Option<Instant>,
    /// Who may have, since there was a look last that was the last of its kind.
    openers: BTreeSet<TenantId>,
    /// How many looks there were since.
    done: usize,
    /// There is none before this.
    rests_until: Option<Instant>,
}

impl EarlyLooks {
    /// A device is opened at `now`, by one of these.
    pub fn begin(&mut self, now: Instant, openers: BTreeSet<TenantId>) {
        if self.due().is_none() {
            self.openers.clear();
        }
        self.openers.extend(openers);
        (self.opened, self.done) = (Some(now), 0);
    }

    /// At whom it is looked.
    pub fn openers(&self) -> &BTreeSet<TenantId> {
        &self.openers
    }

    /// When the next one is due, if any is.
    pub fn due(&self) -> Option<Instant> {
        let due = self.opened? + Duration::from_millis(*LOOKS_MS.get(self.done)?);
        Some(self.rests_until.map_or(due, |rests_until| due.max(rests_until)))
    }

    /// There was one, from `begun` until `ended`.
    pub fn end(&mut self, begun: Instant, ended: Instant) {
        let since = self.opened.map_or(Duration::ZERO, |opened| begun.saturating_duration_since(opened));
        // Those that should have been by then are no more worth than this one.
        self.done = LOOKS_MS.iter().take_while(|ms| Duration::from_millis(**ms) <= since).count().max(self.done + 1);
        self.rests_until = Some(ended + (REST * ended.saturating_duration_since(begun)).max(LEAST_REST));
    }
}

/// The processes of all leases in the order in which they are looked at when a device was opened: who was not there at the last usual look
/// comes first, the newest before.
fn newest_first<T: Copy>(all: impl Iterator<Item = (T, HostPid)>, known: &BTreeSet<HostPid>) -> Vec<(T, HostPid)> {
    let mut order: Vec<(T, HostPid)> = all.collect();
    order.sort_by_key(|(_, pid)| (known.contains(pid), std::cmp::Reverse(*pid)));
    order
}

impl Guard {
    /// Takes hold of those that use a GPU past the shims now.
    pub fn look_early(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>]) {
        let begun = Instant::now();
        let charges = charges(leases);
        self.builds.begin(charges.values().flat_map(|charge| &charge.shims));
        self.maps.begin();
        let with_context: BTreeSet<HostPid> =
            occupancies.iter().flatten().flat_map(|gpu| gpu.present.iter().copied()).collect();
        let with_shims = charges.iter().filter(|(_, charge)| charge.has_shims).map(|(tenant, _)| *tenant);
        let all =
            with_shims.flat_map(|tenant| members.get(&tenant).into_iter().flatten().map(move |pid| (tenant, *pid)));
        // Those too that have come through a shim: they may have executed another program since.
        for (tenant, pid) in newest_first(all, &self.known) {
            let has_context = with_context.contains(&pid);
            if !has_context && begun.elapsed() > LOOK {
                continue;
            }
            let Some((process, Some(_))) = self.examine(&charges[&tenant], pid, has_context) else { continue };
            if let Ok(watched) = WatchedProcess::open(pid)
                && !self.bypassing.has_told(&(tenant, watched.name))
            {
                self.brief.see(tenant, watched, &process, clock::now_ns());
            }
        }
        self.look_at_ends(leases);
    }

    /// Looks whether those have ended that it holds.
    pub fn look_at_ends(&mut self, leases: &Leases) {
        let news = self.brief.look(clock::now_ns());
        if !news.is_empty() {
            tell(leases, &charges(leases), news);
        }
    }

    /// When the next look at ends is due, if one is.
    pub fn next_end(&self) -> Option<Instant> {
        self.brief.next_tick()
    }

    /// Whom it holds, and of whom.
    pub fn held(&self) -> impl Iterator<Item = (TenantId, HostPid)> + '_ {
        self.brief.held()
    }

    /// What a usual look has found, of which it has `told` now: it is known until when those were there that it held.
    pub(super) fn follow(
        &mut self,
        leases: &Leases,
        charges: &BTreeMap<TenantId, Charge>,
        found: &BTreeMap<(TenantId, ProcessName), GuardedProcess>,
        told: &[(TenantId, ProcessName)],
    ) {
        self.brief.forget(told);
        for ((tenant, name), process) in found.iter().filter(|(place, _)| !self.bypassing.has_told(place)) {
            if let Ok(watched) = WatchedProcess::reopen(*name) {
                self.brief.see(*tenant, watched, process, clock::now_ns());
            }
        }
        let mut news = self.brief.retain(|place| found.contains_key(place));
        news.extend(self.brief.look(clock::now_ns()));
        tell(leases, charges, news);
    }
}

/// Tells what was found of each container, once for all that have ended since the last look, and does what follows.
fn tell(leases: &Leases, charges: &BTreeMap<TenantId, Charge>, news: Vec<BriefNews>) {
    let mut last: BTreeMap<TenantId, BriefNews> = BTreeMap::new();
    for its in news {
        let is_news = its.finding.is_news() || last.get(&its.tenant).is_some_and(|before| before.finding.is_news());
        let finding = if is_news { its.finding.as_news() } else { its.finding };
        last.insert(its.tenant, BriefNews { finding, ..its });
    }
    for (tenant, BriefNews { last, finding, .. }) in last {
        let Some(charge) = charges.get(&tenant) else { continue };
        let is_over = leases
            .book()
            .of_tenant(tenant)
            .is_none_or(|lease| lease.stopped.is_some() || lease.record.revocation.is_some());
        // What is only told is told ever more rarely; what is done about it, each time that there is somebody to do it to.
        if is_over || !finding.is_news() && charge.action == BypassAction::Event {
            continue;
        }
        let (count, seconds) = (finding.count(), format_seconds(finding.together_ns() / 1_000_000_000));
        let sentence = format!(
            "{}; with {count} programs like this, each of which ended soon, it has done so for {seconds} of the last minute",
            bypass_sentence(&last)
        );
        consequence::act_on(leases, tenant, EventKind::Bypass, &sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_follow_an_opening_at_growing_times_and_leave_time_for_others() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut looks = EarlyLooks::default();
        assert_eq!(looks.due(), None);
        looks.begin(at(0), BTreeSet::from([TenantId(1)]));
        looks.begin(at(0), BTreeSet::from([TenantId(2)]));
        assert_eq!(*looks.openers(), BTreeSet::from([TenantId(1), TenantId(2)]));
        let mut taken = Vec::new();
        while let Some(due) = looks.due() {
            looks.end(due, due + Duration::from_millis(1));
            taken.push((due - start).as_millis());
        }
        assert_eq!(taken, [5, 25, 60, 130, 270, 550, 900]);
        // One that opens it again and again gets no more than a tenth of the time.
        let (mut now, mut busy_ms, mut count) = (1000, 0, 0);
        while now < 11_000 {
            looks.begin(at(now), BTreeSet::from([TenantId(3)]));
            now = (looks.due().unwrap() - start).as_millis() as u64;
            looks.end(at(now), at(now + 8));
            (now, busy_ms, count) = (now + 8, busy_ms + 8, count + 1);
        }
        assert!(busy_ms <= 1010 && count > 100, "{busy_ms} ms in {count} looks");
        // Late ones are not made up for.
        assert_eq!(*looks.openers(), BTreeSet::from([TenantId(3)]), "the others have been looked at");
        looks.begin(at(20_000), BTreeSet::new());
        looks.end(at(20_300), at(20_301));
        assert_eq!(looks.due(), Some(at(20_550)));
    }

    #[test]
    fn who_was_not_there_before_is_looked_at_first() {
        let all = [('a', 1), ('a', 2), ('a', 3), ('b', 4), ('b', 5)].map(|(whose, pid)| (whose, HostPid(pid)));
        let known = [1, 3, 5].map(HostPid).into();
        let order: Vec<_> =
            newest_first(all.into_iter(), &known).into_iter().map(|(whose, pid)| (whose, pid.0)).collect();
        assert_eq!(order, [('b', 4), ('a', 2), ('b', 5), ('a', 3), ('a', 1)]);
    }
}
