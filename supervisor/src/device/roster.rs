//! What there is to lease on this host: whole GPUs and MIG instances. Instances come and go while leases live, so each has
//! a place that it keeps; the place of one that is gone may become another's when no lease has it any more.

use super::inventory::{Gpu, Kind, MigInstance};
use gpool_protocol::GpuUuid;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// All places.
#[derive(Debug)]
pub struct Roster {
    gpus: RwLock<Arc<Vec<Gpu>>>,
    /// Instances without a place of which it has been told.
    told: Mutex<BTreeSet<String>>,
    /// The most places.
    limit: usize,
}

/// What a look has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// UUIDs and profiles of instances that have come.
    pub came: Vec<String>,
    /// Those that are gone.
    pub went: Vec<String>,
    /// Instances for which there is no place; they are not leased.
    pub left_out: Vec<String>,
    /// Indices of places that have become another instance's.
    pub replaced: Vec<usize>,
}

impl Changes {
    /// Whether anything has come or gone.
    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.went.is_empty() && self.left_out.is_empty()
    }
}

fn called(gpu: &Gpu) -> String {
    let profile = gpu.instance().map_or("", |instance| instance.profile.as_str());
    format!("{} {profile}", gpu.uuid).trim_end().to_owned()
}

/// There are more boards than places.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "NVML shows {boards} GPUs, and one supervisor serves {limit}: let [driver] gpus in config.toml name those that it is to serve"
)]
pub struct TooManyBoards {
    boards: usize,
    limit: usize,
}

/// What has a place at the start of all that was found, boards first. Instances for which there is none are left out, as those
/// are that come later; the first look for changes tells of them.
///
/// # Errors
/// There is no place for all boards.
pub fn with_places(mut found: Vec<Gpu>, limit: usize) -> Result<Vec<Gpu>, TooManyBoards> {
    let boards = found.iter().filter(|gpu| gpu.instance().is_none()).count();
    if boards > limit {
        return Err(TooManyBoards { boards, limit });
    }
    found.truncate(limit);
    Ok(found)
}

impl Roster {
    /// The places of what is there at the start. The first ones are boards, in NVML's order, and stay what they are.
    pub fn new(gpus: Vec<Gpu>, limit: usize) -> Self {
        Self { gpus: RwLock::new(Arc::new(gpus)), told: Mutex::default(), limit }
    }

    /// All places now. An index into it means the same thing as long as a lease has it.
    pub fn now(&self) -> Arc<Vec<Gpu>> {
        self.gpus.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many places there can be.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The same changes without what has been told since there is no place for it: every look finds that again.
    pub fn untold(&self, mut changes: Changes) -> Changes {
        let now: BTreeSet<String> = changes.left_out.iter().cloned().collect();
        let told = std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), now);
        changes.left_out.retain(|one| !told.contains(one));
        changes
    }

    /// Takes over what there is now; `is_leased` says whether a lease has a place.
    pub fn update(&self, found: &[Gpu], is_leased: impl Fn(usize) -> bool) -> Changes {
        let mut places = self.gpus.write().unwrap_or_else(PoisonError::into_inner);
        let (merged, changes) = merged(&places, found, self.limit, is_leased);
        if merged != **places {
            *places = Arc::new(merged);
        }
        changes
    }
}

fn merged(before: &[Gpu], found: &[Gpu], limit: usize, is_leased: impl Fn(usize) -> bool) -> (Vec<Gpu>, Changes) {
    let (mut places, mut changes) = (before.to_vec(), Changes::default());
    // Of a board that does not answer nobody knows whether its instances are gone.
    let answers = |board: &GpuUuid| found.iter().any(|gpu| gpu.uuid == *board);
    for place in &mut places {
        match found.iter().find(|gpu| gpu.uuid == place.uuid) {
            Some(gpu) => {
                if place.kind == Kind::Gone || place.instance() != gpu.instance() {
                    changes.came.push(called(gpu));
                }
                place.clone_from(gpu);
            }
            None if place.instance().is_some_and(|its| answers(&its.board)) => {
                changes.went.push(called(place));
                place.kind = Kind::Gone;
            }
            None => {}
        }
    }
    // A board that did not answer at the start comes with the next one: what else was set up then knows nothing of it.
    let is_served = |its: &MigInstance| before.iter().any(|place| place.uuid == its.board);
    for gpu in found.iter().filter(|gpu| gpu.instance().is_some_and(is_served)) {
        if places.iter().any(|place| place.uuid == gpu.uuid) {
            continue;
        }
        let free = (0..places.len()).find(|index| places[*index].kind == Kind::Gone && !is_leased(*index));
        match free {
            Some(index) => {
                places[index].clone_from(gpu);
                changes.replaced.push(index);
            }
            None if places.len() < limit => places.push(gpu.clone()),
            None => {
                changes.left_out.push(called(gpu));
                continue;
            }
        }
        changes.came.push(called(gpu));
    }
    (places, changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(kind: Kind) -> Gpu {
        Gpu { kind, ..Gpu::sample(0) }
    }

    fn instance(uuid: &str) -> Gpu {
        let its = MigInstance {
            board: GpuUuid("GPU-0".into()),
            profile: "1g.10gb".into(),
            gpu_instance: 7,
            compute_instance: 0,
            start: 0,
            size: 1,
        };
        Gpu { uuid: GpuUuid(uuid.into()), ..board(Kind::Instance(its)) }
    }

    #[test]
    fn an_instance_keeps_its_place_and_one_that_is_gone_makes_room_when_nobody_has_it() {
        let roster = Roster::new(vec![board(Kind::Whole)], 3);
        let names = || roster.now().iter().map(|gpu| gpu.uuid.0.clone()).collect::<Vec<_>>();
        let divided = board(Kind::Divided);
        let changes = roster.update(&[divided.clone(), instance("MIG-a"), instance("MIG-b")], |_| false);
        assert_eq!((changes.came.len(), names()), (2, vec!["GPU-0".into(), "MIG-a".into(), "MIG-b".into()]));
        assert!(roster.update(&[divided.clone(), instance("MIG-a"), instance("MIG-b")], |_| false).is_empty());
        let changes = roster.update(&[divided.clone(), instance("MIG-b")], |_| true);
        assert_eq!(changes.went, ["MIG-a 1g.10gb"]);
        let changes = roster.update(&[divided.clone(), instance("MIG-b"), instance("MIG-c")], |index| index == 1);
        assert_eq!((&changes.left_out, changes.came.len()), (&vec!["MIG-c 1g.10gb".to_owned()], 0));
        assert!(changes.replaced.is_empty(), "somebody has it still");
        let changes = roster.update(&[divided, instance("MIG-b"), instance("MIG-c")], |_| false);
        assert_eq!(changes.replaced, [1]);
        assert_eq!(names(), ["GPU-0", "MIG-c", "MIG-b"]);
        roster.update(&[board(Kind::Whole)], |_| false);
        assert_eq!(roster.now().iter().filter(|gpu| gpu.kind == Kind::Gone).count(), 2);
        assert_eq!(roster.now()[0].kind, Kind::Whole);
    }

    #[test]
    fn instances_for_which_there_is_no_place_keep_no_supervisor_from_starting_and_boards_do() {
        let names = |gpus: &[Gpu]| gpus.iter().map(|gpu| gpu.uuid.0.clone()).collect::<Vec<_>>();
        let found = || vec![board(Kind::Divided), instance("MIG-a"), instance("MIG-b"), instance("MIG-c")];
        let placed = with_places(found(), 3).unwrap();
        assert_eq!(names(&placed), names(&found()[..3]));
        assert_eq!(with_places(found(), 4).unwrap().len(), 4);
        let roster = Roster::new(placed, 3);
        let look = || roster.untold(roster.update(&found(), |_| true));
        assert_eq!(look().left_out, ["MIG-c 1g.10gb"], "the first look tells");
        assert!(look().is_empty(), "and no later one again");
        let boards = vec![board(Kind::Whole), board(Kind::Divided)];
        assert_eq!(with_places(boards, 1), Err(TooManyBoards { boards: 2, limit: 1 }));
    }

    #[test]
    fn a_board_that_falls_silent_keeps_its_instances_and_one_that_was_silent_comes_with_the_next_start() {
        let other = |kind| Gpu { index: 1, uuid: GpuUuid("GPU-1".into()), ..board(kind) };
        let roster = Roster::new(vec![board(Kind::Divided), instance("MIG-a"), other(Kind::Whole)], 8);
        assert!(roster.update(&[other(Kind::Whole)], |_| false).is_empty());
        assert!(roster.now()[1].instance().is_some(), "nobody knows that it is gone");
        let third = Gpu { index: 2, uuid: GpuUuid("GPU-2".into()), ..board(Kind::Whole) };
        assert!(roster.update(&[other(Kind::Whole), third.clone()], |_| false).is_empty());
        let Kind::Instance(its) = instance("MIG-b").kind else { unreachable!("it is one") };
        let of_the_third = MigInstance { board: third.uuid.clone(), ..its };
        let new = Gpu { uuid: GpuUuid("MIG-b".into()), kind: Kind::Instance(of_the_third), ..third.clone() };
        let divided = Gpu { kind: Kind::Divided, ..third };
        assert!(roster.update(&[other(Kind::Whole), divided, new], |_| false).is_empty(), "nor do its instances");
        assert_eq!(roster.now().len(), 3);
    }
}
