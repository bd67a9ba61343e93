//! What a lease was promised since it came into the book: its share and its cap, times the time for which it held them.

use super::entitlement::held_demand;
use super::record::Record;
use gpool_protocol::Mechanism;

/// Sums over the time since a lease came into the book. They only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter {
    begun_ns: u64,
    /// Up to when the sums go, CLOCK_MONOTONIC.
    until_ns: u64,
    /// Share of each GPU times time. An hour of a whole GPU is 3.6e15, more years than there are fit.
    permille_ns: u128,
    /// Cap times time.
    cap_byte_ns: u128,
    /// Whether the lease had begun under an earlier supervisor.
    is_taken_over: bool,
    /// Whether the ledger has seen it.
    was_entered: bool,
}

impl Meter {
    /// Of a lease that comes into the book now.
    pub fn begin(now_ns: u64, is_taken_over: bool) -> Self {
        Self {
            begun_ns: now_ns,
            until_ns: now_ns,
            permille_ns: 0,
            cap_byte_ns: 0,
            is_taken_over,
            was_entered: is_taken_over,
        }
    }

    /// Goes on until now with what `record` says. To be called before the share or the cap in it changes.
    pub fn run(&mut self, now_ns: u64, record: &Record) {
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.until_ns));
        self.until_ns = self.until_ns.max(now_ns);
        self.permille_ns += elapsed_ns * u128::from(promised_permille(record));
        self.cap_byte_ns += elapsed_ns * u128::from(record.promised_bytes());
    }

    /// When the lease came into the book, CLOCK_MONOTONIC.
    pub fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// Whether the lease had begun under an earlier supervisor.
    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }

    /// The ledger sees it.
    pub fn note_entered(&mut self) {
        self.was_entered = true;
    }

    /// Whether the ledger has seen it, in this life of the supervisor or before.
    pub fn was_entered(&self) -> bool {
        self.was_entered
    }

    /// GPU time promised of each of its GPUs.
    pub fn reserved_ns(&self) -> u64 {
        u64::try_from(self.permille_ns / 1000).unwrap_or(u64::MAX)
    }

    /// Cap times time, in KiB seconds.
    pub fn cap_kib_s(&self) -> u64 {
        u64::try_from(self.cap_byte_ns / (1024 * 1_000_000_000)).unwrap_or(u64::MAX)
    }
}

/// The share of each of its GPUs that nobody else can be promised. Of a whole GPU or instance that is all of it, whatever the priority:
/// nobody else has any.
pub fn promised_permille(record: &Record) -> u16 {
    match record.mechanism {
        _ if record.has_no_share() => 0,
        Mechanism::Exclusive | Mechanism::Mig => 1000,
        Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => held_demand(record).guaranteed_permille(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::Priority;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_change_counts_from_when_it_is_made_and_lower_priorities_are_promised_nothing() {
        let (mut meter, mut record) = (Meter::begin(7 * S, false), sample());
        meter.run(17 * S, &record);
        assert_eq!(meter.reserved_ns(), 3 * S);
        record.fraction_permille = 500;
        meter.run(19 * S, &record);
        meter.run(18 * S, &record);
        assert_eq!(meter.reserved_ns(), 4 * S, "a moment that is over counts nothing twice");
        record.priority = Priority::Burst;
        meter.run(29 * S, &record);
        assert_eq!(meter.reserved_ns(), 4 * S);
        assert_eq!(meter.cap_kib_s(), 22 * (4 << 20));
        for mechanism in [Mechanism::Exclusive, Mechanism::Mig] {
            record.mechanism = mechanism;
            assert_eq!(promised_permille(&record), 1000, "{mechanism} is nobody else's, whatever the priority");
        }
    }
}
