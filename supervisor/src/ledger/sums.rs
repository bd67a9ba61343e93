//! Sums over the ledger.

use super::balance::{HOUR_S, MINUTE_S};
use super::retention::DAY_S;
use gpool_protocol::{ErrorBody, ErrorCode, Usage, UsageBy, UsagePool, UsageRow};
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

/// An answer has no more rows.
const ROWS: usize = 10_000;
/// How long it may take: whoever asks waits for ten seconds.
const PATIENCE: Duration = Duration::from_secs(7);
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

    /// From when until when, for SQLite.
    fn span(&self) -> [i64; 2] {
        [self.since_unix_s, self.until_unix_s].map(u64::cast_signed)
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
        // In one transaction: what is written meanwhile is in none of the sums.
        let summed = watched.and_then(|()| self.0.transaction()).and_then(|all| sums(&all, question));
        match summed {
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

/// Adds lines up as they come, which is by time. SQLite would sort them all for that, and its numbers end at 2^63.
fn sums(connection: &Connection, question: &Question) -> rusqlite::Result<Usage> {
    let gpus = gpus(connection, question)?;
    let (mut lease, mut leases) = (connection.prepare(&name_of_lease(question.by))?, Leases::new());
    let stretch_s = match question.by {
        UsageBy::Hour => Some(HOUR_S),
        UsageBy::Day => Some(DAY_S),
        _ => None,
    };
    let mut lines = connection.prepare(
        "SELECT slot, lease, gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, unwatched_ns, cap_kib_s, used_kib_s
         FROM line WHERE slot >= ?1 AND slot < ?2 ORDER BY slot",
    )?;
    let mut lines = lines.query(question.span())?;
    let mut names = BTreeSet::new();
    let (mut rows, mut total_leases) = (BTreeMap::new(), BTreeSet::new());
    let (mut stretch, mut sums) = (0, HashMap::new());
    while let Some(line) = lines.next()? {
        let (slot, of): (i64, (i64, i64)) = (line.get(0)?, (line.get(1)?, line.get(2)?));
        if let Entry::Vacant(place) = leases.entry(of.0) {
            let values = params![of.0, question.team, question.uid];
            let its =
                |row: &rusqlite::Row<'_>| Ok(Named { name: row.get(0)?, memory: Memory::of(row.get(1)?, row.get(2)?) });
            place.insert(lease.query_row(values, its).optional()?);
        }
        if leases[&of.0].is_none() || !gpus.contains_key(&of.1) {
            continue;
        }
        let its = stretch_s.map_or(0, |seconds| slot - slot % seconds.cast_signed());
        if its != stretch {
            flush(&mut rows, question.by, stretch, std::mem::take(&mut sums), (&leases, &gpus));
            stretch = its;
        }
        let sum: &mut Amounts = sums.entry(of).or_default();
        for (place, amount) in sum.iter_mut().enumerate() {
            *amount += i128::from(line.get::<_, i64>(3 + place)?);
        }
        if total_leases.insert(of.0) {
            names.extend(leases[&of.0].as_ref().map(|its| its.name.clone()));
        }
        if rows.len().max(names.len()) > ROWS {
            rows.extend(names.into_iter().map(|name| (name, UsageRow::default())));
            break;
        }
    }
    flush(&mut rows, question.by, stretch, sums, (&leases, &gpus));
    let rows: Vec<UsageRow> = rows.into_values().collect();
    let mut total = UsageRow::default();
    rows.iter().for_each(|row| total.add(row));
    // One lease may be in several rows.
    total.leases = total_leases.len() as u64;
    let pool = pool(connection, question, &gpus, &total)?;
    let begins: Option<i64> = connection.query_row("SELECT max(begins_unix_s) FROM entered", [], |row| row.get(0))?;
    Ok(Usage {
        since_unix_s: question.since_unix_s,
        until_unix_s: question.until_unix_s,
        begins_unix_s: begins.map(i64::cast_unsigned),
        rows,
        total,
        pool: (!question.is_of_some()).then_some(pool),
    })
}

/// Within, burst, lent, idle, unmetered and unwatched, then memory caps and memory in use.
type Amounts = [i128; 8];

/// What each lease is called in the answer, and its memory; none where it is not asked for.
type Leases = HashMap<i64, Option<Named>>;

/// A lease as the answer has it.
struct Named {
    name: String,
    memory: Option<Memory>,
}

/// What a lease may hold of each of its GPUs, and what it has held at most, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    cap_bytes: u64,
    peak_bytes: u64,
}

impl Memory {
    /// None where that was not written down, or nothing may be held.
    fn of(cap_bytes: Option<i64>, peak_bytes: Option<i64>) -> Option<Self> {
        let (cap_bytes, peak_bytes) = (u64::try_from(cap_bytes?).ok()?, u64::try_from(peak_bytes?).ok()?);
        (cap_bytes > 0).then_some(Self { cap_bytes, peak_bytes })
    }

    /// What is left of a cap times its time if the cap is no higher than it had to be.
    fn needed(self, cap_kib_s: u64) -> u64 {
        let needed =
            u128::from(cap_kib_s) * u128::from(self.peak_bytes.min(self.cap_bytes)) / u128::from(self.cap_bytes);
        u64::try_from(needed).unwrap_or(cap_kib_s)
    }
}

/// A GPU's UUID, and which part of a whole one it is.
type Gpus = HashMap<i64, (String, u8, u8)>;

/// Asks for a lease by its number, in SQL; there is no answer where a team or a user is asked for that it is not of.
fn name_of_lease(by: UsageBy) -> String {
    let name = match by {
        UsageBy::Team => "coalesce(team, '')",
        UsageBy::User => "CAST(uid AS TEXT)",
        UsageBy::Class => "class",
        UsageBy::Priority => "priority",
        UsageBy::Mechanism => "mechanism",
        UsageBy::Container => "container_id",
        UsageBy::Lease => "lease_id",
        UsageBy::Gpu | UsageBy::Hour | UsageBy::Day => "''",
    };
    format!(
        "SELECT {name}, cap_bytes, peak_bytes FROM lease WHERE id = ?1 AND (?2 IS NULL OR coalesce(team, '') = ?2) AND (?3 IS NULL OR uid = ?3)"
    )
}

fn gpus(connection: &Connection, question: &Question) -> rusqlite::Result<Gpus> {
    let mut query = connection
        .prepare("SELECT id, uuid, slices, of_slices FROM gpu WHERE ?1 IS NULL OR substr(uuid, 1, length(?1)) = ?1")?;
    let found = query.query_map([&question.gpu], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?))))?;
    found.collect()
}

/// Puts the sums of a stretch of time into the rows that they belong to.
fn flush(
    rows: &mut BTreeMap<String, UsageRow>,
    by: UsageBy,
    stretch: i64,
    sums: HashMap<(i64, i64), Amounts>,
    (leases, gpus): (&Leases, &Gpus),
) {
    let mut counted = BTreeSet::new();
    for ((lease, gpu), amounts) in sums {
        let (Some(Some(its)), Some((uuid, slices, of_slices))) = (leases.get(&lease), gpus.get(&gpu)) else {
            continue;
        };
        let key = match by {
            UsageBy::Gpu => uuid.clone(),
            UsageBy::Hour => moment(stretch.cast_unsigned()).strftime("%Y-%m-%dT%H:00Z").to_string(),
            UsageBy::Day => moment(stretch.cast_unsigned()).strftime("%Y-%m-%d").to_string(),
            _ => its.name.clone(),
        };
        let figure = |amount: i128| u64::try_from(amount).unwrap_or(0);
        let [within, burst, lent, idle, unmetered, unwatched] =
            [0, 1, 2, 3, 4, 5].map(|place| part_of(figure(amounts[place]), *slices, *of_slices));
        let cap_kib_s = figure(amounts[6]);
        let is_new = counted.insert((key.clone(), lease));
        let row = UsageRow {
            key: key.clone(),
            leases: is_new.into(),
            reserved_gpu_ns: within + lent + idle + unmetered,
            used_gpu_ns: within + burst,
            burst_gpu_ns: burst,
            lent_gpu_ns: lent,
            idle_gpu_ns: idle,
            unmetered_gpu_ns: unmetered,
            unwatched_gpu_ns: unwatched,
            memory_cap_mib_s: cap_kib_s / 1024,
            memory_used_mib_s: figure(amounts[7] / 1024),
            memory_needed_mib_s: its.memory.map_or(cap_kib_s, |memory| memory.needed(cap_kib_s)) / 1024,
            memory_peak_bytes: its.memory.map_or(0, |memory| memory.peak_bytes),
        };
        rows.entry(key.clone()).or_insert_with(|| UsageRow { key, ..UsageRow::default() }).add(&row);
    }
}

/// An instance counts by its part of a GPU.
fn part_of(ns: u64, slices: u8, of_slices: u8) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(slices) / u128::from(of_slices.max(1))).unwrap_or(u64::MAX)
}

/// What there was, and what of it nobody had.
fn pool(connection: &Connection, question: &Question, gpus: &Gpus, total: &UsageRow) -> rusqlite::Result<UsagePool> {
    let mut query = connection.prepare("SELECT gpu, sum(ns) FROM pool WHERE slot >= ?1 AND slot < ?2 GROUP BY gpu")?;
    let mut found = query.query(question.span())?;
    let mut gpu_ns = 0_u64;
    while let Some(row) = found.next()? {
        if let Some((_, slices, of_slices)) = gpus.get(&row.get(0)?) {
            let ns = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
            gpu_ns = gpu_ns.saturating_add(part_of(ns, *slices, *of_slices));
        }
    }
    let left = |ns: u64| gpu_ns.cast_signed().saturating_sub(ns.cast_signed());
    Ok(UsagePool {
        gpu_ns,
        unreserved_gpu_ns: left(total.reserved_gpu_ns),
        unused_gpu_ns: left(total.used_gpu_ns.saturating_add(total.unmetered_gpu_ns)),
    })
}
