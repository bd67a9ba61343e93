//! What teams and users were promised of GPUs, day by day, for their budgets: read from the ledger once, and added up as it is written.

use super::balance::{Amounts as Written, Batch};
use super::lines;
use super::question::Scope;
use super::reader::read_only;
use super::retention::DAY_S;
use super::store::{GpuFacts, Store};
use crate::lease::{Facts, Holder};
use gpool_protocol::{GpuUuid, LeaseId};
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;

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
    /// What is written down of the last days.
    ///
    /// # Errors
    /// SQLite cannot read.
    pub fn read(connection: &Connection, unix_s: u64) -> rusqlite::Result<Self> {
        let since_unix_s = first_day(unix_s) * DAY_S;
        let scope = Scope { since_unix_s, until_unix_s: i64::MAX.cast_unsigned(), ..Scope::default() };
        let gpus = lines::gpus(connection, &scope)?;
        let mut whose = connection.prepare("SELECT team, uid FROM lease WHERE id = ?1")?;
        let (mut spent, mut holders) = (Self::default(), HashMap::new());
        lines::walk(connection, &scope, &gpus, |line| {
            let both = match holders.get(&line.of.0) {
                Some(both) => both,
                None => {
                    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<String>>(0)?, row.get(1)?));
                    let (team, uid) = whose.query_row([line.of.0], read)?;
                    holders.entry(line.of.0).or_insert(Holder::both(team.as_deref(), uid))
                }
            };
            if let Some(gpu) = gpus.get(&line.of.1) {
                spent.add(both, line.slot_unix_s, gpu.part_of(line.amounts.reserved_ns()).into());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(spent)
    }

    /// The same of the file at `path`, which is open for writing or cannot be: who has spent a budget has spent it on a full or
    /// broken disk, too.
    ///
    /// # Errors
    /// It cannot be read either.
    pub fn read_of(store: Option<&Store>, path: &Path, unix_s: u64) -> rusqlite::Result<Self> {
        match store {
            Some(store) => Self::read(&store.connection, unix_s),
            None => Self::read(&read_only(path)?, unix_s),
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
