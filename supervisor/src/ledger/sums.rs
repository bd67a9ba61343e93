//! Sums over the ledger.

use super::balance::MINUTE_S;
use super::retention::DAY_S;
use gpool_protocol::{ErrorBody, ErrorCode, Usage, UsageBy, UsagePool, UsageRow};
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// An answer has no more rows.
const ROWS: usize = 10_000;
/// How long it may take: whoever asks waits for ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);
/// After so many steps of SQLite's machine it is looked at the clock.
const STEPS: i32 = 100_000;
/// The end of what SQLite can count, in seconds of the year 9999.
const LAST_S: u64 = 253_402_300_799;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// By what the sums are kept apart.
    pub by: UsageBy,
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// Of this team alone; of those without one if it is empty.
    pub team: Option<String>,
    /// Of containers that this user started.
    pub uid: Option<u32>,
    /// On GPUs and MIG instances whose UUIDs begin so.
    pub gpu: Option<String>,
}

impl Question {
    /// Reads `name=value` pairs, as they stand behind the question mark of a path; by team and over the last day if they say
    /// nothing else.
    ///
    /// # Errors
    /// Names the parameter and what it may be.
    pub fn read(query: &str, now_unix_s: u64) -> Result<Self, ErrorBody> {
        let mut asked = Self { by: UsageBy::Team, since_unix_s: 0, until_unix_s: 0, team: None, uid: None, gpu: None };
        let (mut since_unix_s, mut until_unix_s) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let seconds = || value.parse::<u64>().ok().filter(|seconds| *seconds <= LAST_S);
            let wrong = || wrong(name, value);
            match name {
                "by" => asked.by = UsageBy::of(value).ok_or_else(wrong)?,
                "since" => since_unix_s = Some(seconds().ok_or_else(wrong)?),
                "until" => until_unix_s = Some(seconds().ok_or_else(wrong)?),
                "team" => asked.team = Some(value.to_owned()),
                "user" => asked.uid = Some(value.parse().map_err(|_| wrong())?),
                "gpu" => asked.gpu = Some(value.to_owned()),
                _ => return Err(wrong()),
            }
        }
        let minute = |unix_s: u64| unix_s - unix_s % MINUTE_S;
        // This minute is in it, and where a bill ends the next one begins.
        asked.until_unix_s = until_unix_s.map_or(minute(now_unix_s) + MINUTE_S, minute);
        asked.since_unix_s = minute(since_unix_s.unwrap_or(asked.until_unix_s.saturating_sub(DAY_S)));
        if asked.since_unix_s >= asked.until_unix_s {
            let (since, until) = (moment(asked.since_unix_s), moment(asked.until_unix_s));
            let message = format!("there is no whole minute between {since} and {until}");
            return Err(ErrorBody::new(ErrorCode::MessageInvalid, message, "give an earlier since or a later until"));
        }
        Ok(asked)
    }

    /// Whether it is about some leases only, beside which the rest is not what nobody had.
    fn is_of_some(&self) -> bool {
        self.team.is_some() || self.uid.is_some()
    }
}

fn moment(unix_s: u64) -> Timestamp {
    i64::try_from(unix_s).ok().and_then(|unix_s| Timestamp::from_second(unix_s).ok()).unwrap_or(Timestamp::MAX)
}

fn wrong(name: &str, value: &str) -> ErrorBody {
    let words: Vec<&str> = UsageBy::ALL.into_iter().map(UsageBy::word).collect();
    let remedy = match name {
        "by" => format!("write one of {}", words.join(", ")),
        "since" | "until" => "write seconds since 1970".to_owned(),
        "user" => "write the number of a user".to_owned(),
        _ => "write by, since, until, team, user or gpu".to_owned(),
    };
    ErrorBody::new(ErrorCode::MessageInvalid, format!("{name}={value} is nothing that usage is asked by"), remedy)
}

/// Where a line lies in time, as far as rows are told apart by it, in SQL: the beginning of its hour or day.
fn slot(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Hour => "slot / 3600 * 3600",
        UsageBy::Day => "slot / 86400 * 86400",
        _ => "0",
    }
}

/// What rows are told apart by, in SQL.
fn key(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Team => "coalesce(lease.team, '')",
        UsageBy::User => "CAST(lease.uid AS TEXT)",
        UsageBy::Class => "lease.class",
        UsageBy::Priority => "lease.priority",
        UsageBy::Mechanism => "lease.mechanism",
        UsageBy::Gpu => "gpu.uuid",
        UsageBy::Container => "lease.container_id",
        UsageBy::Lease => "lease.lease_id",
        UsageBy::Hour => "strftime('%Y-%m-%dT%H:00Z', its.slot, 'unixepoch')",
        UsageBy::Day => "strftime('%Y-%m-%d', its.slot, 'unixepoch')",
    }
}

/// A ledger that is only read, beside who writes it.
#[derive(Debug)]
pub struct Reader(Connection);

impl Reader {
    /// Opens it, for one question.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ErrorBody> {
        let opened =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX);
        opened.map(Self).map_err(|cause| unreadable(&cause))
    }

    /// Answers `question`.
    ///
    /// # Errors
    /// SQLite cannot read, or the answer would be too long, or take too long.
    pub fn usage(&mut self, question: &Question) -> Result<Usage, ErrorBody> {
        let deadline = Instant::now() + PATIENCE;
        let watched = self.0.progress_handler(STEPS, Some(move || Instant::now() > deadline));
        let narrower = |message: String| {
            ErrorBody::new(ErrorCode::MessageInvalid, message, "ask for less time, for one team, or by something else")
        };
        match watched.and_then(|()| sums(&self.0, question)) {
            Ok(usage) if usage.rows.len() > ROWS => Err(narrower(format!("that is more than {ROWS} rows"))),
            Ok(usage) => Ok(usage),
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == rusqlite::ErrorCode::OperationInterrupted =>
            {
                Err(narrower(format!("adding that up takes longer than {} s", PATIENCE.as_secs())))
            }
            Err(cause) => Err(unreadable(&cause)),
        }
    }
}

fn unreadable(cause: &rusqlite::Error) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::SupervisorFailed,
        format!("the ledger cannot be read: {cause}"),
        "look at the supervisor's log",
    )
}

/// Adds lines up by lease and GPU first, which are few, and looks at what these are afterwards. Parts of GPUs are put together
/// here, and not in SQL, whose numbers end at 2^63.
fn sums(connection: &Connection, question: &Question) -> rusqlite::Result<Usage> {
    let Question { by, since_unix_s, until_unix_s, team, uid, gpu } = question;
    let (since, until) = (since_unix_s.cast_signed(), until_unix_s.cast_signed());
    let sql = format!(
        "WITH its AS MATERIALIZED (
             SELECT {slot} AS slot, lease, gpu, sum(within_ns) AS within_ns, sum(burst_ns) AS burst_ns, sum(lent_ns) AS lent_ns,
                    sum(idle_ns) AS idle_ns, sum(unmetered_ns) AS unmetered_ns, sum(unwatched_ns) AS unwatched_ns,
                    sum(cap_kib_s) AS cap_kib_s, sum(used_kib_s) AS used_kib_s
             FROM line WHERE slot >= ?1 AND slot < ?2 GROUP BY 1, 2, 3)
         SELECT {key}, gpu.slices, gpu.of_slices, count(DISTINCT its.lease), sum(within_ns), sum(burst_ns), sum(lent_ns),
                sum(idle_ns), sum(unmetered_ns), sum(unwatched_ns), sum(cap_kib_s), sum(used_kib_s)
         FROM its JOIN lease ON lease.id = its.lease JOIN gpu ON gpu.id = its.gpu
         WHERE (?3 IS NULL OR coalesce(lease.team, '') = ?3) AND (?4 IS NULL OR lease.uid = ?4)
         AND (?5 IS NULL OR substr(gpu.uuid, 1, length(?5)) = ?5)
         GROUP BY 1, 2, 3 LIMIT {limit}",
        slot = slot(*by),
        key = key(*by),
        limit = 2 * ROWS,
    );
    let mut rows: BTreeMap<String, UsageRow> = BTreeMap::new();
    let mut query = connection.prepare(&sql)?;
    let mut found = query.query(params![since, until, team, uid, gpu])?;
    while let Some(its) = found.next()? {
        let key: String = its.get(0)?;
        let (slices, of_slices): (u8, u8) = (its.get(1)?, its.get(2)?);
        let figure = |column: usize| its.get::<_, i64>(column).map(|sum| u64::try_from(sum).unwrap_or(0));
        let time = |column: usize| figure(column).map(|ns| part_of(ns, slices, of_slices));
        let (within, burst, lent, idle, unmetered) = (time(4)?, time(5)?, time(6)?, time(7)?, time(8)?);
        let row = UsageRow {
            key: key.clone(),
            leases: figure(3)?,
            reserved_gpu_ns: within + lent + idle + unmetered,
            used_gpu_ns: within + burst,
            burst_gpu_ns: burst,
            lent_gpu_ns: lent,
            idle_gpu_ns: idle,
            unmetered_gpu_ns: unmetered,
            unwatched_gpu_ns: time(9)?,
            memory_cap_mib_s: figure(10)? / 1024,
            memory_used_mib_s: figure(11)? / 1024,
        };
        rows.entry(key.clone()).or_insert_with(|| UsageRow { key, ..UsageRow::default() }).add(&row);
    }
    let rows: Vec<UsageRow> = rows.into_values().collect();
    let mut total = UsageRow::default();
    rows.iter().for_each(|row| total.add(row));
    if matches!(by, UsageBy::Gpu | UsageBy::Hour | UsageBy::Day) {
        // One lease may be in several rows.
        total.leases = leases(connection, question)?;
    }
    let pool = pool(connection, question, &total)?;
    let is_of_some = question.is_of_some();
    let begins: Option<i64> = connection.query_row("SELECT max(begins_unix_s) FROM entered", [], |row| row.get(0))?;
    Ok(Usage {
        since_unix_s: *since_unix_s,
        until_unix_s: *until_unix_s,
        begins_unix_s: begins.map(i64::cast_unsigned),
        rows,
        total,
        pool: (!is_of_some).then_some(pool),
    })
}

/// An instance counts by its part of a GPU.
fn part_of(ns: u64, slices: u8, of_slices: u8) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(slices) / u128::from(of_slices.max(1))).unwrap_or(u64::MAX)
}

fn leases(connection: &Connection, question: &Question) -> rusqlite::Result<u64> {
    let Question { since_unix_s, until_unix_s, team, uid, gpu, .. } = question;
    connection.query_row(
        "SELECT count(DISTINCT its.lease) FROM (SELECT DISTINCT lease, gpu FROM line WHERE slot >= ?1 AND slot < ?2) AS its
         JOIN lease ON lease.id = its.lease JOIN gpu ON gpu.id = its.gpu
         WHERE (?3 IS NULL OR coalesce(lease.team, '') = ?3) AND (?4 IS NULL OR lease.uid = ?4)
         AND (?5 IS NULL OR substr(gpu.uuid, 1, length(?5)) = ?5)",
        params![since_unix_s.cast_signed(), until_unix_s.cast_signed(), team, uid, gpu],
        |row| row.get::<_, i64>(0).map(i64::cast_unsigned),
    )
}

/// What there was, and what of it nobody had.
fn pool(connection: &Connection, question: &Question, total: &UsageRow) -> rusqlite::Result<UsagePool> {
    let mut query = connection.prepare(
        "SELECT gpu.slices, gpu.of_slices, sum(ns) FROM pool JOIN gpu ON gpu.id = pool.gpu
         WHERE slot >= ?1 AND slot < ?2 AND (?3 IS NULL OR substr(gpu.uuid, 1, length(?3)) = ?3) GROUP BY 1, 2",
    )?;
    let (since, until) = (question.since_unix_s.cast_signed(), question.until_unix_s.cast_signed());
    let parts = query.query_map(params![since, until, question.gpu], |row| {
        let ns = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
        Ok(part_of(ns, row.get(0)?, row.get(1)?))
    })?;
    let gpu_ns = parts.sum::<rusqlite::Result<u64>>()?;
    let left = |ns: u64| gpu_ns.cast_signed().saturating_sub(ns.cast_signed());
    Ok(UsagePool {
        gpu_ns,
        unreserved_gpu_ns: left(total.reserved_gpu_ns),
        unused_gpu_ns: left(total.used_gpu_ns + total.unmetered_gpu_ns),
    })
}
