//! What the ledger is asked for.

use super::balance::MINUTE_S;
use super::retention::DAY_S;
use gpool_protocol::{ErrorBody, ErrorCode, UsageBy};
use jiff::Timestamp;

/// The end of what SQLite can count, in seconds of the year 9999.
const LAST_S: u64 = 253_402_300_799;
/// For which part of the time GPUs have to be enough, if nothing else is said.
const PERCENT: u8 = 95;
/// What leases have, and others have not, as it stands in a list.
const OF_LEASES: &str = " team, project, cost-center, container,";

/// Of which time, leases and GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// Of this team alone; of those without one if it is empty.
    pub team: Option<String>,
    /// For this project alone, likewise.
    pub project: Option<String>,
    /// On this cost center's bill alone, likewise.
    pub cost_center: Option<String>,
    /// Of containers that this user started.
    pub uid: Option<u32>,
    /// On GPUs and MIG instances whose UUIDs begin so.
    pub gpu: Option<String>,
    /// Of containers whose ids begin so, or the lease of that id.
    pub container: Option<String>,
}

impl Scope {
    /// From when until when, for SQLite.
    pub fn span(&self) -> [i64; 2] {
        [self.since_unix_s, self.until_unix_s].map(u64::cast_signed)
    }

    /// Whether it is about some leases only, beside which the rest is not what nobody had.
    pub fn is_of_some(&self) -> bool {
        let named = [&self.team, &self.project, &self.cost_center, &self.container];
        named.into_iter().any(Option::is_some) || self.uid.is_some()
    }
}

/// Sums of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// By what they are kept apart.
    pub by: UsageBy,
    /// From when on leases were counted by who asks for one part of a time after another, Unix seconds, where a minute begins.
    pub counted_since_unix_s: Option<u64>,
    /// Of what.
    pub scope: Scope,
}

impl Question {
    /// Reads `name=value` pairs, as they stand behind the question mark of a path; by team and over the last day if they say
    /// nothing else.
    ///
    /// # Errors
    /// Names the parameter and what it may be.
    pub fn read(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        let (mut by, mut counted_since_unix_s) = (UsageBy::Team, None);
        let words = Words { by: &UsageBy::ALL, leases: OF_LEASES, others: ", and by, and counted_since" };
        let scope = Scope::read_with(query, now_unix_s, words, |name, value| match name {
            "by" => UsageBy::of(value).map(|word| by = word),
            "counted_since" => seconds(value).map(|unix_s| counted_since_unix_s = Some(minute(unix_s))),
            _ => None,
        })?;
        Ok(Self { by, counted_since_unix_s, scope })
    }
}

/// What would have been enough of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnoughQuestion {
    /// Who has a row.
    pub by: UsageBy,
    /// For which part of the time it has to be enough.
    pub percent: u8,
    /// Of what.
    pub scope: Scope,
}

impl EnoughQuestion {
    /// How many GPUs would have been enough: reads pairs as [`Question::read`] does, by who would have GPUs of his own.
    ///
    /// # Errors
    /// Names the parameter and what it may be.
    pub fn of_gpus(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        Self::read(query, now_unix_s, &UsageBy::OWNERS, UsageBy::Team)
    }

    /// Which requests would have been enough: likewise, by container or by whose they are.
    ///
    /// # Errors
    /// As [`EnoughQuestion::of_gpus`].
    pub fn of_requests(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        Self::read(query, now_unix_s, &UsageBy::SIZED, UsageBy::Container)
    }

    fn read(query: &str, now_unix_s: u64, rows: &'static [UsageBy], usual: UsageBy) -> Result<Self, ErrorBody> {
        let (mut by, mut percent) = (usual, PERCENT);
        let words = Words { by: rows, leases: OF_LEASES, others: ", and by, and percent" };
        let scope = Scope::read_with(query, now_unix_s, words, |name, value| match name {
            "by" => UsageBy::of(value).filter(|word| rows.contains(word)).map(|word| by = word),
            "percent" => percent_of(value).map(|its| percent = its),
            _ => None,
        })?;
        Ok(Self { by, percent, scope })
    }
}

/// What those used who have no lease, and what would have been enough for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineQuestion {
    /// For which part of the time in which each worked it has to be enough.
    pub percent: u8,
    /// Of what: of teams, projects and cost centers nothing is known.
    pub scope: Scope,
}

impl BaselineQuestion {
    /// Reads pairs as [`Question::read`] does.
    ///
    /// # Errors
    /// Names the parameter and what it may be.
    pub fn read(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        let mut percent = PERCENT;
        let words = Words { by: &[], leases: "", others: ", and percent" };
        let scope = Scope::read_with(query, now_unix_s, words, |name, value| match name {
            "percent" => percent_of(value).map(|its| percent = its),
            _ => None,
        })?;
        Ok(Self { percent, scope })
    }
}

fn percent_of(value: &str) -> Option<u8> {
    value.parse().ok().filter(|percent| (1..=100).contains(percent))
}

/// What a question may be asked with besides, for who asks it with something else.
#[derive(Debug, Clone, Copy)]
struct Words {
    /// By what it may be kept apart.
    by: &'static [UsageBy],
    /// What of leases it may be about, as it stands between the others; empty where it is not about leases.
    leases: &'static str,
    /// Names of parameters of its own, as they stand behind the others.
    others: &'static str,
}

impl Scope {
    /// Reads pairs as [`Question::read`] does, with no others among them.
    ///
    /// # Errors
    /// Names the parameter and what it may be.
    pub fn read(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        Self::read_with(query, now_unix_s, Words { by: &[], leases: OF_LEASES, others: "" }, |_, _| None)
    }

    /// The same, where `other` takes those that say something else, or says no.
    fn read_with(
        query: &str,
        now_unix_s: u64,
        words: Words,
        mut other: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<Self, ErrorBody> {
        let mut scope = Self::default();
        let (mut since_unix_s, mut until_unix_s) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || wrong(words, name, value);
            match name {
                "since" => since_unix_s = Some(seconds(value).ok_or_else(wrong)?),
                "until" => until_unix_s = Some(seconds(value).ok_or_else(wrong)?),
                "team" | "project" | "cost-center" | "container" if words.leases.is_empty() => return Err(wrong()),
                "team" => scope.team = Some(value.to_owned()),
                "project" => scope.project = Some(value.to_owned()),
                "cost-center" => scope.cost_center = Some(value.to_owned()),
                "user" => scope.uid = Some(value.parse().map_err(|_| wrong())?),
                "gpu" => scope.gpu = Some(value.to_owned()),
                // All ids begin with nothing.
                "container" if value.is_empty() => return Err(wrong()),
                "container" => scope.container = Some(value.to_owned()),
                _ => other(name, value).ok_or_else(wrong)?,
            }
        }
        // This minute is in it, and where a bill ends the next one begins.
        scope.until_unix_s = until_unix_s.map_or(minute(now_unix_s) + MINUTE_S, minute);
        scope.since_unix_s = minute(since_unix_s.unwrap_or(scope.until_unix_s.saturating_sub(DAY_S)));
        if scope.since_unix_s >= scope.until_unix_s {
            let (since, until) = (moment(scope.since_unix_s), moment(scope.until_unix_s));
            let message = format!("there is no whole minute between {since} and {until}");
            return Err(ErrorBody::new(ErrorCode::MessageInvalid, message, "give an earlier since or a later until"));
        }
        Ok(scope)
    }
}

/// Seconds of Unix time that SQLite can count.
fn seconds(value: &str) -> Option<u64> {
    value.parse().ok().filter(|seconds| *seconds <= LAST_S)
}

/// Where the minute of a moment begins.
fn minute(unix_s: u64) -> u64 {
    unix_s - unix_s % MINUTE_S
}

/// A moment of Unix time.
pub fn moment(unix_s: u64) -> Timestamp {
    i64::try_from(unix_s).ok().and_then(|unix_s| Timestamp::from_second(unix_s).ok()).unwrap_or(Timestamp::MAX)
}

fn wrong(words: Words, name: &str, value: &str) -> ErrorBody {
    let by: Vec<&str> = words.by.iter().map(|by| by.word()).collect();
    let remedy = match name {
        "by" if !by.is_empty() => format!("write one of {}", by.join(", ")),
        "percent" if words.others.contains("percent") => "write a whole number from 1 to 100".to_owned(),
        "since" | "until" | "counted_since" => "write seconds since 1970".to_owned(),
        "container" if !words.leases.is_empty() => "write the id of a container, or the beginning of one".to_owned(),
        "user" => "write the number of a user".to_owned(),
        _ => format!("write since, until,{} user or gpu{}", words.leases, words.others),
    };
    ErrorBody::new(ErrorCode::MessageInvalid, format!("{name}={value} is nothing that the ledger is asked by"), remedy)
}
