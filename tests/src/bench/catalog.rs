//! What a figure is: a name, a unit, how rounds become one number, and what is promised of it.

use super::figures::FIGURES;

/// How one figure comes out of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The middle one.
    Median,
    /// The largest one.
    Worst,
    /// The 99th percentile over all rounds together: one round has too few events for it.
    P99,
}

/// What SPECIFICATION.md promises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Promise {
    /// Nothing; the figure is there to be watched.
    Nothing,
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Promise {
    /// The number that is promised.
    pub fn limit(self) -> Option<f64> {
        match self {
            Promise::Nothing => None,
            Promise::AtMost(limit) | Promise::AtLeast(limit) => Some(limit),
        }
    }

    /// Whether `value` keeps it; none when nothing is promised.
    pub fn is_kept(self, value: f64) -> Option<bool> {
        match self {
            Promise::Nothing => None,
            Promise::AtMost(limit) => Some(value <= limit),
            Promise::AtLeast(limit) => Some(value >= limit),
        }
    }
}

/// One figure of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name in the results.
    pub name: &'static str,
    /// What it counts.
    pub unit: &'static str,
    /// How one round's measurements become one figure.
    pub reduce: Reduce,
    /// What is promised.
    pub promise: Promise,
    /// Whether it was measured on the simulated GPU, and so says nothing about a real one.
    pub is_simulated: bool,
    /// What was measured, and what its native control is.
    pub what: &'static str,
}

/// The figure called `name`.
pub fn figure(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (index, listed) in FIGURES.iter().enumerate() {
            assert!(!FIGURES[..index].iter().any(|other| other.name == listed.name), "{}", listed.name);
            assert_eq!(figure(listed.name), Some(listed));
        }
    }

    #[test]
    fn promises_have_a_direction() {
        assert_eq!(Promise::AtMost(1.0).is_kept(1.5), Some(false));
        assert_eq!(Promise::AtLeast(0.95).is_kept(0.97), Some(true));
        assert_eq!(Promise::Nothing.is_kept(7.0), None);
    }
}
