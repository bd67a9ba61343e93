//! What is told of something that a lease's processes count: at once, and ever more rarely while it goes on.

use gpool_policy::repetition::Repetition;

/// How much of it has been told.
#[derive(Debug, Default)]
pub struct Tellings {
    told: u64,
    repetition: Repetition,
}

impl Tellings {
    /// Whether there is something to tell at `now_ns` of what has happened `all` times. Of what a supervisor that was killed had
    /// counted some may be lost.
    pub fn look(&mut self, now_ns: u64, all: u64) -> bool {
        self.told = self.told.min(all);
        self.repetition.look(now_ns, all, self.told)
    }

    /// How many have been told of.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Whether some were told of, and others may be kept back.
    pub fn has_told(&self) -> bool {
        self.repetition.has_told()
    }

    /// So many have been told of.
    pub fn note_told(&mut self, all: u64) {
        self.told = all;
    }

    /// How many have not, of `all`.
    pub fn untold(&self, all: u64) -> u64 {
        all.saturating_sub(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_told_is_told_no_more() {
        let mut notes = Tellings::default();
        assert!(!notes.has_told() && notes.look(1, 3) && notes.untold(3) == 3);
        notes.note_told(3);
        assert!(notes.has_told() && !notes.look(2, 3));
        assert_eq!((notes.told(), notes.untold(5)), (3, 2));
        assert!(
            !notes.look(700_000_000_000, 1) && notes.look(2_000_000_000_000, 2),
            "one after fewer are known is news"
        );
    }
}
