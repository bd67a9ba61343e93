//! How often that is told which goes on happening: at once, then ever more rarely, so that one tenant's trouble does not
//! drive everybody else's out of what is kept.

/// The least time between two tellings.
const LEAST_NS: u64 = 1_000_000_000;
/// The most, and how long nothing may have happened for the next to be told at once again.
const MOST_NS: u64 = 600 * 1_000_000_000;

/// What has been told of one kind of happening.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repetition {
    /// How often it had happened at the last look, and since when that has not grown.
    seen: u64,
    grown_ns: u64,
    told_ns: Option<u64>,
    /// How long after that the next may be told.
    gap_ns: u64,
}

impl Repetition {
    /// Takes how often it has happened by `now_ns`, and how much of that has been told. Whether the rest is to be told now.
    pub fn look(&mut self, now_ns: u64, all: u64, told: u64) -> bool {
        if all > self.seen {
            if now_ns.saturating_sub(self.grown_ns) >= MOST_NS {
                self.gap_ns = 0;
            }
            self.grown_ns = now_ns;
        }
        self.seen = all;
        let is_due = self.told_ns.is_none_or(|told_ns| now_ns.saturating_sub(told_ns) >= self.gap_ns);
        if all <= told || !is_due {
            return false;
        }
        self.told_ns = Some(now_ns);
        self.gap_ns = (2 * self.gap_ns).clamp(LEAST_NS, MOST_NS);
        true
    }

    /// Whether it has been told once, so that others may be kept back.
    #[must_use]
    pub fn has_told(&self) -> bool {
        self.told_ns.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Looks once a second from `seconds.start` on; when what is told of so many that have happened by then.
    fn told(
        repetition: &mut Repetition,
        told: &mut u64,
        seconds: std::ops::Range<u64>,
        by: impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        let mut look = |second: &u64| {
            let all = by(*second);
            let is_told = repetition.look(second * S, all, *told);
            *told = if is_told { all } else { *told };
            is_told
        };
        seconds.filter(|second| look(second)).collect()
    }

    #[test]
    fn what_goes_on_is_told_ever_more_rarely_and_at_last_each_ten_minutes() {
        let (mut repetition, mut sum) = (Repetition::default(), 0);
        let seconds = told(&mut repetition, &mut sum, 100..4000, |second| second);
        let gaps: Vec<u64> = seconds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(seconds[0], 100, "the first at once");
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600, 600]);
    }

    #[test]
    fn what_is_kept_back_is_told_and_a_quiet_time_begins_anew() {
        let (mut repetition, mut sum) = (Repetition::default(), 0);
        let burst = |second: u64| second.min(120);
        assert_eq!(told(&mut repetition, &mut sum, 101..1000, burst), [101, 102, 104, 108, 116, 132], "the rest, late");
        assert_eq!(sum, 120);
        let again = |second: u64| second - 1000 + 121;
        assert_eq!(told(&mut repetition, &mut sum, 1000..1010, again), [1000, 1001, 1003, 1007]);
        assert!(told(&mut repetition, &mut sum, 1010..1610, |_| 130).len() == 1);
        assert_eq!(told(&mut repetition, &mut sum, 1610..1614, |second| second), [1610, 1611, 1613]);
    }

    #[test]
    fn what_has_happened_before_all_looks_is_told_once() {
        let (mut repetition, mut sum) = (Repetition::default(), 7);
        assert!(!repetition.has_told() && told(&mut repetition, &mut sum, 0..10, |_| 7).is_empty());
        assert_eq!(told(&mut repetition, &mut sum, 10..20, |_| 9), [10]);
        assert!(repetition.has_told());
    }
}
