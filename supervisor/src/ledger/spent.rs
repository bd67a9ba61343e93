//! What teams and users were promised of GPUs, day by day, for their budgets: read from the ledger once, and added up as it is written.

use super::Ledger;
use super::balance::{Amounts as Written, Batch};
use super::lines;
use super::question::Scope;
use super::reader::read_only;
use super::retention::DAY_S;
use super::store::GpuFacts;
use crate::clock;
use crate::lease::{Facts, Holder, Leases};
use gpool_protocol::{GpuUuid, LeaseId};
use rusqlite::{Connection, OptionalExtension};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// No budget is about more days than a month has.
const DAYS: u64 = 32;
/// So many days are kept of each, the newest: a clock that was ahead for a while is no reason to forget this month.
const KEPT: usize = 64;

/// Promised time of whole GPUs, an instance by its part of one, by whom and on which day of Unix time, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spent {
    by_holder: BTreeMap<Holder, BTreeMap<u64, i128>>,
    /// Of users alone what they had without a team.
    without_team: BTreeMap<u32, BTreeMap<u64, i128>>,
}

impl Spent {
    /// Adds what others have, which is none of this.
    pub fn add_all(&mut self, other: Self) {
        let add = |days: &mut BTreeMap<u64, i128>, more: BTreeMap<u64, i128>| {
            more.into_iter().for_each(|(day, ns)| *days.entry(day).or_default() += ns);
        };
        for (holder, more) in other.by_holder {
            add(self.by_holder.entry(holder).or_default(), more);
        }
        for (uid, more) in other.without_team {
            add(self.without_team.entry(uid).or_default(), more);
        }
    }

    /// Adds what has just been written; `gpus` are those that are there.
    pub fn note(&mut self, batch: &Batch<'_>, gpus: (&[GpuFacts], &str)) {
        for its in of_leases(batch, gpus) {
            self.add(&Holder::both(its.facts.team.as_deref(), its.facts.uid), its.slot_unix_s, its.promised_ns());
        }
        for days in self.by_holder.values_mut().chain(self.without_team.values_mut()) {
            while days.len() > KEPT {
                days.pop_first();
            }
        }
    }

    /// So much on the day of `unix_s`, and nothing else.
    #[cfg(test)]
    pub fn of(holders: &[Holder; 2], unix_s: u64, ns: u64) -> Self {
        let mut spent = Self::default();
        spent.add(holders, unix_s, ns.into());
        spent
    }

    fn add(&mut self, holders: &[Holder; 2], slot_unix_s: u64, ns: i128) {
        if ns == 0 {
            return;
        }
        let day = slot_unix_s / DAY_S;
        for holder in holders {
            *self.by_holder.entry(holder.clone()).or_default().entry(day).or_default() += ns;
        }
        if let [Holder::NoTeam, Holder::User(uid)] = holders {
            *self.without_team.entry(*uid).or_default().entry(day).or_default() += ns;
        }
    }

    /// What was promised to a team, or to a user without one, day by day, and how many days ago each was; in nanoseconds.
    pub fn by_age(&self, team: Option<&str>, uid: u32, unix_s: u64) -> impl Iterator<Item = (u64, u64)> {
        let days = match team {
            Some(team) => self.by_holder.get(&Holder::Team(team.to_owned())),
            None => self.without_team.get(&uid),
        };
        let aged = move |(day, ns): (&u64, &i128)| {
            ((unix_s / DAY_S).saturating_sub(*day), u64::try_from((*ns).max(0)).unwrap_or(u64::MAX))
        };
        days.into_iter().flatten().map(aged).filter(|(age_days, _)| *age_days <= DAYS)
    }

    /// What was promised to somebody on the days from one that begins then to before another, in nanoseconds.
    pub fn between(&self, holder: &Holder, (from_unix_s, to_unix_s): (u64, u64)) -> u64 {
        let span = from_unix_s / DAY_S..to_unix_s / DAY_S;
        let days = self.by_holder.get(holder).into_iter().flat_map(|days| days.range(span.clone()));
        let all: i128 = days.map(|(_, ns)| *ns).sum();
        u64::try_from(all.max(0)).unwrap_or(u64::MAX)
    }
}

/// The file as it was at one moment, whatever is written later: to read days of it takes seconds on a busy host, for which nobody waits.
#[derive(Debug)]
pub struct Snapshot(Connection);

impl Snapshot {
    /// As it is now, whether it can be written or not: who has spent a budget has spent it on a full or broken disk, too.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(path: &Path) -> rusqlite::Result<Self> {
        let connection = read_only(path)?;
        connection.execute_batch("BEGIN")?;
        // A transaction sees the file as it is at its first question.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
        Ok(Self(connection))
    }

    /// Up to when it was entered in this boot, CLOCK_MONOTONIC; 0 if it was not.
    ///
    /// # Errors
    /// SQLite cannot read.
    pub fn entered_ns(&self, boot_id: &str) -> rusqlite::Result<u64> {
        let entered = "SELECT monotonic_ns FROM entered WHERE boot_id = ?1";
        let ns: Option<i64> = self.0.query_row(entered, [boot_id], |row| row.get(0)).optional()?;
        Ok(ns.map_or(0, i64::cast_unsigned))
    }

    /// What is written down in it of the last days.
    ///
    /// # Errors
    /// SQLite cannot read.
    pub fn read(&self, unix_s: u64) -> rusqlite::Result<Spent> {
        let Self(connection) = self;
        let gpus = lines::gpus(connection, &Scope::default())?;
        let mut whose = connection.prepare("SELECT team, uid FROM lease WHERE id = ?1")?;
        let (mut spent, mut holders) = (Spent::default(), HashMap::new());
        // Day by day, so that what SQLite sorts is little; what comes out is a row for each lease and GPU, and not one for each minute.
        let mut days = connection.prepare(
            "SELECT lease, gpu, sum(within_ns + lent_ns + idle_ns + unmetered_ns) FROM line WHERE slot >= ?1 AND slot < ?2
             GROUP BY lease, gpu",
        )?;
        let mut next = connection.prepare("SELECT min(slot) FROM line WHERE slot >= ?1")?;
        let mut next_day = |since_unix_s: u64| -> rusqlite::Result<Option<u64>> {
            let slot: Option<i64> = next.query_row([since_unix_s.cast_signed()], |row| row.get(0))?;
            Ok(slot.map(|slot| slot.cast_unsigned() / DAY_S * DAY_S))
        };
        let mut since_unix_s = first_day(unix_s) * DAY_S;
        while let Some(day_unix_s) = next_day(since_unix_s)? {
            since_unix_s = day_unix_s.saturating_add(DAY_S);
            let mut rows = days.query([day_unix_s, since_unix_s].map(u64::cast_signed))?;
            while let Some(row) = rows.next()? {
                let (lease, number): (i64, i64) = (row.get(0)?, row.get(1)?);
                let both = match holders.entry(lease) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<String>>(0)?, row.get(1)?));
                        let (team, uid) = whose.query_row([lease], read)?;
                        place.insert(Holder::both(team.as_deref(), uid))
                    }
                };
                let promised_ns = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
                if let Some(gpu) = gpus.get(&number) {
                    spent.add(both, day_unix_s, gpu.part_of(promised_ns).into());
                }
            }
        }
        Ok(spent)
    }
}

impl Ledger {
    /// Sees to that before anything is written in this life: the first writing gives a file of an older version its new tables, for minutes
    /// where there are many lines, and without this nobody with a budget is let have a whole GPU. Of a file that is not there nothing
    /// was spent, which is known as soon as there is one.
    pub(super) fn know_spent_before(&self, leases: &Leases) {
        if !leases.configuration().ledger.path.exists() {
            return;
        }
        self.lock().begun_ns.get_or_insert_with(clock::now_ns);
        self.know_spent(leases);
        if self.spent_now().is_some() {
            self.has_looked.store(true, Ordering::Relaxed);
        }
    }

    /// Sees that it is known what was promised before, while that is asked for; again where the clock was set back to days that were not
    /// read. It is written on meanwhile, and also where it cannot be read.
    pub(super) fn know_spent(&self, leases: &Leases) {
        let unix_s = clock::unix_ms() / 1000;
        let (configuration, first) = (leases.configuration(), first_day(unix_s));
        let snapshot = {
            let mut inner = self.lock();
            if configuration.first_that_counts().is_none() {
                inner.spent_since = None;
                self.spent_now().take();
                return;
            }
            if inner.spent_since.is_some_and(|since| since <= first) {
                return;
            }
            inner.spent_meanwhile = Some(Spent::default());
            Snapshot::of(&configuration.ledger.path)
        };
        let read = snapshot.and_then(|snapshot| Ok((snapshot.read(unix_s)?, snapshot.entered_ns(&leases.boot_id)?)));
        let mut inner = self.lock();
        let meanwhile = inner.spent_meanwhile.take().unwrap_or_default();
        let told = read.map(|(mut spent, entered_ns)| {
            spent.add_all(meanwhile);
            *self.spent_now() = Some(Arc::new(spent));
            self.spent_until_ns.store(inner.entered_ns.max(entered_ns), Ordering::Relaxed);
        });
        inner.spent_since = told.is_ok().then_some(first);
        let told = told.map_err(|cause| format!("what budgets have spent cannot be read, so none is kept to: {cause}"));
        inner.faults.note("budgets unread", &told);
    }
}

/// The first day that is of any use, counted from 1970.
pub fn first_day(unix_s: u64) -> u64 {
    (unix_s / DAY_S).saturating_sub(DAYS)
}

/// What is written of a lease on one GPU in a minute.
pub struct OfLease<'b> {
    /// The lease.
    pub facts: &'b Facts,
    /// What it had.
    pub amounts: &'b Written,
    slot_unix_s: u64,
    /// What the GPU or instance is of a whole one.
    slices: (u8, u8),
}

impl OfLease<'_> {
    /// An instance counts by its part of a GPU.
    pub fn part_of(&self, ns: i64) -> i128 {
        let (slices, of_slices) = self.slices;
        i128::from(ns) * i128::from(slices) / i128::from(of_slices.max(1))
    }

    /// Of its share: what it used of that, what others had and what nobody had.
    pub fn promised_ns(&self) -> i128 {
        let its = self.amounts;
        let parts = [its.within_ns, its.lent_ns, its.idle_ns, its.unmetered_ns];
        self.part_of(parts.into_iter().fold(0, i64::saturating_add))
    }
}

/// All of that; `gpus` are those that are there, and the model of the others.
pub fn of_leases<'b>(
    batch: &'b Batch<'_>,
    (gpus, product): (&'b [GpuFacts], &'b str),
) -> impl Iterator<Item = OfLease<'b>> {
    let of: HashMap<&LeaseId, &Facts> =
        batch.leases.iter().map(|statement| (&statement.facts.lease_id, &statement.facts)).collect();
    let slices: HashMap<&GpuUuid, (u8, u8)> = gpus.iter().map(|gpu| (&gpu.uuid, gpu.slices)).collect();
    batch.lines.iter().filter_map(move |(key, amounts)| {
        let facts = *of.get(&key.lease)?;
        let its = slices.get(&key.gpu).copied();
        let slices = its.unwrap_or_else(|| super::parts(product, facts.mig_profile.as_deref()));
        Some(OfLease { facts, amounts, slot_unix_s: key.when.slot.0, slices })
    })
}
