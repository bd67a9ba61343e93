//! Which leases have to go so that somebody who waits has room.

/// Which of `candidates`, those first that stand first, have to go so that somebody fits, where `fits` says whether he does
/// without some of them. None if he does not without all of them either. Nobody is in it who need not go: having found enough,
/// those are spared again without whom it is still enough, the last first (as Kueue does with those that it preempts).
pub fn needed<T: Clone>(candidates: &[T], mut fits: impl FnMut(&[T]) -> bool) -> Option<Vec<T>> {
    // Most often nobody helps, which is known at once.
    if !fits(candidates) {
        return None;
    }
    let enough = (1..=candidates.len()).find(|count| fits(&candidates[..*count]))?;
    let mut chosen = candidates[..enough].to_vec();
    for place in (0..chosen.len()).rev() {
        let mut fewer = chosen.clone();
        fewer.remove(place);
        if !fewer.is_empty() && fits(&fewer) {
            chosen = fewer;
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn those_go_who_stand_first_and_none_too_many() {
        let fits = |wanted: u32| move |gone: &[u32]| gone.iter().sum::<u32>() >= wanted;
        assert_eq!(needed(&[3, 2, 9], fits(3)), Some(vec![3]));
        assert_eq!(needed(&[3, 2, 9], fits(5)), Some(vec![3, 2]));
        assert_eq!(needed(&[3, 2, 9], fits(9)), Some(vec![9]), "whoever need not go is spared");
        assert_eq!(needed(&[3, 2, 9], fits(15)), None);
        assert_eq!(needed(&[], fits(1)), None);
    }

    proptest! {
        #[test]
        fn what_is_needed_is_enough_and_each_of_it_is_needed(
            sizes in prop::collection::vec(1u32..100, 0..12),
            wanted in 1u32..400,
        ) {
            let numbered: Vec<(usize, u32)> = sizes.iter().copied().enumerate().collect();
            let sum = |gone: &[(usize, u32)]| gone.iter().map(|(_, size)| size).sum::<u32>();
            match needed(&numbered, |gone| sum(gone) >= wanted) {
                None => prop_assert!(sum(&numbered) < wanted),
                Some(gone) => {
                    prop_assert!(sum(&gone) >= wanted);
                    for place in 0..gone.len() {
                        let mut fewer = gone.clone();
                        fewer.remove(place);
                        prop_assert!(sum(&fewer) < wanted, "{gone:?} without {place} is enough");
                    }
                }
            }
        }
    }
}
