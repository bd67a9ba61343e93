//! Faults that last: each is told when it begins and when it becomes another one, and not at each try.

use std::collections::BTreeMap;
use std::fmt::Display;

/// What is wrong with each of some things that are tried again and again.
#[derive(Debug)]
pub struct Faults<K>(BTreeMap<K, String>);

impl<K> Default for Faults<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Faults<K> {
    /// Says a line of the log if this was tried with another outcome than before, and not a good one.
    pub fn note<T, E: Display>(&mut self, of: K, outcome: &Result<T, E>) {
        if let Some(fault) = self.news(of, outcome) {
            log!("{fault}");
        }
    }

    /// Forgets all but these.
    pub fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.0.retain(|of, _| is_there(of));
    }

    fn news<T, E: Display>(&mut self, of: K, outcome: &Result<T, E>) -> Option<String> {
        let Err(fault) = outcome.as_ref().map_err(E::to_string) else {
            self.0.remove(&of);
            return None;
        };
        (self.0.insert(of, fault.clone()).as_ref() != Some(&fault)).then_some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_told_once_for_as_long_as_it_lasts() {
        let mut faults = Faults::default();
        let (full, gone) = (Err::<(), &str>("no space is left"), Err("it is gone"));
        let mut tries = |of: u32, outcomes: &[Result<(), &str>]| {
            outcomes.iter().map(|outcome| faults.news(of, outcome).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(tries(1, &[full, full, gone, gone, full]), [true, false, true, false, true]);
        assert_eq!(tries(2, &[full, full]), [true, false], "of another one");
        assert_eq!(tries(1, &[full, Ok(()), Ok(()), full]), [false, false, false, true], "it has begun again");
        faults.retain(|of| *of == 2);
        assert_eq!([1, 2].map(|of| faults.news(of, &full).is_some()), [true, false]);
    }
}
