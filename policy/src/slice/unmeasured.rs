//! What is launched and not yet measured.

/// The longest stretch that counts.
const LIMIT_NS: u64 = 500_000_000;

/// A stretch of device time in which a tenant has had work, as far as it has announced, and of which no burst has told
/// yet. It is never charged; but who is next is decided before the last bursts have ended, and while a kernel of a
/// second runs nothing is measured for a second: without it such a tenant would look as if it were owed all that time.
///
/// It is believed up to [`LIMIT_NS`]: a tenant that has ended long ago and cannot say so should not wait for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unmeasured {
    from_ns: u64,
    until_ns: u64,
}

impl Unmeasured {
    /// How long it is.
    pub(super) fn ns(self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns).min(LIMIT_NS)
    }

    /// From when on there may be work that has not been reported.
    pub(super) fn begin_ns(self) -> u64 {
        if self.until_ns > self.from_ns { self.until_ns - self.ns() } else { u64::MAX }
    }

    /// A gate opens. What was launched behind an earlier opening and has not ended goes on; but if no more than
    /// `error_ns` was left and should have ended so long ago, the tenant has waited since, and waiting is no work.
    pub(super) fn open(&mut self, now_ns: u64, error_ns: u64) {
        let left_ns = self.ns();
        let has_waited = now_ns >= self.until_ns.saturating_add(error_ns) && left_ns <= error_ns;
        if left_ns == 0 || has_waited {
            (self.from_ns, self.until_ns) = (now_ns.saturating_sub(left_ns), now_ns);
        }
    }

    /// There is work until then.
    pub(super) fn extend(&mut self, until_ns: u64) {
        self.until_ns = self.until_ns.max(until_ns);
    }

    /// A burst has told of the time until then.
    pub(super) fn measured(&mut self, end_ns: u64) {
        self.from_ns = self.from_ns.max(end_ns);
    }

    /// The tenant stands at its gate. What should have ended by now and is no more than `error_ns` long was a wrong
    /// estimate. Whether nothing is left.
    pub(super) fn settle(&mut self, now_ns: u64, error_ns: u64) -> bool {
        if now_ns >= self.until_ns && self.ns() <= error_ns {
            self.end();
        }
        self.ns() == 0
    }

    /// The tenant has nothing outstanding.
    pub(super) fn end(&mut self) {
        self.until_ns = self.from_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shrinks_with_what_is_measured_and_ends_when_it_was_an_error() {
        let mut unmeasured = Unmeasured::default();
        unmeasured.open(100, 20);
        unmeasured.extend(160);
        unmeasured.measured(150);
        assert_eq!(unmeasured.ns(), 10);
        assert!(!unmeasured.settle(159, 20) && unmeasured.settle(160, 20));
        unmeasured.open(300, 20);
        assert_eq!(unmeasured.ns(), 0);
    }

    #[test]
    fn waiting_for_the_next_opening_is_no_work() {
        let mut unmeasured = Unmeasured::default();
        unmeasured.open(100, 20);
        unmeasured.extend(160);
        unmeasured.measured(150);
        // It has said before that it wants more, and says nothing until its gate opens.
        unmeasured.open(900, 20);
        unmeasured.extend(901);
        assert_eq!(unmeasured.ns(), 11);
    }

    #[test]
    fn a_long_kernel_goes_on_behind_the_next_opening() {
        let mut unmeasured = Unmeasured::default();
        unmeasured.open(100, 20);
        unmeasured.extend(160);
        assert!(!unmeasured.settle(200, 20));
        unmeasured.open(300, 20);
        unmeasured.extend(360);
        assert_eq!(unmeasured.ns(), 260);
        unmeasured.measured(400);
        assert_eq!(unmeasured.ns(), 0);
    }
}
