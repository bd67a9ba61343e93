//! What a figure is: a name, a unit, how rounds become one number, and what is promised of it.

use super::figures::FIGURES;
use serde_json::{Value, json};

/// How one figure comes out of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The middle one.
    Median,
    /// The largest one.
    Worst,
    /// The 99th percentile over all rounds together: one round has too few events for it.
    P99,
    /// The first named figure over the second, of all rounds and in each: two percentiles that need all rounds.
    Quotient(&'static str, &'static str),
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
    /// Not less than the first and not more than the second.
    Within(f64, f64),
}

impl Promise {
    /// What is promised, for the results: a number, or the least and the most.
    pub fn json(self) -> Value {
        match self {
            Promise::Nothing => Value::Null,
            Promise::AtMost(limit) | Promise::AtLeast(limit) => json!(limit),
            Promise::Within(low, high) => json!([low, high]),
        }
    }

    /// Whether `value` keeps it; none when nothing is promised.
    pub fn is_kept(self, value: f64) -> Option<bool> {
        match self {
            Promise::Nothing => None,
            Promise::AtMost(limit) => Some(value <= limit),
            Promise::AtLeast(limit) => Some(value >= limit),
            Promise::Within(low, high) => Some((low..=high).contains(&value)),
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
        let within = Promise::Within(0.95, 1.05);
        assert_eq!(
            [0.94, 0.95, 1.05, 1.06].map(|value| within.is_kept(value) == Some(true)),
            [false, true, true, false]
        );
        assert_eq!((within.json(), Promise::AtMost(1.0).json()), (json!([0.95, 1.05]), json!(1.0)));
    }

    #[test]
    fn quotients_are_of_figures_that_are_measured() {
        for listed in FIGURES {
            if let Reduce::Quotient(over, under) = listed.reduce {
                let is_measured = |name| figure(name).is_some_and(|part| !matches!(part.reduce, Reduce::Quotient(..)));
                assert!(is_measured(over) && is_measured(under), "{}", listed.name);
            }
        }
    }
}
