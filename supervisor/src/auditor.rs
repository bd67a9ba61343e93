//! Compares what leases report of their GPU time with what the device saw of their processes. `policy` judges; here the
//! figures are brought together, and what follows is done.

use crate::cgroup;
use crate::device::NvmlInventory;
use crate::gatekeeper::{Order, Standing, Statistics};
use crate::lease::{Lease, Leases, about, class_policy};
use gpool_configuration::LiarAction;
use gpool_policy::TenantId;
use gpool_policy::honesty::{DeviceUse, Honesty, Shortfall};
use gpool_protocol::{EventKind, HostPid};
use std::collections::{BTreeMap, BTreeSet};

/// Reports are compared with the device over so long.
const PERIOD_NS: u64 = 5_000_000_000;

/// One lease on one GPU, in the current period.
#[derive(Default)]
struct Audited {
    honesty: Honesty,
    /// Busy time that the device saw so far.
    seen_ns: u64,
    /// Charged in all when the period began; none before its first period.
    charged_ns: Option<u64>,
}

/// Sees every sample once.
pub struct Auditor {
    devices: Vec<DeviceUse>,
    audited: BTreeMap<(TenantId, usize), Audited>,
    period_start_ns: Option<u64>,
}

impl Auditor {
    /// For a host with `gpus` GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { devices: vec![DeviceUse::default(); gpus], audited: BTreeMap::new(), period_start_ns: None }
    }

    /// Takes the newest samples; at the end of a period, judges. To be called once a second or so: the device keeps its
    /// samples for a while only.
    pub fn look(&mut self, leases: &Leases, inventory: &NvmlInventory, statistics: &Statistics) {
        let processes = processes_by_tenant(leases);
        for (index, gpu) in leases.gpus.iter().enumerate() {
            let device = &mut self.devices[index];
            let busy = device.add(&inventory.process_use(gpu.index, device.newest_us()));
            for (tenant, pids) in &processes {
                let seen_ns = pids.iter().filter_map(|pid| busy.get(&pid.0)).sum();
                self.see((*tenant, index), seen_ns);
            }
        }
        for shortfall in self.end_period(statistics) {
            act_on(leases, shortfall);
        }
    }

    fn see(&mut self, of: (TenantId, usize), seen_ns: u64) {
        if seen_ns > 0 {
            self.audited.entry(of).or_default().seen_ns += seen_ns;
        }
    }

    /// Judges every lease if a period is over, and begins the next.
    fn end_period(&mut self, statistics: &Statistics) -> Vec<(TenantId, usize, Shortfall)> {
        let start_ns = *self.period_start_ns.get_or_insert(statistics.at_ns);
        let period_ns = statistics.at_ns.saturating_sub(start_ns);
        if period_ns > 0 && period_ns < PERIOD_NS {
            return Vec::new();
        }
        self.period_start_ns = Some(statistics.at_ns);
        let mut told = Vec::new();
        let mut kept = BTreeMap::new();
        for standing in &statistics.standings {
            let of = (standing.tenant, standing.gpu);
            let mut audited = self.audited.remove(&of).unwrap_or_default();
            let judged = audited.end_period(period_ns, standing);
            told.extend(judged.map(|shortfall| (standing.tenant, standing.gpu, shortfall)));
            kept.insert(of, audited);
        }
        // Who is not in the statistics any more has left.
        self.audited = kept;
        told
    }
}

impl Audited {
    /// Judges the period that is over, but for the first: when it began is not known.
    fn end_period(&mut self, period_ns: u64, standing: &Standing) -> Option<Shortfall> {
        let seen_ns = std::mem::take(&mut self.seen_ns);
        let before_ns = self.charged_ns.replace(standing.charged_ns)?;
        self.honesty.judge(period_ns, seen_ns, standing.charged_ns.saturating_sub(before_ns))
    }
}

/// The processes of each lease: those that registered, and all of its cgroup, as some may work past the shim.
fn processes_by_tenant(leases: &Leases) -> BTreeMap<TenantId, BTreeSet<HostPid>> {
    let known = |lease: &Lease| {
        let registered: BTreeSet<HostPid> = lease.processes.values().map(|process| process.watched.name.pid).collect();
        (lease.tenant, registered, lease.record.cgroup.clone())
    };
    // The book is not locked while cgroups are read.
    let all: Vec<_> = leases.book().leases.values().map(known).collect();
    let with_cgroup = |(tenant, mut pids, cgroup): (TenantId, BTreeSet<HostPid>, Option<String>)| {
        pids.extend(cgroup.as_deref().map(cgroup::processes_in).unwrap_or_default());
        (tenant, pids)
    };
    all.into_iter().map(with_cgroup).collect()
}

fn act_on(leases: &Leases, (tenant, gpu, shortfall): (TenantId, usize, Shortfall)) {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    let action = class_policy(&leases.configuration, lease.record.class).liar_action;
    let message = message(lease.record.container_id.short(), &leases.gpus[gpu].uuid.0, shortfall, action);
    leases.events.note(EventKind::UnderReported, about(&lease.record, None), message);
    if action == LiarAction::Debt {
        leases.gatekeeper.order(Order::Owe { tenant, ns: shortfall.missing_ns() });
    }
}

fn message(container: &str, gpu: &str, shortfall: Shortfall, action: LiarAction) -> String {
    let ms = |ns: u64| ns / 1_000_000;
    let consequence = match action {
        LiarAction::Debt => "the difference counts as used",
        LiarAction::Event => "nothing follows from it, as its class has liar_action = \"event\"",
    };
    format!(
        "{container} reported {} ms of GPU time over about 5 s in which {gpu} was busy for it {} ms, {} ms more: \
         {consequence}",
        ms(shortfall.reported_ns),
        ms(shortfall.seen_ns),
        ms(shortfall.missing_ns()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const LIAR: TenantId = TenantId(1);

    /// Two tenants on GPU 0 after `second` seconds; the first reports a fifth of each, the second a half.
    fn statistics(second: u64) -> Statistics {
        let standing = |tenant, charged_ns| Standing { tenant, gpu: 0, charged_ns, lag_ns: 0 };
        let standings = vec![standing(LIAR, second * S / 5), standing(TenantId(2), second * S / 2)];
        Statistics { at_ns: (100 + second) * S, standings, ..Statistics::default() }
    }

    #[test]
    fn who_reports_less_than_the_device_saw_is_told_with_the_figures() {
        let mut auditor = Auditor::new(1);
        let mut told = Vec::new();
        for second in 0..=20 {
            auditor.see((LIAR, 0), S / 2);
            auditor.see((TenantId(2), 0), S / 2);
            told.extend(auditor.end_period(&statistics(second)).into_iter().map(|shortfall| (second, shortfall)));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 15, 20], "each period once, when the next has not made up for it");
        for (_, (tenant, gpu, shortfall)) in &told {
            assert_eq!((*tenant, *gpu, shortfall.missing_ns()), (LIAR, 0, 3 * S / 2));
        }
        let text = message("3f9a", "GPU-1", told[0].1.2, LiarAction::Debt);
        for part in ["3f9a reported 1000 ms", "GPU-1 was busy for it 2500 ms", "1500 ms more", "counts as used"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert!(message("3f9a", "GPU-1", told[0].1.2, LiarAction::Event).contains("nothing follows"));
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let mut auditor = Auditor::new(1);
        auditor.end_period(&statistics(0));
        auditor.see((LIAR, 0), S);
        let gone = Statistics { standings: Vec::new(), ..statistics(5) };
        assert!(auditor.end_period(&gone).is_empty() && auditor.audited.is_empty());
    }
}
