//! Tests of GPUs: answers that are known, and memory that keeps what is written.

use crate::{ErrorBody, ErrorCode, GpuUuid};
use serde::{Deserialize, Serialize};
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
    /// `arithmetic`, `products`, `memory`, or `dcgm`; of a newer gpool perhaps another.
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
    /// The longest name and sentence, in bytes.
    pub const TEXT_BYTES: usize = 1000;

    /// One that could not be begun.
    #[must_use]
    pub fn not_run(told: String) -> Self {
        let part = GpuTestPart { name: "test".to_owned(), outcome: GpuTestOutcome::NotRun, told };
        Self { took_ms: 0, parts: vec![part] }
    }

    /// Of the whole: failed if a part has, not run if no part was, else passed.
    #[must_use]
    pub fn outcome(&self) -> GpuTestOutcome {
        let has = |outcome| self.parts.iter().any(|part| part.outcome == outcome);
        match (has(GpuTestOutcome::Failed), has(GpuTestOutcome::Passed)) {
            (true, _) => GpuTestOutcome::Failed,
            (false, true) => GpuTestOutcome::Passed,
            (false, false) => GpuTestOutcome::NotRun,
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
            cut(&mut part.name);
            cut(&mut part.told);
        }
        if self.parts.len() > Self::PARTS {
            self.parts.sort_by_key(|part| part.outcome != GpuTestOutcome::Failed);
            self.parts.truncate(Self::PARTS);
        }
        self
    }

    /// # Errors
    /// More or longer parts than there may be, or none.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let is_long = |part: &GpuTestPart| part.name.len().max(part.told.len()) > Self::TEXT_BYTES;
        let wrong = |message: String| {
            Err(ErrorBody::new(ErrorCode::RequestInvalid, message, "send what gpool-gpu-test prints"))
        };
        match self.parts.len() {
            0 => wrong("parts: a test has one at least".to_owned()),
            count if count > Self::PARTS => wrong(format!("parts: {count} are more than {}", Self::PARTS)),
            _ if self.parts.iter().any(is_long) => {
                wrong(format!("parts: a name or what is told is longer than {} bytes", Self::TEXT_BYTES))
            }
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
    fn one_part_that_failed_is_enough_and_one_that_could_not_run_says_nothing() {
        assert_eq!(report(&[Passed, Failed, NotRun]).outcome(), Failed);
        assert_eq!(report(&[NotRun, Passed]).outcome(), Passed);
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
        assert!(long.check().unwrap_err().message.contains("longer than 1000 bytes"));
        let bounded = long.bounded();
        assert!(bounded.check().is_ok() && bounded.parts[0].told == "é".repeat(500));
        let mut many = vec![Passed; 20];
        many.push(Failed);
        let bounded = report(&many).bounded();
        assert!(bounded.check().is_ok() && bounded.outcome() == Failed, "{bounded:?}");
    }
}
