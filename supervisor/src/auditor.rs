//! Compares what leases report of their GPU time with what the device saw of their processes. `policy` judges; here the
//! figures are brought together, and what follows is done.

mod past_members;
#[cfg(test)]
mod tests;

use crate::clock;
use crate::device::{Gpu, Kind, ProcessUse};
use crate::gatekeeper::{Order, Standing, Statistics};
use crate::lease::{GpuAccount, Leases, Members, about, class_policy};
use crate::procfs;
use gpool_configuration::LiarAction;
use gpool_policy::TenantId;
use gpool_policy::honesty::{DeviceUse, Honesty, Shortfall};
use gpool_policy::overlap::{Reported, believed};
use gpool_policy::repetition::Repetition;
use gpool_policy::unpaid::Unpaid;
use gpool_protocol::{EventKind, HostPid};
use past_members::{PastMembers, whole};
use std::collections::BTreeMap;

/// Reports are compared with the device over so long.
const PERIOD_NS: u64 = 5_000_000_000;

/// One lease on one GPU, in the current period.
#[derive(Default)]
struct Audited {
    honesty: Honesty,
    unpaid: Unpaid,
    /// Busy time that the device saw so far.
    seen_ns: u64,
    /// The figures when the period began; none before its first period.
    before: Option<Totals>,
}

/// What has come together since a tenant joined.
#[derive(Clone, Copy)]
struct Totals {
    /// Reported, without what has redeemed a debt: that was missing before, and does not count a second time.
    reported_ns: u64,
    /// How much of that late.
    late_ns: u64,
    charged_ns: u64,
}

/// What one lease has reported of one GPU in a period that is over.
struct Period {
    tenant: TenantId,
    reported: Reported,
    late_ns: u64,
}

/// What of a lease's use is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Missing {
    /// It was not reported.
    Report,
    /// It was reported, and not charged, because others reported the same time.
    Charge,
}

/// A report or a charge that fell short.
struct Finding {
    tenant: TenantId,
    /// Index of the GPU.
    gpu: usize,
    what: Missing,
    shortfall: Shortfall,
    /// End of the period that fell short, CLOCK_MONOTONIC.
    until_ns: u64,
}

/// Reports of one lease on one GPU that fell short, and how much of that has been told.
#[derive(Default)]
struct Shortfalls {
    all: u64,
    told: u64,
    /// What was missing in those that have not been told.
    untold_ns: u64,
    last: Option<Shortfall>,
    repetition: Repetition,
}

/// Sees every sample once.
pub struct Auditor {
    devices: Vec<DeviceUse>,
    audited: BTreeMap<(TenantId, usize), Audited>,
    shortfalls: BTreeMap<(TenantId, usize, Missing), Shortfalls>,
    period_start_ns: Option<u64>,
    /// By index of the GPU: the device did not answer in this period.
    was_silent: Vec<bool>,
    /// The same of the newest look.
    is_silent: Vec<bool>,
    /// By index of the GPU: NVML had figures of it in the newest look.
    has_figures: Vec<bool>,
    /// The same, also where they count for nothing.
    tells: Vec<bool>,
    /// By index of the GPU: for how long each process kept it busy, nanoseconds, by what was new in the newest look.
    busy: Vec<BTreeMap<u32, u64>>,
    past: PastMembers,
}

impl Auditor {
    /// For a host with `gpus` GPUs.
    pub fn new(gpus: usize) -> Self {
        let (devices, silent) = (vec![DeviceUse::default(); gpus], vec![false; gpus]);
        let (was_silent, is_silent) = (silent.clone(), silent);
        Self {
            devices,
            audited: BTreeMap::new(),
            shortfalls: BTreeMap::new(),
            period_start_ns: None,
            was_silent,
            is_silent,
            has_figures: vec![false; gpus],
            tells: vec![false; gpus],
            busy: vec![BTreeMap::new(); gpus],
            past: PastMembers::default(),
        }
    }

    /// Takes the newest samples; at the end of a period, judges. To be called once a second or so: the device keeps its
    /// samples for a while only. `process_use` asks the device how busy each process kept a GPU since a time of its clock; it
    /// has no answer of a device that is silent.
    pub fn look(
        &mut self,
        leases: &Leases,
        members: &Members,
        process_use: impl Fn((usize, &Gpu), u64) -> Option<ProcessUse>,
        statistics: &Statistics,
    ) {
        for (index, gpu) in leases.gpus().iter().enumerate() {
            let device = &mut self.devices[index];
            device.begin(clock::unix_us(), clock::now_ns() / 1000, counted_until_us(leases, index));
            let answer = process_use((index, gpu), device.since_us());
            let has_answered = answer.is_some();
            let told = answer.unwrap_or_default();
            // A whole GPU that has no figures, has none now: what was done meanwhile it tells when it has some again.
            let is_silent = !has_answered || gpu.kind == Kind::Whole && !told.is_known;
            self.is_silent[index] = is_silent;
            self.was_silent[index] |= is_silent;
            self.has_figures[index] = told.is_known && !device.is_blind();
            self.tells[index] = told.is_known;
            let busy = if told.is_known { device.add(&told.samples, clock::now_ns() / 1000) } else { BTreeMap::new() };
            let until_us = device.since_us();
            for (tenant, pids) in members {
                let seen_ns = pids.iter().filter_map(|pid| busy.get(&pid.0)).sum();
                let is_used = pids.iter().any(|pid| told.users.contains(&pid.0));
                // Who has no shims reports nothing that could fall short: it is metered by this.
                if !meter(leases, *tenant, index, (seen_ns, until_us), is_used) {
                    self.see((*tenant, index), seen_ns);
                }
            }
            let late = self.past.of_ended(&busy, members, || whole(leases, index), procfs::is_alive);
            for (tenant, ended) in late {
                // Who has come through shims has reported until the end. What a device tells of so short a life has not been measured
                // on one.
                if !meter(leases, tenant, index, (ended.all_ns, until_us), true) {
                    self.see((tenant, index), ended.silent_ns);
                }
            }
            self.busy[index] = busy;
        }
        self.past.note(members, clock::now_ns());
        for finding in self.end_period(statistics) {
            act_on(leases, &finding);
            self.shortfalls.entry((finding.tenant, finding.gpu, finding.what)).or_default().add(finding.shortfall);
        }
        self.shortfalls.retain(|(tenant, gpu, _), _| self.audited.contains_key(&(*tenant, *gpu)));
        for ((tenant, gpu, what), shortfalls) in &mut self.shortfalls {
            if let Some(news) = shortfalls.news(statistics.at_ns) {
                tell(leases, (*tenant, *gpu, *what), news);
            }
        }
        if self.period_start_ns == Some(statistics.at_ns) {
            leases.gatekeeper.order(Order::BeginPeriod { at_ns: statistics.at_ns });
        }
    }

    /// These go past the shims, and have reported nothing should they have ended when the device tells of them.
    pub fn note_past_the_shims(&mut self, these: impl Iterator<Item = (TenantId, HostPid)>) {
        self.past.note_silent(these, clock::now_ns());
    }

    /// Whether NVML has just said how busy processes keep this GPU.
    pub fn has_figures(&self, gpu: usize) -> bool {
        self.has_figures.get(gpu).copied().unwrap_or(false)
    }

    /// Whether NVML has just told anything of that, whatever it is worth.
    pub fn tells(&self, gpu: usize) -> bool {
        self.tells.get(gpu).copied().unwrap_or(false)
    }

    /// For how long each process kept this GPU busy, nanoseconds, by what NVML has just told that it had not told before.
    pub fn busy(&self, gpu: usize) -> impl Iterator<Item = (HostPid, u64)> + '_ {
        self.busy.get(gpu).into_iter().flatten().map(|(pid, ns)| (HostPid(*pid), *ns))
    }

    fn see(&mut self, of: (TenantId, usize), seen_ns: u64) {
        if seen_ns > 0 {
            self.audited.entry(of).or_default().seen_ns += seen_ns;
        }
    }

    /// Judges every lease if a period is over, and begins the next.
    fn end_period(&mut self, statistics: &Statistics) -> Vec<Finding> {
        let start_ns = *self.period_start_ns.get_or_insert(statistics.at_ns);
        let period_ns = statistics.at_ns.saturating_sub(start_ns);
        if period_ns > 0 && period_ns < PERIOD_NS {
            return Vec::new();
        }
        self.period_start_ns = Some(statistics.at_ns);
        let mut kept = BTreeMap::new();
        let mut periods: BTreeMap<usize, Vec<Period>> = BTreeMap::new();
        for standing in &statistics.standings {
            let (tenant, gpu) = (standing.tenant, standing.gpu);
            let mut audited = self.audited.remove(&(tenant, gpu)).unwrap_or_default();
            periods.entry(gpu).or_default().extend(audited.end_period(standing));
            kept.insert((tenant, gpu), audited);
        }
        // Who is not in the statistics any more has left.
        self.audited = kept;
        // What is told fell short in the period before the one that ends now.
        let was_silent = std::mem::replace(&mut self.was_silent, self.is_silent.clone());
        // What a device was silent about it tells all at once when it answers, in whatever period that is.
        periods.retain(|gpu, _| !was_silent.get(*gpu).copied().unwrap_or(false));
        periods.into_iter().flat_map(|(gpu, all)| self.judge(gpu, &all, period_ns, start_ns)).collect()
    }

    /// Judges all leases of one GPU together: what they report for the same time counts once.
    fn judge(&mut self, gpu: usize, all: &[Period], period_ns: u64, until_ns: u64) -> Vec<Finding> {
        let reported: Vec<Reported> = all.iter().map(|period| period.reported).collect();
        let mut told = Vec::new();
        for (period, believed_ns) in all.iter().zip(believed(&reported)) {
            let tenant = period.tenant;
            let Some(audited) = self.audited.get_mut(&(tenant, gpu)) else { continue };
            let Reported { seen_ns, charged_ns, .. } = period.reported;
            let judged = audited.honesty.judge(period_ns, seen_ns, believed_ns, period.late_ns);
            told.extend(judged.map(|shortfall| Finding { tenant, gpu, what: Missing::Report, shortfall, until_ns }));
            // What is not believed to have been reported is missing by that already.
            let reported_ns = believed_ns.saturating_add(period.late_ns);
            let due_ns = audited.unpaid.judge(period_ns, (seen_ns, reported_ns), charged_ns);
            let shortfall = due_ns.map(|due_ns| Shortfall { seen_ns: due_ns, reported_ns: 0 });
            told.extend(shortfall.map(|shortfall| Finding { tenant, gpu, what: Missing::Charge, shortfall, until_ns }));
        }
        told
    }
}

impl Audited {
    /// The period that is over; none of the first, as when it began is not known.
    fn end_period(&mut self, standing: &Standing) -> Option<Period> {
        let seen_ns = std::mem::take(&mut self.seen_ns);
        let now = Totals {
            reported_ns: standing.reported_ns.saturating_sub(standing.redeemed_ns),
            late_ns: standing.late_ns,
            charged_ns: standing.charged_ns,
        };
        let before = self.before.replace(now)?;
        let late_ns = now.late_ns.saturating_sub(before.late_ns);
        let reported_ns = now.reported_ns.saturating_sub(before.reported_ns).saturating_sub(late_ns);
        let charged_ns = now.charged_ns.cast_signed().wrapping_sub(before.charged_ns.cast_signed());
        let reported = Reported { seen_ns, reported_ns, charged_ns };
        Some(Period { tenant: standing.tenant, reported, late_ns })
    }
}

/// Until when what the device saw has been counted for leases that go on from an earlier life of the supervisor: it remembers
/// samples for longer than a restart takes.
fn counted_until_us(leases: &Leases, gpu: usize) -> u64 {
    let book = leases.book();
    let accounts = book.leases.values().flat_map(|lease| &lease.accounts).filter(|account| account.gpu == gpu);
    accounts.map(GpuAccount::seen_until_us).max().unwrap_or(0)
}

/// Adds busy time to the account of a lease without shims; says whether it is one. Of any it is noted that it is in use.
fn meter(leases: &Leases, tenant: TenantId, gpu: usize, (seen_ns, until_us): (u64, u64), is_used: bool) -> bool {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return false };
    lease.was_seen |= is_used;
    if lease.record.mechanism.has_shims() {
        return false;
    }
    if let Some(account) = lease.accounts.iter_mut().find(|account| account.gpu == gpu) {
        account.see(seen_ns, until_us);
    }
    true
}

impl Shortfalls {
    fn add(&mut self, shortfall: Shortfall) {
        self.all += 1;
        self.untold_ns = self.untold_ns.saturating_add(shortfall.missing_ns());
        self.last = Some(shortfall);
    }

    /// What is to be told at `now_ns`: the last one, how many there are of which nothing was told, and what was missing in
    /// these.
    fn news(&mut self, now_ns: u64) -> Option<(Shortfall, u64, u64)> {
        let last = self.last.filter(|_| self.repetition.look(now_ns, self.all, self.told))?;
        let count = self.all - std::mem::replace(&mut self.told, self.all);
        Some((last, count, std::mem::take(&mut self.untold_ns)))
    }
}

fn act_on(leases: &Leases, finding: &Finding) {
    let Finding { tenant, gpu, what, shortfall, until_ns } = *finding;
    // What was reported is not redeemed by a later report.
    let until_ns = if what == Missing::Report { until_ns } else { 0 };
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    if class_policy(&leases.configuration(), lease.record.class).liar_action == LiarAction::Debt {
        leases.gatekeeper.order(Order::Owe { tenant, gpu, ns: shortfall.missing_ns(), until_ns });
    }
}

fn tell(leases: &Leases, (tenant, gpu, what): (TenantId, usize, Missing), news: (Shortfall, u64, u64)) {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    let action = class_policy(&leases.configuration(), lease.record.class).liar_action;
    let (last, count, missing_ns) = news;
    let (container, gpu) = (lease.record.container_id.short(), &leases.gpus()[gpu].uuid.0);
    let (kind, mut message) = match what {
        Missing::Report => (EventKind::UnderReported, message(container, gpu, last, action)),
        Missing::Charge => (EventKind::Undercharged, undercharged(container, gpu, last.missing_ns(), action)),
    };
    if count > 1 {
        message +=
            &format!("; this was found {count} times since it was told, with {} ms in all", missing_ns / 1_000_000);
    }
    leases.events.note(kind, about(&lease.record, None), message);
}

fn undercharged(container: &str, gpu: &str, due_ns: u64, action: LiarAction) -> String {
    let consequence = match action {
        LiarAction::Debt => "the difference counts as used",
        LiarAction::Event => "nothing follows from it, as its class has liar_action = \"event\"",
    };
    format!(
        "{container} was charged {} ms less in the last 20 s than it reported and {gpu} was busy for it, because others \
         reported the same time: {consequence}",
        due_ns / 1_000_000
    )
}

fn message(container: &str, gpu: &str, shortfall: Shortfall, action: LiarAction) -> String {
    let ms = |ns: u64| ns / 1_000_000;
    let consequence = match action {
        LiarAction::Debt => "the difference counts as used, once, also if a kernel that still runs is reported later",
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
