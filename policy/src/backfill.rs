//! Room that is kept for one that waits, lent to those who have left it when that one can begin.
//!
//! Of whom it is known when they end there is a moment at which who waits first can begin at the latest. Who ends by then is in its
//! way at no time, though nobody behind it is given what it needs otherwise. That is EASY backfill (Lifka 1995, "The ANL/IBM SP
//! scheduling system"; Mu'alem and Feitelson 2001): the first in the queue alone has such a moment, and it never moves back as long
//! as ends are kept to and nobody is served before it who has no end or a later one. One that would have begun earlier, because others
//! end before their time or without having named one, may have to wait until then.

/// When one that waits can begin at the latest, and where: the first of the `ends`, in ascending order, at which it `fits`. Whoever
/// has ended by one of them has by all later ones, so that it fits at those as well. None if it fits at none.
pub fn first_begin<P>(ends: &[u64], mut fits: impl FnMut(u64) -> Option<P>) -> Option<(u64, P)> {
    let (mut below, last) = (0, ends.len().checked_sub(1)?);
    let mut best = (last, fits(ends[last])?);
    while below < best.0 {
        let middle = below + (best.0 - below) / 2;
        match fits(ends[middle]) {
            Some(place) => best = (middle, place),
            None => below = middle + 1,
        }
    }
    Some((ends[best.0], best.1))
}

/// Whether one that ends then has left what is kept for another one before that one begins. Who has no end leaves it at no time that
/// could be counted on.
#[must_use]
pub fn leaves_in_time(ends_ns: Option<u64>, begins_ns: Option<u64>) -> bool {
    ends_ns.zip(begins_ns).is_some_and(|(ends, begins)| ends <= begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_ends_by_then_leaves_in_time() {
        assert!(leaves_in_time(Some(5), Some(5)) && leaves_in_time(Some(4), Some(5)));
        assert!(!leaves_in_time(Some(6), Some(5)) && !leaves_in_time(None, Some(5)) && !leaves_in_time(Some(5), None));
    }

    proptest! {
        #[test]
        fn it_is_the_first_at_which_it_fits(steps in prop::collection::vec(1u64..9, 0..40), from in 0u64..300) {
            let ends: Vec<u64> = steps.iter().scan(0, |sum, step| { *sum += step; Some(*sum) }).collect();
            let mut looks = 0;
            let found = first_begin(&ends, |at| { looks += 1; (at >= from).then_some(at) });
            let want = ends.iter().copied().find(|at| *at >= from).map(|at| (at, at));
            prop_assert_eq!(found, want);
            prop_assert!(looks <= 7, "{} looks at {}", looks, ends.len());
        }
    }
}
