//! When a host is short of room.

use gpool_policy::overflow::{Crossing, Overflow, Thresholds};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const THRESHOLDS: Thresholds = Thresholds { after_ns: 600 * SECOND, clear_ns: 300 * SECOND };

fn look(overflow: &mut Overflow, waited_s: Option<u64>, now_s: u64) -> Option<Crossing> {
    overflow.look(waited_s.map(|seconds| seconds * SECOND), Some(THRESHOLDS), now_s * SECOND)
}

#[test]
fn it_begins_with_a_long_wait_and_is_over_when_there_was_none_for_a_while() {
    let mut its = Overflow::default();
    assert_eq!(look(&mut its, Some(599), 0), None);
    assert_eq!(look(&mut its, Some(600), 1), Some(Crossing::Began));
    assert_eq!(look(&mut its, Some(601), 2), None, "once");
    assert_eq!(look(&mut its, None, 10), None);
    assert_eq!(look(&mut its, Some(20), 309), None);
    assert_eq!(look(&mut its, Some(700), 309), None, "somebody has waited for long again");
    assert_eq!(look(&mut its, Some(5), 310), None);
    assert_eq!(look(&mut its, None, 609), None);
    assert!(its.is_short());
    assert_eq!(look(&mut its, None, 610), Some(Crossing::Ended));
    assert_eq!((look(&mut its, None, 5000), its.is_short()), (None, false));
}

#[test]
fn it_is_over_when_nobody_watches_any_more_and_goes_on_under_the_next_supervisor() {
    let mut its = Overflow::known(true);
    assert_eq!(look(&mut its, Some(601), 0), None, "that was told by the one before");
    assert_eq!(its.look(Some(u64::MAX), None, 1), Some(Crossing::Ended));
    assert_eq!(its.look(Some(u64::MAX), None, 2), None);
    let mut its = Overflow::known(true);
    // Who waits has to ask again first.
    assert_eq!(look(&mut its, None, 0), None);
    assert_eq!(look(&mut its, None, 299), None);
    assert_eq!(look(&mut its, None, 300), Some(Crossing::Ended));
}

proptest! {
    /// Beginnings and ends take turns, each is told once, and it is short exactly between them.
    #[test]
    fn beginnings_and_ends_take_turns(
        looks in prop::collection::vec((1u64..400, prop::option::of(0u64..1200), prop::bool::weighted(0.95)), 1..200),
    ) {
        let (mut its, mut now_s, mut is_short) = (Overflow::default(), 0, false);
        let mut last_long_s = None;
        for (step_s, waited_s, is_watched) in looks {
            now_s += step_s;
            let thresholds = is_watched.then_some(THRESHOLDS);
            let told = its.look(waited_s.map(|seconds| seconds * SECOND), thresholds, now_s * SECOND);
            let is_long = is_watched && waited_s.is_some_and(|seconds| seconds >= 600);
            match told {
                Some(Crossing::Began) => prop_assert!(!is_short && is_long),
                Some(Crossing::Ended) => {
                    prop_assert!(is_short && !is_long);
                    prop_assert!(!is_watched || last_long_s.is_some_and(|last| now_s - last >= 300));
                }
                None => prop_assert!(!is_long || is_short),
            }
            is_short = told.map_or(is_short, |crossing| crossing == Crossing::Began);
            last_long_s = if is_long { Some(now_s) } else { last_long_s };
            prop_assert_eq!(its.is_short(), is_short);
        }
    }
}
