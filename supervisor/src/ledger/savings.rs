//! How many GPUs would have been enough without sharing, and with it, by what the ledger has of each minute.

use super::lines::{GpuPart, Gpus, Line, OF_SCOPE, begins, gpus, in_scope, key_of_lease, walk};
use super::question::{EnoughQuestion, Scope};
use super::reader::ROWS;
use gpool_policy::savings::{Course, Demand, Stretch, whole_gpus};
use gpool_protocol::{OwnerDemand, Savings};
use rusqlite::Connection;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

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

/// A lease as the answer has it.
struct Leased {
    owner: String,
    created_unix_ms: u64,
    ended_unix_ms: u64,
}

impl Leased {
    fn held_ns(&self, place: Place, known_ns: u64) -> u64 {
        held_ns(place, (self.created_unix_ms, self.ended_unix_ms), known_ns)
    }
}

/// For how long a lease of that time had its places in a stretch of which so much is known.
pub fn held_ns((slot_unix_s, seconds): Place, (created_unix_ms, ended_unix_ms): (u64, u64), known_ns: u64) -> u64 {
    let begins_ms = slot_unix_s.saturating_mul(1000).max(created_unix_ms);
    let ends_ms = slot_unix_s.saturating_add(seconds).saturating_mul(1000).min(ended_unix_ms);
    ends_ms.saturating_sub(begins_ms).saturating_mul(1_000_000).min(known_ns)
}

/// What one lease asked for of a GPU for `held_ns`, in a stretch of which `known_ns` are known.
fn demand_of(line: &Line, gpu: &GpuPart, memory_bytes: Option<u64>, (held_ns, known_ns): (u64, u64)) -> Demand {
    let amounts = &line.amounts;
    // Nobody's work is known in an instance, so what was promised was had. Long work is charged when it has ended, and nobody has
    // more of a GPU than all of it.
    let used_ns = [amounts.within_ns, amounts.burst_ns, amounts.unmetered_ns].into_iter().fold(0, u64::saturating_add);
    let memory_ns = memory_bytes.map_or(0, |bytes| {
        let kib_s = u128::from(amounts.cap_kib_s);
        u64::try_from(kib_s * 1024 * 1_000_000_000 / u128::from(bytes)).unwrap_or(u64::MAX)
    });
    Demand {
        places_ns: held_ns,
        reserved_ns: gpu.part_of(amounts.reserved_ns()),
        used_ns: gpu.part_of(used_ns.min(known_ns)),
        memory_ns,
    }
}

/// Courses of all owners, and of all together.
#[derive(Default)]
struct Courses {
    owners: BTreeMap<String, (Course, u64)>,
    together: Course,
}

impl Courses {
    fn note(&mut self, asked: BTreeMap<String, Demand>, stretch: Stretch) {
        let mut sum = Demand::default();
        for (owner, demand) in asked {
            sum.add(demand);
            self.owners.entry(owner).or_default().0.note(demand, stretch);
        }
        self.together.note(sum, stretch);
    }
}

/// Adds up what was asked for in each stretch, and says how many GPUs would have been enough.
pub fn savings(connection: &Connection, question: &EnoughQuestion, known: &Memories) -> rusqlite::Result<Savings> {
    let scope = &question.scope;
    let gpus = gpus(connection, scope)?;
    let memories = memories(connection, &gpus, known)?;
    let stretches = stretches(connection, scope, &gpus, There::Pool)?;
    let entered_ms = entered_unix_ms(connection)?;
    let name = key_of_lease(question.by);
    let columns = format!("SELECT {name}, created_unix_ms, ended_unix_ms FROM lease WHERE {OF_SCOPE}");
    let (mut query, mut leases) = (connection.prepare(&columns)?, HashMap::new());
    let (mut courses, mut asked) = (Courses::default(), BTreeMap::<String, Demand>::new());
    let (mut place, mut stretch) = ((0, 0), Stretch::default());
    let (mut counted, mut unknown) = (HashSet::new(), BTreeSet::new());
    walk(connection, scope, &gpus, |line| {
        if let Entry::Vacant(place) = leases.entry(line.of.0) {
            place.insert(in_scope(&mut query, line.of.0, scope, |row| {
                let ms = |ms: i64| u64::try_from(ms).unwrap_or(0);
                let ended: Option<i64> = row.get(2)?;
                Ok(Leased {
                    owner: row.get(0)?,
                    created_unix_ms: ms(row.get(1)?),
                    ended_unix_ms: ended.map_or(entered_ms, ms),
                })
            })?);
        }
        let (Some(Some(its)), Some(gpu)) = (leases.get(&line.of.0), gpus.get(&line.of.1)) else {
            return Ok(ControlFlow::Continue(()));
        };
        if (line.slot_unix_s, line.seconds) != place {
            courses.note(std::mem::take(&mut asked), stretch);
            place = (line.slot_unix_s, line.seconds);
            stretch = stretches.get(&place).copied().unwrap_or_default();
        }
        let memory_bytes = memories.get(&line.of.1).copied();
        if memory_bytes.is_none() && line.amounts.cap_kib_s > 0 {
            unknown.insert(line.of.1);
        }
        let held_ns = its.held_ns(place, stretch.known_ns);
        let demand = demand_of(&line, gpu, memory_bytes, (held_ns, stretch.known_ns));
        match asked.get_mut(&its.owner) {
            Some(sum) => sum.add(demand),
            None => drop(asked.insert(its.owner.clone(), demand)),
        }
        if counted.insert(line.of.0) {
            courses.owners.entry(its.owner.clone()).or_default().1 += 1;
        }
        let is_too_long = courses.owners.len() > ROWS;
        Ok(if is_too_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    courses.note(asked, stretch);
    let known_ns = stretches.values().map(|stretch| stretch.known_ns).fold(0, u64::saturating_add);
    let demand = |key: &str, leases: u64, course: &Course| of_owner(key, leases, course, (known_ns, question.percent));
    let owners: Vec<OwnerDemand> =
        courses.owners.iter().map(|(key, (course, leases))| demand(key, *leases, course)).collect();
    let together = demand("", counted.len() as u64, &courses.together);
    Ok(Savings {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        percent: question.percent,
        known_ns,
        gpus_for_each_container: if counted.is_empty() { 0 } else { whole_gpus(together.places_permille) },
        gpus_for_each_owner: owners.iter().map(|owner| owner.gpus).sum(),
        gpus_shared: together.gpus,
        owners,
        together,
        there_permille: stretches.values().map(|stretch| stretch.permille_of(stretch.gpu_ns)).max().unwrap_or(0),
        unknown_gpus: unknown.len() as u64,
    })
}

fn of_owner(key: &str, leases: u64, course: &Course, (known_ns, percent): (u64, u8)) -> OwnerDemand {
    let needed_permille = course.needed.enough(known_ns, percent);
    OwnerDemand {
        key: key.to_owned(),
        leases,
        places_permille: course.places.enough(known_ns, percent),
        share_permille: course.share.enough(known_ns, percent),
        memory_permille: course.memory.enough(known_ns, percent),
        needed_permille,
        gpus: if leases == 0 { 0 } else { whole_gpus(needed_permille) },
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
