//! What is told of a promise, and what follows where others are in its way.

use super::{Cause, Verdict};

/// Where nothing is known of a promise for so many times as long as a miss takes to be over, it is nothing that goes on.
const UNKNOWN_CALMS: u64 = 10;
/// A hold is at most so many times as long as the first one.
const LONGEST_HOLDS: u64 = 64;
/// A promise that is missed again within so many holds' lengths of one needs a longer one.
const SOON_HOLDS: u64 = 10;

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It is missed.
    Missed(Cause),
    /// It is kept again.
    Kept,
}

/// What was told of the promise of one container, and since when its GPUs are closed for it. Times are nanoseconds of any one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Whose doing it was told to be, of a miss that is not over, and when.
    told: Option<(Cause, u64)>,
    missed_ns: u64,
    by_others_ns: Option<u64>,
}

impl Watch {
    /// Takes what has become of the promise by `now_ns`. A miss is over when there was none for `calm_ns`.
    pub fn look(&mut self, now_ns: u64, verdict: Option<Verdict>, calm_ns: u64) -> Option<News> {
        if let Some(Verdict::Missed(cause)) = verdict {
            self.missed_ns = now_ns;
            if cause == Cause::Others {
                self.by_others_ns = Some(now_ns);
            }
            let is_news = |(told, at_ns): (Cause, u64)| told != cause && now_ns.saturating_sub(at_ns) >= calm_ns;
            if self.told.is_none_or(is_news) {
                self.told = Some((cause, now_ns));
                return Some(News::Missed(cause));
            }
            return None;
        }
        let quiet_ns = now_ns.saturating_sub(self.missed_ns);
        // Where there are too few requests nobody knows, and it may go on.
        let is_kept = verdict == Some(Verdict::Kept);
        let is_over = quiet_ns >= if is_kept { calm_ns } else { calm_ns.saturating_mul(UNKNOWN_CALMS) };
        if self.told.is_none() || !is_over {
            return None;
        }
        self.told = None;
        is_kept.then_some(News::Kept)
    }

    /// Whether its GPUs take nobody in for it: others were in its way within `calm_ns`.
    #[must_use]
    pub fn is_closed(&self, now_ns: u64, calm_ns: u64) -> bool {
        self.by_others_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < calm_ns)
    }
}

/// What is to be done with those beside it that were promised nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldStep {
    /// They stay as they are.
    Rest,
    /// They are kept from running, for so long at most. What was measured before is no measure of that.
    Begin {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// They run again, and what was measured before is no measure of that.
    End {
        /// Whether the promise is missed without them, too.
        was_vain: bool,
    },
}

/// Whether those beside a container that were promised nothing are kept from running for its sake: for a while, and for twice as long
/// where its promise is missed again soon after. Where that does not help, it is not tried again for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    until_ns: Option<u64>,
    length_ns: u64,
    ended_ns: Option<u64>,
    rests_until_ns: u64,
}

impl Hold {
    /// Whether they are kept from running.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.until_ns.is_some()
    }

    /// Takes what has become of the promise by `now_ns`, and whether there is anybody to be kept from running. A first hold lasts for
    /// `first_ns`.
    pub fn step(&mut self, now_ns: u64, verdict: Option<Verdict>, anybody: bool, first_ns: u64) -> HoldStep {
        match self.until_ns {
            Some(until_ns) => {
                let is_vain = matches!(verdict, Some(Verdict::Missed(_)));
                if now_ns < until_ns && anybody && !is_vain {
                    return HoldStep::Rest;
                }
                self.until_ns = None;
                self.ended_ns = Some(now_ns);
                if is_vain {
                    self.rests_until_ns = now_ns.saturating_add(first_ns.saturating_mul(SOON_HOLDS));
                }
                HoldStep::End { was_vain: is_vain }
            }
            None if verdict == Some(Verdict::Missed(Cause::Others)) && anybody && now_ns >= self.rests_until_ns => {
                let soon_ns = first_ns.max(self.length_ns).saturating_mul(SOON_HOLDS);
                let is_soon = self.ended_ns.is_some_and(|ended_ns| now_ns.saturating_sub(ended_ns) < soon_ns);
                let longest_ns = first_ns.saturating_mul(LONGEST_HOLDS);
                self.length_ns = if is_soon { (2 * self.length_ns).clamp(first_ns, longest_ns) } else { first_ns };
                self.until_ns = Some(now_ns.saturating_add(self.length_ns));
                HoldStep::Begin { for_ns: self.length_ns }
            }
            None => HoldStep::Rest,
        }
    }

    /// Nobody is kept from running for it any more, whatever becomes of it. Whether that ends anything.
    pub fn end(&mut self) -> bool {
        std::mem::take(self).is_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Option<Verdict> = Some(Verdict::Kept);
    const BY_OTHERS: Option<Verdict> = Some(Verdict::Missed(Cause::Others));

    #[test]
    fn a_miss_is_told_once_and_over_when_there_was_none_for_a_while() {
        let mut watch = Watch::default();
        let mut look = |now, verdict| watch.look(now, verdict, 60);
        assert_eq!((look(0, None), look(1, KEPT)), (None, None));
        assert_eq!(look(10, BY_OTHERS), Some(News::Missed(Cause::Others)));
        assert_eq!(
            (look(11, BY_OTHERS), look(20, KEPT), look(30, BY_OTHERS), look(89, KEPT)),
            (None, None, None, None)
        );
        assert_eq!((look(90, KEPT), look(91, KEPT)), (Some(News::Kept), None));
        assert_eq!(look(100, BY_OTHERS), Some(News::Missed(Cause::Others)));
        assert_eq!((look(170, None), look(699, None), look(699, KEPT)), (None, None, Some(News::Kept)), "at last");
        assert_eq!(look(1000, BY_OTHERS), Some(News::Missed(Cause::Others)));
        assert_eq!((look(1599, None), look(1600, None), look(1601, KEPT)), (None, None, None), "too few to say so");
    }

    #[test]
    fn whose_doing_it_is_is_told_anew_now_and_then_and_others_alone_close() {
        let mut watch = Watch::default();
        let own = Some(Verdict::Missed(Cause::Itself));
        assert_eq!(watch.look(0, own, 60), Some(News::Missed(Cause::Itself)));
        assert!(!watch.is_closed(0, 60));
        assert_eq!(watch.look(30, BY_OTHERS, 60), None);
        assert_eq!(watch.look(60, BY_OTHERS, 60), Some(News::Missed(Cause::Others)));
        watch.look(70, own, 60);
        assert!(watch.is_closed(119, 60) && !watch.is_closed(120, 60));
    }

    #[test]
    fn a_hold_is_longer_where_the_promise_is_missed_again_soon() {
        let mut hold = Hold::default();
        assert_eq!(hold.step(0, BY_OTHERS, false, 60), HoldStep::Rest, "there is nobody");
        assert_eq!(hold.step(0, BY_OTHERS, true, 60), HoldStep::Begin { for_ns: 60 });
        assert_eq!(hold.step(1, None, true, 60), HoldStep::Rest);
        assert_eq!(hold.step(59, KEPT, true, 60), HoldStep::Rest);
        assert_eq!(hold.step(60, KEPT, true, 60), HoldStep::End { was_vain: false });
        assert_eq!(hold.step(90, BY_OTHERS, true, 60), HoldStep::Begin { for_ns: 120 });
        assert_eq!(hold.step(100, KEPT, false, 60), HoldStep::End { was_vain: false }, "they have ended");
        let mut at = 100;
        let mut lengths = Vec::new();
        for _ in 0..7 {
            at += 10;
            let HoldStep::Begin { for_ns } = hold.step(at, BY_OTHERS, true, 60) else { panic!("{hold:?}") };
            lengths.push(for_ns);
            at += for_ns;
            assert_eq!(hold.step(at, None, true, 60), HoldStep::End { was_vain: false });
        }
        assert_eq!(lengths, [240, 480, 960, 1920, 3840, 3840, 3840]);
        let later = at + 10 * 3840;
        assert_eq!(hold.step(later, BY_OTHERS, true, 60), HoldStep::Begin { for_ns: 60 }, "that was long ago");
        assert!(hold.end() && !hold.end() && !hold.is_on());
    }

    #[test]
    fn where_it_does_not_help_it_ends_and_is_not_tried_again_for_long() {
        let mut hold = Hold::default();
        for cause in [Cause::Itself, Cause::Share] {
            assert_eq!(hold.step(0, Some(Verdict::Missed(cause)), true, 60), HoldStep::Rest, "nobody else's doing");
        }
        hold.step(0, BY_OTHERS, true, 60);
        assert_eq!(hold.step(20, BY_OTHERS, true, 60), HoldStep::End { was_vain: true });
        assert_eq!(hold.step(619, BY_OTHERS, true, 60), HoldStep::Rest);
        assert_eq!(hold.step(620, BY_OTHERS, true, 60), HoldStep::Begin { for_ns: 60 });
    }
}
