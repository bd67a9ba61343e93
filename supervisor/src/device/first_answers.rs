//! What boards say of themselves to a supervisor that starts. It waits for those that take their time, as one does that has to be
//! initialised first, but not for long while others are waiting for the supervisor. One that gives an error is asked again as well:
//! whether it is divided nobody knows then, and a board that is must not be taken for a whole GPU.

use super::inventory_error::InventoryError;
use super::mig::Board;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two questions to a board that does not answer.
pub const RETRY_PERIOD: Duration = Duration::from_millis(250);

/// How long a start waits for boards.
#[derive(Debug, Clone, Copy)]
pub struct StartPatience {
    /// What each may take for its first answer.
    pub to_answer: Duration,
    /// For how long those that have not answered are asked again.
    pub to_come_back: Duration,
    /// The same while no board is there that could be served: without one the start fails, which is faster for nobody.
    pub for_the_first: Duration,
}

/// What a board says.
#[derive(Debug)]
pub struct Answer {
    /// Whether the configuration has it served.
    pub is_served: bool,
    /// What it can be divided into, if it can and is served.
    pub divisible: Option<Board>,
}

/// What each board is; asked once, at the start.
#[derive(Debug, Default)]
pub struct Boards {
    /// Those that can be divided, by NVML's index.
    pub divisible: BTreeMap<u32, Board>,
    /// Those that did not answer that, and when they were asked. Whether they are divided is not known, and they are left out
    /// until the next start.
    pub hung: BTreeMap<u32, Instant>,
    /// Those that gave an error in its place, as it was last. The same holds for them.
    pub failed: BTreeMap<u32, InventoryError>,
}

impl Boards {
    /// Takes what a board has answered that was asked then: whether it is served, if that is known now.
    fn take(&mut self, (index, asked): (u32, Instant), answer: Result<Answer, InventoryError>) -> Option<bool> {
        match answer {
            Ok(answer) => {
                self.hung.remove(&index);
                self.failed.remove(&index);
                self.divisible.extend(answer.divisible.map(|board| (index, board)));
                return Some(answer.is_served);
            }
            Err(InventoryError::Hung { .. } | InventoryError::Unasked(_)) => {
                self.failed.remove(&index);
                self.hung.entry(index).or_insert(asked);
            }
            Err(cause) => {
                self.hung.remove(&index);
                self.failed.insert(index, cause);
            }
        }
        None
    }
}

/// What so many boards say, whom `ask` asks.
pub fn first_answers(
    count: u32,
    patience: &StartPatience,
    mut ask: impl FnMut(u32) -> Result<Answer, InventoryError>,
) -> Boards {
    let (mut boards, mut is_any_served) = (Boards::default(), false);
    let mut waited_for: Vec<u32> = (0..count).collect();
    let mut first_round_over = None;
    loop {
        waited_for.retain(|index| {
            let known = boards.take((*index, Instant::now()), ask(*index));
            is_any_served |= known == Some(true);
            known.is_none()
        });
        let is_first_round = first_round_over.is_none();
        let begun = *first_round_over.get_or_insert_with(Instant::now);
        // Who gives an error is not slow: nobody waits for it as for one that has to be initialised first, but it is asked once more.
        let is_slow = !is_any_served && !boards.hung.is_empty();
        let longest = if is_slow { patience.for_the_first } else { patience.to_come_back };
        let is_over = begun.elapsed() >= longest && (boards.failed.is_empty() || !is_first_round);
        if waited_for.is_empty() || is_over {
            return boards;
        }
        std::thread::sleep(RETRY_PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Which of two boards are left out, where each answers when it is asked for the time that is given here.
    fn left_out(answers_at: [u32; 2], (to_come_back, for_the_first): (Duration, Duration)) -> Vec<u32> {
        let patience = StartPatience { to_answer: Duration::ZERO, to_come_back, for_the_first };
        let mut asked = [0; 2];
        let boards = first_answers(2, &patience, |index| {
            let times = &mut asked[index as usize];
            *times += 1;
            match *times >= answers_at[index as usize] {
                true => Ok(Answer { is_served: true, divisible: None }),
                false => Err(InventoryError::Hung { since: Instant::now() }),
            }
        });
        boards.hung.into_keys().collect()
    }

    #[test]
    fn a_late_answer_is_taken_while_the_start_may_wait() {
        assert_eq!(left_out([1, 3], (LONG, LONG)), [] as [u32; 0]);
        assert_eq!(left_out([1, 3], (Duration::ZERO, LONG)), [1], "containers wait, and the other one serves them");
        assert_eq!(left_out([1, u32::MAX], (Duration::from_millis(300), LONG)), [1], "it never comes");
    }

    #[test]
    fn a_start_waits_for_the_first_board_that_can_be_served() {
        assert_eq!(left_out([3, 3], (Duration::ZERO, LONG)), [] as [u32; 0]);
        assert_eq!(left_out([3, 5], (Duration::ZERO, LONG)), [1], "and for no other one");
        assert_eq!(left_out([u32::MAX; 2], (Duration::ZERO, Duration::ZERO)), [0, 1]);
    }

    /// Which of two boards are left out with which error, where the second one gives one so often.
    fn failed(times: u32, (to_come_back, for_the_first): (Duration, Duration)) -> Vec<(u32, String)> {
        let patience = StartPatience { to_answer: Duration::ZERO, to_come_back, for_the_first };
        let mut asked = 0;
        let boards = first_answers(2, &patience, |index| {
            asked += index;
            match index == 1 && asked <= times {
                true => Err(InventoryError::Unanswered { query: "a GPU's MIG mode", cause: format!("no, {asked}") }),
                false => Ok(Answer { is_served: index == 1, divisible: None }),
            }
        });
        assert!(boards.hung.is_empty());
        boards.failed.into_iter().map(|(index, cause)| (index, cause.to_string())).collect()
    }

    #[test]
    fn a_board_that_gives_an_error_is_asked_again_and_is_no_board_without_mig() {
        assert_eq!(failed(1, (Duration::ZERO, LONG)), [], "once more, also while containers wait");
        assert_eq!(failed(3, (LONG, LONG)), []);
        let told = "NVML does not answer a GPU's MIG mode: no, 2".to_owned();
        assert_eq!(failed(u32::MAX, (Duration::ZERO, LONG)), [(1, told)], "no board is waited for that is not slow");
    }
}
