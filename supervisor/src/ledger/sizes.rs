//! What leases used of what they had asked for, and which request would have been enough, by what the ledger has of each minute.

use super::balance::MINUTE_S;
use super::lines::{GpuPart, Line, OF_SCOPE, begins, gpus, in_scope, key_of_lease, walk};
use super::question::{EnoughQuestion, Scope};
use super::reader::ROWS;
use super::savings::{Memories, Place, There, held_ns, memories, stretches};
use gpool_policy::savings::Stretch;
use gpool_policy::sizing::{Seen, Sizing};
use gpool_protocol::{EnoughRequest, Sizes, SizesRow, UsageBy};
use rusqlite::{Connection, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

/// Who has used so much of his share in a minute may have wanted more, in percent.
const FULL_PERCENT: u64 = 95;

/// A lease as the answer has it.
struct Leased {
    /// In which row it is.
    key: String,
    /// What is sized together: a container with all of its leases.
    container: String,
    created_unix_ms: u64,
    ended_unix_ms: Option<u64>,
    peak_bytes: u64,
}

impl Leased {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number = |place| row.get::<_, Option<i64>>(place).map(|its| its.map(|its| u64::try_from(its).unwrap_or(0)));
        Ok(Self {
            key: row.get(0)?,
            container: row.get(1)?,
            created_unix_ms: number(2)?.unwrap_or(0),
            ended_unix_ms: number(3)?,
            peak_bytes: number(4)?.unwrap_or(0),
        })
    }
}

/// What comes together of one container.
#[derive(Default)]
struct Sized {
    row: SizesRow,
    sizing: Sizing,
    minute: Vec<Seen>,
    place: Place,
    /// For how long it held GPUs, whatever part of a board each is, and its caps of memory in that time.
    whole_held_ns: u64,
    cap_kib_s: u64,
    memory_bytes: Option<u64>,
}

impl Sized {
    fn note(&mut self, line: &Line, (gpu, memory_bytes): (&GpuPart, Option<u64>), (held_ns, peak_bytes): (u64, u64)) {
        let place = (line.slot_unix_s, line.seconds);
        if place != self.place {
            self.end_minute();
            self.place = place;
        }
        let amounts = &line.amounts;
        let (reserved_ns, busy_ns) = (amounts.reserved_ns(), amounts.within_ns.saturating_add(amounts.burst_ns));
        let is_full = reserved_ns > 0
            && u128::from(amounts.within_ns) * 100 >= u128::from(reserved_ns) * u128::from(FULL_PERCENT);
        let pairs = [
            (&mut self.row.held_gpu_ns, gpu.part_of(held_ns)),
            (&mut self.row.reserved_gpu_ns, gpu.part_of(reserved_ns)),
            (&mut self.row.used_gpu_ns, gpu.part_of(busy_ns)),
            (&mut self.row.full_gpu_ns, if is_full { gpu.part_of(held_ns) } else { 0 }),
            (&mut self.whole_held_ns, held_ns),
            (&mut self.cap_kib_s, amounts.cap_kib_s),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.row.memory_peak_bytes = self.row.memory_peak_bytes.max(peak_bytes);
        self.memory_bytes = match (self.memory_bytes, memory_bytes) {
            (Some(least), Some(bytes)) => Some(least.min(bytes)),
            (least, bytes) => least.or(bytes),
        };
        let unmetered_ns = if amounts.unmetered_ns > 0 { held_ns } else { 0 };
        self.minute.push(Seen { held_ns, unmetered_ns, busy_ns, others_ns: 0, peak_bytes, at_once: 0 });
    }

    fn end_minute(&mut self) {
        // Its GPUs are given together, so that those are at work at once that are in a minute.
        let at_once = self.minute.iter().filter(|seen| seen.busy_ns > 0).count() as u64;
        self.minute.iter_mut().for_each(|seen| seen.at_once = at_once);
        self.sizing.note(&self.minute);
        self.minute.clear();
    }

    /// What would have been enough, once all is noted.
    fn told(mut self, percent: u8) -> SizesRow {
        self.end_minute();
        let enough = self.sizing.enough(percent, self.memory_bytes);
        let of_held = |held_ns: u64, permille: u64| {
            u64::try_from(u128::from(held_ns) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
        };
        // Of work that nobody sees what was promised is taken to be needed; who never worked needs none of it.
        let is_hidden = self.sizing.metered_ns() == 0;
        let needed_ns = match (enough.is_whole, enough.fraction_permille) {
            (true, _) => self.row.held_gpu_ns,
            (false, Some(permille)) => of_held(self.row.held_gpu_ns, permille),
            (false, None) if is_hidden => self.row.reserved_gpu_ns,
            (false, None) => 0,
        };
        let memory_kib_s = u128::from(enough.memory_bytes / 1024) * u128::from(self.whole_held_ns) / 1_000_000_000;
        let memory_kib_s = u64::try_from(memory_kib_s).unwrap_or(u64::MAX);
        SizesRow {
            leases: 0,
            enough_gpu_ns: if self.row.reserved_gpu_ns > 0 { needed_ns } else { 0 },
            memory_cap_mib_s: self.cap_kib_s / 1024,
            // Without a cap there is none to be smaller.
            memory_enough_mib_s: if enough.is_whole { self.cap_kib_s } else { memory_kib_s.min(self.cap_kib_s) } / 1024,
            enough: Some(EnoughRequest {
                gpus: enough.gpus,
                fraction_permille: enough.fraction_permille,
                memory_bytes: enough.memory_bytes,
                is_whole: enough.is_whole,
            }),
            ..self.row
        }
    }
}

fn add(sum: &mut SizesRow, other: &SizesRow) {
    let pairs = [
        (&mut sum.leases, other.leases),
        (&mut sum.held_gpu_ns, other.held_gpu_ns),
        (&mut sum.reserved_gpu_ns, other.reserved_gpu_ns),
        (&mut sum.used_gpu_ns, other.used_gpu_ns),
        (&mut sum.full_gpu_ns, other.full_gpu_ns),
        (&mut sum.enough_gpu_ns, other.enough_gpu_ns),
        (&mut sum.memory_cap_mib_s, other.memory_cap_mib_s),
        (&mut sum.memory_enough_mib_s, other.memory_enough_mib_s),
    ];
    pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    sum.memory_peak_bytes = sum.memory_peak_bytes.max(other.memory_peak_bytes);
}

/// Containers by the row that they are in and their ids.
type Containers = BTreeMap<(String, String), Sized>;

/// What each container had, and how many leases each row has.
fn containers(
    connection: &Connection,
    (scope, by): (&Scope, UsageBy),
    memories: &HashMap<i64, u64>,
    stretches: &BTreeMap<Place, Stretch>,
) -> rusqlite::Result<(Containers, BTreeMap<String, u64>)> {
    let gpus = gpus(connection, scope)?;
    let columns = format!(
        "SELECT {}, container_id, created_unix_ms, ended_unix_ms, peak_bytes FROM lease WHERE {OF_SCOPE}",
        key_of_lease(by)
    );
    let (mut query, mut leases) = (connection.prepare(&columns)?, HashMap::new());
    let (mut sized, mut counts, mut counted) = (Containers::new(), BTreeMap::new(), HashSet::new());
    walk(connection, scope, &gpus, |line| {
        if let Entry::Vacant(place) = leases.entry(line.of.0) {
            place.insert(in_scope(&mut query, line.of.0, scope, Leased::read)?);
        }
        let (Some(Some(its)), Some(gpu)) = (leases.get(&line.of.0), gpus.get(&line.of.1)) else {
            return Ok(ControlFlow::Continue(()));
        };
        let place = (line.slot_unix_s, line.seconds);
        let known_ns = stretches.get(&place).map_or(0, |stretch| stretch.known_ns);
        let held_ns = held_ns(place, (its.created_unix_ms, its.ended_unix_ms.unwrap_or(u64::MAX)), known_ns);
        let container = sized.entry((its.key.clone(), its.container.clone())).or_default();
        container.note(&line, (gpu, memories.get(&line.of.1).copied()), (held_ns, its.peak_bytes));
        if counted.insert(line.of.0) {
            *counts.entry(its.key.clone()).or_insert(0) += 1;
        }
        let is_too_long = counts.len() > ROWS;
        Ok(if is_too_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((sized, counts))
}

/// Says of each what would have been enough.
pub fn sizes(connection: &Connection, question: &EnoughQuestion, known: &Memories) -> rusqlite::Result<Sizes> {
    let scope = &question.scope;
    let gpus = gpus(connection, scope)?;
    let memories = memories(connection, &gpus, known)?;
    let stretches = stretches(connection, scope, &gpus, There::Pool)?;
    let (sized, counts) = containers(connection, (scope, question.by), &memories, &stretches)?;
    let mut rows: BTreeMap<String, SizesRow> = BTreeMap::new();
    for ((key, _), container) in sized {
        let told = container.told(question.percent);
        let row = rows.entry(key.clone()).or_insert_with(|| SizesRow { key, ..SizesRow::default() });
        row.enough = if question.by == UsageBy::Container { told.enough } else { None };
        add(row, &told);
    }
    let mut total = SizesRow::default();
    for (key, row) in &mut rows {
        row.leases = counts.get(key).copied().unwrap_or(0);
        add(&mut total, row);
    }
    let mut rows: Vec<SizesRow> = rows.into_values().collect();
    let spare = |row: &SizesRow| i128::from(row.reserved_gpu_ns) - i128::from(row.enough_gpu_ns);
    rows.sort_by(|a, b| spare(b).cmp(&spare(a)).then_with(|| a.key.cmp(&b.key)));
    Ok(Sizes {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        hours_until_unix_s: stretches.keys().filter(|place| place.1 > MINUTE_S).map(|place| place.0 + place.1).max(),
        percent: question.percent,
        rows,
        total,
    })
}
