//! What has been measured so far, round by round, and the files and the table that come of it.

use super::catalog::{Figure, Reduce, figure as named};
use super::figures::{FIGURES, MACHINE};
use crate::failure::{Context, Failure, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Measurements of one figure in one round, with those of its native control.
#[derive(Debug, Clone, Default)]
struct Round {
    own: Vec<f64>,
    native: Vec<f64>,
}

/// All rounds of all figures.
#[derive(Debug, Default)]
pub struct Sheet(BTreeMap<&'static str, Vec<Round>>);

/// A figure with its rounds, reduced.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it is.
    pub figure: &'static Figure,
    /// The median of the rounds, or the percentile over all of them.
    pub value: f64,
    /// The same of the native control.
    pub native: Option<f64>,
    /// Each round's figure.
    pub rounds: Vec<f64>,
    /// Each round's native figure.
    pub native_rounds: Vec<f64>,
    /// Measurements in all rounds together.
    pub events: usize,
}

impl Sheet {
    /// Adds one round's measurements of a figure, and of its native control if it has one.
    ///
    /// # Errors
    /// When nothing was measured.
    pub fn add(&mut self, name: &str, own: &[f64], native: &[f64]) -> Result<()> {
        let known = named(name).ok_or_else(|| Failure::new(format!("no figure is called {name}")))?;
        if matches!(known.reduce, Reduce::Quotient(..)) {
            return Err(Failure::new(format!("{name} follows from others and is not measured by itself")));
        }
        if own.is_empty() || own.iter().chain(native).any(|measured| !measured.is_finite()) {
            return Err(Failure::new(format!("{name} could not be measured: {own:?}, native {native:?}")));
        }
        self.0.entry(known.name).or_default().push(Round { own: own.to_vec(), native: native.to_vec() });
        Ok(())
    }

    /// What was measured, in the order of the catalog.
    pub fn lines(&self) -> Vec<Line> {
        FIGURES.iter().filter_map(|figure| self.line(figure)).collect()
    }

    fn line(&self, figure: &'static Figure) -> Option<Line> {
        match figure.reduce {
            Reduce::Quotient(over, under) => {
                Some(quotient(figure, &self.line(named(over)?)?, &self.line(named(under)?)?))
            }
            Reduce::Median | Reduce::Worst | Reduce::P99 => Some(line(figure, self.0.get(figure.name)?)),
        }
    }

    /// Figures that should have been measured in each of `rounds` and were not.
    pub fn missing(&self, rounds: usize) -> Vec<&'static str> {
        let measured = |name: &str| self.0.get(name).map_or(0, Vec::len);
        let of_round = |figure: &Figure| match figure.reduce {
            Reduce::Quotient(over, under) => measured(over).min(measured(under)),
            Reduce::Median | Reduce::Worst | Reduce::P99 => measured(figure.name),
        };
        let figures = FIGURES.iter().filter(|figure| figure.name != MACHINE);
        figures.filter(|figure| of_round(figure) < rounds).map(|figure| figure.name).collect()
    }

    /// The results as JSON.
    pub fn json(&self) -> Value {
        let entry = |line: Line| (line.figure.name.to_owned(), entry(&line));
        Value::Object(self.lines().into_iter().map(entry).collect::<Map<_, _>>())
    }

    /// Writes the results to `path`, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).context(directory.display())?;
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, format!("{:#}\n", self.json())).context(unfinished.display())?;
        fs::rename(&unfinished, path).context(path.display())
    }
}

/// One side of a round: the figure's own measurements or the native ones.
type Pick = fn(&Round) -> &Vec<f64>;

fn line(figure: &'static Figure, rounds: &[Round]) -> Line {
    let each = |pick: Pick| -> Vec<f64> {
        rounds.iter().map(pick).filter(|measured| !measured.is_empty()).map(|m| reduced(figure.reduce, m)).collect()
    };
    let all = |pick: Pick| -> Vec<f64> { rounds.iter().flat_map(pick).copied().collect() };
    let over_rounds = |each: &[f64], all: &[f64]| match figure.reduce {
        Reduce::P99 => reduced(Reduce::P99, all),
        Reduce::Median | Reduce::Worst | Reduce::Quotient(..) => reduced(Reduce::Median, each),
    };
    let (own, native): (Pick, Pick) = (|round| &round.own, |round| &round.native);
    let (rounds, native_rounds) = (each(own), each(native));
    Line {
        figure,
        value: over_rounds(&rounds, &all(own)),
        native: (!native_rounds.is_empty()).then(|| over_rounds(&native_rounds, &all(native))),
        events: all(own).len(),
        rounds,
        native_rounds,
    }
}

/// One line over another. Events are those of the line that has fewer.
fn quotient(figure: &'static Figure, over: &Line, under: &Line) -> Line {
    let by_round = |over: &[f64], under: &[f64]| over.iter().zip(under).map(|(over, under)| over / under).collect();
    Line {
        figure,
        value: over.value / under.value,
        native: over.native.zip(under.native).map(|(over, under)| over / under),
        rounds: by_round(&over.rounds, &under.rounds),
        native_rounds: by_round(&over.native_rounds, &under.native_rounds),
        events: over.events.min(under.events),
    }
}

/// One number for many, of which there is at least one. Percentiles are by nearest rank, so that each one was measured.
fn reduced(reduce: Reduce, measured: &[f64]) -> f64 {
    let mut sorted = measured.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match reduce {
        Reduce::Median | Reduce::Quotient(..) if sorted.len().is_multiple_of(2) => {
            sorted[middle - 1].midpoint(sorted[middle])
        }
        Reduce::Median | Reduce::Quotient(..) => sorted[middle],
        Reduce::Worst => sorted[sorted.len() - 1],
        Reduce::P99 => sorted[(sorted.len() * 99).div_ceil(100) - 1],
    }
}

/// The middle one of measurements of which there is at least one.
pub fn median(measured: &[f64]) -> f64 {
    reduced(Reduce::Median, measured)
}

fn entry(line: &Line) -> Value {
    let rounded = |values: &[f64]| values.iter().copied().map(rounded).collect::<Vec<_>>();
    json!({
        "value": self::rounded(line.value),
        "unit": line.figure.unit,
        "native": line.native.map(self::rounded),
        "promise": line.figure.promise.json(),
        "kept": line.figure.promise.is_kept(line.value),
        "rounds": rounded(&line.rounds),
        "native_rounds": rounded(&line.native_rounds),
        "events": line.events,
        "simulated": line.figure.is_simulated,
        "what": line.figure.what,
    })
}

/// To six digits behind the point: what lies beyond is noise.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_rounds_and_percentiles_of_all_events() {
        let mut sheet = Sheet::default();
        for round in 0..3 {
            sheet.add("share.error_10s", &[f64::from(round)], &[27.0]).unwrap();
            let events: Vec<f64> = (0..100).map(|n| f64::from(n + 100 * round)).collect();
            sheet.add("reclaim.p99", &events, &[]).unwrap();
        }
        let lines = sheet.lines();
        let of = |name: &str| lines.iter().find(|line| line.figure.name == name).unwrap();
        assert_eq!((of("share.error_10s").value, of("share.error_10s").native), (1.0, Some(27.0)));
        assert_eq!((of("reclaim.p99").value, of("reclaim.p99").events), (296.0, 300));
        assert_eq!(of("reclaim.p99").rounds, [98.0, 198.0, 298.0]);
        assert_eq!(sheet.json()["share.error_10s"]["kept"], true);
        assert!(sheet.missing(3).contains(&"decide.16") && !sheet.missing(3).contains(&"reclaim.p99"));
    }

    #[test]
    fn a_quotient_is_of_the_percentiles_over_all_rounds() {
        let mut sheet = Sheet::default();
        let line =
            |sheet: &Sheet| sheet.lines().into_iter().find(|line| line.figure.name == "latency.p99_beside_batch");
        for round in 0..3 {
            sheet.add("latency.p99_beside", &[f64::from(round) + 6.0; 100], &[30.0]).unwrap();
            assert!(round > 0 || line(&sheet).is_none(), "one of two is no quotient");
            sheet.add("latency.p99_alone", &[4.0; 110], &[3.0]).unwrap();
        }
        let line = line(&sheet).unwrap();
        assert_eq!((line.value, line.native, line.events), (2.0, Some(10.0), 300));
        assert_eq!((line.rounds, line.native_rounds), (vec![1.5, 1.75, 2.0], vec![10.0; 3]));
        assert!(!sheet.missing(3).contains(&"latency.p99_beside_batch"));
        assert!(sheet.missing(4).contains(&"latency.p99_beside_batch"));
    }

    #[test]
    fn a_quotient_is_not_measured_by_itself() {
        assert!(Sheet::default().add("latency.p99_beside_batch", &[1.0], &[]).is_err());
    }

    #[test]
    fn what_is_no_number_is_not_measured() {
        let mut sheet = Sheet::default();
        assert!(sheet.add("gpu.busy", &[], &[]).is_err());
        assert!(sheet.add("gpu.busy", &[f64::NAN], &[]).is_err());
        assert!(sheet.add("gpu.speed", &[1.0], &[]).is_err());
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (2.0, 2.5));
    }
}
