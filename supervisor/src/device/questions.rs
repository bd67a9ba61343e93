//! Questions to boards, each on a thread of its own: a call may hang for long on a sick board, or for ever, and a thread that
//! hangs in the driver cannot be ended. Who asks waits a while, and the board is asked nothing else until it has answered.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Which boards have a question open. At most one thread a board and asker hangs.
#[derive(Debug, Default)]
pub struct Questions {
    /// By board; the thread holds the other end until it has been answered.
    hanging: Mutex<BTreeMap<u32, Weak<()>>>,
}

impl Questions {
    /// What `question` answers, which asks a board; none if it does not within `patience`, or has not answered an earlier one.
    pub fn ask<T: Send + 'static>(
        &self,
        board: u32,
        patience: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.hangs(board) {
            return None;
        }
        let (tell, answer) = channel();
        let open = Arc::new(());
        let hanging = Arc::downgrade(&open);
        let asked = std::thread::Builder::new().name("nvml".into()).spawn(move || {
            // Nobody may wait for it any more.
            let _ = tell.send(question());
            drop(open);
        });
        asked.ok()?;
        let answer = answer.recv_timeout(patience).ok();
        if answer.is_none() {
            self.hanging.lock().unwrap_or_else(PoisonError::into_inner).insert(board, hanging);
        }
        answer
    }

    /// Whether the board has not answered yet what it was asked.
    fn hangs(&self, board: u32) -> bool {
        let hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        hanging.get(&board).is_some_and(|open| open.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_board_that_hangs_holds_up_one_question_and_no_other_board() {
        let (questions, short) = (Questions::default(), Duration::from_millis(50));
        let long = Duration::from_secs(60);
        let (go_on, waits) = channel::<()>();
        assert_eq!(questions.ask(1, short, move || waits.recv().is_ok()), None);
        let begun = Instant::now();
        // Not even asked, however long one would wait.
        assert_eq!(questions.ask(1, long, || true), None);
        assert_eq!(questions.ask(0, long, || true), Some(true), "another board");
        assert!(begun.elapsed() < long);
        go_on.send(()).unwrap();
        let back = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            questions.ask(1, long, || true)
        });
        assert_eq!(back, Some(true), "it answers again");
    }
}
