//! What the ledger forgets: minutes become hours after a while, and hours go.

use super::balance::{HOUR_S, MINUTE_S};
use super::store::{LedgerError, Store};
use super::unleased;
use gpool_configuration::Ledger as Configured;
use rusqlite::{Connection, Transaction, params};

pub const DAY_S: u64 = 86_400;

impl Store {
    /// Merges minutes that are old enough into their hours, and takes hours out that are: at most a day of each at once, the
    /// oldest first, so that nothing waits for long. Sums over days stay as they are.
    ///
    /// # Errors
    /// SQLite cannot write.
    pub fn forget(&mut self, configured: &Configured, unix_s: u64) -> Result<(), LedgerError> {
        let before = |days: u32| {
            let edge_s = unix_s.saturating_sub(u64::from(days) * DAY_S);
            (edge_s - edge_s % HOUR_S).cast_signed()
        };
        let (minutes, hours) = (before(configured.minute_days), before(configured.hour_days));
        let forgotten = self.connection.transaction().and_then(|transaction| {
            if let Some(edge) = day_of_oldest(&transaction, MINUTE_S)? {
                merge(&transaction, edge.min(minutes))?;
            }
            if let Some(edge) = day_of_oldest(&transaction, HOUR_S)? {
                take_out(&transaction, edge.min(hours))?;
            }
            transaction.commit()
        });
        forgotten.and_then(|()| give_back(&self.connection)).map_err(|cause| self.failed(cause))
    }
}

/// The end of the day in which the oldest of these slots lies.
fn day_of_oldest(transaction: &Transaction<'_>, seconds: u64) -> rusqlite::Result<Option<i64>> {
    let oldest: Option<i64> = transaction.query_row(
        "SELECT min(slot) FROM (SELECT min(slot) AS slot FROM pool WHERE seconds = ?1
         UNION ALL SELECT min(slot) FROM line WHERE seconds = ?1)",
        [seconds.cast_signed()],
        |row| row.get(0),
    )?;
    let day = DAY_S.cast_signed();
    Ok(oldest.map(|slot| slot - slot % day + day))
}

/// Minutes before `edge`, where an hour begins, become hours.
fn merge(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    let (minute, hour) = (MINUTE_S.cast_signed(), HOUR_S.cast_signed());
    transaction.execute(
        "INSERT INTO line
         SELECT slot - slot % ?2, ?2, lease, gpu, sum(within_ns), sum(burst_ns), sum(lent_ns), sum(idle_ns), sum(unmetered_ns),
                sum(unwatched_ns), sum(cap_kib_s), sum(used_kib_s), sum(low_ns), sum(energy_millijoules)
         FROM line WHERE seconds = ?3 AND slot < ?1 GROUP BY slot - slot % ?2, lease, gpu
         ON CONFLICT DO UPDATE SET within_ns = within_ns + excluded.within_ns, burst_ns = burst_ns + excluded.burst_ns,
         lent_ns = lent_ns + excluded.lent_ns, idle_ns = idle_ns + excluded.idle_ns,
         unmetered_ns = unmetered_ns + excluded.unmetered_ns, unwatched_ns = unwatched_ns + excluded.unwatched_ns,
         cap_kib_s = cap_kib_s + excluded.cap_kib_s, used_kib_s = used_kib_s + excluded.used_kib_s,
         low_ns = low_ns + excluded.low_ns, energy_millijoules = energy_millijoules + excluded.energy_millijoules",
        params![edge, hour, minute],
    )?;
    transaction.execute("DELETE FROM line WHERE seconds = ?2 AND slot < ?1", params![edge, minute])?;
    transaction.execute(
        "INSERT INTO pool SELECT slot - slot % ?2, ?2, gpu, sum(ns), sum(energy_millijoules) FROM pool
         WHERE seconds = ?3 AND slot < ?1 GROUP BY slot - slot % ?2, gpu
         ON CONFLICT DO UPDATE SET ns = ns + excluded.ns, energy_millijoules = energy_millijoules + excluded.energy_millijoules",
        params![edge, hour, minute],
    )?;
    transaction.execute("DELETE FROM pool WHERE seconds = ?2 AND slot < ?1", params![edge, minute])?;
    unleased::merge(transaction, edge)
}

/// Takes out what lies before `edge`, and leases of which nothing is left.
fn take_out(transaction: &Transaction<'_>, edge: i64) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM line WHERE slot < ?1", [edge])?;
    transaction.execute("DELETE FROM pool WHERE slot < ?1", [edge])?;
    unleased::take_out(transaction, edge)?;
    transaction.execute(
        "DELETE FROM lease WHERE ended_unix_ms < ?1 * 1000 AND NOT EXISTS (SELECT 1 FROM line WHERE line.lease = lease.id)",
        [edge],
    )?;
    transaction.execute("UPDATE entered SET begins_unix_s = max(begins_unix_s, ?1)", [edge]).map(drop)
}

/// Gives pages that nothing is in back to the disk. SQLite frees one for each row that it is asked for.
fn give_back(connection: &Connection) -> rusqlite::Result<()> {
    let mut vacuum = connection.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
