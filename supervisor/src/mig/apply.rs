//! Dividing GPUs as somebody asks: planned first, then refused if anybody has or uses a part of them, then done; and undone if
//! it fails half-way.

use super::users::{Processes, in_the_way, processes_on};
use super::{look_again, owner, refresh, view};
use crate::device::{Board, Compute, Gpu, GpuInstance, Kind, MigMode, NvmlInventory};
use crate::events::About;
use crate::lease::Leases;
use gpool_policy::mig::{Layout, plan, profiles_named};
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, GpuUuid, MigApply, MigGoal, MigGpuView, NOT_UNDER_USERS};
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
    /// The instances that are to be; none with MIG off.
    layout: Option<Vec<Part>>,
    /// The same as it is now.
    before: Option<Vec<Part>>,
}

/// A GPU instance as it is or is to be, whatever its number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    profile: String,
    start: u8,
    size: u8,
    compute: Compute,
}

impl From<&GpuInstance> for Part {
    fn from(there: &GpuInstance) -> Self {
        let GpuInstance { profile, start, size, compute, .. } = there;
        Self { profile: profile.clone(), start: *start, size: *size, compute: *compute }
    }
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
/// Somebody else divides the GPUs of this host, a layout that cannot be made, leases or processes that are in the way, or NVML's
/// own refusal, after which the GPU is as it was before if the driver lets it.
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
    // MIG is turned on by a reset, which who has the board open would be in the way of.
    let _pause = (!changes.is_empty()).then(|| leases.watchers.pause());
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
    let before = if own.kind == Kind::Divided { Some(present(leases, own, board)?) } else { None };
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
        compute: Compute::Whole,
    };
    layout.instances().iter().map(part).collect()
}

/// What a divided board has, also what no program can use.
fn present(leases: &Leases, own: &Gpu, board: &Board) -> Result<Vec<Part>, ErrorBody> {
    is_answering(&own.uuid, leases.inventory.hangs_since(board.index))?;
    let asked = board.clone();
    let listed = leases.inventory.ask(board.index, move |inventory| inventory.gpu_instances(&asked));
    let listed = listed.map_err(|error| unanswered(error.to_string()))?;
    Ok(listed.iter().map(Part::from).collect())
}

/// Whether the same instances are there, wherever they lie: who has one keeps it.
fn is_reached(wanted: Option<&[Part]>, there: Option<&[Part]>) -> bool {
    let names = |parts: &[Part]| {
        let mut names: Vec<_> = parts.iter().map(|part| (part.profile.clone(), part.compute)).collect();
        names.sort_unstable();
        names
    };
    wanted.map(names) == there.map(names)
}

/// Lets nobody onto the boards any more, if nobody is there.
fn close(leases: &Leases, changes: &[Change<'_>], drain: bool) -> Result<(), ErrorBody> {
    // NVML is asked before the book is locked: it may take its time.
    let ask = |change: &Change<'_>| processes_on(leases, change.board.index);
    let processes = changes.iter().map(ask).collect::<Result<Vec<Processes>, _>>();
    let processes = processes.map_err(|error| unanswered(error.to_string()))?;
    let gpus = leases.gpus();
    let mut book = leases.book();
    let told = changes.iter().zip(&processes);
    let told: Vec<String> = told.filter_map(|(change, on)| in_the_way(&book, &gpus, &change.gpu.uuid, on)).collect();
    let closed_for = if told.is_empty() { CHANGE } else { DRAIN };
    if told.is_empty() || drain {
        for change in changes {
            book.closed.insert(change.gpu.uuid.clone(), Instant::now() + closed_for);
        }
    }
    if told.is_empty() {
        // A place that is kept for a restart is no reason to wait: its container has ended.
        let board = |place: usize| gpus[place].board();
        let is_kept = |place: &usize| changes.iter().any(|change| board(*place) == Some(&change.gpu.uuid));
        book.held.retain(|held| !held.gpus.iter().any(is_kept));
        return Ok(());
    }
    Err(fixed(
        format!("{}; {NOT_UNDER_USERS}", told.join("; ")),
        "stop those containers (gpool ps lists them) and end those processes, or wait for their end with gpool mig apply \
         --drain 600",
    ))
}

fn make(leases: &Leases, change: &Change<'_>, by: By) -> Result<(), ErrorBody> {
    let uuid = &change.gpu.uuid;
    let outcome = divide(leases, change.board, change.layout.as_deref());
    let Err(cause) = outcome else {
        let message = format!("{uuid} is divided into {} {}", in_words(change.layout.as_deref()), by.in_words());
        leases.events.note(EventKind::MigApplied, by.about(), message);
        return Ok(());
    };
    let (after, remedy) = match divide(leases, change.board, change.before.as_deref()) {
        Ok(()) => ("it is again as it was before".to_owned(), REMEDY),
        Err(again) => {
            let pending = still_pending(leases, change.board.index);
            (format!("and it is not as it was before ({again}){pending}"), REMEDY_IN_PARTS)
        }
    };
    let message = format!("{uuid} could not be divided: {cause}; {after}");
    leases.events.note_failure(EventKind::MigApplied, by.about(), message.clone());
    Err(fixed(message, remedy))
}

/// For a board that is as it was, where a reset would do nothing: those who have it open need not compute on it, and nvidia-smi lists only
/// those who do.
const REMEDY: &str = "stop whoever has it open, DCGM, exporters and nvidia-persistenced included (fuser -v /dev/nvidia* lists them), and \
                      apply the layout again";
/// For one that is not.
const REMEDY_IN_PARTS: &str = "stop whoever has it open, DCGM, exporters and nvidia-persistenced included (fuser -v /dev/nvidia* lists \
                               them), reset it if it does not answer or something is pending, and apply the layout again";

/// Says so if a board's MIG will be turned on or off later, where nobody may expect it.
fn still_pending(leases: &Leases, index: u32) -> &'static str {
    match leases.inventory.ask(index, move |inventory| inventory.mig_mode(index)) {
        Ok(MigMode { is_on: false, is_pending: true }) => "; MIG is pending: the next reset or reboot turns it on",
        Ok(MigMode { is_on: true, is_pending: false }) => "; MIG off is pending: the next reset or reboot turns it off",
        // As it is now it stays, or the message has said already that nothing answers.
        Ok(MigMode { .. }) | Err(_) => "",
    }
}

/// Gives a board the instances of `layout`, or turns MIG off. What is as it is to be stays; nobody may use the rest. On a thread
/// that may hang: when that is given up, nothing more is done to the board.
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
    let mode = inventory.mig_mode(board.index).map_err(|cause| cause.to_string())?;
    let wanted = layout.unwrap_or_default();
    let there =
        if mode.is_on { inventory.gpu_instances(board).map_err(|cause| cause.to_string())? } else { Vec::new() };
    let (kept, others): (Vec<_>, Vec<_>) = there.into_iter().partition(|one| wanted.contains(&Part::from(one)));
    for instance in &others {
        is_wanted(is_given_up)?;
        inventory.destroy_instance(board, instance)?;
    }
    // Also where only what is pending differs: it would come by itself at the next reset.
    if [mode.is_on, mode.is_pending] != [layout.is_some(); 2] {
        is_wanted(is_given_up)?;
        inventory.set_mig(board.index, layout.is_some())?;
    }
    let kept: Vec<Part> = kept.iter().map(Part::from).collect();
    let mut missing: Vec<&Part> = wanted.iter().filter(|part| !kept.contains(part)).collect();
    // The largest first: it has the fewest starts.
    missing.sort_by_key(|part| std::cmp::Reverse(part.size));
    missing.into_iter().try_for_each(|part| {
        is_wanted(is_given_up)?;
        inventory.create_instance(board, &part.profile, (part.start, part.size), part.compute)
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
        Part { profile: profile.to_owned(), start, size: 1, compute: Compute::Whole }
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
        let parted = Part { compute: Compute::Parts(2), ..part("1g.10gb", 6) };
        assert!(!is_reached(Some(&here[..1]), Some(&[parted])), "what no lease can have is not what is wanted");
        assert_eq!(in_words(Some(&here)), "1g.10gb at 0, 2g.20gb at 2");
        assert_eq!(in_words(None), "nothing, with MIG off");
    }
}
