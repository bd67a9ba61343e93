//! What is launched and not yet measured.

/// GPU time that a tenant has launched in its slice, as far as it was announced, and that nobody has measured yet. It is
/// never charged; but who is next is decided before the last bursts have ended, and without it the one that runs would
/// always look poorer than it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    ns: u64,
    /// When it should be over.
    until_ns: u64,
}

impl Pending {
    pub(super) fn new(ns: u64, until_ns: u64) -> Self {
        Self { ns, until_ns }
    }

    pub(super) fn ns(self) -> u64 {
        self.ns
    }

    /// So much has been measured.
    pub(super) fn measured(&mut self, ns: u64) {
        self.ns = self.ns.saturating_sub(ns);
    }

    /// The tenant stands at its gate or is idle: what has not been measured by now was a wrong estimate.
    pub(super) fn drained(&mut self, now_ns: u64) {
        if now_ns >= self.until_ns {
            self.ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_until_it_is_measured_or_over() {
        let mut pending = Pending::new(6_000, 50_000);
        pending.measured(2_000);
        pending.drained(49_999);
        assert_eq!(pending.ns(), 4_000);
        pending.drained(50_000);
        assert_eq!(pending.ns(), 0);
    }
}
