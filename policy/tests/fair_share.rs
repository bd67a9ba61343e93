//! Owners who have had more than others.

use gpool_policy::fair_share::{EXPECTED_NS, decayed_ns, expected_ns, tags};
use proptest::prelude::*;

const HOUR_NS: u64 = 3600 * 1_000_000_000;

#[test]
fn what_was_had_counts_half_after_each_half_life() {
    let counts = |age_days| decayed_ns([(age_days, 1000 * HOUR_NS)], 7) / HOUR_NS;
    assert_eq!([0, 7, 14, 21].map(counts), [1000, 500, 250, 125]);
    assert!((0..40).all(|age| counts(age + 1) < counts(age) || counts(age) < 20), "it falls each day");
    assert!((counts(3) as i64 - 743).abs() < 45, "about as by the curve: {}", counts(3));
    assert_eq!(decayed_ns([(0, 5), (u64::MAX, u64::MAX)], 1), 5, "what is very old counts nothing");
    assert_eq!(decayed_ns([(0, u64::MAX), (0, u64::MAX)], 1), u64::MAX);
}

#[test]
fn who_runs_is_expected_to_have_an_hour_or_its_run_time() {
    assert_eq!(expected_ns(500, None, 0), EXPECTED_NS / 2);
    assert_eq!(expected_ns(500, None, EXPECTED_NS / 4), EXPECTED_NS / 4, "what it has had is known");
    assert_eq!(expected_ns(500, None, EXPECTED_NS), 0);
    assert_eq!(expected_ns(2000, Some(7200), 0), 4 * HOUR_NS);
    assert_eq!(expected_ns(u64::MAX, Some(u64::MAX), 0), u64::MAX);
}

#[test]
fn each_request_stands_behind_what_those_before_it_will_have() {
    assert_eq!(tags(10, 1, &[3, 4, 5]), [10, 13, 17]);
    assert_eq!(tags(10, 2, &[4, 4]), [5, 7], "by shares");
    assert_eq!(tags(u64::MAX, 1, &[1, 1]), [u64::MAX; 2]);
    assert_eq!(tags(6, 0, &[1]), [6]);
}

proptest! {
    /// One GPU is given to whoever stands first, again and again, and all have always something waiting: what each has for one of its
    /// shares is never further apart than one job of each, and whoever had more before gets nothing until the others have as much.
    #[test]
    fn owners_have_the_same_for_each_share(
        owners in prop::collection::vec((1u32..5, 0u64..50, 1u64..4), 2..6),
        turns in 50usize..300,
    ) {
        let mut had: Vec<u64> = owners.iter().map(|(_, before, _)| before * HOUR_NS).collect();
        let before = had.clone();
        for _ in 0..turns {
            let place = |index: usize| {
                let (shares, _, hours) = owners[index];
                (tags(had[index], shares, &[hours * HOUR_NS; 3])[0], index)
            };
            let first = (0..owners.len()).map(place).min().unwrap().1;
            // Nobody is served who has had more for each share than somebody else.
            let of = |index: usize| had[index] / u64::from(owners[index].0);
            prop_assert!((0..owners.len()).all(|other| of(first) <= of(other)));
            had[first] += owners[first].2 * HOUR_NS;
        }
        let of = |index: usize| had[index] / u64::from(owners[index].0);
        let most_of_a_job = owners.iter().map(|(shares, _, hours)| hours * HOUR_NS / u64::from(*shares)).max().unwrap();
        let served: Vec<usize> = (0..owners.len()).filter(|index| had[*index] > before[*index]).collect();
        for (one, other) in served.iter().flat_map(|one| served.iter().map(move |other| (*one, *other))) {
            prop_assert!(of(one).abs_diff(of(other)) <= most_of_a_job, "{} and {}", of(one), of(other));
        }
    }
}
