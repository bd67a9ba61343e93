//! What was seen of those who use GPUs without a lease: kept by minutes until it is written, and written beside the lines of leases.

use super::balance::{HOUR_S, MINUTE_S};
use gpool_policy::sizing::Seen;
use gpool_protocol::{GpuUuid, Unleased, UnleasedKind};
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::BTreeMap;

/// Since version 5 of the tables. Times are nanoseconds; of memory it is the most that was held, and of GPUs at once the most. `uid`
/// is -1 where it says nothing. `watched` has for how long somebody looked at a GPU, whoever was there: the pool also has time in
/// which nobody did.
pub const TABLES: &str = "
    CREATE TABLE unleased (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, uid INTEGER NOT NULL, command TEXT NOT NULL,
        pod TEXT, UNIQUE (kind, name, uid)
    ) STRICT;
    CREATE TABLE unleased_line (
        slot INTEGER NOT NULL, seconds INTEGER NOT NULL, unleased INTEGER NOT NULL REFERENCES unleased,
        gpu INTEGER NOT NULL REFERENCES gpu, held_ns INTEGER NOT NULL, unmetered_ns INTEGER NOT NULL, busy_ns INTEGER NOT NULL,
        others_ns INTEGER NOT NULL, peak_bytes INTEGER NOT NULL, at_once INTEGER NOT NULL,
        PRIMARY KEY (slot, seconds, unleased, gpu)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX line_of_unleased ON unleased_line (unleased);
    CREATE TABLE watched (
        slot INTEGER NOT NULL, seconds INTEGER NOT NULL, gpu INTEGER NOT NULL REFERENCES gpu, ns INTEGER NOT NULL,
        PRIMARY KEY (slot, seconds, gpu)
    ) STRICT, WITHOUT ROWID;
";

/// So many minutes of somebody on a GPU are kept while they cannot be written; the oldest go first.
const LINES: usize = 20_000;

/// What was seen of somebody on a GPU in one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// What.
    pub seen: Seen,
    /// The name of one of its programs; empty where none is there any more.
    pub command: String,
    /// The pod of Kubernetes that it is of, `NAMESPACE/NAME`.
    pub pod: Option<String>,
}

/// One look at a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSighting {
    /// Which.
    pub gpu: GpuUuid,
    /// For how long it counts.
    pub watched_ns: u64,
    /// Who was seen.
    pub users: BTreeMap<Unleased, Sighting>,
}

/// A minute of somebody on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    slot_unix_s: u64,
    gpu: GpuUuid,
    user: Unleased,
}

/// What is not written yet.
#[derive(Debug, Default)]
pub struct Unwritten {
    lines: BTreeMap<Place, Sighting>,
    watched: BTreeMap<(u64, GpuUuid), u64>,
}

impl Unwritten {
    /// Takes what was seen in a look, at so many seconds of Unix time.
    pub fn note(&mut self, unix_s: u64, look: Vec<GpuSighting>) {
        let slot_unix_s = unix_s - unix_s % MINUTE_S;
        for its in look {
            self.watch((slot_unix_s, its.gpu.clone()), its.watched_ns);
            for (user, sighting) in its.users {
                let place = Place { slot_unix_s, gpu: its.gpu.clone(), user };
                self.add(place, sighting);
            }
        }
        self.keep_to_bounds();
    }

    fn watch(&mut self, place: (u64, GpuUuid), ns: u64) {
        let watched = self.watched.entry(place).or_default();
        *watched = watched.saturating_add(ns);
    }

    fn add(&mut self, place: Place, sighting: Sighting) {
        let all = self.lines.entry(place).or_default();
        all.seen.add(&sighting.seen);
        if !sighting.command.is_empty() {
            all.command = sighting.command;
        }
        all.pod = sighting.pod.or(all.pod.take());
    }

    /// Lets go of the oldest minutes, of which it is not known then that anybody looked.
    fn keep_to_bounds(&mut self) {
        while self.lines.len() > LINES || self.watched.len() > LINES {
            let Some(oldest) = self.watched.keys().next().map(|(slot_unix_s, _)| *slot_unix_s) else { return };
            self.watched.retain(|(slot_unix_s, _), _| *slot_unix_s > oldest);
            self.lines.retain(|place, _| place.slot_unix_s > oldest);
        }
    }

    /// Takes back what could not be written.
    pub fn take_back(&mut self, unwritten: Self) {
        for (place, mut older) in unwritten.lines {
            // What has been seen since has the newer name.
            if self.lines.contains_key(&place) {
                older.command.clear();
            }
            self.add(place, older);
        }
        unwritten.watched.into_iter().for_each(|(place, ns)| self.watch(place, ns));
        self.keep_to_bounds();
    }

    /// Writes all of it, in minutes that may have begun before.
    pub fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        // A GPU that was there and has never been written down is one that came and went within ten seconds.
        for ((slot_unix_s, gpu), ns) in &self.watched {
            if let Some(gpu) = super::store::number_of(transaction, gpu)? {
                write_watched(transaction, *slot_unix_s, gpu, *ns)?;
            }
        }
        for (place, its) in &self.lines {
            if let Some(gpu) = super::store::number_of(transaction, &place.gpu)? {
                let user = number_of(transaction, &place.user, its)?;
                write_line(transaction, place.slot_unix_s, (user, gpu), &its.seen)?;
            }
        }
        Ok(())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn number_of(transaction: &Transaction<'_>, user: &Unleased, its: &Sighting) -> rusqlite::Result<i64> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO unleased (kind, name, uid, command, pod) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (kind, name, uid)
         DO UPDATE SET command = CASE WHEN ?4 = '' THEN command ELSE ?4 END, pod = coalesce(?5, pod) RETURNING id",
    )?;
    let uid = user.uid.map_or(-1, i64::from);
    insert.query_row(params![user.kind.word(), user.name, uid, its.command, its.pod], |row| row.get(0))
}

fn write_watched(transaction: &Transaction<'_>, slot_unix_s: u64, gpu: i64, ns: u64) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO watched (slot, seconds, gpu, ns) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET ns = ns + ?4",
    )?;
    insert.execute(params![signed(slot_unix_s), MINUTE_S.cast_signed(), gpu, signed(ns)]).map(drop)
}

fn write_line(
    transaction: &Transaction<'_>,
    slot_unix_s: u64,
    (user, gpu): (i64, i64),
    seen: &Seen,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO unleased_line (slot, seconds, unleased, gpu, held_ns, unmetered_ns, busy_ns, others_ns, peak_bytes, at_once)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT DO UPDATE SET held_ns = held_ns + ?5, unmetered_ns = unmetered_ns + ?6, busy_ns = busy_ns + ?7,
         others_ns = others_ns + ?8, peak_bytes = max(peak_bytes, ?9), at_once = max(at_once, ?10)",
    )?;
    let of = (signed(slot_unix_s), MINUTE_S.cast_signed(), user, gpu);
    let times = [seen.held_ns, seen.unmetered_ns, seen.busy_ns, seen.others_ns].map(signed);
    let ([held, unmetered, busy, others], [peak, at_once]) = (times, [seen.peak_bytes, seen.at_once].map(signed));
    insert.execute(params![of.0, of.1, of.2, of.3, held, unmetered, busy, others, peak, at_once]).map(drop)
}

/// Minutes before `edge`, where an hour begins, become hours.
pub fn merge(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    let (minute, hour) = (MINUTE_S.cast_signed(), HOUR_S.cast_signed());
    transaction.execute(
        "INSERT INTO unleased_line
         SELECT slot - slot % ?2, ?2, unleased, gpu, sum(held_ns), sum(unmetered_ns), sum(busy_ns), sum(others_ns), max(peak_bytes),
                max(at_once)
         FROM unleased_line WHERE seconds = ?3 AND slot < ?1 GROUP BY slot - slot % ?2, unleased, gpu
         ON CONFLICT DO UPDATE SET held_ns = held_ns + excluded.held_ns, unmetered_ns = unmetered_ns + excluded.unmetered_ns,
         busy_ns = busy_ns + excluded.busy_ns, others_ns = others_ns + excluded.others_ns,
         peak_bytes = max(peak_bytes, excluded.peak_bytes), at_once = max(at_once, excluded.at_once)",
        params![edge, hour, minute],
    )?;
    transaction.execute("DELETE FROM unleased_line WHERE seconds = ?2 AND slot < ?1", params![edge, minute])?;
    transaction.execute(
        "INSERT INTO watched SELECT slot - slot % ?2, ?2, gpu, sum(ns) FROM watched
         WHERE seconds = ?3 AND slot < ?1 GROUP BY slot - slot % ?2, gpu ON CONFLICT DO UPDATE SET ns = ns + excluded.ns",
        params![edge, hour, minute],
    )?;
    transaction.execute("DELETE FROM watched WHERE seconds = ?2 AND slot < ?1", params![edge, minute]).map(drop)
}

/// Takes out what lies before `edge`, and users of which nothing is left.
pub fn take_out(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM unleased_line WHERE slot < ?1", [edge])?;
    transaction.execute("DELETE FROM watched WHERE slot < ?1", [edge])?;
    let left = "EXISTS (SELECT 1 FROM unleased_line WHERE unleased_line.unleased = unleased.id)";
    transaction.execute(&format!("DELETE FROM unleased WHERE NOT {left}"), []).map(drop)
}

/// Somebody as it is written down.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// What it is.
    pub user: Unleased,
    /// The name of one of its programs.
    pub command: String,
    /// The pod that it is of.
    pub pod: Option<String>,
}

/// Finds it by its number.
pub fn written(connection: &rusqlite::Connection, number: i64) -> rusqlite::Result<Option<Written>> {
    let mut query = connection.prepare_cached("SELECT kind, name, uid, command, pod FROM unleased WHERE id = ?1")?;
    query
        .query_row([number], |row| {
            // What a newer gpool has written may be of other kinds.
            let kind = UnleasedKind::of(&row.get::<_, String>(0)?).unwrap_or_default();
            let user = Unleased { kind, name: row.get(1)?, uid: u32::try_from(row.get::<_, i64>(2)?).ok() };
            Ok(Written { user, command: row.get(3)?, pod: row.get(4)? })
        })
        .optional()
}
