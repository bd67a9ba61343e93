//! GPUs for which NVML does not answer, as for one that has fallen off its bus: they take no new leases. Those that they
//! have stay, because nobody knows what has become of them; those of one that is lost by NVML's word have failed.
//!
//! One that answers again takes leases again. One that did not answer at the start is left out until the next one: an NVML that
//! was started without it does not show it, and whatever is set up at the start knows nothing of it. For one that hung, and
//! answers later, the supervisor restarts by itself.

use crate::device::{self, Gpu, InventoryError, Kind, SilentBoard};
use crate::events::About;
use crate::gpu_failures;
use crate::lease::Leases;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, SilentGpu};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A GPU that has not answered for so long takes nobody in: one that says so each time that it is asked, and one that hangs
/// in the first question.
pub const PATIENCE: Duration = device::PATIENCE;

/// For a GPU that has answered before.
const REMEDY: &str = "look for its Xid in the kernel's log, and reset it as the administrator's guide says (Resetting a GPU), \
                      or boot the host; if it does not take leases again by itself then: systemctl restart gpool-supervisor";
/// For one that has not.
const REMEDY_AT_START: &str = "look for its Xid in the kernel's log, and reset it as the administrator's guide says (Resetting \
                               a GPU), or boot the host; a start of the supervisor at which it answers serves it: systemctl \
                               restart gpool-supervisor";

/// What is known of all GPUs. Its lock is taken last of all.
#[derive(Debug)]
pub struct Silence {
    spells: Mutex<Vec<Option<Spell>>>,
    /// There was no thread to ask them on when somebody last wanted to.
    is_unasked: AtomicBool,
    /// The boards that did not answer when the supervisor started.
    left_out: Vec<SilentBoard>,
}

/// A GPU that does not answer.
#[derive(Debug, Clone)]
struct Spell {
    since: Instant,
    /// The query that was asked last, and NVML's own words.
    cause: String,
    /// It has lasted so long that the GPU takes nobody in.
    is_told: bool,
    /// Since when NVML says that it is lost, if it says so now.
    lost_since: Option<Instant>,
}

/// What a look has changed.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// The GPU has not answered for the first time.
    Begun,
    /// It takes nobody in from now on.
    Silent,
    /// It does again.
    Over,
}

impl Silence {
    /// All of so many GPUs answer, and these boards are left out.
    pub fn new(gpus: usize, left_out: Vec<SilentBoard>) -> Self {
        Self { spells: Mutex::new(vec![None; gpus]), is_unasked: AtomicBool::new(false), left_out }
    }

    /// The boards that did not answer when the supervisor started.
    pub fn left_out(&self) -> &[SilentBoard] {
        &self.left_out
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Spell>>> {
        self.spells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the GPU at this place takes nobody in.
    pub fn is_silent(&self, gpu: usize) -> bool {
        self.lock().get(gpu).and_then(Option::as_ref).is_some_and(|spell| spell.is_told)
    }

    /// The GPU at this place is another one from now on, which has not been asked yet.
    pub fn forget(&self, gpu: usize) {
        self.lock().get_mut(gpu).map(Option::take);
    }

    /// Whether NVML says of the GPU at this place that it is lost, and has for so long that nothing on it goes on. A GPU that
    /// hangs may come back to what it did.
    fn has_failed(&self, gpu: usize, (asked, now): (Instant, Instant), is_lost: bool) -> bool {
        let mut spells = self.lock();
        let Some(Some(spell)) = spells.get_mut(gpu) else { return false };
        spell.lost_since = is_lost.then(|| spell.lost_since.unwrap_or(asked));
        spell.lost_since.is_some_and(|since| now.duration_since(since) >= PATIENCE)
    }

    /// The GPU was asked at `asked`, and by `now` it has answered if there is no `failure`.
    fn note(&self, gpu: usize, (asked, now): (Instant, Instant), failure: Option<&str>) -> Option<Change> {
        let mut spells = self.lock();
        let place = spells.get_mut(gpu)?;
        let Some(cause) = failure else { return place.take().filter(|spell| spell.is_told).map(|_| Change::Over) };
        let has_begun = place.is_none();
        let new = || Spell { since: asked, cause: String::new(), is_told: false, lost_since: None };
        let spell = place.get_or_insert_with(new);
        cause.clone_into(&mut spell.cause);
        let is_due = !spell.is_told && now.duration_since(spell.since) >= PATIENCE;
        spell.is_told |= is_due;
        match is_due {
            true => Some(Change::Silent),
            false => has_begun.then_some(Change::Begun),
        }
    }

    /// All that take nobody in, with what to do: boards that were left out, and those of `gpus` that do not answer any more.
    pub fn views(&self, gpus: &[Gpu]) -> Vec<SilentGpu> {
        let left_out = self.left_out.iter().map(|board| SilentGpu {
            index: board.index,
            uuid: None,
            cause: board.cause.to_string(),
            remedy: REMEDY_AT_START.into(),
        });
        let spells = self.lock();
        let silent = gpus.iter().zip(spells.iter()).filter_map(|(gpu, spell)| {
            let spell = spell.as_ref().filter(|spell| spell.is_told && gpu.kind != Kind::Gone)?;
            let (uuid, remedy) = (Some(gpu.uuid.clone()), REMEDY.into());
            Some(SilentGpu { index: gpu.index, uuid, cause: spell.cause.clone(), remedy })
        });
        left_out.chain(silent).collect()
    }

    /// Each board of `gpus` that takes nobody in because it does not answer, in a sentence.
    pub fn sentences(&self, gpus: &[Gpu]) -> Vec<String> {
        let boards = gpus.iter().enumerate().filter(|(_, gpu)| matches!(gpu.kind, Kind::Whole | Kind::Divided));
        let silent = boards.filter(|(place, _)| self.is_silent(*place));
        silent.map(|(_, gpu)| format!("GPU {} ({}) does not answer", gpu.index, gpu.uuid)).collect()
    }

    /// The GPUs as who looks for room may have them: one that does not answer is as gone.
    pub fn without_silent(&self, gpus: &[Gpu]) -> Vec<Gpu> {
        let seen = |(index, gpu): (usize, &Gpu)| match self.is_silent(index) {
            true => Gpu { kind: Kind::Gone, ..gpu.clone() },
            false => gpu.clone(),
        };
        gpus.iter().enumerate().map(seen).collect()
    }
}

/// What one is told who waits for room that there would be on GPUs that do not answer.
pub fn is_silent(sentences: &[String]) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShareNotFree,
        format!("GPUs that would do take no new leases: {}", sentences.join(", ")),
        "wait until that is over; gpool gpu ls says what to do",
    )
}

/// Notes what came of asking for the GPU at `index` at the time `asked`, and tells what has changed.
pub fn note(leases: &Leases, (index, gpu): (usize, &Gpu), asked: Instant, failure: Option<&InventoryError>) {
    let is_unasked = matches!(failure, Some(InventoryError::Unasked(_)));
    let was_unasked = leases.silence.is_unasked.swap(is_unasked, Ordering::Relaxed);
    let Some(asked) = asked_at(asked, failure) else {
        // That may last for hours, and is told once.
        if let Some(error) = failure.filter(|_| !was_unasked) {
            log!("{error}");
        }
        return;
    };
    let cause = failure.map(ToString::to_string).unwrap_or_default();
    let times = (asked, Instant::now());
    match leases.silence.note(index, times, failure.map(|_| cause.as_str())) {
        Some(Change::Begun) => log!("{}: {cause}", gpu.uuid),
        Some(Change::Silent) => {
            let message = format!("GPU {} ({}) takes no new leases: {cause}; {REMEDY}", gpu.index, gpu.uuid);
            leases.events.note(EventKind::GpuSilent, About::default(), message);
        }
        Some(Change::Over) => {
            let message = format!("GPU {} ({}) answers NVML again and takes leases", gpu.index, gpu.uuid);
            leases.events.note(EventKind::GpuAnswers, About::default(), message);
        }
        None => {}
    }
    if leases.silence.has_failed(index, times, matches!(failure, Some(InventoryError::Lost { .. }))) {
        gpu_failures::fail_all(leases, gpu, &cause);
    }
}

/// When a GPU was asked of whom somebody wanted to know at `wanted` what came to this: one that hangs in another's question was
/// asked then. None if it was not asked at all, so that nothing is known of it.
fn asked_at(wanted: Instant, failure: Option<&InventoryError>) -> Option<Instant> {
    match failure {
        Some(InventoryError::Hung { since }) => Some(wanted.min(*since)),
        Some(InventoryError::Unasked(_)) => None,
        Some(
            InventoryError::Unusable { .. }
            | InventoryError::Replaced { .. }
            | InventoryError::Unanswered { .. }
            | InventoryError::Lost { .. },
        )
        | None => Some(wanted),
    }
}

/// Tells of the boards that did not answer when the supervisor started.
pub fn tell_left_out(leases: &Leases) {
    for board in &leases.silence.left_out {
        let message = format!("GPU {} is left out: {}; {REMEDY_AT_START}", board.index, board.cause);
        leases.events.note(EventKind::GpuSilent, About::default(), message);
    }
}

/// Tells of GPUs that the configuration names and that are not there. The others are served.
pub fn tell_absent(leases: &Leases, uuids: &[String]) {
    for uuid in uuids {
        let message = format!(
            "GPU {uuid} of [driver] gpus is not there: no GPU that answers NVML has this UUID; compare it with nvidia-smi \
             -L, and restart gpool-supervisor when it is there or the key is corrected"
        );
        leases.events.note(EventKind::GpuSilent, About::default(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::GpuUuid;

    /// An answer or a failure that comes at once.
    fn note(silence: &Silence, gpu: usize, at: Instant, failure: Option<&str>) -> Option<Change> {
        silence.note(gpu, (at, at), failure)
    }

    const LOST: Option<&str> = Some("NVML does not answer: lost");

    #[test]
    fn a_gpu_has_failed_once_nvml_says_for_a_while_that_it_is_lost() {
        let (silence, start) = (Silence::new(1, Vec::new()), Instant::now());
        let look = |at: Instant, failure: Option<&str>, is_lost: bool| {
            note(&silence, 0, at, failure);
            silence.has_failed(0, (at, at), is_lost)
        };
        let hangs = Some("a call has not come back");
        assert!(!look(start, hangs, false) && !look(start + PATIENCE, hangs, false), "it may come back to what it did");
        assert!(!look(start + PATIENCE, LOST, true), "told as silent, and lost only now");
        assert!(look(start + 2 * PATIENCE, LOST, true) && look(start + 3 * PATIENCE, LOST, true));
        assert!(!look(start + 3 * PATIENCE, hangs, false) && !look(start + 4 * PATIENCE, LOST, true), "it begins anew");
        assert!(
            !look(start + 4 * PATIENCE, None, false) && !look(start + 9 * PATIENCE, LOST, true),
            "so after an answer"
        );
    }

    #[test]
    fn a_gpu_is_silent_after_a_while_and_until_it_answers() {
        let (silence, start) = (Silence::new(2, Vec::new()), Instant::now());
        assert_eq!(note(&silence, 1, start, LOST), Some(Change::Begun));
        assert_eq!(note(&silence, 1, start + PATIENCE / 2, LOST), None);
        assert!(!silence.is_silent(1), "it may be busy");
        assert_eq!(note(&silence, 1, start + PATIENCE, LOST), Some(Change::Silent));
        assert_eq!(note(&silence, 1, start + 2 * PATIENCE, LOST), None, "told once");
        assert!(silence.is_silent(1) && !silence.is_silent(0) && !silence.is_silent(7));
        assert_eq!(note(&silence, 1, start + 3 * PATIENCE, None), Some(Change::Over));
        assert!(!silence.is_silent(1));
        assert_eq!(note(&silence, 1, start + 4 * PATIENCE, LOST), Some(Change::Begun));
        assert_eq!(note(&silence, 1, start + 4 * PATIENCE + PATIENCE / 2, None), None, "a moment is no silence");
        note(&silence, 1, start, LOST);
        note(&silence, 1, start + PATIENCE, LOST);
        silence.forget(1);
        assert!(!silence.is_silent(1), "another instance has its place");
        assert_eq!(note(&silence, 1, start + 2 * PATIENCE, None), None, "which does not answer again");
    }

    #[test]
    fn a_gpu_that_hangs_is_silent_with_the_first_question() {
        let (silence, start) = (Silence::new(1, Vec::new()), Instant::now());
        assert_eq!(silence.note(0, (start, start + PATIENCE), LOST), Some(Change::Silent));
        assert!(silence.is_silent(0));
        assert_eq!(note(&silence, 0, start + 2 * PATIENCE, None), Some(Change::Over));
    }

    #[test]
    fn a_gpu_that_hangs_in_the_question_of_somebody_else_was_asked_then() {
        let (silence, start) = (Silence::new(1, Vec::new()), Instant::now());
        let hung = InventoryError::Hung { since: start };
        let wanted = start + PATIENCE;
        let asked = asked_at(wanted, Some(&hung)).unwrap();
        assert_eq!(silence.note(0, (asked, wanted), Some(&hung.to_string())), Some(Change::Silent), "not after 10 s");
        let lost = InventoryError::Unanswered { query: "a GPU by its index", cause: "lost".into() };
        assert_eq!((asked_at(wanted, Some(&lost)), asked_at(wanted, None)), (Some(wanted), Some(wanted)));
    }

    #[test]
    fn where_there_is_no_thread_to_ask_on_nothing_is_known_of_the_gpu() {
        let unasked = InventoryError::Unasked(std::io::ErrorKind::WouldBlock.into());
        assert_eq!(asked_at(Instant::now(), Some(&unasked)), None);
        assert!(unasked.to_string().contains("no thread can be started"), "{unasked}");
    }

    #[test]
    fn all_that_are_silent_are_named_with_what_to_do() {
        let cause = InventoryError::Unanswered { query: "a GPU by its index", cause: "lost".into() };
        let silence = Silence::new(2, vec![SilentBoard { index: 2, cause }]);
        let gpu = |index: u32| Gpu {
            index,
            uuid: GpuUuid(format!("GPU-{index}")),
            name: "a GPU".into(),
            minor: index,
            memory_total_bytes: 1,
            memory_reserved_bytes: 0,
            memory_headroom_bytes: 0,
            driver_version: "1".into(),
            is_virtual: false,
            kind: Kind::Whole,
        };
        let (gpus, start) = ([gpu(0), gpu(1)], Instant::now());
        note(&silence, 1, start, LOST);
        assert_eq!(silence.views(&gpus).len(), 1, "the other one may be busy");
        note(&silence, 1, start + PATIENCE, Some("NVML does not answer: gone"));
        let seen = silence.views(&gpus);
        let named: Vec<_> = seen.iter().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
        assert_eq!(named, [(2, None), (1, Some(GpuUuid("GPU-1".into())))]);
        assert_eq!(seen[1].cause, "NVML does not answer: gone", "as it was said last");
        assert!(seen.iter().all(|gpu| gpu.remedy.contains("systemctl restart gpool-supervisor")), "{seen:?}");
        assert!(
            seen.iter().all(|gpu| gpu.remedy.contains("(Resetting a GPU)")),
            "the supervisor has it open: {seen:?}"
        );
        assert_eq!(silence.sentences(&gpus), ["GPU 1 (GPU-1) does not answer"], "what can be waited for");
        let instance = Gpu { kind: Kind::Gone, ..gpu(1) };
        assert!(silence.sentences(&[gpu(0), instance]).is_empty(), "it is not there");
        assert_eq!(is_silent(&silence.sentences(&gpus)).code, ErrorCode::ShareNotFree);
        note(&silence, 1, start + 2 * PATIENCE, None);
        assert_eq!(silence.views(&gpus).len(), 1);
    }
}
