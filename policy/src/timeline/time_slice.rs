//! How long the hardware leaves the device to a context that comes onto it, before another one has its turn.

/// It is never taken to be longer: most drivers' slices are 1 to 2 ms. Of what comes after that, each has its part.
const MOST_NS: u64 = 1_000_000;
/// A wait is forgotten after one to two of these.
const EPOCH_NS: u64 = 10_000_000_000;

/// Learnt from how long others stand before the device: until those who are on it have had their slices, or have ended before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeSlice {
    longest_now_ns: u64,
    longest_before_ns: u64,
    epoch_ns: u64,
}

impl TimeSlice {
    /// Somebody has stood before the device for so long while others were on it.
    pub(super) fn note_wait(&mut self, now_ns: u64, waited_ns: u64) {
        if now_ns >= self.epoch_ns.saturating_add(EPOCH_NS) {
            (self.epoch_ns, self.longest_before_ns, self.longest_now_ns) = (now_ns, self.longest_now_ns, 0);
        }
        self.longest_now_ns = self.longest_now_ns.max(waited_ns);
    }

    /// How long it is at least, as far as is known. Nanoseconds.
    pub(super) fn least_ns(&self) -> u64 {
        self.longest_now_ns.max(self.longest_before_ns).min(MOST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_longest_wait_of_the_last_seconds() {
        let mut its = TimeSlice::default();
        assert_eq!(its.least_ns(), 0);
        its.note_wait(1, 100_000);
        its.note_wait(2, 70_000);
        assert_eq!(its.least_ns(), 100_000);
        its.note_wait(3, 5 * MOST_NS);
        assert_eq!(its.least_ns(), MOST_NS);
        its.note_wait(4 + EPOCH_NS, 30_000);
        assert_eq!(its.least_ns(), MOST_NS, "of the epoch before");
        its.note_wait(5 + 2 * EPOCH_NS, 20_000);
        assert_eq!(its.least_ns(), 30_000);
    }
}
