//! Who pauses often and comes back: whatever has been launched before it by then it waits for each time.

/// So many of them within [`Parameters::returns_ns`](super::Parameters) are often.
const OFTEN: usize = 4;

/// When a tenant has come back from being idle lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Returns {
    at_ns: [Option<u64>; OFTEN],
    next: usize,
    is_idle: bool,
}

impl Returns {
    /// It says that it is idle.
    pub(super) fn idle(&mut self) {
        self.is_idle = true;
    }

    /// It wants again, or still. If it comes back often, how long its last returns took.
    pub(super) fn want(&mut self, now_ns: u64, window_ns: u64) -> Option<u64> {
        if !std::mem::take(&mut self.is_idle) {
            return None;
        }
        let oldest_ns = self.at_ns[self.next].replace(now_ns);
        self.next = (self.next + 1) % OFTEN;
        oldest_ns.map(|at_ns| now_ns.saturating_sub(at_ns)).filter(|span_ns| *span_ns <= window_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_returns_within_the_window_are_often() {
        let mut returns = Returns::default();
        let mut comes_back = |at_ns| {
            returns.idle();
            returns.want(at_ns, 100)
        };
        assert_eq!([0, 25, 50, 75].map(&mut comes_back), [None; 4]);
        assert_eq!(comes_back(100), Some(100));
        assert_eq!(comes_back(126), None, "the fourth before it is too long ago");
        assert_eq!(returns.want(130, 100), None, "it was not idle");
    }
}
