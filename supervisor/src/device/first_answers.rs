//! What boards say of themselves to a supervisor that starts. It waits for those that take their time, as one does that has to be
//! initialised first, but not for long while others are waiting for the supervisor.

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
            let asked = Instant::now();
            let Ok(answer) = ask(*index) else {
                boards.hung.entry(*index).or_insert(asked);
                return true;
            };
            boards.hung.remove(index);
            boards.divisible.extend(answer.divisible.map(|board| (*index, board)));
            is_any_served |= answer.is_served;
            false
        });
        let begun = *first_round_over.get_or_insert_with(Instant::now);
        let longest = if is_any_served { patience.to_come_back } else { patience.for_the_first };
        if waited_for.is_empty() || begun.elapsed() >= longest {
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
}
