//! Limits of a context that take device memory: what printf on the device fills, what malloc takes from, and the stack
//! of every thread that the device can hold.
//!
//! What a context costs has the limits in it that it begins with. Growth beyond them is charged, once: lowering a limit
//! gives nothing back, since the driver says of none when it lets the memory go, and raising it again up to where it was
//! takes nothing.

use crate::handles::{Handles, Held, Kind};

impl<const CAPACITY: usize> Handles<CAPACITY> {
    /// By how much a limit of `context` would stand higher than ever with `value`, all in bytes. `present` is what it is
    /// now.
    pub fn limit_growth(&mut self, kind: Kind, context: u64, present: u64, value: u64) -> u64 {
        let highest = self.find(kind, context).map_or(0, |held| held.bytes).max(present);
        value.saturating_sub(highest)
    }

    /// The limit stands at `value`, which is charged.
    pub fn limit_raised(&mut self, kind: Kind, context: u64, value: u64) {
        // Without room it is charged again when it is raised again.
        self.put(Held::new(kind, context, value));
    }

    /// `context` has gone, and its handle may come back as another's.
    pub fn forget_limits(&mut self, context: u64) {
        for kind in [Kind::PrintfLimit, Kind::HeapLimit, Kind::StackLimit] {
            self.take(kind, context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_charged_for_where_it_has_never_been() {
        let mut handles = Handles::<16>::new();
        assert_eq!(handles.limit_growth(Kind::HeapLimit, 1, 8 << 20, 8 << 20), 0);
        assert_eq!(handles.limit_growth(Kind::HeapLimit, 1, 8 << 20, 1 << 30), (1 << 30) - (8 << 20));
        handles.limit_raised(Kind::HeapLimit, 1, 1 << 30);
        assert_eq!(handles.limit_growth(Kind::HeapLimit, 1, 1 << 20, 1 << 30), 0, "lowered, and raised again");
        assert_eq!(handles.limit_growth(Kind::HeapLimit, 1, 1 << 30, 3 << 30), 2 << 30);
        assert_eq!(handles.limit_growth(Kind::PrintfLimit, 1, 1 << 20, 2 << 20), 1 << 20, "each by itself");
        handles.forget_limits(1);
        assert_eq!(handles.limit_growth(Kind::HeapLimit, 1, 8 << 20, 16 << 20), 8 << 20, "another context");
    }
}
