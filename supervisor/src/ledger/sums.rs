//! Sums over the ledger.

use super::balance::HOUR_S;
use super::lines::{Amounts, GpuPart, Gpus, Line, OF_SCOPE, begins, gpus, in_scope, key_of_lease, walk};
use super::pricing::{Cost, Pricing};
use super::question::{Question, Scope, moment};
use super::reader::ROWS;
use super::retention::DAY_S;
use gpool_protocol::{Usage, UsageBy, UsagePool, UsageRow};
use rusqlite::{Connection, Row, Statement, params};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

/// Adds lines up as they come, which is by time.
pub fn sums(connection: &Connection, question: &Question, mut pricing: Option<Pricing>) -> rusqlite::Result<Usage> {
    let (by, scope) = (question.by, &question.scope);
    let gpus = gpus(connection, scope)?;
    let mut before = Before::of(connection, question)?;
    let (mut lease, mut leases) = (connection.prepare(&name_of_lease(by))?, Leases::new());
    let stretch_s = match by {
        UsageBy::Hour => Some(HOUR_S),
        UsageBy::Day => Some(DAY_S),
        _ => None,
    };
    let mut names = BTreeSet::new();
    let (mut rows, mut total_leases) = (BTreeMap::new(), BTreeSet::new());
    let (mut stretch, mut sums) = (0, Sums::new());
    walk(connection, scope, &gpus, |line| {
        if let Entry::Vacant(place) = leases.entry(line.of.0) {
            place.insert(in_scope(&mut lease, line.of.0, scope, named)?);
        }
        let Some(Some(its)) = leases.get(&line.of.0) else { return Ok(ControlFlow::Continue(())) };
        let of_line = stretch_s.map_or(0, |seconds| line.slot_unix_s - line.slot_unix_s % seconds);
        if of_line != stretch {
            flush(&mut rows, (by, stretch), std::mem::take(&mut sums), (&leases, &gpus), &mut before)?;
            stretch = of_line;
        }
        let sum: &mut (Amounts, Cost) = sums.entry(line.of).or_default();
        sum.0.add(&line.amounts);
        sum.1.add(&cost_of(pricing.as_mut(), &line, its.team.as_deref(), &gpus));
        if total_leases.insert(line.of.0) {
            names.insert(its.name.clone());
        }
        let is_too_long = rows.len().max(names.len()) > ROWS;
        Ok(if is_too_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if names.len() > ROWS {
        rows.extend(std::mem::take(&mut names).into_iter().map(|name| (name, UsageRow::default())));
    }
    flush(&mut rows, (by, stretch), sums, (&leases, &gpus), &mut before)?;
    let rows: Vec<UsageRow> = rows.into_values().collect();
    let mut total = UsageRow::default();
    rows.iter().for_each(|row| total.add(row));
    // One lease may be in several rows.
    total.leases = total_leases.len() as u64;
    total.leases_before = 0;
    for lease in &total_leases {
        total.leases_before += u64::from(before.had(*lease, None, 0)?);
    }
    let pool = pool(connection, scope, &gpus, &total, pricing.as_ref())?;
    Ok(Usage {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        currency: None,
        rows,
        total,
        pool: (!scope.is_of_some()).then_some(pool),
    })
}

fn cost_of(pricing: Option<&mut Pricing>, line: &Line, team: Option<&str>, gpus: &Gpus) -> Cost {
    match (pricing, gpus.get(&line.of.1)) {
        (Some(pricing), Some(gpu)) => pricing.cost_of(line, team, gpu),
        _ => Cost::default(),
    }
}

/// What each lease has had of each GPU, and what that costs.
type Sums = HashMap<(i64, i64), (Amounts, Cost)>;

/// What each lease is called in the answer, and its memory; none where it is not asked for.
type Leases = HashMap<i64, Option<Named>>;

/// A lease as the answer has it.
struct Named {
    name: String,
    memory: Option<Memory>,
    team: Option<String>,
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

/// Asks for a lease by its number; there is no answer where a team or a user is asked for that it is not of.
fn name_of_lease(by: UsageBy) -> String {
    let name = key_of_lease(by);
    format!("SELECT {name}, cap_bytes, peak_bytes, team FROM lease WHERE {OF_SCOPE}")
}

fn named(row: &Row<'_>) -> rusqlite::Result<Named> {
    Ok(Named { name: row.get(0)?, memory: Memory::of(row.get(1)?, row.get(2)?), team: row.get(3)? })
}

/// Which leases had something between the time from when on they are counted and the one that is asked for.
struct Before<'c>(Option<(Statement<'c>, [i64; 2], Option<String>)>);

impl<'c> Before<'c> {
    fn of(connection: &'c Connection, question: &Question) -> rusqlite::Result<Self> {
        let scope = &question.scope;
        let Some(since) = question.counted_since_unix_s.filter(|since| *since < scope.since_unix_s) else {
            return Ok(Self(None));
        };
        // Answered by the index of lines by lease, whose entries are in the order of time.
        let query = connection.prepare(
            "SELECT EXISTS (SELECT 1 FROM line WHERE lease = ?1 AND slot >= ?2 AND slot < ?3 AND (?4 IS NULL OR gpu = ?4)
             AND (?5 IS NULL OR gpu IN (SELECT id FROM gpu WHERE substr(uuid, 1, length(?5)) = ?5)))",
        )?;
        Ok(Self(Some((query, [since, scope.since_unix_s].map(u64::cast_signed), scope.gpu.clone()))))
    }

    /// Whether that one did, on that GPU or on any that is asked for, and not before `from_unix_s`.
    fn had(&mut self, lease: i64, gpu: Option<i64>, from_unix_s: u64) -> rusqlite::Result<bool> {
        let Some((query, [since, until], of_gpus)) = &mut self.0 else { return Ok(false) };
        query.query_row(params![lease, from_unix_s.cast_signed().max(*since), *until, gpu, &*of_gpus], |row| row.get(0))
    }
}

/// Puts the sums of a stretch of time into the rows that they belong to.
fn flush(
    rows: &mut BTreeMap<String, UsageRow>,
    (by, stretch_unix_s): (UsageBy, u64),
    sums: Sums,
    (leases, gpus): (&Leases, &Gpus),
    before: &mut Before<'_>,
) -> rusqlite::Result<()> {
    let mut counted = BTreeSet::new();
    for ((lease, number), (amounts, cost)) in sums {
        let (Some(Some(its)), Some(gpu)) = (leases.get(&lease), gpus.get(&number)) else {
            continue;
        };
        let key = match by {
            UsageBy::Gpu => gpu.uuid.clone(),
            UsageBy::Hour => moment(stretch_unix_s).strftime("%Y-%m-%dT%H:00Z").to_string(),
            UsageBy::Day => moment(stretch_unix_s).strftime("%Y-%m-%d").to_string(),
            _ => its.name.clone(),
        };
        let is_new = counted.insert((key.clone(), lease));
        let mut row = row_of(&key, is_new, (&amounts, &cost), its.memory, gpu);
        let of_gpu = (by == UsageBy::Gpu).then_some(number);
        row.leases_before = (is_new && before.had(lease, of_gpu, stretch_unix_s)?).into();
        rows.entry(key.clone()).or_insert_with(|| UsageRow { key, ..UsageRow::default() }).add(&row);
    }
    Ok(())
}

fn row_of(
    key: &str,
    is_new: bool,
    (amounts, cost): (&Amounts, &Cost),
    memory: Option<Memory>,
    gpu: &GpuPart,
) -> UsageRow {
    let part_of = |ns: u64| gpu.part_of(ns);
    let [within, burst, lent, idle, unmetered] = [
        part_of(amounts.within_ns),
        part_of(amounts.burst_ns),
        part_of(amounts.lent_ns),
        part_of(amounts.idle_ns),
        part_of(amounts.unmetered_ns),
    ];
    UsageRow {
        key: key.to_owned(),
        leases: is_new.into(),
        leases_before: 0,
        reserved_gpu_ns: within + lent + idle + unmetered,
        used_gpu_ns: within + burst,
        burst_gpu_ns: burst,
        lent_gpu_ns: lent,
        idle_gpu_ns: idle,
        unmetered_gpu_ns: unmetered,
        unwatched_gpu_ns: part_of(amounts.unwatched_ns),
        memory_cap_mib_s: amounts.cap_kib_s / 1024,
        memory_used_mib_s: amounts.used_kib_s / 1024,
        memory_needed_mib_s: memory.map_or(amounts.cap_kib_s, |memory| memory.needed(amounts.cap_kib_s)) / 1024,
        memory_peak_bytes: memory.map_or(0, |memory| memory.peak_bytes),
        energy_millijoules: amounts.energy_millijoules,
        cost_nanos: cost.nanos,
        unpriced_gpu_ns: cost.unpriced_ns,
    }
}

/// What there was, and what of it nobody had or paid.
fn pool(
    connection: &Connection,
    scope: &Scope,
    gpus: &Gpus,
    total: &UsageRow,
    pricing: Option<&Pricing>,
) -> rusqlite::Result<UsagePool> {
    let mut query =
        connection.prepare("SELECT gpu, slot, ns, energy_millijoules FROM pool WHERE slot >= ?1 AND slot < ?2")?;
    let mut found = query.query(scope.span())?;
    // By GPU and day, within which a price does not change.
    let mut days: BTreeMap<(i64, u64), u64> = BTreeMap::new();
    let mut drawn = 0u64;
    while let Some(row) = found.next()? {
        let (gpu, slot): (i64, i64) = (row.get(0)?, row.get(1)?);
        let slot_unix_s = u64::try_from(slot).unwrap_or(0);
        let day = days.entry((gpu, slot_unix_s - slot_unix_s % DAY_S)).or_default();
        *day = day.saturating_add(u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0));
        if gpus.contains_key(&gpu) {
            drawn = drawn.saturating_add(u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0));
        }
    }
    let mut pool = UsagePool { energy_millijoules: drawn, ..UsagePool::default() };
    let mut whole: BTreeMap<i64, u64> = BTreeMap::new();
    for ((number, day_unix_s), ns) in days {
        let Some(gpu) = gpus.get(&number) else { continue };
        let its = whole.entry(number).or_default();
        *its = its.saturating_add(ns);
        let cost = pricing.and_then(|pricing| pricing.whole_cost_nanos(gpu, day_unix_s, ns));
        pool.cost_nanos = pool.cost_nanos.saturating_add(cost.unwrap_or(0));
        if pricing.is_some() && cost.is_none() {
            pool.unpriced_gpu_ns = pool.unpriced_gpu_ns.saturating_add(gpu.part_of(ns));
        }
    }
    for (number, ns) in whole {
        pool.gpu_ns = pool.gpu_ns.saturating_add(gpus.get(&number).map_or(0, |gpu| gpu.part_of(ns)));
    }
    let left = |of: u64, part: u64| {
        let left = i128::from(of) - i128::from(part);
        i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
    };
    pool.unreserved_gpu_ns = left(pool.gpu_ns, total.reserved_gpu_ns);
    pool.unused_gpu_ns = left(pool.gpu_ns, total.used_gpu_ns.saturating_add(total.unmetered_gpu_ns));
    pool.nobodys_energy_millijoules = left(drawn, total.energy_millijoules);
    pool.unpaid_cost_nanos = left(pool.cost_nanos, total.cost_nanos);
    Ok(pool)
}
