//! GPUs for which NVML does not answer any more, as for one that has fallen off its bus: they take no new leases. Those
//! that they have stay, because nobody knows what has become of them.

use crate::device::{Gpu, InventoryError, Kind, SilentBoard};
use crate::events::About;
use crate::lease::Leases;
use gpool_protocol::EventKind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A GPU that has not answered for so long takes nobody in. A driver that is merely busy answers before.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of all GPUs. Its lock is taken last of all.
#[derive(Debug)]
pub struct Silence(Mutex<Vec<Option<Spell>>>);

/// A GPU that does not answer.
#[derive(Debug, Clone, Copy)]
struct Spell {
    since: Instant,
    /// It has lasted so long that the GPU takes nobody in.
    is_told: bool,
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
    /// All of so many GPUs answer.
    pub fn new(gpus: usize) -> Self {
        Self(Mutex::new(vec![None; gpus]))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Spell>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the GPU at this place takes nobody in.
    fn is_silent(&self, gpu: usize) -> bool {
        self.lock().get(gpu).copied().flatten().is_some_and(|spell| spell.is_told)
    }

    /// The GPU was asked at `now`.
    fn note(&self, gpu: usize, now: Instant, has_answered: bool) -> Option<Change> {
        let mut spells = self.lock();
        let place = spells.get_mut(gpu)?;
        match place {
            Some(spell) if has_answered => {
                let was_told = spell.is_told;
                *place = None;
                was_told.then_some(Change::Over)
            }
            None if has_answered => None,
            None => {
                *place = Some(Spell { since: now, is_told: false });
                Some(Change::Begun)
            }
            Some(spell) if !spell.is_told && now.duration_since(spell.since) >= PATIENCE => {
                spell.is_told = true;
                Some(Change::Silent)
            }
            Some(_) => None,
        }
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

/// Notes what came of asking for the GPU at `index`, and tells what has changed.
pub fn note(leases: &Leases, (index, gpu): (usize, &Gpu), failure: Option<&InventoryError>) {
    let cause = failure.map(ToString::to_string).unwrap_or_default();
    match leases.silence.note(index, Instant::now(), failure.is_none()) {
        Some(Change::Begun) => log!("{}: {cause}", gpu.uuid),
        Some(Change::Silent) => {
            let message = format!("GPU {} ({}) takes no new leases: {cause}; {}", gpu.index, gpu.uuid, remedy());
            leases.events.note(EventKind::GpuSilent, About::default(), message);
        }
        Some(Change::Over) => {
            let message = format!("GPU {} ({}) answers NVML again and takes leases", gpu.index, gpu.uuid);
            leases.events.note(EventKind::GpuAnswers, About::default(), message);
        }
        None => {}
    }
}

/// Tells of the boards that did not answer when the supervisor started.
pub fn tell_left_out(leases: &Leases, boards: &[SilentBoard]) {
    for board in boards {
        let message = format!("GPU {} is left out: {}; {}", board.index, board.cause, remedy());
        leases.events.note(EventKind::GpuSilent, About::default(), message);
    }
}

fn remedy() -> &'static str {
    "look for its Xid in the kernel's log, reset it or the host, and restart gpool-supervisor"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_silent_after_a_while_and_until_it_answers() {
        let (silence, start) = (Silence::new(2), Instant::now());
        assert_eq!(silence.note(1, start, false), Some(Change::Begun));
        assert_eq!(silence.note(1, start + PATIENCE / 2, false), None);
        assert!(!silence.is_silent(1), "it may be busy");
        assert_eq!(silence.note(1, start + PATIENCE, false), Some(Change::Silent));
        assert_eq!(silence.note(1, start + 2 * PATIENCE, false), None, "told once");
        assert!(silence.is_silent(1) && !silence.is_silent(0) && !silence.is_silent(7));
        assert_eq!(silence.note(1, start + 3 * PATIENCE, true), Some(Change::Over));
        assert!(!silence.is_silent(1));
        assert_eq!(silence.note(1, start + 4 * PATIENCE, false), Some(Change::Begun));
        assert_eq!(silence.note(1, start + 4 * PATIENCE + PATIENCE / 2, true), None, "a moment is no silence");
    }
}
