//! The key `deadline`: by when it has to be through.

use crate::class::Priority;
use crate::error::{ErrorBody, ErrorCode};
use crate::mechanism::Mode;
use crate::quantity::{LONGEST_SECONDS, format_seconds, parse_time};
use crate::request::{Request, RequestError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// By when a container or a command has to be through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deadline {
    /// In so many seconds from when it came first.
    #[serde(rename = "within_seconds")]
    Within(u64),
    /// At a moment, in seconds since 1970.
    #[serde(rename = "unix_seconds")]
    At(u64),
}

impl Deadline {
    /// Reads `6h`, or `2026-12-01T08:00:00Z` and what else RFC 3339 has, with `Z` or an offset.
    ///
    /// # Errors
    /// It is neither, or none that could be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || {
            "a deadline is a time from now on with its unit, for example 6h, or a moment with its offset from UTC, for example \
             2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00"
                .to_owned()
        };
        if let Ok(seconds) = parse_time(text) {
            return (seconds > 0).then_some(Self::Within(seconds)).ok_or_else(wrong);
        }
        let moment: Timestamp = text.parse().map_err(|_| wrong())?;
        u64::try_from(moment.as_second()).map(Self::At).map_err(|_| wrong())
    }

    /// How many seconds are left until then, for one that came `waited_seconds` ago; 0 when it is over.
    #[must_use]
    pub fn left_seconds(self, waited_seconds: u64, now_unix_s: u64) -> u64 {
        match self {
            Self::Within(seconds) => seconds.saturating_sub(waited_seconds),
            Self::At(unix_s) => unix_s.saturating_sub(now_unix_s),
        }
    }

    /// As people read it: `6h`, or `2026-12-01T08:00:00Z`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Within(seconds) => format_seconds(seconds),
            Self::At(unix_s) => {
                let moment = i64::try_from(unix_s).ok().and_then(|second| Timestamp::from_second(second).ok());
                moment.map_or_else(|| format!("{unix_s} s after 1970"), |moment| moment.to_string())
            }
        }
    }
}

impl Request {
    /// It can be planned for only with a run time, a promise, and what is shared by slices or nobody else's.
    pub(super) fn check_deadline(&self) -> Result<(), RequestError> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let wrong = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
        let Some(run_seconds) = self.run_seconds else {
            return wrong(
                "deadline given, but no run-time: nobody knows when it would have to begin".to_owned(),
                "add run-time, for how long it needs its GPUs at most, for example 2h",
            );
        };
        let key = match self {
            _ if self.priority != Priority::Guaranteed => format!("priority={}", self.priority),
            _ if !matches!(self.mode, Mode::Auto | Mode::Slice | Mode::Exclusive) => {
                format!("mode={}", self.mode.text())
            }
            _ if self.mig_profile.is_some() => "mig-profile".to_owned(),
            _ if self.spill_bytes.is_some() => "spill".to_owned(),
            _ => String::new(),
        };
        if !key.is_empty() {
            return wrong(
                format!("deadline does not go with {key}, for which no room can be planned"),
                "leave one of them out; a deadline is for priority=guaranteed with mode=slice or mode=exclusive",
            );
        }
        match deadline {
            Deadline::Within(seconds) if seconds < run_seconds => wrong(
                format!(
                    "deadline={} is shorter than run-time={}",
                    format_seconds(seconds),
                    format_seconds(run_seconds)
                ),
                "give a later deadline, or a shorter run time",
            ),
            Deadline::Within(seconds) if seconds > LONGEST_SECONDS => {
                wrong("deadline is further away than a year".to_owned(), "give 365d or less")
            }
            Deadline::Within(_) | Deadline::At(_) => Ok(()),
        }
    }

    /// The same, waiting until its deadline could be kept to no more, for `longest_seconds` at most, where it has one and says nothing else.
    #[must_use]
    pub fn waiting_for_its_deadline(self, now_unix_s: u64, longest_seconds: u64) -> Self {
        let latest = |deadline: Deadline| {
            let left = deadline.left_seconds(0, now_unix_s).saturating_sub(self.run_seconds.unwrap_or(0));
            Some(left.min(longest_seconds)).filter(|seconds| *seconds > 0)
        };
        let wait_seconds = self.wait_seconds.or_else(|| self.deadline.and_then(latest));
        Self { wait_seconds, ..self }
    }
}
