//! The futex word of a gate.

/// Epoch and state of a gate in one word: bit 0 is set while it is open, the rest counts every change.
///
/// A thread that waits for a change waits for the word to differ from the one it saw, so every renewal of an
/// open gate is a new word as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateWord(pub u32);

impl GateWord {
    /// Whether launches may pass.
    pub fn is_open(self) -> bool {
        self.0 & 1 == 1
    }

    /// The word after this one, open or closed.
    pub fn next(self, open: bool) -> GateWord {
        GateWord((self.0 & !1).wrapping_add(2) | u32::from(open))
    }
}

#[cfg(test)]
mod tests {
    use super::GateWord;

    #[test]
    fn every_change_is_a_new_word() {
        let closed = GateWord(0);
        let open = closed.next(true);
        let renewed = open.next(true);
        assert!(!closed.is_open() && open.is_open() && renewed.is_open());
        assert!(open != renewed && renewed.next(false) != closed);
        assert_eq!(GateWord(u32::MAX).next(false), GateWord(0), "wraps");
    }
}
