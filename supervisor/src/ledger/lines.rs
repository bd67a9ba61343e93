//! The lines of the ledger that a question is about, one by one, as they come: by time. SQLite would sort them all for sums, and
//! its numbers end at 2^63.

use super::question::Scope;
use gpool_protocol::UsageBy;
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// A GPU or MIG instance.
#[derive(Debug, Clone)]
pub struct GpuPart {
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub product: String,
    /// An instance's profile.
    pub profile: Option<String>,
    /// Its compute slices, and how many a whole GPU of its model has.
    pub slices: (u8, u8),
}

impl GpuPart {
    /// An instance counts by its part of a GPU.
    pub fn part_of(&self, ns: u64) -> u64 {
        let (slices, of_slices) = self.slices;
        u64::try_from(u128::from(ns) * u128::from(slices) / u128::from(of_slices.max(1))).unwrap_or(u64::MAX)
    }
}

/// Those that a question is about, by the ledger's number.
pub type Gpus = HashMap<i64, GpuPart>;

/// What one lease was promised and had of one GPU in a minute or an hour; or a sum of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Used within its share, nanoseconds of the GPU or instance.
    pub within_ns: u64,
    /// Used beyond it.
    pub burst_ns: u64,
    /// Of that, while its priority was one that is promised nothing.
    pub low_ns: u64,
    /// Left, and had by others.
    pub lent_ns: u64,
    /// Left, and had by nobody.
    pub idle_ns: u64,
    /// Promised where nothing is metered.
    pub unmetered_ns: u64,
    /// Promised while no supervisor was there.
    pub unwatched_ns: u64,
    /// Memory caps, KiB seconds.
    pub cap_kib_s: u64,
    /// Memory in use, KiB seconds.
    pub used_kib_s: u64,
    /// Its part of what the GPU drew.
    pub energy_millijoules: u64,
}

impl Amounts {
    /// Promised altogether.
    pub fn reserved_ns(&self) -> u64 {
        [self.within_ns, self.lent_ns, self.idle_ns, self.unmetered_ns].into_iter().fold(0, u64::saturating_add)
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.within_ns, other.within_ns),
            (&mut self.burst_ns, other.burst_ns),
            (&mut self.low_ns, other.low_ns),
            (&mut self.lent_ns, other.lent_ns),
            (&mut self.idle_ns, other.idle_ns),
            (&mut self.unmetered_ns, other.unmetered_ns),
            (&mut self.unwatched_ns, other.unwatched_ns),
            (&mut self.cap_kib_s, other.cap_kib_s),
            (&mut self.used_kib_s, other.used_kib_s),
            (&mut self.energy_millijoules, other.energy_millijoules),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }

    /// From the columns behind the first three of [`walk`]'s question. Below zero there is nothing, whatever a file says.
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let column = |place: usize| row.get::<_, i64>(3 + place).map(|value| u64::try_from(value).unwrap_or(0));
        Ok(Self {
            within_ns: column(0)?,
            burst_ns: column(1)?,
            lent_ns: column(2)?,
            idle_ns: column(3)?,
            unmetered_ns: column(4)?,
            unwatched_ns: column(5)?,
            cap_kib_s: column(6)?,
            used_kib_s: column(7)?,
            low_ns: column(8)?,
            energy_millijoules: column(9)?,
        })
    }
}

/// A line.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// Where its minute or hour begins, Unix seconds.
    pub slot_unix_s: u64,
    /// Which of them it is, in seconds: where nothing was written for a while there are both from one moment on.
    pub seconds: u64,
    /// The lease's and the GPU's number.
    pub of: (i64, i64),
    /// What is in it.
    pub amounts: Amounts,
}

/// Which leases a question is about, in SQL, as [`in_scope`] asks it.
pub const OF_SCOPE: &str = "id = ?1 AND (?2 IS NULL OR coalesce(team, '') = ?2) AND (?3 IS NULL OR uid = ?3)
     AND (?4 IS NULL OR coalesce(project, '') = ?4) AND (?5 IS NULL OR coalesce(cost_center, '') = ?5)
     AND (?6 IS NULL OR lease_id = ?6 OR substr(container_id, 1, length(?6)) = ?6)";

/// What keeps a lease apart from others, in SQL; nothing where that is a GPU or a time.
pub fn key_of_lease(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Team => "coalesce(team, '')",
        UsageBy::Project => "coalesce(project, '')",
        UsageBy::CostCenter => "coalesce(cost_center, '')",
        UsageBy::User => "CAST(uid AS TEXT)",
        UsageBy::Class => "class",
        UsageBy::Priority => "priority",
        UsageBy::Mechanism => "mechanism",
        UsageBy::Container => "container_id",
        UsageBy::Pod => "coalesce(pod, '')",
        // No namespace has more than 63 letters; where no name was known, the id of a sandbox stands there, which has 64.
        UsageBy::Namespace => {
            "CASE WHEN instr(pod, '/') BETWEEN 2 AND 64 THEN substr(pod, 1, instr(pod, '/') - 1) ELSE '' END"
        }
        UsageBy::Lease => "lease_id",
        UsageBy::Gpu | UsageBy::Hour | UsageBy::Day => "''",
    }
}

/// Asks for a lease by its number with a statement that ends with [`OF_SCOPE`]: none where `scope` is not about it.
pub fn in_scope<T>(
    query: &mut Statement<'_>,
    lease: i64,
    scope: &Scope,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    let values = params![lease, scope.team, scope.uid, scope.project, scope.cost_center, scope.container];
    query.query_row(values, read).optional()
}

/// From when on anything is written down.
pub fn begins(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let begins: Option<i64> = connection.query_row("SELECT max(begins_unix_s) FROM entered", [], |row| row.get(0))?;
    Ok(begins.map(i64::cast_unsigned))
}

/// GPUs that `scope` is about.
pub fn gpus(connection: &Connection, scope: &Scope) -> rusqlite::Result<Gpus> {
    let mut query = connection.prepare(
        "SELECT id, uuid, name, profile, slices, of_slices FROM gpu WHERE ?1 IS NULL OR substr(uuid, 1, length(?1)) = ?1",
    )?;
    let found = query.query_map([&scope.gpu], |row| {
        let part = GpuPart {
            uuid: row.get(1)?,
            product: row.get(2)?,
            profile: row.get(3)?,
            slices: (row.get(4)?, row.get(5)?),
        };
        Ok((row.get(0)?, part))
    })?;
    found.collect()
}

/// Gives each line of the time that is asked for and of `gpus` to `take`, until it breaks off.
pub fn walk(
    connection: &Connection,
    scope: &Scope,
    gpus: &Gpus,
    mut take: impl FnMut(Line) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    // A line that is passed over here costs a fraction of one that comes out. The plus signs keep SQLite from beginning with the
    // leases: it would have to sort what it finds.
    let mut lines = connection.prepare(
        "SELECT slot, lease, gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, unwatched_ns, cap_kib_s, used_kib_s,
         low_ns, energy_millijoules, seconds FROM line WHERE slot >= ?1 AND slot < ?2
         AND (NOT ?3 OR +lease IN (SELECT id FROM lease WHERE (?4 IS NULL OR coalesce(team, '') = ?4)
             AND (?5 IS NULL OR uid = ?5) AND (?6 IS NULL OR coalesce(project, '') = ?6)
             AND (?7 IS NULL OR coalesce(cost_center, '') = ?7)
             AND (?9 IS NULL OR lease_id = ?9 OR substr(container_id, 1, length(?9)) = ?9)))
         AND (?8 IS NULL OR +gpu IN (SELECT id FROM gpu WHERE substr(uuid, 1, length(?8)) = ?8))
         ORDER BY slot, seconds",
    )?;
    let [since, until] = scope.span();
    let (is_of_some, team, uid) = (scope.is_of_some(), &scope.team, scope.uid);
    let Scope { project, cost_center, gpu, container, .. } = scope;
    let mut lines = lines.query(params![since, until, is_of_some, team, uid, project, cost_center, gpu, container])?;
    while let Some(row) = lines.next()? {
        let of: (i64, i64) = (row.get(1)?, row.get(2)?);
        if !gpus.contains_key(&of.1) {
            continue;
        }
        let number = |place| row.get::<_, i64>(place).map(|value| u64::try_from(value).unwrap_or(0));
        let (slot_unix_s, seconds) = (number(0)?, number(13)?);
        if take(Line { slot_unix_s, seconds, of, amounts: Amounts::read(row)? })?.is_break() {
            break;
        }
    }
    Ok(())
}
