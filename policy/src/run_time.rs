//! What a lease has been told of the end of its run time, and what follows.

/// Before the end it is told so long at most: a part of its run time. Who runs for a minute is not told to end when it begins.
const NOTICE_PART: u64 = 10;

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// It is told that its time is about to be over.
    Tell,
    /// Its GPUs are taken.
    Take,
}

/// How long before the end of one that has `run_ns` in all it is told, where the host says `notice_ns`; nanoseconds.
#[must_use]
pub fn notice_ns(notice_ns: u64, run_ns: u64) -> u64 {
    notice_ns.min(run_ns / NOTICE_PART)
}

/// What one lease was told. Times are nanoseconds of any one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    /// Of which end it was told.
    told_ns: Option<u64>,
    /// At which end its GPUs could not be taken, and from when on that may be tried again; never where there is no such time.
    failed: Option<(u64, Option<u64>)>,
}

impl Notice {
    /// Of one that was told of this end before, by an earlier supervisor.
    #[must_use]
    pub fn told_of(ends_ns: Option<u64>) -> Self {
        Self { told_ns: ends_ns, failed: None }
    }

    /// Until when it has its GPUs, if it was told so of the end that it has now.
    #[must_use]
    pub fn until_ns(&self, ends_ns: Option<u64>) -> Option<u64> {
        ends_ns.filter(|ends| self.told_ns == Some(*ends) && self.failed.is_none_or(|(failed, _)| failed != *ends))
    }

    /// Its GPUs could not be taken from it at this end, which is tried again from then on, or never.
    pub fn note_failed(&mut self, ends_ns: u64, again_ns: Option<u64>) {
        self.failed = Some((ends_ns, again_ns));
    }

    /// What kept its GPUs from being taken may be over.
    pub fn retry(&mut self) {
        self.failed = None;
    }

    /// What is to be done at `now_ns` for one that ends then and is told `notice_ns` before. Whose end has changed since is told of
    /// the new one in its time.
    pub fn step(&mut self, ends_ns: Option<u64>, now_ns: u64, notice_ns: u64) -> Step {
        let Some(ends_ns) = ends_ns else { return Step::Rest };
        let rests =
            |(failed, again_ns): (u64, Option<u64>)| failed == ends_ns && again_ns.is_none_or(|again| now_ns < again);
        if self.failed.is_some_and(rests) {
            return Step::Rest;
        }
        if now_ns >= ends_ns {
            return Step::Take;
        }
        if now_ns.saturating_add(notice_ns) < ends_ns || self.told_ns == Some(ends_ns) {
            return Step::Rest;
        }
        self.told_ns = Some(ends_ns);
        Step::Tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_loses_its_gpus_at_the_end() {
        let mut notice = Notice::default();
        let steps: Vec<Step> = [0, 89, 90, 91, 99, 100, 101].map(|now| notice.step(Some(100), now, 10)).to_vec();
        assert_eq!(steps, [Step::Rest, Step::Rest, Step::Tell, Step::Rest, Step::Rest, Step::Take, Step::Take]);
        assert_eq!(
            (notice.until_ns(Some(100)), notice.until_ns(Some(200)), notice.until_ns(None)),
            (Some(100), None, None)
        );
        notice.note_failed(100, Some(400));
        assert_eq!((notice.step(Some(100), 399, 10), notice.step(Some(100), 400, 10)), (Step::Rest, Step::Take));
        notice.note_failed(100, None);
        assert_eq!((notice.step(Some(100), 500, 10), notice.until_ns(Some(100))), (Step::Rest, None));
        notice.retry();
        assert_eq!((notice.step(Some(100), 501, 10), notice.until_ns(Some(100))), (Step::Take, Some(100)));
    }

    #[test]
    fn another_end_is_told_in_its_time_and_who_has_none_is_left_alone() {
        let mut notice = Notice::default();
        assert_eq!(notice.step(Some(100), 95, 10), Step::Tell);
        assert_eq!(notice.step(Some(500), 105, 10), Step::Rest);
        assert_eq!(notice.step(Some(500), 495, 10), Step::Tell);
        assert_eq!((notice.step(None, 1000, 10), notice.step(Some(90), 1000, 10)), (Step::Rest, Step::Take));
        notice.note_failed(90, None);
        assert_eq!(notice.step(Some(2000), 2000, 10), Step::Take, "that was of another end");
    }

    #[test]
    fn what_an_earlier_supervisor_told_is_not_told_again() {
        let mut notice = Notice::told_of(Some(100));
        assert_eq!((notice.step(Some(100), 95, 10), notice.until_ns(Some(100))), (Step::Rest, Some(100)));
        assert_eq!(notice.step(Some(100), 100, 10), Step::Take);
        assert_eq!(Notice::told_of(Some(100)).step(Some(200), 195, 10), Step::Tell, "it was put off meanwhile");
    }

    #[test]
    fn a_short_run_is_not_told_when_it_begins() {
        assert_eq!((notice_ns(60, 3600), notice_ns(60, 300), notice_ns(60, 5)), (60, 30, 0));
    }
}
