//! What there was when something was asked for: the GPUs' time, minute by minute, their memory, and how long leases were there.

use super::balance::MINUTE_S;
use super::lines::{GpuPart, Gpus};
use super::question::Scope;
use gpool_policy::savings::Stretch;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};

/// How much memory there is of the boards on which GPUs and instances are that are there now, by their UUIDs.
pub type Memories = HashMap<String, u64>;

/// The memory of each board by the ledger's number of the GPU or instance: its own, or what others of its model have that `known`
/// tells. None of one that is gone, with all of its kind.
pub fn memories(connection: &Connection, gpus: &Gpus, known: &Memories) -> rusqlite::Result<HashMap<i64, u64>> {
    let all = super::lines::gpus(connection, &Scope::default())?;
    let of_model: HashMap<&str, u64> =
        all.values().filter_map(|gpu| Some((gpu.product.as_str(), *known.get(&gpu.uuid)?))).collect();
    let of = |gpu: &GpuPart| known.get(&gpu.uuid).or_else(|| of_model.get(gpu.product.as_str())).copied();
    let there = |bytes: &u64| *bytes > 0;
    Ok(gpus.iter().filter_map(|(number, gpu)| Some((*number, of(gpu).filter(there)?))).collect())
}

/// Where a minute or an hour begins, and how long it is, in seconds.
pub type Place = (u64, u64);

/// When a lease was made and ended, Unix milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// Made.
    pub created_unix_ms: u64,
    /// Ended; of one that runs when the ledger was written last.
    pub ended_unix_ms: u64,
}

impl Life {
    /// For how long it had its GPUs in a minute or hour of which so much is known.
    pub fn held_ns(self, (slot_unix_s, seconds): Place, known_ns: u64) -> u64 {
        let begins_ms = slot_unix_s.saturating_mul(1000).max(self.created_unix_ms);
        let ends_ms = slot_unix_s.saturating_add(seconds).saturating_mul(1000).min(self.ended_unix_ms);
        ends_ms.saturating_sub(begins_ms).saturating_mul(1_000_000).min(known_ns)
    }
}

/// In which table it stands for how long a GPU was there.
#[derive(Debug, Clone, Copy)]
pub enum There {
    /// Also while nobody looked, as far as that is known.
    Pool,
    /// While somebody looked who uses it without a lease.
    Watched,
}

/// The minutes and hours of that time.
pub fn stretches(
    connection: &Connection,
    scope: &Scope,
    gpus: &Gpus,
    there: There,
) -> rusqlite::Result<BTreeMap<Place, Stretch>> {
    let table = match there {
        There::Pool => "pool",
        There::Watched => "watched",
    };
    let sql = format!("SELECT slot, seconds, gpu, ns FROM {table} WHERE slot >= ?1 AND slot < ?2");
    let mut query = connection.prepare(&sql)?;
    let mut found = query.query(scope.span())?;
    let mut stretches: BTreeMap<Place, Stretch> = BTreeMap::new();
    while let Some(row) = found.next()? {
        let number = |place| row.get::<_, i64>(place).map(|value| u64::try_from(value).unwrap_or(0));
        let (place, ns) = ((number(0)?, number(1)?), number(3)?);
        let Some(gpu) = gpus.get(&row.get(2)?) else { continue };
        let stretch = stretches.entry(place).or_default();
        stretch.known_ns = stretch.known_ns.max(ns);
        stretch.gpu_ns = stretch.gpu_ns.saturating_add(gpu.part_of(ns));
    }
    Ok(stretches)
}

/// Until when the ledger is written.
pub fn entered_unix_ms(connection: &Connection) -> rusqlite::Result<u64> {
    let entered: Option<i64> = connection.query_row("SELECT max(unix_ms) FROM entered", [], |row| row.get(0))?;
    Ok(entered.map_or(0, |ms| u64::try_from(ms).unwrap_or(0)))
}

/// Until when hours alone are known: those before the first minute. What was not written for long is laid into hours as well, and
/// there are minutes before and behind those.
pub fn hours_until(stretches: &BTreeMap<Place, Stretch>) -> Option<u64> {
    let first_minute = stretches.keys().find(|(_, seconds)| *seconds == MINUTE_S).map(|(slot, _)| *slot);
    let ends = stretches.keys().filter(|(_, seconds)| *seconds > MINUTE_S).map(|(slot, seconds)| slot + seconds);
    ends.filter(|end| first_minute.is_none_or(|first| *end <= first)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_between_minutes_is_of_an_outage() {
        let until = |places: &[Place]| hours_until(&places.iter().map(|place| (*place, Stretch::default())).collect());
        assert_eq!(until(&[(0, 3600), (3600, 3600), (7200, 60), (7200, 3600), (10_800, 60)]), Some(7200));
        assert_eq!((until(&[(60, 60), (3600, 3600)]), until(&[(0, 3600)]), until(&[])), (None, Some(3600), None));
    }

    #[test]
    fn a_lease_is_held_from_its_beginning_to_its_end_and_no_longer_than_is_known() {
        let life = Life { created_unix_ms: 30_000, ended_unix_ms: 130_000 };
        let held = |slot, known| life.held_ns((slot, 60), known);
        const S: u64 = 1_000_000_000;
        assert_eq!(
            [held(0, 60 * S), held(60, 60 * S), held(120, 60 * S), held(180, 60 * S)],
            [30, 60, 10, 0].map(|s| s * S)
        );
        assert_eq!(held(60, 20 * S), 20 * S);
    }
}
