//! When a lease counts as idle, and what follows.
//!
//! A lease is in use as long as anything of it changes: what it was charged, what it launched, what it holds, who is there. So a
//! look that is missed makes nobody idle, and one that comes late makes somebody idle late.

/// What follows for an idle lease, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum After {
    /// That it is told.
    Nothing,
    /// Its GPUs are taken from it once somebody waits for them.
    TakenIfWanted,
    /// They are taken from it.
    Taken,
}

/// When a lease is idle, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Nanoseconds without use after which it is told.
    pub idle_ns: u64,
    /// Nanoseconds from then on before anything else follows.
    pub grace_ns: u64,
    /// What follows.
    pub after: After,
}

impl Rule {
    /// Whether something follows sooner than by the other one, or something worse.
    fn is_stricter_than(&self, other: &Self) -> bool {
        let follows = self.after != After::Nothing;
        follows && (self.after > other.after || self.grace_ns < other.grace_ns)
    }
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// It is told, once for each time that it is idle.
    Tell,
    /// Its GPUs are taken.
    Take,
    /// They are taken if somebody waits for them.
    TakeIfWanted,
}

/// How long one lease has been without use. Times are nanoseconds of any one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idleness {
    used_ns: u64,
    /// When it was told, and what.
    told: Option<(u64, Rule)>,
    /// That its GPUs be taken was tried in vain.
    is_given_up: bool,
}

impl Idleness {
    /// Of a lease that was last in use at `used_ns`.
    #[must_use]
    pub fn since(used_ns: u64) -> Self {
        Self { used_ns, told: None, is_given_up: false }
    }

    /// It is in use. Whether it was told that it is not.
    pub fn note_use(&mut self, now_ns: u64) -> bool {
        let before = std::mem::replace(self, Self::since(now_ns));
        before.told.is_some()
    }

    /// Its GPUs cannot be taken from it: that is not tried again while it stays idle.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// When it was last in use.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.used_ns
    }

    /// For how long it has not been used, nanoseconds.
    #[must_use]
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.used_ns)
    }

    /// What is to be done at `now_ns`. Nothing follows that was not told for as long as the rule says: a rule that has become
    /// stricter is told again.
    pub fn step(&mut self, now_ns: u64, rule: Rule) -> Step {
        if self.idle_ns(now_ns) < rule.idle_ns {
            return Step::Rest;
        }
        let told = self.told.filter(|(_, told)| !rule.is_stricter_than(told));
        let Some((told_ns, _)) = told else {
            self.told = Some((now_ns, rule));
            return Step::Tell;
        };
        let is_due = now_ns.saturating_sub(told_ns) >= rule.grace_ns && !self.is_given_up;
        match rule.after {
            After::Taken if is_due => Step::Take,
            After::TakenIfWanted if is_due => Step::TakeIfWanted,
            After::Nothing | After::Taken | After::TakenIfWanted => Step::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { idle_ns: 100, grace_ns: 10, after: After::Taken };

    #[test]
    fn it_is_told_once_and_taken_after_the_grace() {
        let mut idleness = Idleness::since(5);
        let steps: Vec<Step> = [50, 104, 105, 106, 114, 115].map(|now| idleness.step(now, RULE)).to_vec();
        assert_eq!(steps, [Step::Rest, Step::Rest, Step::Tell, Step::Rest, Step::Rest, Step::Take]);
        assert_eq!(idleness.step(116, RULE), Step::Take, "until it is done");
        idleness.give_up();
        assert_eq!(idleness.step(117, RULE), Step::Rest);
        assert!(idleness.note_use(118), "that it was idle was told");
        assert!(!idleness.note_use(119));
        assert_eq!([218, 219, 229].map(|now| idleness.step(now, RULE)), [Step::Rest, Step::Tell, Step::Take]);
        assert_eq!((idleness.used_ns(), idleness.idle_ns(229)), (119, 110));
    }

    #[test]
    fn a_rule_that_becomes_stricter_leaves_the_grace_and_one_that_becomes_milder_takes_nothing() {
        let mut idleness = Idleness::since(0);
        assert_eq!(idleness.step(5000, Rule { idle_ns: 9000, ..RULE }), Step::Rest);
        assert_eq!([5001, 5010, 5011].map(|now| idleness.step(now, RULE)), [Step::Tell, Step::Rest, Step::Take]);
        assert_eq!(idleness.step(5012, Rule { idle_ns: 9000, ..RULE }), Step::Rest);
        assert_eq!(idleness.step(5013, Rule { after: After::Nothing, ..RULE }), Step::Rest);
        assert_eq!(idleness.step(5014, Rule { after: After::TakenIfWanted, ..RULE }), Step::TakeIfWanted);
        assert_eq!(idleness.step(5015, RULE), Step::Take, "that was told");
        let mut idleness = Idleness::since(0);
        let event = Rule { after: After::Nothing, ..RULE };
        assert_eq!([100, 900].map(|now| idleness.step(now, event)), [Step::Tell, Step::Rest]);
        let wanted = Rule { after: After::TakenIfWanted, ..RULE };
        assert_eq!([901, 910, 911].map(|now| idleness.step(now, wanted)), [Step::Tell, Step::Rest, Step::TakeIfWanted]);
        assert_eq!([912, 921, 922].map(|now| idleness.step(now, RULE)), [Step::Tell, Step::Rest, Step::Take]);
        let sooner = Rule { grace_ns: 5, ..RULE };
        assert_eq!([923, 927, 928].map(|now| idleness.step(now, sooner)), [Step::Tell, Step::Rest, Step::Take]);
        let at_once = Rule { grace_ns: 0, ..RULE };
        assert_eq!([100, 100].map(|now| Idleness::since(0).step(now, at_once)), [Step::Tell; 2], "told first, always");
    }
}
