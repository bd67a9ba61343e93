//! Compares what leases report of their GPU time with what the device saw of their processes. `policy` judges; here the
//! figures are brought together, and what follows is done.

mod past_members;

use crate::clock;
use crate::device::Gpu;
use crate::gatekeeper::{Order, Standing, Statistics};
use crate::lease::{GpuAccount, Leases, Members, about, class_policy};
use crate::procfs;
use gpool_configuration::LiarAction;
use gpool_policy::TenantId;
use gpool_policy::honesty::{DeviceUse, Honesty, Sample, Shortfall};
use gpool_policy::overlap::{Reported, believed};
use gpool_policy::repetition::Repetition;
use gpool_protocol::EventKind;
use past_members::{PastMembers, whole};
use std::collections::BTreeMap;

/// Reports are compared with the device over so long.
const PERIOD_NS: u64 = 5_000_000_000;

/// One lease on one GPU, in the current period.
#[derive(Default)]
struct Audited {
    honesty: Honesty,
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

/// A report that fell short.
struct Finding {
    tenant: TenantId,
    /// Index of the GPU.
    gpu: usize,
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
    shortfalls: BTreeMap<(TenantId, usize), Shortfalls>,
    period_start_ns: Option<u64>,
    /// By index of the GPU: the device did not answer in this period.
    was_silent: Vec<bool>,
    /// The same of the newest look.
    is_silent: Vec<bool>,
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
        process_use: impl Fn((usize, &Gpu), u64) -> Option<Vec<Sample>>,
        statistics: &Statistics,
    ) {
        for (index, gpu) in leases.gpus().iter().enumerate() {
            let device = &mut self.devices[index];
            let wall_us = clock::unix_us();
            device.begin(wall_us, clock::now_ns() / 1000);
            device.go_on_from(counted_until_us(leases, index), wall_us);
            // Of what was before the first look it is not known whose it was.
            let is_first_look = device.newest_us() == 0;
            let answer = process_use((index, gpu), device.newest_us());
            self.is_silent[index] = answer.is_none();
            self.was_silent[index] |= answer.is_none();
            let busy = device.add(&answer.unwrap_or_default());
            let until_us = device.newest_us();
            for (tenant, pids) in members {
                let seen_ns = pids.iter().filter_map(|pid| busy.get(&pid.0)).sum();
                // Who has no shims reports nothing that could fall short: it is metered by this.
                if !meter(leases, *tenant, index, (seen_ns, until_us)) {
                    self.see((*tenant, index), seen_ns);
                }
            }
            let whole = || if is_first_look { None } else { whole(leases, index) };
            let late = self.past.of_ended(&busy, members, whole, procfs::is_alive);
            for (tenant, seen_ns) in late {
                // Who has shims has reported until the end.
                meter(leases, tenant, index, (seen_ns, until_us));
            }
        }
        self.past.note(members, clock::now_ns());
        for finding in self.end_period(statistics) {
            act_on(leases, &finding);
            self.shortfalls.entry((finding.tenant, finding.gpu)).or_default().add(finding.shortfall);
        }
        self.shortfalls.retain(|of, _| self.audited.contains_key(of));
        for ((tenant, gpu), shortfalls) in &mut self.shortfalls {
            if let Some(news) = shortfalls.news(statistics.at_ns) {
                tell(leases, *tenant, *gpu, news);
            }
        }
        if self.period_start_ns == Some(statistics.at_ns) {
            leases.gatekeeper.order(Order::BeginPeriod { at_ns: statistics.at_ns });
        }
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
            let judged = audited.honesty.judge(period_ns, period.reported.seen_ns, believed_ns, period.late_ns);
            told.extend(judged.map(|shortfall| Finding { tenant, gpu, shortfall, until_ns }));
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

/// Adds busy time to the account of a lease without shims; says whether it is one.
fn meter(leases: &Leases, tenant: TenantId, gpu: usize, (seen_ns, until_us): (u64, u64)) -> bool {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant).filter(|lease| !lease.record.mechanism.has_shims()) else { return false };
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
    let Finding { tenant, gpu, shortfall, until_ns } = *finding;
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    if class_policy(&leases.configuration(), lease.record.class).liar_action == LiarAction::Debt {
        leases.gatekeeper.order(Order::Owe { tenant, gpu, ns: shortfall.missing_ns(), until_ns });
    }
}

fn tell(leases: &Leases, tenant: TenantId, gpu: usize, (last, count, missing_ns): (Shortfall, u64, u64)) {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return };
    let action = class_policy(&leases.configuration(), lease.record.class).liar_action;
    let mut message = message(lease.record.container_id.short(), &leases.gpus()[gpu].uuid.0, last, action);
    if count > 1 {
        message +=
            &format!("; this was found {count} times since it was told, with {} ms in all", missing_ns / 1_000_000);
    }
    leases.events.note(EventKind::UnderReported, about(&lease.record, None), message);
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::slice::{HostScheduler, Input, Parameters, ServerSet, Share};
    use gpool_policy::timeline::Burst;

    const S: u64 = 1_000_000_000;
    const LIAR: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    /// Two tenants on GPU 0 after `second` seconds; the first reports a fifth of each, the second a half.
    fn statistics(second: u64) -> Statistics {
        let standing = |tenant, reported_ns| Standing {
            tenant,
            gpu: 0,
            charged_ns: reported_ns,
            reported_ns,
            redeemed_ns: 0,
            late_ns: 0,
            lag_ns: 0,
        };
        let standings = vec![standing(LIAR, second * S / 5), standing(OTHER, second * S / 2)];
        Statistics { at_ns: (100 + second) * S, standings, ..Statistics::default() }
    }

    #[test]
    fn who_reports_less_than_the_device_saw_is_told_with_the_figures() {
        let mut auditor = Auditor::new(1);
        let mut told = Vec::new();
        for second in 0..=20 {
            auditor.see((LIAR, 0), S / 2);
            auditor.see((OTHER, 0), S / 2);
            told.extend(auditor.end_period(&statistics(second)).into_iter().map(|finding| (second, finding)));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 15, 20], "each period once, when the next has not made up for it");
        for (second, finding) in &told {
            assert_eq!((finding.tenant, finding.gpu, finding.shortfall.missing_ns()), (LIAR, 0, 3 * S / 2));
            assert_eq!(finding.until_ns, (100 + second - 5) * S, "the period before the one that has just ended");
        }
        let text = message("3f9a", "GPU-1", told[0].1.shortfall, LiarAction::Debt);
        for part in ["3f9a reported 1000 ms", "GPU-1 was busy for it 2500 ms", "1500 ms more", "counts as used"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert!(message("3f9a", "GPU-1", told[0].1.shortfall, LiarAction::Event).contains("nothing follows"));
    }

    #[test]
    fn what_falls_short_again_and_again_is_told_ever_more_rarely_and_in_full() {
        let (mut shortfalls, mut told) = (Shortfalls::default(), Vec::new());
        for second in 0..100 {
            if second % 5 == 0 && second < 80 {
                shortfalls.add(Shortfall { seen_ns: 2 * S, reported_ns: S });
            }
            told.extend(shortfalls.news(second * S).map(|(_, count, missing_ns)| (second, count, missing_ns / S)));
        }
        assert_eq!(told, [(0, 1, 1), (5, 1, 1), (10, 1, 1), (15, 1, 1), (23, 1, 1), (39, 3, 3), (71, 7, 7)]);
    }

    #[test]
    fn nobody_is_judged_by_what_a_device_tells_late() {
        let told = |silent: std::ops::RangeInclusive<u64>| {
            let (mut auditor, mut told, mut untold) = (Auditor::new(1), 0, 0);
            for second in 0..=40 {
                auditor.is_silent[0] = silent.contains(&second);
                auditor.was_silent[0] |= auditor.is_silent[0];
                untold += S / 2;
                if !auditor.is_silent[0] {
                    auditor.see((OTHER, 0), std::mem::take(&mut untold));
                }
                told += auditor.end_period(&statistics(second)).len();
            }
            told
        };
        assert_eq!([told(41..=41), told(12..=17), told(12..=19), told(12..=20)], [0; 4]);
        // Of those who hide something in all periods, all are told that the device has seen.
        let mut auditor = Auditor::new(1);
        let told: usize = (0..=40)
            .map(|second| {
                auditor.see((LIAR, 0), S / 2);
                auditor.was_silent[0] |= (12..=13).contains(&second);
                auditor.end_period(&statistics(second)).len()
            })
            .sum();
        assert_eq!(told, 6, "of eight periods one was not seen, and the last one is not over");
    }

    /// Both tenants want, on one GPU, and the device sees the first one at work all the time for 40 s. It reports
    /// `(start, end)` seconds at that end. What it owes then beyond its share, and when it was told.
    fn audited(reports: &[(u64, u64)]) -> (u64, Vec<u64>) {
        audited_beside(0, reports)
    }

    /// The same while the other one claims all that time for so many contexts of its own.
    fn audited_beside(claims: u64, reports: &[(u64, u64)]) -> (u64, Vec<u64>) {
        let mut host = HostScheduler::new(Parameters::default(), 1, 0);
        let (mut auditor, mut commands, mut told) = (Auditor::new(1), Vec::new(), Vec::new());
        for tenant in [LIAR, OTHER] {
            host.join(0, tenant, ServerSet::one(0), Share::of(500), 0, &mut commands);
            host.handle(0, Input::Wants { tenant }, &mut commands);
        }
        for second in 0..=40 {
            let now_ns = second * S;
            for (start, end) in reports.iter().filter(|(_, end)| *end == second) {
                let burst = Burst { tenant: LIAR, context: 0, start_ns: start * S, end_ns: end * S };
                host.burst(now_ns, 0, burst, &mut commands);
            }
            for context in (0..claims).filter(|_| second > 0) {
                let burst = Burst { tenant: OTHER, context, start_ns: now_ns - S, end_ns: now_ns };
                host.burst(now_ns, 0, burst, &mut commands);
            }
            host.handle(now_ns, Input::Pass, &mut commands);
            auditor.see((LIAR, 0), if second > 0 { S } else { 0 });
            let standing = |tenant| Standing {
                tenant,
                gpu: 0,
                charged_ns: host.server(0).charged_ns(tenant).expect("joined"),
                reported_ns: host.server(0).reported_ns(tenant).expect("joined"),
                redeemed_ns: host.server(0).redeemed_ns(tenant).expect("joined"),
                late_ns: host.server(0).late_ns(tenant).expect("joined"),
                lag_ns: 0,
            };
            let standings = [LIAR, OTHER].map(standing).to_vec();
            let statistics = Statistics { at_ns: now_ns, standings, ..Statistics::default() };
            for finding in auditor.end_period(&statistics) {
                told.push(second);
                let debt = (finding.shortfall.missing_ns(), finding.until_ns);
                host.owe(now_ns, finding.gpu, finding.tenant, debt, &mut commands);
            }
            if auditor.period_start_ns == Some(now_ns) {
                host.begin_period(now_ns);
            }
        }
        // Its lag is half of what it was served alone: the other one is owed the other half.
        (2 * host.server(0).debt_ns(LIAR), told)
    }

    fn is_about(ns: u64, seconds: u64) -> bool {
        ns.abs_diff(seconds * S) <= S / 10
    }

    #[test]
    fn a_kernel_of_many_seconds_is_paid_for_once() {
        let short: Vec<(u64, u64)> = (0..40).map(|second| (second, second + 1)).collect();
        let (debt_ns, told) = audited(&short);
        assert!(is_about(debt_ns, 40) && told.is_empty(), "{debt_ns} {told:?}");
        let long = [(0, 4), (4, 12), (12, 21), (21, 30), (30, 40)];
        let (debt_ns, told) = audited(&long);
        assert!(is_about(debt_ns, 40) && !told.is_empty(), "{debt_ns} {told:?}");
        // Longer than a report is believed for: what the device saw makes up for it.
        let (debt_ns, told) = audited(&[(0, 20), (20, 40)]);
        assert!(is_about(debt_ns, 40) && !told.is_empty(), "{debt_ns} {told:?}");
    }

    #[test]
    fn who_hides_work_pays_for_all_of_it() {
        let half: Vec<(u64, u64)> = (0..20).map(|number| (2 * number, 2 * number + 1)).collect();
        let (debt_ns, told) = audited(&half);
        assert_eq!(told, [10, 15, 20, 25, 30, 35, 40]);
        // The last period is judged five seconds later.
        assert!((36 * S..=40 * S).contains(&debt_ns), "{debt_ns}");
        let (debt_ns, told) = audited(&[]);
        assert_eq!(told, [10, 15, 20, 25, 30, 35, 40]);
        assert!((35 * S..=36 * S).contains(&debt_ns), "{debt_ns}");
        // Telling late what was hidden, so as to hide as much again, gains nothing.
        let late: Vec<(u64, u64)> = (1..4).map(|number| (10 * number - 9, 10 * number)).collect();
        let (debt_ns, told) = audited(&late);
        assert!((35 * S..=41 * S).contains(&debt_ns) && !told.is_empty(), "{debt_ns} {told:?}");
    }

    #[test]
    fn nobody_is_made_a_liar_by_what_another_claims() {
        let honest: Vec<(u64, u64)> = (0..40).map(|second| (second, second + 1)).collect();
        assert!(audited_beside(9, &honest).1.is_empty(), "a tenth of the charge, and all of the report");
        let half: Vec<(u64, u64)> = (0..20).map(|number| (2 * number, 2 * number + 1)).collect();
        assert_eq!(audited_beside(9, &half).1, [10, 15, 20, 25, 30, 35, 40], "what is hidden is found all the same");
    }

    /// Two that report the same half of each second, in which one of them works, while the other works in the other half.
    #[test]
    fn two_reports_of_the_same_time_cover_no_work_beside_it() {
        let statistics = |second: u64| {
            let mut both = statistics(second);
            for standing in &mut both.standings {
                (standing.reported_ns, standing.charged_ns) = (second * S / 2, second * S / 4);
            }
            both
        };
        let mut auditor = Auditor::new(1);
        let mut told = Vec::new();
        for second in 0..=20 {
            [LIAR, OTHER].iter().filter(|_| second > 0).for_each(|tenant| auditor.see((*tenant, 0), S / 2));
            told.extend(auditor.end_period(&statistics(second)));
        }
        let of = |tenant| told.iter().filter(|finding| finding.tenant == tenant).count();
        assert_eq!((of(LIAR), of(OTHER)), (3, 3));
        let missing: Vec<u64> = told.iter().map(|finding| finding.shortfall.missing_ns()).collect();
        assert!(missing.iter().all(|ns| *ns == 5 * S / 4), "with what was charged it is what was seen: {missing:?}");
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
