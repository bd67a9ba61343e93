//! Dividing GPUs as somebody asks: planned first, then refused if anybody has a part of them, then done; and undone if it
//! fails half-way.

use super::{look_again, owner, refresh, view};
use crate::device::{Board, Gpu, Kind, NvmlInventory};
use crate::events::About;
use crate::lease::{Book, Leases};
use gpool_policy::mig::{Layout, plan, profiles_named};
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, GpuUuid, MigApply, MigGoal, MigGpuView};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A board that is to be drained takes nobody in for so long unless that is asked for again.
const DRAIN: Duration = Duration::from_secs(5);
/// No change takes longer, and if it does, grants of that board fail later and with another error.
const CHANGE: Duration = Duration::from_secs(600);

/// What dividing one board may take before it is given up: seconds, as a rule.
const BOARD_PATIENCE: Duration = Duration::from_secs(120);

/// Who has GPUs divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A user, by uid.
    User(u32),
    /// The configuration, after a boot.
    Boot,
}

impl By {
    fn about(self) -> About {
        let uid = match self {
            By::User(uid) => Some(uid),
            By::Boot => None,
        };
        About { uid, ..About::default() }
    }

    fn in_words(self) -> String {
        match self {
            By::User(uid) => format!("for user {uid}"),
            By::Boot => "after the boot, as [mig] layout says".to_owned(),
        }
    }
}

/// A board that has to change.
struct Change<'a> {
    gpu: Gpu,
    board: &'a Board,
    /// Profile, start and size of each instance that is to be; none with MIG off.
    layout: Option<Vec<Part>>,
    /// The same as it is now.
    before: Option<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    profile: String,
    start: u8,
    size: u8,
}

fn unanswered(cause: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::SupervisorFailed, cause, "look at the driver with nvidia-smi")
}

fn fixed(message: String, remedy: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::LayoutFixed, message, remedy)
}

/// Divides GPUs; those that are as they should be already are left alone.
///
/// # Errors
/// Somebody else divides the GPUs of this host, a layout that cannot be made, leases that are in the way, or NVML's own
/// refusal, after which the GPU is as it was before if the driver lets it.
pub fn apply(leases: &Leases, asked: &MigApply, by: By) -> Result<Vec<MigGpuView>, ErrorBody> {
    let _turn = leases.dividing.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(owner) = owner() {
        return Err(fixed(
            format!("{owner}, divides the GPUs of this host, so that gpool only reads their layouts"),
            "change the layout there, or take that program and its trace away",
        ));
    }
    look_again(leases).map_err(unanswered)?;
    let mut changes = Vec::new();
    for goal in &asked.goals {
        changes.extend(change(leases, goal)?);
    }
    for change in &changes {
        is_answering(&change.gpu.uuid, leases.inventory.hangs_since(change.board.index))?;
    }
    close(leases, &changes, asked.drain)?;
    let done = changes.iter().try_for_each(|change| make(leases, change, by));
    // In any case, as far as it came.
    let seen = refresh(leases, &leases.inventory);
    let mut book = leases.book();
    for change in &changes {
        book.closed.remove(&change.gpu.uuid);
    }
    drop(book);
    done?;
    seen.map_err(unanswered)?;
    view(leases)
}

/// A board that hangs is not divided: that would hang as well.
fn is_answering(uuid: &GpuUuid, hangs_since: Option<Instant>) -> Result<(), ErrorBody> {
    let Some(since) = hangs_since else { return Ok(()) };
    let message = format!(
        "{uuid} is left as it is: NVML does not answer for it, a call has not come back for {} s",
        since.elapsed().as_secs()
    );
    Err(ErrorBody::new(ErrorCode::SupervisorFailed, message, "reset it or the host, and apply the layout again"))
}

/// What has to change for one goal; nothing if it is reached.
fn change<'a>(leases: &'a Leases, goal: &MigGoal) -> Result<Option<Change<'a>>, ErrorBody> {
    let gpus = leases.gpus();
    let is_it = |gpu: &&Gpu| gpu.uuid == goal.uuid && matches!(gpu.kind, Kind::Whole | Kind::Divided);
    let unknown = || {
        ErrorBody::new(
            ErrorCode::NoGpu,
            format!("{} is no GPU of this host that can be divided", goal.uuid),
            "gpool mig show lists those that can",
        )
    };
    let own = gpus.iter().find(is_it).ok_or_else(unknown)?;
    let board = leases.inventory.boards().get(&own.index).ok_or_else(unknown)?;
    let layout = match goal.enabled {
        true => Some(parts(&planned(board, goal)?)),
        false => None,
    };
    let before = (own.kind == Kind::Divided).then(|| present(own, &gpus));
    if is_reached(layout.as_deref(), before.as_deref()) {
        return Ok(None);
    }
    Ok(Some(Change { gpu: own.clone(), board, layout, before }))
}

fn planned(board: &Board, goal: &MigGoal) -> Result<Layout, ErrorBody> {
    let planned = profiles_named(board.model, &goal.profiles).and_then(|profiles| plan(board.model, &profiles));
    planned.map_err(|refusal| {
        ErrorBody::new(ErrorCode::LayoutNotPossible, format!("{}: {refusal}", goal.uuid), refusal.remedy())
    })
}

fn parts(layout: &Layout) -> Vec<Part> {
    let part = |instance: &gpool_policy::mig::Instance| Part {
        profile: instance.profile.name.to_owned(),
        start: instance.placement.start,
        size: instance.placement.size,
    };
    layout.instances().iter().map(part).collect()
}

fn present(own: &Gpu, gpus: &[Gpu]) -> Vec<Part> {
    let its = gpus.iter().filter_map(Gpu::instance).filter(|its| its.board == own.uuid);
    let mut parts: Vec<Part> =
        its.map(|its| Part { profile: its.profile.clone(), start: its.start, size: its.size }).collect();
    parts.sort_by_key(|part| part.start);
    parts
}

/// Whether the same instances are there, wherever they lie: who has one keeps it.
fn is_reached(wanted: Option<&[Part]>, there: Option<&[Part]>) -> bool {
    let names = |parts: &[Part]| {
        let mut names: Vec<String> = parts.iter().map(|part| part.profile.clone()).collect();
        names.sort_unstable();
        names
    };
    wanted.map(names) == there.map(names)
}

/// Lets nobody onto the boards any more, if nobody is there.
fn close(leases: &Leases, changes: &[Change<'_>], drain: bool) -> Result<(), ErrorBody> {
    let gpus = leases.gpus();
    let mut book = leases.book();
    let mut in_the_way = Vec::new();
    for change in changes {
        let its = containers(&book, &gpus, &change.gpu.uuid);
        if !its.is_empty() {
            in_the_way.push(format!("{} has {} lease(s), of {}", change.gpu.uuid, its.len(), its.join(", ")));
        }
    }
    let closed_for = if in_the_way.is_empty() { CHANGE } else { DRAIN };
    if in_the_way.is_empty() || drain {
        for change in changes {
            book.closed.insert(change.gpu.uuid.clone(), Instant::now() + closed_for);
        }
    }
    if in_the_way.is_empty() {
        // A place that is kept for a restart is no reason to wait: its container has ended.
        let board = |place: usize| gpus[place].board();
        let is_kept = |place: &usize| changes.iter().any(|change| board(*place) == Some(&change.gpu.uuid));
        book.held.retain(|held| !held.gpus.iter().any(is_kept));
        return Ok(());
    }
    Err(fixed(
        format!("{}; instances are not changed under leases", in_the_way.join("; ")),
        "stop those containers (gpool ps lists them), or wait for their end with gpool mig apply --drain 600",
    ))
}

/// The containers that have a board or a part of it; those whose leases could not be taken over yet among them.
fn containers(book: &Book, gpus: &[Gpu], board: &GpuUuid) -> Vec<String> {
    let is_on_it = |place: usize| gpus[place].board() == Some(board);
    let leased = book.leases.values().filter(|lease| lease.gpus().any(is_on_it)).map(|lease| &lease.record);
    let has = |record: &&crate::lease::Record| {
        gpus.iter().any(|gpu| record.gpus().contains(&gpu.uuid) && gpu.board() == Some(board))
    };
    let stranded = book.stranded.iter().filter(has);
    let in_the_way = leased.chain(stranded).filter(|record| !record.has_no_share());
    in_the_way.map(|record| record.container_id.short().to_owned()).collect()
}

fn make(leases: &Leases, change: &Change<'_>, by: By) -> Result<(), ErrorBody> {
    let uuid = &change.gpu.uuid;
    let outcome = divide(leases, change.board, change.layout.as_deref());
    let Err(cause) = outcome else {
        let message = format!("{uuid} is divided into {} {}", in_words(change.layout.as_deref()), by.in_words());
        leases.events.note(EventKind::MigApplied, by.about(), message);
        return Ok(());
    };
    let after = match divide(leases, change.board, change.before.as_deref()) {
        Ok(()) => "it is again as it was before".to_owned(),
        Err(again) => format!("and it is not as it was before ({again})"),
    };
    let message = format!("{uuid} could not be divided: {cause}; {after}");
    leases.events.note(EventKind::MigApplied, by.about(), message.clone());
    let remedy = "end the processes that use it (nvidia-smi lists them), or reset it, and apply the layout again";
    Err(fixed(message, remedy))
}

/// Takes every instance of a board away and makes those of `layout`, or turns MIG off. On a thread that may hang: when that is
/// given up, nothing more is done to the board.
fn divide(leases: &Leases, board: &Board, layout: Option<&[Part]>) -> Result<(), String> {
    let (index, board, layout) = (board.index, board.clone(), layout.map(<[Part]>::to_vec));
    let is_given_up = Arc::new(AtomicBool::new(false));
    let seen = is_given_up.clone();
    let done = leases
        .inventory
        .within(BOARD_PATIENCE, index, move |inventory| Ok(divide_unless(&seen, inventory, &board, layout.as_deref())));
    done.unwrap_or_else(|error| {
        is_given_up.store(true, Ordering::Relaxed);
        Err(error.to_string())
    })
}

fn divide_unless(
    is_given_up: &AtomicBool,
    inventory: &NvmlInventory,
    board: &Board,
    layout: Option<&[Part]>,
) -> Result<(), String> {
    let is_on = inventory.mig_mode(board.index).map_err(|cause| cause.to_string())?.is_on;
    if is_on {
        is_wanted(is_given_up)?;
        inventory.destroy_instances(board)?;
    }
    if is_on != layout.is_some() {
        is_wanted(is_given_up)?;
        inventory.set_mig(board.index, layout.is_some())?;
    }
    // The largest first: it has the fewest starts.
    let mut parts = layout.unwrap_or_default().to_vec();
    parts.sort_by_key(|part| std::cmp::Reverse(part.size));
    parts.iter().try_for_each(|part| {
        is_wanted(is_given_up)?;
        inventory.create_instance(board, &part.profile, (part.start, part.size))
    })
}

fn is_wanted(is_given_up: &AtomicBool) -> Result<(), String> {
    if is_given_up.load(Ordering::Relaxed) { Err("it took too long and was given up".to_owned()) } else { Ok(()) }
}

fn in_words(layout: Option<&[Part]>) -> String {
    match layout {
        None => "nothing, with MIG off".to_owned(),
        Some([]) => "nothing yet, with MIG on".to_owned(),
        Some(parts) => {
            parts.iter().map(|part| format!("{} at {}", part.profile, part.start)).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(profile: &str, start: u8) -> Part {
        Part { profile: profile.to_owned(), start, size: 1 }
    }

    #[test]
    fn a_board_that_hangs_is_left_as_it_is() {
        let uuid = GpuUuid("GPU-1".into());
        assert!(is_answering(&uuid, None).is_ok());
        let error = is_answering(&uuid, Some(Instant::now())).unwrap_err();
        assert!(error.message.starts_with("GPU-1 is left as it is: NVML does not answer"), "{error:?}");
        let is_given_up = AtomicBool::new(false);
        assert!(is_wanted(&is_given_up).is_ok());
        is_given_up.store(true, Ordering::Relaxed);
        assert!(is_wanted(&is_given_up).is_err(), "nothing more is done to it");
    }

    #[test]
    fn a_goal_is_reached_by_the_same_instances_wherever_they_lie() {
        let (here, there) = ([part("1g.10gb", 0), part("2g.20gb", 2)], [part("2g.20gb", 0), part("1g.10gb", 6)]);
        assert!(is_reached(Some(&here), Some(&there)));
        assert!(!is_reached(Some(&here), Some(&there[1..])));
        assert!(!is_reached(Some(&[]), None), "MIG on without instances is not MIG off");
        assert!(is_reached(None, None));
        assert_eq!(in_words(Some(&here)), "1g.10gb at 0, 2g.20gb at 2");
        assert_eq!(in_words(None), "nothing, with MIG off");
    }
}
