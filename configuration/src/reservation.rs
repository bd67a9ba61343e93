//! `[reservation]`: parts of GPUs that are kept free for somebody, always or at set times.

use crate::quantity::{Amount, MemoryAmount, Reader};
use crate::quota::is_name;
use crate::rates::Part;
use crate::windows::{Window, span_after};
use jiff::civil::DateTime;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The most GPUs of one reservation, as of a request.
pub const RESERVATION_GPUS_MAX: u16 = 16;
/// A moment has no more of them: what follows its day is no zone.
const DASHES: usize = 2;
/// The earliest that a reservation keeps what falls free, before its time comes: a week, in seconds.
pub const RESERVATION_AHEAD_SECONDS_MAX: u64 = 7 * 86_400;

/// `[reservation.NAME]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reservation {
    /// Whose containers may have it, by team.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<String>,
    /// Whose containers may have it, by the number of the user who starts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<u32>,
    /// The lowest priority that may have it; absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<LeastPriority>,
    /// On how many GPUs.
    pub gpus: u16,
    /// Which share of each.
    pub fraction: Part,
    /// How much memory of each; absent: the fraction of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAmount>,
    /// On which GPUs, by words of their names; absent: on any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// From when on; absent: since ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Moment>,
    /// Until when; absent: for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// At which times of the week; none: at all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// For how long before such a time nobody else is given it any more, in seconds.
    pub ahead_seconds: u64,
}

/// A priority of requests below which nobody has what is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeastPriority {
    /// That one alone.
    Guaranteed,
    /// Nor scavengers.
    Burst,
}

/// A moment of the host's local time: `"2026-12-01 08:00"`, or a day for its midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Moment {
    /// The same.
    pub local: DateTime,
}

/// Whether it is the time of a reservation, in the host's local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is, until then; without an end for good.
    Open(Option<DateTime>),
    /// It is not, until then; without a begin never again.
    Closed(Option<DateTime>),
}

impl Default for Reservation {
    fn default() -> Self {
        Self {
            teams: Vec::new(),
            users: Vec::new(),
            priority: None,
            gpus: 1,
            fraction: Part { permille: 1000 },
            memory: None,
            model: None,
            from: None,
            until: None,
            windows: Vec::new(),
            ahead_seconds: 0,
        }
    }
}

impl Amount for Moment {
    const FORM: &'static str = "write local time, for example \"2026-12-01 08:00\", or a day for its midnight";

    fn read(text: &str) -> Option<Self> {
        // A zone, which the parser takes and leaves out of account, would be believed to count.
        let is_plain = |byte: u8| byte.is_ascii_digit() || b"-: T".contains(&byte);
        let is_plain = text.bytes().all(is_plain) && text.bytes().filter(|byte| *byte == b'-').count() == DASHES;
        text.parse().ok().filter(|_| is_plain).map(|local| Self { local })
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        let form = if moment.local.second() == 0 { "%F %H:%M" } else { "%F %T" };
        moment.local.strftime(form).to_string()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::default())
    }
}

impl Reservation {
    /// How it stands at `now` of local time.
    #[must_use]
    pub fn phase(&self, now: DateTime) -> Phase {
        let (from, until) = (self.from.map(|its| its.local), self.until.map(|its| its.local));
        if until.is_some_and(|until| until <= now) {
            return Phase::Closed(None);
        }
        let is_before = from.is_some_and(|from| now < from);
        if self.windows.is_empty() {
            return if is_before { Phase::Closed(from) } else { Phase::Open(until) };
        }
        let base = from.filter(|_| is_before).unwrap_or(now);
        let Some((begins, ends)) = span_after(&self.windows, base) else { return Phase::Closed(None) };
        let opens = begins.max(base);
        if until.is_some_and(|until| until <= opens) {
            return Phase::Closed(None);
        }
        if opens > now {
            return Phase::Closed(Some(opens));
        }
        Phase::Open(ends.into_iter().chain(until).min())
    }

    /// The first key that cannot be so, and why.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        if self.teams.is_empty() && self.users.is_empty() && self.priority.is_none() {
            let cause = "is missing, and so nobody could have what is reserved; name teams, users or a priority";
            return Some(("teams", cause.to_owned()));
        }
        if let Some(team) = self.teams.iter().find(|team| !is_name(team)) {
            return Some(("teams", format!("has {team:?}, which no container can name")));
        }
        if !(1..=RESERVATION_GPUS_MAX).contains(&self.gpus) {
            return Some(("gpus", format!("= {} is out of range; write 1 to {RESERVATION_GPUS_MAX}", self.gpus)));
        }
        if self.fraction.permille == 0 && self.memory.is_none() {
            return Some(("fraction", "= 0 reserves nothing without memory; write how much of that".to_owned()));
        }
        if self.model.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return Some(("model", "= \"\" is no name; write a word of one, or leave it out".to_owned()));
        }
        if let (Some(from), Some(until)) = (self.from, self.until)
            && until <= from
        {
            return Some(("until", format!("= \"{until}\" is not after from, \"{from}\"; write a later moment")));
        }
        let ahead = self.ahead_seconds;
        (ahead > RESERVATION_AHEAD_SECONDS_MAX).then(|| {
            let cause = format!("= {ahead} is out of range; write 0 to {RESERVATION_AHEAD_SECONDS_MAX} seconds");
            ("ahead_seconds", cause)
        })
    }

    /// Whether it has no end and no gap.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        self.until.is_none() && self.windows.is_empty()
    }
}

#[cfg(test)]
mod tests;
