//! Boards that hung when the supervisor started, and answer later. What is set up at a start knows nothing of them, so the
//! supervisor restarts to serve them, with the leases on them, where a service manager starts it again.

use crate::device::{InventoryError, SilentBoard};
use crate::events::About;
use crate::lease::Leases;
use crate::{service_manager, stopping};
use gpool_protocol::EventKind;
use std::path::Path;
use std::sync::Arc;

/// Says, below `[paths] run_dir`, that the next start is for a board that answers late.
const MARK: &str = "started-for-gpus";

/// Whether this start is for a board that answers late, which it then waits for. Asked once: the next one is not.
pub fn are_awaited(run_dir: &Path) -> bool {
    std::fs::remove_file(run_dir.join(MARK)).is_ok()
}

/// Watches for them.
#[derive(Debug)]
pub struct LateBoards {
    may_restart: bool,
    is_over: bool,
}

/// What to do about a board that answers.
#[derive(Debug, PartialEq, Eq)]
enum Deed {
    Restart,
    /// Somebody else has to restart the supervisor.
    Tell,
}

impl LateBoards {
    /// For a supervisor that has been started for them already if `are_awaited`: it does not restart again, or one that is slow
    /// at each start would have it restart for ever.
    pub fn new(are_awaited: bool) -> Self {
        // Who is watched is also started again.
        Self { may_restart: !are_awaited && service_manager::watchdog_patience().is_some(), is_over: false }
    }

    /// Once for the first board that answers.
    fn deed(&mut self, answers: bool) -> Option<Deed> {
        if self.is_over || !answers {
            return None;
        }
        self.is_over = true;
        Some(if self.may_restart { Deed::Restart } else { Deed::Tell })
    }

    /// Looks for a board that answers now.
    pub fn look(&mut self, leases: &Arc<Leases>) {
        // A thread that stands in the driver would keep this process, and the service manager waits for its end. Who divides a
        // board is not interrupted either.
        if self.is_over || leases.inventory.any_hangs() {
            return;
        }
        let Ok(_turn) = leases.dividing.try_lock() else { return };
        let Some(index) = leases.inventory.late_board(may_be_late(leases.silence.left_out())) else { return };
        let run_dir = leases.configuration().paths.run_dir.clone();
        let tell = |what: &str| {
            let message = format!("GPU {index}, which was left out, answers NVML now; {what}");
            leases.events.note(EventKind::GpuAnswers, About::default(), message);
        };
        match self.deed(true) {
            Some(Deed::Restart) => match std::fs::write(run_dir.join(MARK), "") {
                Ok(()) => {
                    tell("the supervisor restarts to serve it");
                    stopping::finish(leases);
                    std::process::exit(0);
                }
                Err(cause) => tell(&format!("restart the supervisor, which cannot write {MARK} ({cause})")),
            },
            Some(Deed::Tell) => tell("it is served after systemctl restart gpool-supervisor"),
            None => {}
        }
    }
}

/// Those of the boards that were left out that took too long: one that said that it is lost comes back with a reset, of which
/// an NVML that was started before knows nothing.
fn may_be_late(left_out: &[SilentBoard]) -> impl Iterator<Item = u32> {
    let took_too_long = |cause: &InventoryError| match cause {
        InventoryError::Hung { .. } | InventoryError::Unasked(_) => true,
        InventoryError::Unusable { .. }
        | InventoryError::Replaced { .. }
        | InventoryError::Unanswered { .. }
        | InventoryError::Lost { .. } => false,
    };
    left_out.iter().filter(move |board| took_too_long(&board.cause)).map(|board| board.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_board_that_is_lost_is_not_waited_for() {
        let lost = InventoryError::Unanswered { query: "a GPU by its index", cause: "lost".into() };
        let left_out = [(1, lost), (3, InventoryError::Hung { since: Instant::now() })];
        let left_out = left_out.map(|(index, cause)| SilentBoard { index, cause });
        assert_eq!(may_be_late(&left_out).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_late_board_has_the_supervisor_restart_once() {
        let mut first = LateBoards { may_restart: true, is_over: false };
        assert_eq!([first.deed(false), first.deed(true), first.deed(true)], [None, Some(Deed::Restart), None]);
        let run_dir = tempfile::tempdir().unwrap();
        std::fs::write(run_dir.path().join(MARK), "").unwrap();
        assert!(are_awaited(run_dir.path()), "the start that follows");
        assert!(!are_awaited(run_dir.path()), "the one after that");
        assert_eq!(LateBoards::new(true).deed(true), Some(Deed::Tell), "it was slow again");
    }
}
