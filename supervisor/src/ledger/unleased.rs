//! What was seen of those who use GPUs without a lease: kept by minutes until it is written, and written beside the lines of leases.

use super::balance::{HOUR_S, MINUTE_S};
use gpool_policy::sizing::Seen;
use gpool_protocol::{GpuUuid, Unleased, UnleasedKind};
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::BTreeMap;

/// Since version 5 of the tables. Times are nanoseconds; of memory it is the most that was held. `uid` is -1 where it says nothing.
pub const TABLES: &str = "
    CREATE TABLE unleased (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, uid INTEGER NOT NULL, command TEXT NOT NULL,
        UNIQUE (kind, name, uid)
    ) STRICT;
    CREATE TABLE unleased_line (
        slot INTEGER NOT NULL, seconds INTEGER NOT NULL, unleased INTEGER NOT NULL REFERENCES unleased,
        gpu INTEGER NOT NULL REFERENCES gpu, held_ns INTEGER NOT NULL, unmetered_ns INTEGER NOT NULL, busy_ns INTEGER NOT NULL,
        others_ns INTEGER NOT NULL, peak_bytes INTEGER NOT NULL, PRIMARY KEY (slot, seconds, unleased, gpu)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX line_of_unleased ON unleased_line (unleased);
";

/// So many of a GPU are kept apart in a minute; those that come later in it are others.
const USERS: usize = 128;
/// So many lines are kept while they cannot be written; the oldest go first.
const LINES: usize = 20_000;

/// What was seen of somebody on a GPU in a second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// When, Unix seconds.
    pub unix_s: u64,
    /// What.
    pub seen: Seen,
    /// The name of one of its programs; empty where none is there any more.
    pub command: String,
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
pub struct Unwritten(BTreeMap<Place, (Seen, String)>);

impl Unwritten {
    /// Takes what was seen of somebody.
    pub fn note(&mut self, gpu: &GpuUuid, user: Unleased, sighting: Sighting) {
        let slot_unix_s = sighting.unix_s - sighting.unix_s % MINUTE_S;
        let mut place = Place { slot_unix_s, gpu: gpu.clone(), user };
        if !self.0.contains_key(&place) {
            let is_of = |its: &Place| its.slot_unix_s == slot_unix_s && its.gpu == *gpu;
            if self.0.keys().rev().filter(|its| is_of(its)).count() >= USERS {
                place.user = Unleased { kind: UnleasedKind::Others, name: String::new(), uid: None };
            }
        }
        self.add(place, &sighting.seen, sighting.command);
    }

    fn add(&mut self, place: Place, seen: &Seen, command: String) {
        let (all, known) = self.0.entry(place).or_default();
        all.add(seen);
        if !command.is_empty() {
            *known = command;
        }
        while self.0.len() > LINES {
            self.0.pop_first();
        }
    }

    /// Takes back what could not be written.
    pub fn take_back(&mut self, unwritten: Self) {
        for (place, (seen, command)) in unwritten.0 {
            // What has been seen since has the newer name.
            let command = if self.0.contains_key(&place) { String::new() } else { command };
            self.add(place, &seen, command);
        }
    }

    /// Writes all of it, in minutes that may have begun before.
    pub fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for (place, (seen, command)) in &self.0 {
            // A GPU that was there and has never been written down is one that came and went within ten seconds.
            if let Some(gpu) = super::store::number_of(transaction, &place.gpu)? {
                let user = number_of(transaction, &place.user, command)?;
                write_line(transaction, place.slot_unix_s, (user, gpu), seen)?;
            }
        }
        Ok(())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn number_of(transaction: &Transaction<'_>, user: &Unleased, command: &str) -> rusqlite::Result<i64> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO unleased (kind, name, uid, command) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (kind, name, uid)
         DO UPDATE SET command = CASE WHEN ?4 = '' THEN command ELSE ?4 END RETURNING id",
    )?;
    let uid = user.uid.map_or(-1, i64::from);
    insert.query_row(params![user.kind.word(), user.name, uid, command], |row| row.get(0))
}

fn write_line(
    transaction: &Transaction<'_>,
    slot_unix_s: u64,
    (user, gpu): (i64, i64),
    seen: &Seen,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO unleased_line (slot, seconds, unleased, gpu, held_ns, unmetered_ns, busy_ns, others_ns, peak_bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT DO UPDATE SET held_ns = held_ns + ?5, unmetered_ns = unmetered_ns + ?6, busy_ns = busy_ns + ?7,
         others_ns = others_ns + ?8, peak_bytes = max(peak_bytes, ?9)",
    )?;
    let of = (signed(slot_unix_s), MINUTE_S.cast_signed(), user, gpu);
    let figures = [seen.held_ns, seen.unmetered_ns, seen.busy_ns, seen.others_ns, seen.peak_bytes].map(signed);
    let [held, unmetered, busy, others, peak] = figures;
    insert.execute(params![of.0, of.1, of.2, of.3, held, unmetered, busy, others, peak]).map(drop)
}

/// Minutes before `edge`, where an hour begins, become hours.
pub fn merge(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    let (minute, hour) = (MINUTE_S.cast_signed(), HOUR_S.cast_signed());
    transaction.execute(
        "INSERT INTO unleased_line
         SELECT slot - slot % ?2, ?2, unleased, gpu, sum(held_ns), sum(unmetered_ns), sum(busy_ns), sum(others_ns), max(peak_bytes)
         FROM unleased_line WHERE seconds = ?3 AND slot < ?1 GROUP BY slot - slot % ?2, unleased, gpu
         ON CONFLICT DO UPDATE SET held_ns = held_ns + excluded.held_ns, unmetered_ns = unmetered_ns + excluded.unmetered_ns,
         busy_ns = busy_ns + excluded.busy_ns, others_ns = others_ns + excluded.others_ns,
         peak_bytes = max(peak_bytes, excluded.peak_bytes)",
        params![edge, hour, minute],
    )?;
    transaction.execute("DELETE FROM unleased_line WHERE seconds = ?2 AND slot < ?1", params![edge, minute]).map(drop)
}

/// Takes out what lies before `edge`, and users of which nothing is left.
pub fn take_out(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM unleased_line WHERE slot < ?1", [edge])?;
    let left = "EXISTS (SELECT 1 FROM unleased_line WHERE unleased_line.unleased = unleased.id)";
    transaction.execute(&format!("DELETE FROM unleased WHERE NOT {left}"), []).map(drop)
}

/// Somebody as it is written down, by its number: what it is, and the name of one of its programs.
pub fn user_of(connection: &rusqlite::Connection, number: i64) -> rusqlite::Result<Option<(Unleased, String)>> {
    let mut query = connection.prepare_cached("SELECT kind, name, uid, command FROM unleased WHERE id = ?1")?;
    query
        .query_row([number], |row| {
            // What a newer gpool has written may be of other kinds.
            let kind = UnleasedKind::of(&row.get::<_, String>(0)?).unwrap_or_default();
            let user = Unleased { kind, name: row.get(1)?, uid: u32::try_from(row.get::<_, i64>(2)?).ok() };
            Ok((user, row.get(3)?))
        })
        .optional()
}
