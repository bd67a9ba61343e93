//! What those used who have no lease, and which request would have been enough for each, by what the ledger has of each minute.

use super::enough::{as_request, least};
use super::lines::{GpuPart, Gpus, gpus};
use super::question::{BaselineQuestion, Scope};
use super::there::{Memories, Place, There, hours_until, memories, stretches};
use super::unleased::{Written, written};
use gpool_policy::levels::Levels;
use gpool_policy::savings::{Course, Demand, Stretch, whole_gpus};
use gpool_policy::sizing::{Seen, Sizing};
use gpool_protocol::{Baseline, EnoughRequest, Unleased, UnleasedKind, UnleasedUse};
use rusqlite::{Connection, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// So many have rows of their own, those that came first; the rest of them are one.
const ROWS: usize = 2000;

/// The least share of a GPU that can be asked for.
const LEAST_PERMILLE: u64 = 10;

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
            at_once: number(9)?,
        };
        Ok(Self { place: (number(0)?, number(1)?), user: row.get(2)?, gpu: row.get(3)?, seen })
    }

    /// What it took of the GPUs in a stretch of which so much is known: a place for as long as it was there, of `others` as many as
    /// they were; its work, or in an instance, where nobody sees it, all of that; and the most of its memory all the time.
    fn seen_as(&self, is_others: bool, (gpu, memory_bytes): (&GpuPart, Option<u64>), known_ns: u64) -> Demand {
        let held_ns = self.seen.held_ns.min(known_ns);
        let used_ns = self.seen.busy_ns.saturating_add(self.seen.unmetered_ns).min(known_ns);
        let memory_ns = memory_for(held_ns, self.seen.peak_bytes, memory_bytes);
        let places_ns = if is_others { self.seen.held_ns } else { held_ns };
        Demand { places_ns, reserved_ns: 0, used_ns: gpu.part_of(used_ns), memory_ns }
    }

    /// The same, had it asked for that.
    fn with_request(
        &self,
        asked: &EnoughRequest,
        (gpu, memory_bytes): (&GpuPart, Option<u64>),
        known_ns: u64,
    ) -> Demand {
        let held_ns = self.seen.held_ns.min(known_ns);
        let (permille, bytes) = match (asked.is_whole, asked.fraction_permille) {
            (true, _) => (1000, memory_bytes.unwrap_or(0)),
            (false, Some(permille)) => (permille, asked.memory_bytes),
            // In an instance it has all of that; who never worked has the least that can be asked for.
            (false, None) if self.seen.unmetered_ns > 0 => (1000, asked.memory_bytes),
            (false, None) => (LEAST_PERMILLE, asked.memory_bytes),
        };
        let reserved_ns = u128::from(held_ns) * u128::from(permille) / 1000;
        let reserved_ns = gpu.part_of(u64::try_from(reserved_ns).unwrap_or(u64::MAX));
        Demand { places_ns: held_ns, reserved_ns, used_ns: 0, memory_ns: memory_for(held_ns, bytes, memory_bytes) }
    }
}

/// So much memory for so long, as time of a GPU that has `of_bytes`; nothing where that is not known.
fn memory_for(held_ns: u64, bytes: u64, of_bytes: Option<u64>) -> u64 {
    let part = of_bytes.map_or(0, |of_bytes| u128::from(bytes) * u128::from(held_ns) / u128::from(of_bytes.max(1)));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// What comes together of one of them.
struct Used {
    whose: Written,
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
    fn new(whose: Written, line: &Line) -> Self {
        let first_unix_s = line.place.0;
        let (sizing, minute, memory_bytes) = (Sizing::default(), Vec::new(), None);
        Self { whose, first_unix_s, last_unix_s: 0, held_ns: 0, unmetered_ns: 0, sizing, minute, memory_bytes }
    }

    fn note(&mut self, line: &Line, memory_bytes: Option<u64>) {
        self.last_unix_s = self.last_unix_s.max(line.place.0.saturating_add(line.place.1));
        self.held_ns = self.held_ns.saturating_add(line.seen.held_ns);
        self.unmetered_ns = self.unmetered_ns.saturating_add(line.seen.unmetered_ns);
        self.memory_bytes = least(self.memory_bytes, memory_bytes);
        self.minute.push(line.seen);
    }

    fn end_minute(&mut self) {
        self.sizing.note(&self.minute);
        self.minute.clear();
    }

    fn told(self, percent: u8) -> UnleasedUse {
        let enough = as_request(self.sizing.enough(percent, self.memory_bytes));
        // Nothing is enough for nobody knows whom.
        let is_one = self.whose.user.kind != UnleasedKind::Others;
        let for_one = |figure: u64| if is_one { figure } else { 0 };
        UnleasedUse {
            user: self.whose.user,
            command: self.whose.command,
            pod: self.whose.pod,
            first_unix_s: self.first_unix_s,
            last_unix_s: self.last_unix_s,
            held_gpu_ns: self.held_ns,
            unmetered_gpu_ns: self.unmetered_ns,
            busy_gpu_ns: self.sizing.busy_ns(),
            crowded_gpu_ns: for_one(self.sizing.crowded_ns()),
            work_permille: for_one(self.sizing.work_permille(percent)),
            memory_peak_bytes: self.sizing.peak_bytes(),
            enough: is_one.then_some(enough),
        }
    }
}

/// What was asked for together in each minute or hour.
struct Together<'a> {
    stretches: &'a BTreeMap<Place, Stretch>,
    course: Course,
    /// The one that is not over, and what was asked for in it.
    place: Place,
    asked: Demand,
}

impl<'a> Together<'a> {
    fn new(stretches: &'a BTreeMap<Place, Stretch>) -> Self {
        Self { stretches, course: Course::default(), place: Place::default(), asked: Demand::default() }
    }

    /// How much is known of this one.
    fn known_ns(&self, place: Place) -> u64 {
        self.stretches.get(&place).map_or(0, |stretch| stretch.known_ns)
    }

    /// Adds what somebody asked for there; places come in their order. True where another one began with it.
    fn add(&mut self, place: Place, demand: Demand) -> bool {
        let is_next = place != self.place;
        if is_next {
            self.end();
            self.place = place;
        }
        self.asked.add(demand);
        is_next
    }

    fn end(&mut self) {
        let stretch = self.stretches.get(&self.place).copied().unwrap_or_default();
        self.course.note(std::mem::take(&mut self.asked), stretch);
    }
}

/// Whose a line is.
enum Whose {
    /// One that has a row of its own.
    One(Box<Used>),
    /// One of those for whom there was none left.
    Other,
    /// One that the question is not about.
    NotAsked,
}

/// All of them by the ledger's number, and the rest of them as one.
#[derive(Default)]
struct Users {
    all: HashMap<i64, Whose>,
    rows: usize,
    others: Option<Box<Used>>,
    /// Those with a line in the minute that is not over, whose lines come one after the other.
    there: Vec<i64>,
}

impl Users {
    /// Whether the question is about the one of this line, and if so whether that is one of those without a row.
    fn is_other(
        &mut self,
        line: &Line,
        find: impl FnOnce() -> rusqlite::Result<Option<Written>>,
    ) -> rusqlite::Result<Option<bool>> {
        let whose = match self.all.entry(line.user) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(match find()? {
                None => Whose::NotAsked,
                Some(its) if its.user.kind == UnleasedKind::Others || self.rows == ROWS => Whose::Other,
                Some(known) => {
                    self.rows += 1;
                    Whose::One(Box::new(Used::new(known, line)))
                }
            }),
        };
        Ok(match whose {
            Whose::One(_) => Some(false),
            Whose::Other => Some(true),
            Whose::NotAsked => None,
        })
    }

    fn note(&mut self, line: &Line, memory_bytes: Option<u64>) {
        let others = || Box::new(Used::new(Written::default(), line));
        match self.all.get_mut(&line.user) {
            Some(Whose::One(used)) => used.note(line, memory_bytes),
            Some(Whose::Other) => self.others.get_or_insert_with(others).note(line, memory_bytes),
            Some(Whose::NotAsked) | None => return,
        }
        if self.there.last() != Some(&line.user) {
            self.there.push(line.user);
        }
    }

    fn end_minute(&mut self) {
        for user in self.there.drain(..) {
            if let Some(Whose::One(used)) = self.all.get_mut(&user) {
                used.end_minute();
            }
        }
        if let Some(others) = &mut self.others {
            others.end_minute();
        }
    }
}

/// Gives each line of the time that is asked for to `take`, in the order of time.
fn walk(
    connection: &Connection,
    scope: &Scope,
    gpus: &Gpus,
    mut take: impl FnMut(&Line, &GpuPart) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut query = connection.prepare(
        "SELECT slot, seconds, unleased, gpu, held_ns, unmetered_ns, busy_ns, others_ns, peak_bytes, at_once
         FROM unleased_line WHERE slot >= ?1 AND slot < ?2 ORDER BY slot, seconds, unleased, gpu",
    )?;
    let mut lines = query.query(scope.span())?;
    while let Some(row) = lines.next()? {
        let line = Line::read(row)?;
        if let Some(gpu) = gpus.get(&line.gpu) {
            take(&line, gpu)?;
        }
    }
    Ok(())
}

/// Adds up what each was seen to do, and says what would have been enough.
pub fn baseline(connection: &Connection, question: &BaselineQuestion, known: &Memories) -> rusqlite::Result<Baseline> {
    let (scope, percent) = (&question.scope, question.percent);
    let gpus = gpus(connection, scope)?;
    let memories = memories(connection, &gpus, known)?;
    let stretches = stretches(connection, scope, &gpus, There::Watched)?;
    let is_asked = |user: &Unleased| scope.uid.is_none_or(|uid| user.uid == Some(uid));
    let find = |number| Ok(written(connection, number)?.filter(|its| is_asked(&its.user)));
    let (mut users, mut seen, mut unknown) = (Users::default(), Together::new(&stretches), BTreeSet::new());
    walk(connection, scope, &gpus, |line, gpu| {
        let Some(is_other) = users.is_other(line, || find(line.user))? else { return Ok(()) };
        let memory_bytes = memories.get(&line.gpu).copied();
        if memory_bytes.is_none() {
            unknown.insert(line.gpu);
        }
        let demand = line.seen_as(is_other, (gpu, memory_bytes), seen.known_ns(line.place));
        if seen.add(line.place, demand) {
            users.end_minute();
        }
        users.note(line, memory_bytes);
        Ok(())
    })?;
    users.end_minute();
    seen.end();
    let others = users.others.map(|others| others.told(percent));
    let told = |(number, whose): (i64, Whose)| match whose {
        Whose::One(used) => Some((number, Some(used.told(percent)))),
        Whose::Other => Some((number, None)),
        Whose::NotAsked => None,
    };
    let told: HashMap<i64, Option<UnleasedUse>> = users.all.into_iter().filter_map(told).collect();
    let (mut with_requests, mut on) = (Together::new(&stretches), ((0, 0), 0, 0));
    walk(connection, scope, &gpus, |line, gpu| {
        let Some(its) = told.get(&line.user) else { return Ok(()) };
        let (known_ns, gpu) = (with_requests.known_ns(line.place), (gpu, memories.get(&line.gpu).copied()));
        let demand = match its.as_ref().and_then(|its| its.enough) {
            Some(enough) => {
                // On how many GPUs it has been in this minute, the lines of which come one after the other: with its request it
                // would have no more.
                let before = if (on.0, on.1) == (line.place, line.user) { on.2 } else { 0 };
                on = (line.place, line.user, before + 1);
                if before >= enough.gpus {
                    return Ok(());
                }
                line.with_request(&enough, gpu, known_ns)
            }
            // Nothing is promised to those of whom nothing is known, and what they did is to be there beside what is.
            None => {
                let seen = line.seen_as(true, gpu, known_ns);
                Demand { reserved_ns: seen.used_ns, used_ns: 0, ..seen }
            }
        };
        with_requests.add(line.place, demand);
        Ok(())
    })?;
    with_requests.end();
    let known_ns = stretches.values().map(|its| its.known_ns).fold(0, u64::saturating_add);
    let users = in_order(told.into_values().flatten().collect(), others);
    let enough = |levels: &Levels| if users.is_empty() { 0 } else { whole_gpus(levels.enough(known_ns, percent)) };
    Ok(Baseline {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        hours_until_unix_s: hours_until(&stretches),
        percent,
        known_ns,
        gpus_for_each: enough(&seen.course.places),
        gpus_with_requests: enough(&with_requests.course.needed),
        gpus_shared: enough(&seen.course.needed),
        users,
        there_permille: stretches.values().map(|its| its.permille_of(its.gpu_ns)).max().unwrap_or(0),
        unknown_gpus: unknown.len() as u64,
    })
}

/// From when on anybody has looked.
fn begins(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let begins: Option<i64> = connection.query_row("SELECT min(slot) FROM watched", [], |row| row.get(0))?;
    Ok(begins.map(|slot| u64::try_from(slot).unwrap_or(0)))
}

/// Who worked for longest comes first, and those who have no row last.
fn in_order(mut users: Vec<UnleasedUse>, others: Option<UnleasedUse>) -> Vec<UnleasedUse> {
    users.sort_by(|a, b| {
        let most = |its: &UnleasedUse| (its.busy_gpu_ns, its.held_gpu_ns);
        most(b).cmp(&most(a)).then_with(|| a.user.cmp(&b.user))
    });
    users.extend(others);
    users
}
