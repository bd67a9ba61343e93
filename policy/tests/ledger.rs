//! The ledger's sums tie out.

use gpool_policy::ledger::{Entry, Held, Slot, settle, slots, spread, spread_entry};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn held(reserved_ns: u64, used_ns: u64) -> Held {
    Held { reserved_ns, used_ns }
}

#[test]
fn what_nobody_was_promised_goes_first_and_the_rest_is_lent_by_who_left_it() {
    // 30, 20 and 10 % of ten seconds. The first works for six, the second for one, the third not at all: of the three seconds
    // beyond its share the first has four to take that are promised to nobody.
    let entries = settle(10 * S, &[held(3 * S, 6 * S), held(2 * S, S), held(S, 0)]);
    assert_eq!(entries[0], Entry { within_ns: 3 * S, burst_ns: 3 * S, lent_ns: 0, idle_ns: 0 });
    assert_eq!(entries[1], Entry { within_ns: S, burst_ns: 0, lent_ns: 0, idle_ns: S });
    // All is promised: of the four that the first has beyond its six the others lend each half of what they left.
    let entries = settle(10 * S, &[held(6 * S, 8 * S), held(3 * S, 0), held(S, 0)]);
    assert_eq!(entries[0].burst_ns, 2 * S);
    assert_eq!((entries[1].lent_ns, entries[1].idle_ns), (3 * S / 2, 3 * S / 2));
    assert_eq!((entries[2].lent_ns, entries[2].idle_ns), (S / 2, S / 2));
}

#[test]
fn work_that_ends_late_is_more_than_there_was_time() {
    let entries = settle(S, &[held(S / 2, 3 * S), held(S / 2, S / 4)]);
    assert_eq!(entries[0].used_ns(), 3 * S);
    assert_eq!(entries[1], Entry { within_ns: S / 4, burst_ns: 0, lent_ns: S / 4, idle_ns: 0 }, "no more than it left");
}

#[test]
fn a_span_is_entered_where_it_lies() {
    let minute = 60_000;
    assert_eq!(slots(61_000, 71_000, minute), [(Slot(60), 0, 10_000)]);
    assert_eq!(slots(115_000, 125_000, minute), [(Slot(60), 0, 5000), (Slot(120), 5000, 10_000)]);
    assert_eq!(slots(60_000, 120_000, minute), [(Slot(60), 0, 60_000)], "the next one begins where it ends");
    assert_eq!(slots(70_000, 70_000, minute), [(Slot(60), 0, 0)]);
    assert_eq!(slots(70_000, 10_000, minute), [(Slot(60), 0, 0)], "a clock that was set back");
    assert_eq!(spread(7, &slots(70_000, 70_000, minute)), [(Slot(60), 7)]);
    assert_eq!(spread(9, &slots(110_000, 130_000, minute)), [(Slot(60), 4), (Slot(120), 5)]);
}

proptest! {
    #[test]
    fn nothing_is_counted_twice_and_nothing_is_lost(
        wall_ns in 0..100 * S,
        shares in prop::collection::vec((0..20 * S, 0..30 * S), 0..20),
    ) {
        let held: Vec<Held> = shares.iter().map(|(reserved, used)| held(*reserved, *used)).collect();
        let entries = settle(wall_ns, &held);
        prop_assert_eq!(entries.len(), held.len());
        for (entry, its) in entries.iter().zip(&held) {
            prop_assert_eq!((entry.reserved_ns(), entry.used_ns()), (its.reserved_ns, its.used_ns));
            prop_assert!(entry.burst_ns == 0 || entry.lent_ns + entry.idle_ns == 0, "who leaves some takes none");
        }
        let sum = |part: fn(&Entry) -> u64| entries.iter().map(part).sum::<u64>();
        let (reserved_ns, burst_ns, lent_ns) = (sum(Entry::reserved_ns), sum(|its| its.burst_ns), sum(|its| its.lent_ns));
        prop_assert!(lent_ns <= burst_ns);
        // Where there was time for it all, what was had beyond shares is what was promised to nobody and what was lent.
        if reserved_ns <= wall_ns && sum(Entry::used_ns) <= wall_ns {
            prop_assert_eq!(lent_ns, burst_ns.saturating_sub(wall_ns - reserved_ns));
        }
    }

    #[test]
    fn what_is_spread_is_all_of_it(
        (from_ms, length_ms) in (0..10_000_000u64, 0..10_000_000u64),
        parts in (0..S, 0..S, 0..S, 0..S),
    ) {
        let all = slots(from_ms, from_ms + length_ms, 60_000);
        prop_assert!(all.windows(2).all(|two| two[0].2 == two[1].1 && two[0].0.0 + 60 == two[1].0.0));
        prop_assert_eq!((all[0].1, all[all.len() - 1].2), (0, length_ms));
        prop_assert_eq!(spread(parts.0, &all).iter().map(|(_, its)| its).sum::<u64>(), parts.0);
        let entry = Entry { within_ns: parts.0, burst_ns: parts.1, lent_ns: parts.2, idle_ns: parts.3 };
        let spread = spread_entry(entry, &all);
        let sum = |part: fn(&Entry) -> u64| spread.iter().map(|(_, its)| part(its)).sum::<u64>();
        prop_assert_eq!((sum(Entry::used_ns), sum(Entry::reserved_ns)), (entry.used_ns(), entry.reserved_ns()));
    }
}
