//! Tests of GPUs: answers that are known, and memory that keeps what is written.

use crate::{ErrorBody, ErrorCode, GpuUuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// How a test has ended, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuTestOutcome {
    /// Everything was as it should be.
    Passed,
    /// The GPU did something wrong.
    Failed,
    /// It could not be tried, which says nothing of the GPU.
    NotRun,
}

impl fmt::Display for GpuTestOutcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not-run",
        })
    }
}

/// A part of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTestPart {
    /// `driver`, `arithmetic`, `products`, `memory`, or `dcgm`; of a newer gpool perhaps another. Letters, digits and hyphens.
    pub name: String,
    /// How it ended.
    pub outcome: GpuTestOutcome,
    /// What was found, as a sentence without its end.
    pub told: String,
}

/// What a test has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTestReport {
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Its parts, in the order in which they were tried.
    pub parts: Vec<GpuTestPart>,
}

impl GpuTestReport {
    /// The most parts that it may have.
    pub const PARTS: usize = 16;
    /// The longest sentence, in bytes.
    pub const TEXT_BYTES: usize = 1000;
    /// The longest name, in bytes.
    pub const NAME_BYTES: usize = 32;
    /// The longest that one may take, in milliseconds: a day.
    pub const TOOK_MS: u64 = 86_400_000;

    /// Of the whole: failed if a part has, passed if all have, else not run: one that was broken off has not passed.
    #[must_use]
    pub fn outcome(&self) -> GpuTestOutcome {
        let is = |outcome| move |part: &GpuTestPart| part.outcome == outcome;
        if self.parts.iter().any(is(GpuTestOutcome::Failed)) {
            GpuTestOutcome::Failed
        } else if !self.parts.is_empty() && self.parts.iter().all(is(GpuTestOutcome::Passed)) {
            GpuTestOutcome::Passed
        } else {
            GpuTestOutcome::NotRun
        }
    }

    /// What was found by the parts that ended like the whole.
    #[must_use]
    pub fn told(&self) -> String {
        let outcome = self.outcome();
        let parts = self.parts.iter().filter(|part| part.outcome == outcome);
        parts.map(|part| format!("{}: {}", part.name, part.told)).collect::<Vec<_>>().join("; ")
    }

    /// The same within the bounds of [`GpuTestReport::check`]: texts are cut short, and of too many parts those that failed stay.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let cut = |text: &mut String| {
            let end = (0..=Self::TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
        };
        for part in &mut self.parts {
            cut(&mut part.told);
            part.told = part.told.replace(char::is_control, " ");
        }
        self.took_ms = self.took_ms.min(Self::TOOK_MS);
        if self.parts.len() > Self::PARTS {
            self.parts.sort_by_key(|part| part.outcome != GpuTestOutcome::Failed);
            self.parts.truncate(Self::PARTS);
        }
        self
    }

    /// # Errors
    /// More or longer parts than there may be, or none; names that cannot be, or are there twice.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let is_wrong = |part: &GpuTestPart| part.told.len() > Self::TEXT_BYTES || part.told.contains(char::is_control);
        let is_of_a_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        let is_name = |name: &str| (1..=Self::NAME_BYTES).contains(&name.len()) && name.chars().all(is_of_a_name);
        let names: BTreeSet<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        let wrong = |message: String| {
            Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                message,
                "send took_ms, and as parts the lines that gpool-gpu-test prints",
            ))
        };
        match self.parts.len() {
            0 => wrong("parts: a test has one at least".to_owned()),
            count if count > Self::PARTS => wrong(format!("parts: {count} are more than {}", Self::PARTS)),
            count if count != names.len() || !names.into_iter().all(is_name) => {
                wrong("parts: each has a name of its own, of lower-case letters, digits and hyphens".to_owned())
            }
            _ if self.parts.iter().any(is_wrong) => {
                wrong(format!("parts: what is told is no line of {} bytes at most", Self::TEXT_BYTES))
            }
            _ if self.took_ms > Self::TOOK_MS => wrong(format!("took_ms: {} is more than a day", self.took_ms)),
            _ => Ok(()),
        }
    }
}

/// A test of a GPU that has passed or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTest {
    /// When it ended, Unix time in milliseconds.
    pub ended_unix_ms: u64,
    /// Who had it made.
    pub uid: u32,
    /// How it ended.
    pub outcome: GpuTestOutcome,
    /// What it found.
    pub report: GpuTestReport,
}

/// How a GPU stands with tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTestView {
    /// Its stable identity.
    pub uuid: GpuUuid,
    /// NVML's index now.
    pub index: u32,
    /// The last one that passed or failed; none if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<GpuTest>,
    /// How many have failed since all that failed has passed.
    pub failures: u64,
    /// Parts that have failed and not passed since, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// One is under way.
    pub under_way: bool,
    /// Why none may be begun, and one that is under way has to end: as the end of a sentence. None if nothing is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_the_way: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use GpuTestOutcome::{Failed, NotRun, Passed};

    fn report(outcomes: &[GpuTestOutcome]) -> GpuTestReport {
        let part = |(number, outcome): (usize, &GpuTestOutcome)| GpuTestPart {
            name: format!("part{number}"),
            outcome: *outcome,
            told: "so it was".into(),
        };
        GpuTestReport { took_ms: 1, parts: outcomes.iter().enumerate().map(part).collect() }
    }

    #[test]
    fn one_part_that_failed_is_enough_and_one_that_could_not_run_is_no_test() {
        assert_eq!(report(&[Passed, Failed, NotRun]).outcome(), Failed);
        assert_eq!((report(&[Passed, Passed]).outcome(), report(&[NotRun, Passed]).outcome()), (Passed, NotRun));
        assert_eq!((report(&[NotRun]).outcome(), report(&[]).outcome()), (NotRun, NotRun));
        assert_eq!(report(&[Passed, Failed, NotRun]).told(), "part1: so it was");
        assert_eq!(serde_json::to_string(&NotRun).unwrap(), "\"not-run\"");
    }

    #[test]
    fn a_report_has_bounds() {
        assert!(report(&[Passed]).check().is_ok());
        assert!(report(&[]).check().is_err() && report(&[Passed; 17]).check().is_err());
        let mut long = report(&[Passed]);
        long.parts[0].told = "é".repeat(501);
        assert!(long.check().unwrap_err().message.contains("no line of 1000 bytes"));
        let bounded = long.bounded();
        assert!(bounded.check().is_ok() && bounded.parts[0].told == "é".repeat(500));
        for name in ["", "Memory", "a b", "part0\n"] {
            let mut odd = report(&[Passed]);
            odd.parts[0].name = name.into();
            assert!(odd.check().is_err(), "{name:?}");
        }
        let mut twice = report(&[Failed, Passed]);
        twice.parts[1].name = twice.parts[0].name.clone();
        assert!(twice.check().is_err());
        assert!(GpuTestReport { took_ms: u64::MAX, ..report(&[Passed]) }.check().is_err());
        let mut many = vec![Passed; 20];
        many.push(Failed);
        let bounded = report(&many).bounded();
        assert!(bounded.check().is_ok() && bounded.outcome() == Failed, "{bounded:?}");
    }
}
