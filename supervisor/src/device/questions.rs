//! Questions to boards, each on a thread of its own: a call may hang for long on a sick board, or for ever, and a thread that
//! hangs in the driver cannot be ended. Who asks waits a while, and the board is asked nothing else until it has answered.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The board has not answered, within the patience of who asked, a question that was asked then.
    Hangs {
        /// When the oldest of such questions was asked.
        since: Instant,
    },
    /// There was no thread to ask on, which says nothing about the board.
    NoThread(io::Error),
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// NVML, about no board.
    Library,
    /// A board, by NVML's index.
    Board(u32),
    /// How boards are linked with each other.
    Links,
}

/// The questions that are open. Of those who ask at the same time each may leave a thread behind that hangs, and from the first
/// that is given up no other is begun until all of them have been answered.
#[derive(Debug, Default)]
pub struct Questions {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// By number, in the order in which they were asked.
    questions: BTreeMap<u64, Question>,
    next: u64,
    /// When the last one was answered.
    answered: Option<Instant>,
}

#[derive(Debug)]
struct Question {
    asked: Asked,
    at: Instant,
    /// Nobody waits for it any more.
    is_given_up: bool,
}

impl Open {
    fn begin(&mut self, asked: Asked) -> u64 {
        let number = self.next;
        self.next += 1;
        self.questions.insert(number, Question { asked, at: Instant::now(), is_given_up: false });
        number
    }

    /// Since when it has not answered.
    fn hangs_since(&self, asked: Asked) -> Option<Instant> {
        let is_its = |question: &&Question| question.asked == asked && question.is_given_up;
        self.questions.values().find(is_its).map(|question| question.at)
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Questions {
    /// What `question` answers, which asks `asked`.
    ///
    /// # Errors
    /// It does not answer within `patience`, or has not answered an earlier question that was given up.
    pub fn ask<T: Send + 'static>(
        &self,
        asked: Asked,
        patience: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let number = {
            let mut open = lock(&self.open);
            if let Some(since) = open.hangs_since(asked) {
                return Err(NoAnswer::Hangs { since });
            }
            open.begin(asked)
        };
        let (tell, answer) = channel();
        let open = self.open.clone();
        let begun = std::thread::Builder::new().name("nvml".into()).spawn(move || {
            let answer = question();
            // Before it is told: who has the answer may ask again at once.
            {
                let mut open = lock(&open);
                open.questions.remove(&number);
                open.answered = Some(Instant::now());
            }
            // Nobody may wait for it any more.
            let _ = tell.send(answer);
        });
        if let Err(cause) = begun {
            lock(&self.open).questions.remove(&number);
            return Err(NoAnswer::NoThread(cause));
        }
        match answer.recv_timeout(patience) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let mut open = lock(&self.open);
                let Some(question) = open.questions.get_mut(&number) else {
                    drop(open);
                    // It has just been answered.
                    return answer.recv().map_err(|_| NoAnswer::Hangs { since: Instant::now() });
                };
                question.is_given_up = true;
                let since = question.at;
                Err(NoAnswer::Hangs { since: open.hangs_since(asked).unwrap_or(since) })
            }
        }
    }

    /// Since when `asked` has not answered.
    pub fn hangs_since(&self, asked: Asked) -> Option<Instant> {
        lock(&self.open).hangs_since(asked)
    }

    /// Whether a question has been under way since then, or is. One that hangs does nothing.
    pub fn were_under_way_since(&self, at: Instant) -> bool {
        let open = lock(&self.open);
        open.questions.values().any(|question| !question.is_given_up)
            || open.answered.is_some_and(|answered| answered >= at)
    }

    /// Whether anybody has not answered, so that a thread of this process may stand in the driver.
    pub fn any_hangs(&self) -> bool {
        lock(&self.open).questions.values().any(|question| question.is_given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_board_that_hangs_holds_up_one_question_and_no_other_board() {
        let (questions, sick, other) = (Questions::default(), Asked::Board(1), Asked::Board(0));
        let (go_on, waits) = channel::<()>();
        let before = Instant::now();
        assert!(matches!(questions.ask(sick, SHORT, move || waits.recv().is_ok()), Err(NoAnswer::Hangs { .. })));
        let begun = Instant::now();
        // Not even asked, however long one would wait.
        let Err(NoAnswer::Hangs { since }) = questions.ask(sick, LONG, || true) else { panic!("it was asked") };
        assert!(before <= since && since + SHORT <= begun, "since the question that it has not answered");
        assert!(questions.ask(other, LONG, || true).is_ok() && questions.ask(Asked::Library, LONG, || true).is_ok());
        assert!(begun.elapsed() < LONG && questions.any_hangs());
        go_on.send(()).unwrap();
        let back = (0..2000).find(|_| {
            std::thread::sleep(Duration::from_millis(5));
            questions.ask(sick, LONG, || true).is_ok()
        });
        assert!(back.is_some() && !questions.any_hangs(), "it answers again");
    }

    #[test]
    fn a_question_is_under_way_until_it_is_answered_and_one_that_hangs_is_not() {
        let (questions, asked) = (Arc::new(Questions::default()), Asked::Board(0));
        let start = Instant::now();
        assert!(!questions.were_under_way_since(start));
        let its = questions.clone();
        assert!(questions.ask(asked, LONG, move || its.were_under_way_since(Instant::now())).unwrap());
        assert!(questions.were_under_way_since(start) && !questions.were_under_way_since(Instant::now()));
        let (go_on, waits) = channel::<()>();
        assert!(questions.ask(asked, SHORT, move || waits.recv().is_ok()).is_err());
        let given_up = Instant::now();
        assert!(!questions.were_under_way_since(given_up));
        drop(go_on);
        let is_answered = |_| {
            std::thread::sleep(Duration::from_millis(5));
            questions.were_under_way_since(given_up)
        };
        assert!((0..2000).any(is_answered), "it has come back");
    }

    #[test]
    fn a_board_hangs_until_all_have_been_answered_who_asked_at_the_same_time() {
        let (questions, sick, both) = (Questions::default(), Asked::Board(1), Arc::new(Barrier::new(2)));
        let ask = |patience: Duration| {
            let ((go_on, waits), both) = (channel::<()>(), both.clone());
            let question = move || drop((both.wait(), waits.recv()));
            (go_on, questions.ask(sick, patience, question).is_err())
        };
        // Neither is given up before both are asked; the one that is given up last is answered.
        let ((_still, one), (go_on, other)) = std::thread::scope(|scope| {
            let one = scope.spawn(|| ask(SHORT * 20));
            let other = scope.spawn(|| ask(SHORT * 30));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one && other, "nobody is answered");
        go_on.send(()).unwrap();
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(5));
            assert!(questions.ask(sick, LONG, || true).is_err(), "the other one hangs still");
        }
    }
}
