//! How long a client that has nothing outstanding keeps its gate: as the shim's `pause.rs`, whose numbers these are. The
//! shim knows no policy, and policy no shim; tests/tests/simulation.rs sees that the two stay alike.

/// Pauses up to this long are waited out.
const SHORT_NS: u64 = 250_000;
/// The gate is kept for so long at least, if at all ...
const KEEP_LEAST_NS: u64 = 150_000;
/// ... and at most so long.
const KEEP_MOST_NS: u64 = 500_000;
/// Who has paused for longer so many times in a row is expected to do so again.
const LONG_IN_A_ROW: u8 = 2;
/// A longer pause says no more than this one.
const LONGEST_NS: u64 = 10_000_000;

/// How long an application usually pauses between the end of its work and its next launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    /// EWMA of 1/4; none before the first.
    usual_ns: Option<u64>,
    /// Long ones since the last short one.
    long_in_a_row: u8,
}

impl Pause {
    /// The application launches again after such a pause.
    pub fn learn(&mut self, pause_ns: u64) {
        let pause_ns = pause_ns.clamp(1, LONGEST_NS);
        self.long_in_a_row = if pause_ns < SHORT_NS { 0 } else { self.long_in_a_row.saturating_add(1) };
        self.usual_ns = Some(self.usual_ns.map_or(pause_ns, |known_ns| (known_ns * 3 + pause_ns) / 4));
    }

    /// How long to keep the gate after the end of the work.
    #[must_use]
    pub fn keep_ns(&self) -> u64 {
        match self.usual_ns {
            None => KEEP_MOST_NS,
            Some(short_ns) if short_ns < SHORT_NS => (2 * short_ns).clamp(KEEP_LEAST_NS, KEEP_MOST_NS),
            Some(_) => 0,
        }
    }

    /// It has launched again after it had issued all that it wanted, and before that had ended.
    pub fn did_not_come(&mut self) {
        self.long_in_a_row = 0;
    }

    /// Whether a long pause is expected after the work that there is, so that the gate will not be kept.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.keep_ns() == 0 && self.long_in_a_row >= LONG_IN_A_ROW
    }
}
