//! How many GPUs would have been enough without sharing, and with it, by what the ledger has of each minute.

use super::lines::{GpuPart, Line, OF_SCOPE, begins, gpus, in_scope, key_of_lease, walk};
use super::question::EnoughQuestion;
use super::reader::ROWS;
use super::there::{Life, Memories, There, entered_unix_ms, memories, stretches};
use gpool_policy::savings::{Course, Demand, Stretch, whole_gpus};
use gpool_protocol::{OwnerDemand, Savings};
use rusqlite::Connection;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

/// A lease as the answer has it.
struct Leased {
    owner: String,
    life: Life,
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
                    life: Life { created_unix_ms: ms(row.get(1)?), ended_unix_ms: ended.map_or(entered_ms, ms) },
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
        let held_ns = its.life.held_ns(place, stretch.known_ns);
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
