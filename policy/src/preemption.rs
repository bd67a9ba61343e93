//! Which leases give way to one of a higher priority that waits for room, and when.
//!
//! Time on a GPU needs none of this: the gate gives it to the higher priority within a slice, and nobody ends. Memory stays with
//! who has it until he goes, so a lease of a lower priority is told that it has to, is left a grace in which its programs can
//! write down what they have, and loses its GPUs then if the room is still wanted.
//!
//! To write that down they need the device, which those of a higher priority may never leave. So in the grace they are served in
//! the place of who waits: by his priority, and by his share, which nobody else has while it is kept for him.

use crate::slice::{Priority, Share};
use std::cmp::Reverse;

/// Who may have to go, and after what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Nanoseconds that somebody has waited before anybody has to go for him.
    pub after_ns: u64,
    /// Nanoseconds from the notice until the GPUs are taken.
    pub grace_ns: u64,
    /// Nanoseconds after its begin in which nobody has to go.
    pub least_run_ns: u64,
}

impl Rule {
    /// How long before its room is to be free somebody has to be told at the latest, nanoseconds.
    #[must_use]
    pub fn lead_ns(self) -> u64 {
        self.grace_ns.saturating_add(TOLD_WITHIN_NS).saturating_add(CLEARANCE_NS)
    }
}

/// What it takes beyond the grace until the device has everything back and who waits has asked again, nanoseconds.
const CLEARANCE_NS: u64 = 10_000_000_000;
/// What it takes at most until it is seen that somebody has to go, and he is told, nanoseconds.
const TOLD_WITHIN_NS: u64 = 8_000_000_000;
/// So many looks in a row must say the same before somebody is told, or told otherwise: while leases end, others' memory comes and
/// goes for a moment.
const LOOKS: u8 = 3;

/// One that waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Before whom it is served.
    pub priority: Priority,
    /// For how long it has waited, nanoseconds.
    pub waited_ns: u64,
    /// For how long it will wait still.
    pub left_ns: u64,
}

/// One that may have to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Before whom it is served.
    pub priority: Priority,
    /// For how long it has had its GPUs, nanoseconds.
    pub ran_ns: u64,
    /// Whether it came back to a place that was kept for it: who restarts again and again would be spared for ever.
    pub came_back: bool,
    /// What it was told.
    pub notice: Notice,
}

impl Candidate {
    /// Whether it may have to go for one that waits: a lower priority alone gives way, and nobody goes whose GPUs nobody would
    /// wait for any more. `is_told` says that it was told to go for this one.
    #[must_use]
    pub fn gives_way_to(&self, wait: Wait, is_told: bool, rule: Rule) -> bool {
        let is_in_time = wait.left_ns > rule.grace_ns.saturating_add(CLEARANCE_NS) && wait.waited_ns >= rule.after_ns;
        let goes_on = is_told && wait.left_ns > CLEARANCE_NS;
        let has_run = self.came_back || self.ran_ns >= rule.least_run_ns || self.notice.until_ns.is_some();
        wait.priority < self.priority && !self.notice.is_given_up() && (goes_on || is_in_time && has_run)
    }

    /// When its GPUs are free at the latest for one that waits from now on, if they are wanted until then: when it has run as long as it
    /// may in any case and that one has waited long enough, it is told, and has the grace. None if it gives way to no such one.
    #[must_use]
    pub fn gone_by_ns(&self, wait: Wait, rule: Rule, now_ns: u64) -> Option<u64> {
        if wait.priority >= self.priority || self.notice.is_given_up() {
            return None;
        }
        if let Some(until_ns) = self.notice.until_ns {
            return Some(until_ns.max(now_ns).saturating_add(CLEARANCE_NS));
        }
        let spared_ns = if self.came_back { 0 } else { rule.least_run_ns.saturating_sub(self.ran_ns) };
        let patience_ns = spared_ns.max(rule.after_ns.saturating_sub(wait.waited_ns));
        Some(now_ns.saturating_add(patience_ns).saturating_add(rule.lead_ns()))
    }

    /// By this those are sorted that may have to go, the first first: who was told already, so that the others are left in peace;
    /// the lowest priority; who came last and so loses least.
    #[must_use]
    pub fn order(&self) -> impl Ord + use<> {
        (self.notice.until_ns.is_none(), Reverse(self.priority), self.ran_ns)
    }
}

/// How a lease is served in its grace, in the place of who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Before whom.
    pub priority: Priority,
    /// By which share of each of its GPUs, permille; from 1.
    pub weight_permille: u16,
}

/// What is to be had on one GPU of a lease that leaves, for all that leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Permille of it that are promised to nobody.
    pub free_permille: u16,
    /// How many leases leave it, this one included.
    pub leases: u16,
}

impl Turn {
    /// What one with this share of its own is served by meanwhile: its limit holds, and none is served worse for having to go.
    #[must_use]
    pub fn instead_of(self, own: Share) -> Share {
        let weight_permille = self.weight_permille.min(own.limit_permille.unwrap_or(u16::MAX));
        match self.priority < own.priority {
            true => Share { weight_permille, priority: self.priority, ..own },
            false => own,
        }
    }

    /// In the place of one of this priority who asks for `wanted_permille` of a GPU, beside what is promised: all that leave a GPU
    /// have together no more than nobody else was promised. A priority that promises nothing takes nothing from anybody. None if
    /// there is nothing to have.
    #[must_use]
    pub fn in_place_of(priority: Priority, wanted_permille: u16, gpus: impl Iterator<Item = Leaving>) -> Option<Self> {
        let on = |its: Leaving| {
            let most = if priority == Priority::Guaranteed { its.free_permille } else { wanted_permille };
            wanted_permille.min(most) / its.leases.max(1)
        };
        let weight_permille = gpus.map(on).min().filter(|permille| *permille > 0)?;
        Some(Self { priority, weight_permille })
    }
}

/// Whether somebody waits for the room of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nobody does.
    No,
    /// That shows when a place that is kept for another one has been taken or given up.
    Unsure,
    /// Somebody does.
    Yes,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// It is told that it has to go.
    Tell,
    /// It is told that it may stay.
    Withdraw,
    /// Its GPUs may be taken.
    Take,
}

/// What one lease was told. Times are nanoseconds of any one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    until_ns: Option<u64>,
    /// How many looks in a row spoke against what it was told last.
    contrary: u8,
    /// Until when it is not asked again.
    given_up_until_ns: Option<u64>,
}

impl Notice {
    /// Of one that was told before to go by then, by an earlier supervisor.
    #[must_use]
    pub fn told_until(until_ns: u64) -> Self {
        Self { until_ns: Some(until_ns), ..Self::default() }
    }

    /// Until when it may stay, if it was told to go.
    #[must_use]
    pub fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Its GPUs could not be taken from it: nobody is helped by asking it again before then, or ever.
    pub fn give_up(&mut self, again_ns: Option<u64>) {
        *self = Self { given_up_until_ns: Some(again_ns.unwrap_or(u64::MAX)), ..Self::default() };
    }

    /// What kept its GPUs from being taken may be over.
    pub fn retry(&mut self) {
        self.given_up_until_ns = None;
    }

    fn is_given_up(&self) -> bool {
        self.given_up_until_ns.is_some()
    }

    /// What is to be done at `now_ns`. It has all of the grace that it was told of, whatever the rule says since.
    pub fn step(&mut self, need: Need, now_ns: u64, rule: Rule) -> Step {
        self.given_up_until_ns = self.given_up_until_ns.filter(|until_ns| now_ns < *until_ns);
        let is_contrary = match need {
            Need::No => self.until_ns.is_some(),
            Need::Yes => self.until_ns.is_none(),
            Need::Unsure => return Step::Rest,
        };
        self.contrary = if is_contrary { self.contrary.saturating_add(1) } else { 0 };
        match self.until_ns {
            None if self.contrary >= LOOKS => {
                *self = Self { until_ns: Some(now_ns.saturating_add(rule.grace_ns)), ..Self::default() };
                Step::Tell
            }
            Some(_) if self.contrary >= LOOKS => {
                *self = Self::default();
                Step::Withdraw
            }
            Some(until_ns) if now_ns >= until_ns && need == Need::Yes => Step::Take,
            None | Some(_) => Step::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { after_ns: 5, grace_ns: 30, least_run_ns: 600 };
    /// One that waits for long enough.
    const WAIT: Wait = Wait { priority: Priority::Guaranteed, waited_ns: 5, left_ns: CLEARANCE_NS + 31 };

    fn candidate(priority: Priority, ran_ns: u64) -> Candidate {
        Candidate { priority, ran_ns, came_back: false, notice: Notice::default() }
    }

    fn told(candidate: Candidate) -> Candidate {
        let mut told = candidate;
        let steps: Vec<Step> = (0..3).map(|_| told.notice.step(Need::Yes, 100, RULE)).collect();
        assert_eq!(steps, [Step::Rest, Step::Rest, Step::Tell]);
        told
    }

    #[test]
    fn a_lower_priority_alone_gives_way() {
        let all = [Priority::Guaranteed, Priority::Burst, Priority::Scavenger];
        let gives = |its, priority| candidate(its, 600).gives_way_to(Wait { priority, ..WAIT }, false, RULE);
        let found: Vec<Vec<bool>> =
            all.iter().map(|its| all.iter().map(|waits| gives(*its, *waits)).collect()).collect();
        assert_eq!(found, [[false, false, false], [true, false, false], [true, true, false]]);
    }

    #[test]
    fn nobody_goes_soon_after_its_begin_nor_for_one_that_has_just_come_or_will_not_wait_for_it() {
        let of = |ran_ns, wait| candidate(Priority::Burst, ran_ns).gives_way_to(wait, false, RULE);
        assert_eq!([of(599, WAIT), of(600, WAIT)], [false, true]);
        assert!(!of(600, Wait { left_ns: WAIT.left_ns - 1, ..WAIT }) && !of(600, Wait { waited_ns: 4, ..WAIT }));
        let restarted = Candidate { came_back: true, ..candidate(Priority::Burst, 1) };
        assert!(restarted.gives_way_to(WAIT, false, RULE), "a place that is kept is no new begin");
        // Who was told goes on being the one.
        let told = told(candidate(Priority::Burst, 0));
        let late = Wait { left_ns: CLEARANCE_NS + 1, ..WAIT };
        assert!(told.gives_way_to(late, true, RULE) && told.gives_way_to(WAIT, false, RULE));
        assert!(!told.gives_way_to(late, false, RULE), "it was told of another one");
        assert!(!told.gives_way_to(Wait { left_ns: CLEARANCE_NS, ..WAIT }, true, RULE), "it would come too late");
        assert!(!told.gives_way_to(Wait { priority: Priority::Burst, ..WAIT }, true, RULE));
        let mut given_up = candidate(Priority::Burst, 600);
        given_up.notice.give_up(None);
        assert!(!given_up.gives_way_to(WAIT, false, RULE));
    }

    #[test]
    fn who_could_not_go_once_is_asked_again_after_a_while() {
        let gives =
            |notice: Notice| Candidate { notice, ..candidate(Priority::Burst, 600) }.gives_way_to(WAIT, false, RULE);
        let (mut once, mut for_good) = (told(candidate(Priority::Burst, 600)).notice, Notice::default());
        once.give_up(Some(400));
        for_good.give_up(None);
        for now_ns in [399, 400] {
            assert_eq!([&mut once, &mut for_good].map(|its| its.step(Need::No, now_ns, RULE)), [Step::Rest; 2]);
            assert_eq!((gives(once), gives(for_good)), (now_ns == 400, false), "at {now_ns}");
        }
        for_good.retry();
        assert!(gives(for_good), "what kept it may be over");
    }

    #[test]
    fn who_gives_way_is_gone_by_a_moment_that_can_be_told() {
        let steps_ns = TOLD_WITHIN_NS + RULE.grace_ns + CLEARANCE_NS;
        let came = Wait { waited_ns: 0, ..WAIT };
        let of = |its: Candidate, wait| its.gone_by_ns(wait, RULE, 1000);
        assert_eq!(of(candidate(Priority::Burst, 600), came), Some(1005 + steps_ns), "it is patient for so long");
        assert_eq!(of(candidate(Priority::Burst, 600), WAIT), Some(1000 + steps_ns));
        assert_eq!(of(candidate(Priority::Burst, 100), WAIT), Some(1500 + steps_ns), "it may run for so long");
        let restarted = Candidate { came_back: true, ..candidate(Priority::Burst, 1) };
        assert_eq!(of(restarted, WAIT), Some(1000 + steps_ns));
        let told = told(candidate(Priority::Burst, 600));
        assert_eq!(of(told, WAIT), Some(1000 + CLEARANCE_NS), "its grace is over");
        assert_eq!(told.gone_by_ns(WAIT, RULE, 110), Some(130 + CLEARANCE_NS));
        let mut given_up = candidate(Priority::Burst, 600);
        given_up.notice.give_up(None);
        assert_eq!((of(given_up, WAIT), of(candidate(Priority::Guaranteed, 600), WAIT)), (None, None));
    }

    #[test]
    fn those_stand_first_who_were_told_then_the_lowest_then_who_came_last() {
        let mut all = [
            candidate(Priority::Burst, 900),
            candidate(Priority::Burst, 700),
            candidate(Priority::Scavenger, 800),
            told(candidate(Priority::Burst, 5000)),
        ];
        all.sort_by_key(Candidate::order);
        assert_eq!(all.map(|its| its.ran_ns), [5000, 800, 700, 900]);
    }

    #[test]
    fn it_is_told_once_and_goes_after_the_grace_if_it_is_needed_still() {
        let mut notice = told(candidate(Priority::Burst, 0)).notice;
        let mut step = |need, now_ns, grace_ns| notice.step(need, now_ns, Rule { grace_ns, ..RULE });
        assert_eq!([step(Need::Yes, 129, 5), step(Need::Unsure, 131, 5)], [Step::Rest; 2], "as it was told");
        assert_eq!([step(Need::Yes, 130, 30), step(Need::Yes, 131, 30)], [Step::Take; 2], "until it is done");
        assert_eq!(notice.until_ns(), Some(130));
    }

    #[test]
    fn in_the_grace_nobody_has_what_was_promised_to_others() {
        let of = |priority, gpus: &[(u16, u16)]| {
            let gpus =
                gpus.iter().map(|(free_permille, leases)| Leaving { free_permille: *free_permille, leases: *leases });
            Turn::in_place_of(priority, 300, gpus).map(|turn| turn.weight_permille)
        };
        let guaranteed = |gpus: &[(u16, u16)]| of(Priority::Guaranteed, gpus);
        assert_eq!(guaranteed(&[(1000, 1)]), Some(300), "as much as who waits would have");
        assert_eq!(guaranteed(&[(200, 1)]), Some(200));
        assert_eq!(guaranteed(&[(1000, 2)]), Some(150), "for all together");
        assert_eq!([guaranteed(&[(1000, 1), (0, 1)]), guaranteed(&[])], [None; 2], "on each of its GPUs");
        assert_eq!(of(Priority::Burst, &[(0, 2)]), Some(150), "what promises nothing takes nothing");
        for (free, leases) in [(7, 3), (1000, 7), (299, 2), (2, 5)] {
            let all = guaranteed(&[(free, leases)]).unwrap_or(0) * leases;
            assert!(all <= free.min(300), "{leases} of {free}: {all}");
        }
    }

    #[test]
    fn nobody_is_served_worse_for_having_to_go_nor_beyond_its_limit() {
        let turn = Turn { priority: Priority::Guaranteed, weight_permille: 200 };
        let own = Share { priority: Priority::Burst, ..Share::of(300) };
        assert_eq!(turn.instead_of(own), Share { weight_permille: 200, priority: Priority::Guaranteed, ..own });
        let limited = Share { limit_permille: Some(100), ..own };
        assert_eq!(turn.instead_of(limited).weight_permille, 100);
        // It was promised a share since it was told, or waits for its own like.
        for own in [Share::of(400), Share::of(100)] {
            assert_eq!(turn.instead_of(own), own);
        }
        assert_eq!(Turn { priority: Priority::Burst, ..turn }.instead_of(own), own);
    }

    #[test]
    fn what_one_look_says_is_not_told() {
        let mut notice = Notice::default();
        let mut steps = |needs: &[Need]| needs.iter().map(|need| notice.step(*need, 1, RULE)).collect::<Vec<_>>();
        let (no, yes, unsure) = (Need::No, Need::Yes, Need::Unsure);
        assert_eq!(steps(&[yes, yes, no, yes, yes, unsure, yes]), [[Step::Rest; 6].as_slice(), &[Step::Tell]].concat());
        assert_eq!(steps(&[no, no, yes, no, no, no]), [[Step::Rest; 5].as_slice(), &[Step::Withdraw]].concat());
        assert_eq!(steps(&[no, yes, yes, yes]), [Step::Rest, Step::Rest, Step::Rest, Step::Tell]);
    }
}
