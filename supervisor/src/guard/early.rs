//! Looks between two usual ones, when the kernel has said that a GPU's device is opened: a program that ends within a second would
//! be seen by nobody else.

use super::brief::{BriefNews, newest_first};
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
