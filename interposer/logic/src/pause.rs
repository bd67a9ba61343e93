//! How long a program that has nothing outstanding may keep its open gate.

/// Pauses up to this long are waited out.
const SHORT_NS: u64 = 250_000;
/// The gate is kept for so long at least, if at all: a look and a wake-up are not exact ...
const KEEP_LEAST_NS: u64 = 150_000;
/// ... and at most so long.
const KEEP_MOST_NS: u64 = 500_000;
/// Who has paused for longer than is waited out so many times in a row is expected to do so again. A request of several steps
/// has short pauses between them.
const LONG_IN_A_ROW: u8 = 2;
/// A longer pause says no more than this one.
const LONGEST_NS: u64 = 10_000_000;

/// How long a program usually pauses between the end of its work and its next launch. One that comes back at once keeps
/// the device for as long as that, as a disk scheduler waits for a reader's next request (BFQ's `slice_idle`); one that
/// thinks longer gives it up when its work ends.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    /// EWMA of 1/4; 0 before the first. All zeros, so that the process's state takes no place in the library's file.
    usual_ns: u64,
    /// Long ones since the last short one.
    long_in_a_row: u8,
}

impl Pause {
    /// Not known yet, taken to be short.
    pub const fn new() -> Self {
        Self { usual_ns: 0, long_in_a_row: 0 }
    }

    /// The program launches again after such a pause.
    pub fn learn(&mut self, pause_ns: u64) {
        let pause_ns = pause_ns.clamp(1, LONGEST_NS);
        self.long_in_a_row = if pause_ns < SHORT_NS { 0 } else { self.long_in_a_row.saturating_add(1) };
        self.usual_ns = match self.usual_ns {
            0 => pause_ns,
            known => (known * 3 + pause_ns) / 4,
        };
    }

    /// How long to keep the gate after the end of the work.
    pub fn keep_ns(&self) -> u64 {
        match self.usual_ns {
            0 => KEEP_MOST_NS,
            short if short < SHORT_NS => (2 * short).clamp(KEEP_LEAST_NS, KEEP_MOST_NS),
            _ => 0,
        }
    }

    /// It has launched again after a wait, and before its work had ended: it works ahead.
    pub fn did_not_come(&mut self) {
        self.long_in_a_row = 0;
    }

    /// Whether a long pause is expected after the work that there is, so that the gate will not be kept.
    pub fn is_expected(&self) -> bool {
        self.keep_ns() == 0 && self.long_in_a_row >= LONG_IN_A_ROW
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pauses_are_waited_out_and_long_ones_are_not() {
        let mut pause = Pause::new();
        assert_eq!(pause.keep_ns(), KEEP_MOST_NS);
        (0..20).for_each(|_| pause.learn(100_000));
        assert!((200_000..=210_000).contains(&pause.keep_ns()), "{}", pause.keep_ns());
        pause.learn(33_000_000);
        assert_eq!(pause.keep_ns(), 0);
        (0..30).for_each(|_| pause.learn(5_000));
        assert_eq!(pause.keep_ns(), KEEP_LEAST_NS);
    }

    #[test]
    fn a_long_pause_is_expected_after_two_in_a_row() {
        let mut pause = Pause::new();
        for _ in 0..2 {
            pause.learn(5_000_000);
            assert!(!pause.is_expected());
            pause.learn(5_000_000);
            assert!(pause.is_expected());
            pause.learn(20_000);
            assert!(!pause.is_expected() && pause.keep_ns() == 0, "a step of a request");
        }
        (0..2).for_each(|_| pause.learn(5_000_000));
        pause.did_not_come();
        assert!(!pause.is_expected());
    }
}
