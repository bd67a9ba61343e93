//! What a latency tenant has had beyond its part of those at work. What it owes to one of them is forgotten as soon as that one rests for a
//! moment; this is not, until what it is entitled to has paid for it.

use super::own_time::Moment;

/// A bucket that its part empties while anybody of its priority is at work. Time without work is not saved up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead {
    left_ns: u64,
    /// When that was.
    since: Moment,
    /// What was left when it used something beside others last.
    beside_ns: u64,
}

/// A tenant at a moment of its priority.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// That moment.
    pub(super) now: Moment,
    /// Its weight.
    pub(super) weight_permille: u16,
    /// Whether it is at work, and was since the last time.
    pub(super) is_at_work: bool,
}

impl Lead {
    /// Whether nothing was left when it was settled last.
    pub(super) fn is_empty(&self) -> bool {
        self.left_ns == 0
    }

    /// What is left of it.
    pub(super) fn at_ns(&self, its: Standing) -> u64 {
        let entitled_ns = its.now.entitled_ns(self.since, its.weight_permille, its.is_at_work);
        self.left_ns.saturating_sub(entitled_ns)
    }

    /// Nothing is left of it.
    pub(super) fn forget(&mut self) {
        (self.left_ns, self.beside_ns) = (0, 0);
    }

    /// It is of another priority, or class, from that moment of it on.
    pub(super) fn go_over(&mut self, now: Moment) {
        self.since = now;
    }

    /// It begins to work, or ends, or its weight is another from now on.
    pub(super) fn settle(&mut self, its: Standing) {
        // What it has been entitled to it is not again, where it turns out that somebody above had that time.
        *self = Self { left_ns: self.at_ns(its), since: self.since.later(its.now), ..*self };
    }

    /// It has used `ns`. No more than `most_ns` is ever to be paid off; and nothing of it where it `is_alone`, since that time could have been
    /// nobody else's, but nor does that time pay for what was before, where it uses it.
    pub(super) fn charge(&mut self, its: Standing, ns: u64, is_alone: bool, most_ns: u64) {
        self.left_ns = self.left_ns.saturating_add(ns);
        self.settle(its);
        self.left_ns = self.left_ns.min(if is_alone { self.beside_ns } else { most_ns });
        if !is_alone {
            self.beside_ns = self.left_ns;
        }
    }

    /// Takes back what turned out to have been somebody else's.
    pub(super) fn correct(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::super::own_time::OwnTime;
    use super::*;

    #[test]
    fn its_part_of_those_at_work_pays_for_it_and_nothing_else_does() {
        let (mut time, mut its) = (OwnTime::default(), Lead::default());
        let at =
            |time: &OwnTime, now_ns, is_at_work| Standing { now: time.at(now_ns), weight_permille: 500, is_at_work };
        time.set_weight(500, 0);
        its.charge(at(&time, 100, true), 100, true, 1000);
        assert!(its.is_empty(), "who is alone has no more than its own");
        its.charge(at(&time, 100, true), 500, true, 1000);
        assert!(its.is_empty(), "also where it is told late");
        time.set_weight(1000, 100);
        its.charge(at(&time, 200, true), 100, false, 1000);
        assert!(its.at_ns(at(&time, 200, true)).abs_diff(50) <= 1, "{its:?}");
        its.correct(10);
        assert!(its.at_ns(at(&time, 220, true)).abs_diff(30) <= 1, "{its:?}");
        // Alone it has all, and is told of in parts.
        let mut alone = its;
        let mut its_time = time;
        its_time.set_weight(500, 220);
        alone.charge(at(&its_time, 220, true), 0, true, 1000);
        alone.charge(at(&its_time, 240, true), 5, true, 1000);
        alone.charge(at(&its_time, 240, true), 15, true, 1000);
        assert!(alone.at_ns(at(&its_time, 240, true)).abs_diff(30) <= 1, "{alone:?}");
        // It ends, the other one goes on, ends, and comes back.
        its.settle(at(&time, 220, true));
        time.set_weight(500, 220);
        time.set_weight(0, 240);
        assert!(its.at_ns(at(&time, 900, false)).abs_diff(20) <= 1, "{its:?}");
        time.set_weight(500, 900);
        time.take(10, (900, 930));
        assert!(its.at_ns(at(&time, 930, false)).abs_diff(10) <= 1, "{its:?}");
        its.charge(at(&time, 930, false), 5000, false, 1000);
        assert_eq!(its.at_ns(at(&time, 930, false)), 1000, "no more than that is to be paid off");
        let before = its.at_ns(at(&time, 990, false));
        its.settle(at(&time, 990, false));
        time.take(60, (930, 990));
        its.settle(at(&time, 990, false));
        assert!(its.at_ns(at(&time, 1050, false)).abs_diff(before) <= 1, "nothing is paid for twice");
        its.go_over(OwnTime::default().at(0));
        its.forget();
        assert!(its.is_empty());
    }
}
