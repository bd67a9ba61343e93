use super::*;
use gpool_policy::slice::{HostScheduler, Input, Parameters, ServerSet, Share, SliceScheduler};
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
        found_ns: 0,
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
    let (debt_ns, _, told) = audited_beside(0, reports);
    (debt_ns, told)
}

/// The same while the other one claims all that time for so many contexts of its own; and all that the first one is taken to have used.
fn audited_beside(claims: u64, reports: &[(u64, u64)]) -> (u64, u64, Vec<u64>) {
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
            found_ns: host.server(0).found_ns(tenant).expect("joined"),
            late_ns: host.server(0).late_ns(tenant).expect("joined"),
            lag_ns: 0,
        };
        let standings = [LIAR, OTHER].map(standing).to_vec();
        let statistics = Statistics { at_ns: now_ns, standings, ..Statistics::default() };
        for finding in auditor.end_period(&statistics) {
            told.extend(Some(second).filter(|_| finding.what == Missing::Report));
            let until_ns = if finding.what == Missing::Report { finding.until_ns } else { 0 };
            let debt = (finding.shortfall.missing_ns(), until_ns);
            host.owe(now_ns, finding.gpu, finding.tenant, debt, &mut commands);
        }
        if auditor.period_start_ns == Some(now_ns) {
            host.begin_period(now_ns);
        }
    }
    let its = |of: fn(&SliceScheduler, TenantId) -> Option<u64>| of(host.server(0), LIAR).expect("joined");
    let used_ns = its(SliceScheduler::charged_ns) + its(SliceScheduler::found_ns);
    // Its lag is half of what it was served alone: the other one is owed the other half.
    (2 * host.server(0).debt_ns(LIAR), used_ns, told)
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
    assert!(audited_beside(9, &honest).2.is_empty(), "a tenth of the charge, and all of the report");
    let half: Vec<(u64, u64)> = (0..20).map(|number| (2 * number, 2 * number + 1)).collect();
    assert_eq!(audited_beside(9, &half).2, [10, 15, 20, 25, 30, 35, 40], "what is hidden is found all the same");
}

/// Two of one owner: one works and reports it, the other does nothing and reports the same time, which costs it nothing that it needs.
#[test]
fn who_has_another_one_claim_its_time_pays_for_it() {
    let honest: Vec<(u64, u64)> = (0..40).map(|second| (second, second + 1)).collect();
    let (_, used_ns, told) = audited_beside(32, &honest);
    // But for a tenth of all time, and what may come in late.
    assert!((20 * S..=40 * S).contains(&used_ns) && told.is_empty(), "{used_ns} {told:?}");
    assert!(audited_beside(0, &honest).1.abs_diff(40 * S) < S, "alone it is charged all, and nothing else is found");
    let text = undercharged("3f9a", "GPU-1", 7 * S / 2, LiarAction::Debt);
    assert!(
        text.contains("3f9a was charged 3500 ms less") && text.contains("GPU-1") && text.contains("counts as used")
    );
    assert!(undercharged("3f9a", "GPU-1", 1, LiarAction::Event).contains("nothing follows"));
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
