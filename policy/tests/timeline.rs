//! The charge against a reference that counts every nanosecond, and its bounds.

use std::collections::BTreeMap;

use gpool_policy::TenantId;
use gpool_policy::timeline::{Bounds, Burst, Delta, EFFORT, PERIOD_NS, Timeline, Verdict};
use proptest::prelude::*;

const NOW: u64 = 1_000;

fn burst(tenant: u64, context: u64, start_ns: u64, end_ns: u64) -> Burst {
    Burst { tenant: TenantId(tenant), context, start_ns, end_ns }
}

fn timeline() -> Timeline {
    Timeline::new(Bounds::default())
}

fn add(timeline: &mut Timeline, now: u64, burst: Burst) -> (Verdict, BTreeMap<u64, i64>) {
    let mut deltas = Vec::new();
    let verdict = timeline.add(now, burst, &mut deltas).verdict;
    assert!(deltas.iter().all(|delta| delta.ns != 0), "{deltas:?}");
    (verdict, deltas.iter().map(|delta: &Delta| (delta.tenant.0, delta.ns)).collect())
}

/// The same of a burst that has stood before the device since then, and for how long others were on it meanwhile.
fn enter(timeline: &mut Timeline, burst: Burst, queued_ns: u64) -> (Verdict, BTreeMap<u64, i64>, u64) {
    if queued_ns >= burst.start_ns {
        let (verdict, deltas) = add(timeline, NOW, burst);
        return (verdict, deltas, 0);
    }
    let mut deltas = Vec::new();
    let waited_ns = timeline.others_ns(burst.tenant, (queued_ns, burst.start_ns));
    let entered = timeline.add_arrival(NOW, burst, queued_ns, &mut deltas);
    (entered.verdict, deltas.iter().map(|delta: &Delta| (delta.tenant.0, delta.ns)).collect(), waited_ns)
}

#[test]
fn overlap_is_shared_by_contexts() {
    let mut timeline = timeline();
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, 0, 90)).1, BTreeMap::from([(1, 90)]));
    // A second context of tenant 2 takes a third of what is shared by three.
    assert_eq!(add(&mut timeline, NOW, burst(2, 0, 30, 90)).1, BTreeMap::from([(1, -30), (2, 30)]));
    assert_eq!(add(&mut timeline, NOW, burst(2, 1, 30, 90)).1, BTreeMap::from([(1, -10), (2, 10)]));
    assert_eq!(timeline.segment_count(), 2);
}

#[test]
fn how_long_a_tenant_kept_the_device_busy_is_its_own_affair() {
    let mut timeline = timeline();
    let mut busy_ns = |burst| timeline.add(NOW, burst, &mut Vec::new()).busy_ns;
    assert_eq!(busy_ns(burst(1, 0, 0, 90)), 90);
    assert_eq!(busy_ns(burst(1, 0, 0, 90)), 0, "not a second time");
    assert_eq!(busy_ns(burst(1, 1, 60, 100)), 10, "nor by another context");
    for context in 0..9 {
        assert_eq!(busy_ns(burst(2, context, 50, 200)), if context == 0 { 150 } else { 0 });
    }
    assert_eq!(busy_ns(burst(1, 2, 100, 150)), 50, "whoever else had work then");
}

#[test]
fn what_a_tenant_had_between_two_times_is_told_with_what_it_costs() {
    let mut timeline = timeline();
    add(&mut timeline, NOW, burst(1, 0, 10, 90));
    add(&mut timeline, NOW, burst(2, 0, 30, 50));
    add(&mut timeline, NOW, burst(2, 1, 40, 50));
    let of = |tenant, from, to| {
        let its = timeline.use_of(TenantId(tenant), from, to);
        (its.busy_ns, its.charged_ns, its.others_ns)
    };
    assert_eq!(of(1, 0, 1000), (80, 60 + 5 + 3, 0), "half of ten and a third of ten are another's");
    assert_eq!(of(1, 35, 45), (10, 2 + 1, 0), "parts of segments");
    assert_eq!((of(2, 0, 1000), of(2, 50, 90), of(3, 0, 1000)), ((20, 11, 60), (0, 0, 40), (0, 0, 80)));
    assert_eq!((of(1, 90, 80), of(1, 20, 20)), ((0, 0, 0), (0, 0, 0)));
}

#[test]
fn who_comes_onto_the_device_has_it_to_itself_for_a_time_slice() {
    let mut timeline = timeline();
    let mut enter = |burst, queued_ns| {
        let (_, deltas, waited_ns) = self::enter(&mut timeline, burst, queued_ns);
        (waited_ns, deltas)
    };
    assert_eq!(enter(burst(1, 0, 0, 100), 0), (0, BTreeMap::from([(1, 100)])));
    // Nobody is known to have been on the device in the last 10 of the time for which it stood there.
    assert_eq!(enter(burst(2, 0, 110, 130), 60), (40, BTreeMap::from([(2, 20)])));
    // A time slice is taken to be as long as that one has waited: for so long the device is another one's alone, and then half of it.
    assert_eq!(enter(burst(1, 1, 200, 300), 200), (0, BTreeMap::from([(1, 100)])));
    assert_eq!(enter(burst(3, 0, 240, 300), 230), (10, BTreeMap::from([(1, -50), (3, 50)])));
    // It has come onto the device too, and finds that one there.
    assert_eq!(enter(burst(4, 0, 270, 290), 265), (5, BTreeMap::from([(1, -5), (3, -10), (4, 15)])));
    let its = timeline.use_of(TenantId(1), 240, 300);
    assert_eq!(
        (its.busy_ns, its.charged_ns, its.others_ns),
        (60, 5, 0),
        "it has work there, and for a while nothing of the device"
    );
}

#[test]
fn a_context_pays_once() {
    let mut timeline = timeline();
    add(&mut timeline, NOW, burst(1, 0, 0, 90));
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, 10, 50)).1, BTreeMap::new());
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, 80, 100)).1, BTreeMap::from([(1, 10)]));
}

#[test]
fn garbage_is_rejected_or_clamped() {
    let mut timeline = timeline();
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, 50, 40)), (Verdict::Reversed, BTreeMap::new()));
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, NOW, NOW + 1)), (Verdict::Future, BTreeMap::new()));
    assert_eq!(add(&mut timeline, NOW, burst(1, 0, 900, u64::MAX)), (Verdict::Clamped, BTreeMap::from([(1, 100)])));
    let minute = Bounds::default().longest_burst_ns;
    let (verdict, deltas) = add(&mut timeline, 10 * minute, burst(2, 0, 0, 5 * minute));
    assert_eq!((verdict, deltas), (Verdict::Clamped, BTreeMap::from([(2, minute as i64)])));
}

#[test]
fn what_lies_before_the_horizon_is_charged_in_full() {
    let bounds = Bounds { horizon_ns: 100, longest_burst_ns: 10_000 };
    let mut timeline = Timeline::new(bounds);
    add(&mut timeline, 1_000, burst(1, 0, 800, 890));
    add(&mut timeline, 1_000, burst(1, 0, 920, 960));
    // 880 to 900 is settled, 900 to 920 was free, 920 to 960 is shared.
    assert_eq!(add(&mut timeline, 1_000, burst(2, 0, 880, 960)).1, BTreeMap::from([(1, -20), (2, 60)]));
    assert_eq!(timeline.segment_count(), 2);
    add(&mut timeline, 5_000, burst(1, 0, 4_990, 4_991));
    assert_eq!(timeline.segment_count(), 1);
}

const MS: u64 = 1_000_000;

#[test]
fn a_kernel_of_seconds_shares_all_of_them() {
    let mut timeline = timeline();
    let mut charged = BTreeMap::new();
    let mut enter = |now, burst| {
        add(&mut timeline, now, burst).1.into_iter().for_each(|(tenant, ns)| *charged.entry(tenant).or_insert(0) += ns);
    };
    for step in 1..=80 {
        enter(step * 100 * MS, burst(1, 0, (step - 1) * 100 * MS, step * 100 * MS));
    }
    enter(8_000 * MS, burst(2, 0, 0, 8_000 * MS));
    assert_eq!(charged, BTreeMap::from([(1, 4_000 * MS as i64), (2, 4_000 * MS as i64)]));
}

/// As many crumbs as are remembered, and over all of them bursts of ever new contexts.
#[test]
fn who_reports_too_much_costs_nobody_else_time() {
    let mut timeline = timeline();
    let now = 5_000 * MS;
    for crumb in 0..20_000 {
        timeline.add(now, burst(1, 0, 1_000 * MS + 2 * crumb, 1_000 * MS + 2 * crumb + 1), &mut Vec::new());
    }
    let (first, last) = (1_000 * MS, 1_000 * MS + 40_000);
    let (mut least, mut charged) = (usize::MAX, 0);
    for period in 1..=40 {
        let mut effort = 0;
        for context in 0..1_000 {
            let mut deltas = Vec::new();
            let flood = burst(1, period * 1_000 + context, first, last);
            effort += timeline.add(now + period * PERIOD_NS, flood, &mut deltas).effort;
            charged += deltas.iter().map(|delta| delta.ns).sum::<i64>();
        }
        assert!(effort <= EFFORT + 100, "period {period}: {effort}");
        least = least.min(effort);
    }
    assert!(least > EFFORT / 2, "it was no flood: {least}");
    assert!(charged <= (last - first) as i64, "nobody pays more for the same time than it had: {charged}");
    // Whoever has the same time to account for looks at no more than a few dozen contexts for each crumb.
    let mut deltas = Vec::new();
    let other = timeline.add(now + 41 * PERIOD_NS, burst(2, 0, first, last), &mut deltas);
    assert!(other.effort <= EFFORT + 100, "{}", other.effort);
    // Beyond what may be looked at it pays alone, and before it the thirty-third part.
    let own: i64 = deltas.iter().filter(|delta| delta.tenant == TenantId(2)).map(|delta| delta.ns).sum();
    assert!(own > 0 && own <= (last - first) as i64, "{own}");
    // It lasts for as long as it goes on.
    let calm = timeline.add(now + 50 * PERIOD_NS, burst(1, 0, now, now + MS), &mut Vec::new());
    assert_eq!((calm.busy_ns, calm.effort), (MS, 1));
}

/// For each nanosecond, who had work, and whether he had just come onto the device.
type Moments = BTreeMap<u64, BTreeMap<(u64, u64), bool>>;

/// Of those who had work in one, who had the device.
fn payers(contexts: &BTreeMap<(u64, u64), bool>) -> Vec<u64> {
    let arrives = contexts.values().any(|&arrives| arrives);
    contexts.iter().filter(|(_, its)| **its == arrives).map(|((tenant, _), _)| *tenant).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_counting_every_nanosecond(
        bursts in prop::collection::vec((0..4u64, 0..3u64, 0..900u64, 1..300u64, 0..100u64), 1..40),
    ) {
        let mut timeline = timeline();
        let mut charged: BTreeMap<u64, i64> = BTreeMap::new();
        let mut moments = Moments::new();
        let mut longest = 0;
        for (tenant, context, start, length, queued) in bursts {
            let end = (start + length).min(NOW);
            let from = if queued < 50 { start } else { start.saturating_sub(queued) };
            let others = |at: &u64| moments.get(at).is_some_and(|its| its.keys().all(|(other, _)| *other != tenant));
            let waited = (from..start).filter(others).count() as u64;
            longest = waited.max(longest);
            let alone = if from < start { longest } else { 0 };
            for at in start..end {
                moments.entry(at).or_default().entry((tenant, context)).or_insert(at < start + alone);
            }
            let (verdict, deltas, stood) = enter(&mut timeline, burst(tenant, context, start, end), from);
            prop_assert_eq!((verdict, stood), (Verdict::Accepted, waited));
            deltas.into_iter().for_each(|(tenant, ns)| *charged.entry(tenant).or_default() += ns);
            // Conservation, after every single burst.
            prop_assert_eq!(charged.values().sum::<i64>(), moments.len() as i64);
            prop_assert!(charged.values().all(|&ns| ns >= 0));
        }
        // Fairness: rounding moves less than a nanosecond per segment.
        let segments = timeline.segment_count() as i64;
        for (&tenant, &ns) in &charged {
            let thousandths: i64 = moments.values().map(|contexts| {
                let payers = payers(contexts);
                let own = payers.iter().filter(|of| **of == tenant).count() as i64;
                1_000_000 * own / payers.len() as i64
            }).sum();
            prop_assert!((ns - thousandths / 1_000_000).abs() <= segments + 1, "tenant {}: {} {}", tenant, ns, thousandths);
        }
    }

    #[test]
    fn who_pays_does_not_depend_on_the_order_of_reports(
        bursts in prop::collection::vec((0..4u64, 0..3u64, 0..900u64, 1..300u64), 1..40),
    ) {
        let charged = |bursts: &mut dyn Iterator<Item = &(u64, u64, u64, u64)>| {
            let (mut timeline, mut charged) = (timeline(), BTreeMap::<u64, i64>::new());
            for &(tenant, context, start, length) in bursts {
                let deltas = add(&mut timeline, NOW, burst(tenant, context, start, (start + length).min(NOW))).1;
                deltas.into_iter().for_each(|(tenant, ns)| *charged.entry(tenant).or_default() += ns);
            }
            (timeline.segment_count() as i64, charged)
        };
        let (segments, forwards) = charged(&mut bursts.iter());
        let (_, backwards) = charged(&mut bursts.iter().rev());
        for (tenant, ns) in &forwards {
            let other = backwards.get(tenant).copied().unwrap_or(0);
            prop_assert!((ns - other).abs() <= 2 * segments + 2, "tenant {}: {} {}", tenant, ns, other);
        }
    }

    #[test]
    fn a_long_run_stays_small(step in 1_000_000..5_000_000u64, lateness in 0..50_000_000u64) {
        let mut timeline = Timeline::new(Bounds { horizon_ns: 2_000_000_000, ..Bounds::default() });
        let mut total = 0;
        for round in 0..4_000 {
            let end = 100_000_000 + round * step;
            let (_, deltas) = add(&mut timeline, end + lateness, burst(round % 3, 0, end - step, end));
            total += deltas.values().sum::<i64>();
        }
        prop_assert_eq!(total, 4_000 * step as i64);
        prop_assert!(timeline.segment_count() <= 2_200);
    }
}
