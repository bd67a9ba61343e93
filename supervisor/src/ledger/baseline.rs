//! What those used who have no lease, and which request would have been enough for each, by what the ledger has of each minute.

use super::lines::{GpuPart, begins, gpus};
use super::question::BaselineQuestion;
use super::reader::ROWS;
use super::savings::{Memories, Place, memories, stretches};
use super::unleased::user_of;
use gpool_policy::levels::Levels;
use gpool_policy::savings::{Course, Demand, Stretch, whole_gpus};
use gpool_policy::sizing::{Seen, Sizing};
use gpool_protocol::{Baseline, EnoughRequest, Unleased, UnleasedUse};
use rusqlite::{Connection, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// A line: a minute or an hour of somebody on a GPU.
struct Line {
    place: Place,
    user: i64,
    gpu: i64,
    seen: Seen,
}

impl Line {
    /// Below zero there is nothing, whatever a file says.
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number = |place| row.get::<_, i64>(place).map(|value| u64::try_from(value).unwrap_or(0));
        let seen = Seen {
            held_ns: number(4)?,
            unmetered_ns: number(5)?,
            busy_ns: number(6)?,
            others_ns: number(7)?,
            peak_bytes: number(8)?,
        };
        Ok(Self { place: (number(0)?, number(1)?), user: row.get(2)?, gpu: row.get(3)?, seen })
    }

    /// What it took of the GPUs in a stretch of which so much is known: a place for as long as it was there, its work, or in an
    /// instance, where nobody sees it, all of that, and the most of its memory all the time that it was there.
    fn demand(&self, gpu: &GpuPart, memory_bytes: Option<u64>, known_ns: u64) -> Demand {
        let held_ns = self.seen.held_ns.min(known_ns);
        let used_ns = self.seen.busy_ns.saturating_add(self.seen.unmetered_ns).min(known_ns);
        let memory_ns = memory_bytes.map_or(0, |bytes| {
            let held = u128::from(self.seen.peak_bytes) * u128::from(held_ns) / u128::from(bytes);
            u64::try_from(held).unwrap_or(u64::MAX)
        });
        Demand { places_ns: held_ns, reserved_ns: 0, used_ns: gpu.part_of(used_ns), memory_ns }
    }
}

/// What comes together of one of them.
struct Used {
    user: Unleased,
    command: String,
    first_unix_s: u64,
    last_unix_s: u64,
    held_ns: u64,
    unmetered_ns: u64,
    sizing: Sizing,
    /// What it was seen to do in the minute that is not over, on each GPU.
    minute: Vec<Seen>,
    /// The least memory of a GPU on which it was.
    memory_bytes: Option<u64>,
}

impl Used {
    fn new((user, command): (Unleased, String), line: &Line) -> Self {
        let first_unix_s = line.place.0;
        let (sizing, minute, memory_bytes) = (Sizing::default(), Vec::new(), None);
        Self { user, command, first_unix_s, last_unix_s: 0, held_ns: 0, unmetered_ns: 0, sizing, minute, memory_bytes }
    }

    fn note(&mut self, line: &Line, memory_bytes: Option<u64>) {
        self.last_unix_s = self.last_unix_s.max(line.place.0.saturating_add(line.place.1));
        self.held_ns = self.held_ns.saturating_add(line.seen.held_ns);
        self.unmetered_ns = self.unmetered_ns.saturating_add(line.seen.unmetered_ns);
        self.memory_bytes = match (self.memory_bytes, memory_bytes) {
            (Some(least), Some(bytes)) => Some(least.min(bytes)),
            (least, bytes) => least.or(bytes),
        };
        self.minute.push(line.seen);
    }

    fn end_minute(&mut self) {
        self.sizing.note(&self.minute);
        self.minute.clear();
    }

    fn told(self, percent: u8) -> UnleasedUse {
        let enough = self.sizing.enough(percent, self.memory_bytes);
        UnleasedUse {
            user: self.user,
            command: self.command,
            first_unix_s: self.first_unix_s,
            last_unix_s: self.last_unix_s,
            held_gpu_ns: self.held_ns,
            unmetered_gpu_ns: self.unmetered_ns,
            busy_gpu_ns: self.sizing.busy_ns(),
            crowded_gpu_ns: self.sizing.crowded_ns(),
            work_permille: self.sizing.work_permille(percent),
            memory_peak_bytes: self.sizing.peak_bytes(),
            enough: EnoughRequest {
                gpus: enough.gpus,
                fraction_permille: enough.fraction_permille,
                memory_bytes: enough.memory_bytes,
                is_whole: enough.is_whole,
            },
        }
    }
}

/// All of them, and what they took of the GPUs together.
#[derive(Default)]
struct Minutes {
    /// By the ledger's number; none where the question is not about that one.
    users: HashMap<i64, Option<Used>>,
    together: Course,
    /// The minute or hour that is not over, who was there in it, and what they took.
    place: Place,
    there: BTreeSet<i64>,
    asked: Demand,
}

impl Minutes {
    /// The minute is over, of which so much is known.
    fn end(&mut self, stretch: Stretch) {
        for user in std::mem::take(&mut self.there) {
            if let Some(Some(used)) = self.users.get_mut(&user) {
                used.end_minute();
            }
        }
        self.together.note(std::mem::take(&mut self.asked), stretch);
    }
}

/// Adds up what each was seen to do, and says what would have been enough.
pub fn baseline(connection: &Connection, question: &BaselineQuestion, known: &Memories) -> rusqlite::Result<Baseline> {
    let scope = &question.scope;
    let gpus = gpus(connection, scope)?;
    let memories = memories(connection, &gpus, known)?;
    let stretches = stretches(connection, scope, &gpus)?;
    let stretch = |place: &Place| stretches.get(place).copied().unwrap_or_default();
    let mut query = connection.prepare(
        "SELECT slot, seconds, unleased, gpu, held_ns, unmetered_ns, busy_ns, others_ns, peak_bytes FROM unleased_line
         WHERE slot >= ?1 AND slot < ?2 ORDER BY slot, seconds, unleased",
    )?;
    let mut lines = query.query(scope.span())?;
    let (mut minutes, mut unknown, mut count) = (Minutes::default(), BTreeSet::new(), 0);
    let is_asked = |user: &Unleased| scope.uid.is_none_or(|uid| user.uid == Some(uid));
    while let Some(row) = lines.next()? {
        let line = Line::read(row)?;
        let Some(gpu) = gpus.get(&line.gpu) else { continue };
        if line.place != minutes.place {
            minutes.end(stretch(&minutes.place));
            minutes.place = line.place;
        }
        let used = match minutes.users.entry(line.user) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let known = user_of(connection, line.user)?.filter(|(user, _)| is_asked(user));
                count += usize::from(known.is_some());
                place.insert(known.map(|known| Used::new(known, &line)))
            }
        };
        let Some(used) = used else { continue };
        let memory_bytes = memories.get(&line.gpu).copied();
        if memory_bytes.is_none() {
            unknown.insert(line.gpu);
        }
        used.note(&line, memory_bytes);
        minutes.asked.add(line.demand(gpu, memory_bytes, stretch(&line.place).known_ns));
        minutes.there.insert(line.user);
        if count > ROWS {
            break;
        }
    }
    minutes.end(stretch(&minutes.place));
    let known_ns = stretches.values().map(|its| its.known_ns).fold(0, u64::saturating_add);
    let percent = question.percent;
    let mut users: Vec<UnleasedUse> = minutes.users.into_values().flatten().map(|used| used.told(percent)).collect();
    users.sort_by(|a, b| {
        let most = |its: &UnleasedUse| (its.busy_gpu_ns, its.held_gpu_ns);
        most(b).cmp(&most(a)).then_with(|| a.user.cmp(&b.user))
    });
    let enough = |levels: &Levels| if users.is_empty() { 0 } else { whole_gpus(levels.enough(known_ns, percent)) };
    Ok(Baseline {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        percent,
        known_ns,
        gpus_for_each: enough(&minutes.together.places),
        gpus_shared: enough(&minutes.together.needed),
        users,
        there_permille: stretches.values().map(|its| its.permille_of(its.gpu_ns)).max().unwrap_or(0),
        unknown_gpus: unknown.len() as u64,
    })
}
