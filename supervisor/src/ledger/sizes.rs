//! What leases used of what they had asked for, and which request would have been enough, by what the ledger has of each minute.

use super::enough::{as_request, least};
use super::lines::{GpuPart, Gpus, Line, OF_SCOPE, begins, gpus, in_scope, key_of_lease, walk};
use super::question::{EnoughQuestion, Scope};
use super::there::{Life, Memories, Place, There, entered_unix_ms, hours_until, memories, stretches};
use gpool_policy::savings::Stretch;
use gpool_policy::sizing::{Seen, Sizing};
use gpool_protocol::{Sizes, SizesRow, UsageBy};
use rusqlite::{Connection, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

/// Who has used so much of his share in a minute may have wanted more, in percent.
const FULL_PERCENT: u64 = 95;
/// So many containers are sized for one answer.
pub const CONTAINERS: usize = 100_000;

/// A lease as the answer has it.
struct Leased {
    /// In which row it is.
    key: String,
    /// What is sized together: a container with all of its leases.
    container_id: String,
    life: Life,
    /// The most that it held; where that is not known, its cap.
    peak_bytes: u64,
}

impl Leased {
    /// Of one that runs the end is when the ledger was written last.
    fn read(row: &Row<'_>, entered_unix_ms: u64) -> rusqlite::Result<Self> {
        let number = |place| row.get::<_, Option<i64>>(place).map(|its| its.map(|its| u64::try_from(its).unwrap_or(0)));
        Ok(Self {
            key: row.get(0)?,
            container_id: row.get(1)?,
            life: Life {
                created_unix_ms: number(2)?.unwrap_or(0),
                ended_unix_ms: number(3)?.unwrap_or(entered_unix_ms),
            },
            peak_bytes: number(4)?.unwrap_or(0),
        })
    }
}

/// What comes together of one container.
#[derive(Default)]
struct Sized {
    row: SizesRow,
    sizing: Sizing,
    /// The minute that is not over, and what was seen in it by lease and GPU.
    place: Place,
    minute: Vec<((i64, i64), Seen)>,
    /// For how long it held GPUs of which its work was seen, an instance by its part of its board.
    metered_held_ns: u64,
    /// What was promised of others.
    hidden_ns: u64,
    /// For how long it held GPUs, whatever part of a board each is, and its caps of memory in that time.
    whole_held_ns: u64,
    cap_kib_s: u64,
    memory_bytes: Option<u64>,
    /// How many GPUs a lease of it had at once.
    most_gpus: u64,
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
        let is_hidden = amounts.unmetered_ns > 0;
        let held_part_ns = gpu.part_of(held_ns);
        let pairs = [
            (&mut self.row.held_gpu_ns, held_part_ns),
            (&mut self.row.reserved_gpu_ns, gpu.part_of(reserved_ns)),
            (&mut self.row.used_gpu_ns, gpu.part_of(busy_ns)),
            (&mut self.row.full_gpu_ns, if is_full { held_part_ns } else { 0 }),
            (&mut self.metered_held_ns, if is_hidden { 0 } else { held_part_ns }),
            (&mut self.hidden_ns, if is_hidden { gpu.part_of(reserved_ns) } else { 0 }),
            (&mut self.whole_held_ns, held_ns),
            (&mut self.cap_kib_s, amounts.cap_kib_s),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.row.memory_peak_bytes = self.row.memory_peak_bytes.max(peak_bytes);
        self.memory_bytes = least(self.memory_bytes, memory_bytes);
        let unmetered_ns = if is_hidden { held_ns } else { 0 };
        let seen = Seen { held_ns, unmetered_ns, busy_ns, peak_bytes, ..Seen::default() };
        self.minute.push((line.of, seen));
    }

    /// Leases that followed each other in it were on the same GPU, or on one after the other; the GPUs of one are given together.
    fn end_minute(&mut self) {
        let (mut on, mut at_work, mut had) = (BTreeMap::<i64, Seen>::new(), BTreeMap::new(), BTreeMap::new());
        for ((lease, gpu), seen) in &self.minute {
            on.entry(*gpu).or_default().add(seen);
            *had.entry(*lease).or_insert(0) += 1;
            *at_work.entry(*lease).or_insert(0) += u64::from(seen.busy_ns > 0);
        }
        let at_once = at_work.into_values().max().unwrap_or(0);
        on.values_mut().for_each(|seen| seen.at_once = at_once);
        self.most_gpus = self.most_gpus.max(had.into_values().max().unwrap_or(0));
        self.sizing.note(&on.into_values().collect::<Vec<_>>());
        self.minute = Vec::new();
    }

    /// What would have been enough, once all is noted. In the sums it is the share that would have been, also of who had better have
    /// whole GPUs; of work that nobody sees what was promised counts as needed.
    fn told(mut self, percent: u8) -> SizesRow {
        self.end_minute();
        let enough = self.sizing.enough(percent, self.memory_bytes);
        // Of several GPUs it may have worked on fewer.
        let of_gpus = |amount: u128| amount * u128::from(enough.gpus) / u128::from(self.most_gpus.max(enough.gpus));
        let share_ns = u128::from(self.metered_held_ns) * u128::from(enough.fraction_permille.unwrap_or(0)) / 1000;
        let needed_ns = u64::try_from(of_gpus(share_ns)).unwrap_or(u64::MAX).saturating_add(self.hidden_ns);
        let memory_kib_s = u128::from(enough.memory_bytes / 1024) * u128::from(self.whole_held_ns) / 1_000_000_000;
        let memory_kib_s = u64::try_from(of_gpus(memory_kib_s)).unwrap_or(u64::MAX);
        SizesRow {
            enough_gpu_ns: if self.row.reserved_gpu_ns > 0 { needed_ns } else { 0 },
            memory_cap_mib_s: self.cap_kib_s / 1024,
            // Without a cap there is none to be smaller.
            memory_enough_mib_s: memory_kib_s.min(self.cap_kib_s) / 1024,
            enough: Some(as_request(enough)),
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

/// What each container had. Its row has its key and the number of its leases.
fn containers(
    connection: &Connection,
    (scope, by): (&Scope, UsageBy),
    (gpus, memories): (&Gpus, &HashMap<i64, u64>),
    stretches: &BTreeMap<Place, Stretch>,
) -> rusqlite::Result<Vec<Sized>> {
    let entered_ms = entered_unix_ms(connection)?;
    let columns = format!(
        "SELECT {}, container_id, created_unix_ms, ended_unix_ms, coalesce(peak_bytes, cap_bytes) FROM lease WHERE {OF_SCOPE}",
        key_of_lease(by)
    );
    let (mut query, mut leases) = (connection.prepare(&columns)?, HashMap::new());
    let (mut sized, mut places) = (Vec::<Sized>::new(), HashMap::<(String, String), usize>::new());
    walk(connection, scope, gpus, |line| {
        let its = match leases.entry(line.of.0) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let found = in_scope(&mut query, line.of.0, scope, |row| Leased::read(row, entered_ms))?;
                vacant.insert(found.map(|its| {
                    let place = *places.entry((its.key.clone(), its.container_id.clone())).or_insert_with(|| {
                        sized.push(Sized::default());
                        sized.len() - 1
                    });
                    sized[place].row.key.clone_from(&its.key);
                    sized[place].row.leases += 1;
                    (place, its.life, its.peak_bytes)
                }))
            }
        };
        let (Some((container, life, peak_bytes)), Some(gpu)) = (its, gpus.get(&line.of.1)) else {
            return Ok(ControlFlow::Continue(()));
        };
        let place = (line.slot_unix_s, line.seconds);
        let known_ns = stretches.get(&place).map_or(0, |stretch| stretch.known_ns);
        let memory_bytes = memories.get(&line.of.1).copied();
        sized[*container].note(&line, (gpu, memory_bytes), (life.held_ns(place, known_ns), *peak_bytes));
        let is_too_long = sized.len() > CONTAINERS;
        Ok(if is_too_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(sized)
}

/// Says of each what would have been enough; and how many containers were sized, which are not all if they are more than
/// [`CONTAINERS`].
pub fn sizes(connection: &Connection, question: &EnoughQuestion, known: &Memories) -> rusqlite::Result<(Sizes, usize)> {
    let scope = &question.scope;
    let gpus = gpus(connection, scope)?;
    let memories = memories(connection, &gpus, known)?;
    let stretches = stretches(connection, scope, &gpus, There::Pool)?;
    let containers = containers(connection, (scope, question.by), (&gpus, &memories), &stretches)?;
    let count = containers.len();
    let (mut rows, mut total) = (BTreeMap::<String, SizesRow>::new(), SizesRow::default());
    for container in containers {
        let told = container.told(question.percent);
        add(&mut total, &told);
        let row = rows.entry(told.key.clone()).or_default();
        add(row, &told);
        row.key = told.key;
        row.enough = told.enough.filter(|_| question.by == UsageBy::Container);
    }
    let mut rows: Vec<SizesRow> = rows.into_values().collect();
    let spare = |row: &SizesRow| i128::from(row.reserved_gpu_ns) - i128::from(row.enough_gpu_ns);
    rows.sort_by(|a, b| spare(b).cmp(&spare(a)).then_with(|| a.key.cmp(&b.key)));
    let sizes = Sizes {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        hours_until_unix_s: hours_until(&stretches),
        percent: question.percent,
        rows,
        total,
    };
    Ok((sizes, count))
}
