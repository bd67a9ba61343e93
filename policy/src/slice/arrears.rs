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
    /// is promised is owed nothing, also of what was promised before.
    pub(super) fn pass(&mut self, now_ns: u64, permille: u16, slice_ns: u64, is_open: bool, waits: bool) {
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
