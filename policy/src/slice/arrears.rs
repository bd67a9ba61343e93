//! How far a gang is behind what was promised to it.

/// So many slices a gang is behind or ahead at most. What was before that is forgotten.
const MOST: i64 = 2;

/// For how much longer the gate of a gang should have been open, while it wanted that, to give it its guaranteed share of
/// each of its GPUs. Its lags do not say so: while one of its GPUs keeps it from the others, these are idle and owe it
/// nothing, and where somebody wants little it has had more than that one all the same.
///
/// What counts is that its gate is open: ranks that wait for each other hold their GPUs meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrears {
    /// In thousandths of a nanosecond.
    owed: i64,
    seen_ns: u64,
    is_behind: bool,
}

impl Arrears {
    /// Until `now_ns` its gate has been open, or it has waited at it, or neither. `permille` is what was promised; whom nothing
    /// is promised is owed nothing, also of what was promised before. While all that stays the same it may be told in one go.
    pub(super) fn pass(&mut self, now_ns: u64, permille: u16, slice_ns: u64, is_open: bool, waits: bool) {
        let now_ns = now_ns.max(self.seen_ns);
        if permille == 0 {
            return self.forgive(now_ns);
        }
        let passed_ns = narrow(now_ns.saturating_sub(std::mem::replace(&mut self.seen_ns, now_ns)));
        let (slice, promised) = (narrow(slice_ns).saturating_mul(1000), i64::from(permille.min(1000)));
        let news = match (is_open, waits) {
            (true, _) => passed_ns.saturating_mul(promised - 1000),
            (false, true) => passed_ns.saturating_mul(promised),
            (false, false) => 0,
        };
        let most = slice.saturating_mul(MOST);
        self.owed = self.owed.saturating_add(news).clamp(-most, most);
        self.is_behind = self.owed > 0 && (self.is_behind || self.owed >= slice);
    }

    /// Whether it is behind by a slice, or was and has not caught up since.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// When it will be, if it waits until then.
    pub(super) fn falls_behind_ns(&self, permille: u16, slice_ns: u64) -> Option<u64> {
        let left = narrow(slice_ns).saturating_mul(1000).saturating_sub(self.owed);
        let after_ns = left.checked_div(i64::from(permille))?;
        (!self.is_behind).then(|| self.seen_ns.saturating_add_signed(after_ns.max(0) + 1))
    }

    /// When it will be behind, or will have caught up, if its gate stays as it is until then.
    pub(super) fn turns_ns(&self, permille: u16, slice_ns: u64, is_open: bool, waits: bool) -> Option<u64> {
        let promised = i64::from(permille.min(1000));
        let (left, rate) = match (is_open, waits, self.is_behind) {
            (true, _, true) => (self.owed, 1000 - promised),
            (false, true, false) => (narrow(slice_ns).saturating_mul(1000).saturating_sub(self.owed), promised),
            _ => return None,
        };
        let left = left.max(0).unsigned_abs();
        (rate > 0).then(|| self.seen_ns.saturating_add(left.div_ceil(rate.unsigned_abs())))
    }

    /// Nobody owes anybody anything at `now_ns`.
    pub(super) fn forgive(&mut self, now_ns: u64) {
        *self = Self { seen_ns: now_ns, ..Self::default() };
    }
}

fn narrow(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 1000;

    #[test]
    fn who_waited_for_its_share_is_behind_until_it_has_had_that() {
        let mut arrears = Arrears::default();
        arrears.pass(1999, 500, SLICE, false, true);
        assert!(!arrears.is_behind());
        assert_eq!(arrears.falls_behind_ns(500, SLICE), Some(2001));
        arrears.pass(2001, 500, SLICE, false, true);
        assert!(arrears.is_behind() && arrears.falls_behind_ns(500, SLICE).is_none());
        arrears.pass(9000, 500, SLICE, false, false);
        arrears.pass(11_000, 500, SLICE, true, false);
        assert!(arrears.is_behind(), "it wanted nothing meanwhile");
        arrears.pass(11_001, 500, SLICE, true, false);
        assert!(!arrears.is_behind());
    }

    #[test]
    fn when_that_ends_and_begins_is_known_before() {
        let mut arrears = Arrears::default();
        for (is_open, waits) in [(false, true), (true, false), (false, true)] {
            let turns_ns = arrears.turns_ns(300, SLICE, is_open, waits).unwrap();
            let is_behind = arrears.is_behind();
            arrears.pass(turns_ns - 1, 300, SLICE, is_open, waits);
            assert_eq!(
                (arrears.is_behind(), arrears.turns_ns(300, SLICE, is_open, waits)),
                (is_behind, Some(turns_ns))
            );
            arrears.pass(turns_ns, 300, SLICE, is_open, waits);
            assert_eq!((arrears.is_behind(), arrears.turns_ns(300, SLICE, is_open, waits)), (!is_behind, None));
        }
        assert_eq!(arrears.turns_ns(300, SLICE, false, false), None, "nothing is counted");
        assert_eq!(arrears.turns_ns(1000, SLICE, true, false), None, "all was promised to it");
    }

    #[test]
    fn two_slices_are_remembered_either_way() {
        let mut arrears = Arrears::default();
        arrears.pass(1_000_000, 500, SLICE, true, false);
        assert_eq!(arrears.falls_behind_ns(500, SLICE), Some(1_006_001));
        arrears.pass(2_000_000, 500, SLICE, false, true);
        arrears.pass(2_004_000, 500, SLICE, true, false);
        assert!(!arrears.is_behind());
    }

    #[test]
    fn without_a_promise_nobody_is_behind() {
        let mut arrears = Arrears::default();
        arrears.pass(u64::MAX, 0, SLICE, false, true);
        assert!(!arrears.is_behind() && arrears.falls_behind_ns(0, SLICE).is_none());
        let mut arrears = Arrears::default();
        arrears.pass(10 * SLICE, 500, SLICE, false, true);
        assert!(arrears.is_behind());
        arrears.pass(10 * SLICE + 1, 0, SLICE, false, true);
        assert!(!arrears.is_behind(), "nor of what was promised before");
    }
}
