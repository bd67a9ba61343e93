//! Time in which a tenant has the device and nothing of its own on it, while others want it.

/// Stretches of competition that are remembered of a slice; of more the first one is forgotten, to the tenant's favour.
const STRETCHES: usize = 4;

/// When, in one slice, somebody wanted the device to whom its time is owed, and how much of that was work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Competition {
    /// What was before counts for nobody: the tenant is on its way to the device.
    from_ns: u64,
    /// Begin and end of those that are over.
    over: [(u64, u64); STRETCHES],
    /// Since when somebody does.
    since_ns: Option<u64>,
    /// How much of all that the tenant has reported.
    busy_ns: u64,
    /// The end of the latest of that.
    reported_to_ns: u64,
}

impl Competition {
    /// Of a slice whose first work is expected on the device at `from_ns`.
    pub(super) fn of_slice(from_ns: u64) -> Self {
        Self { from_ns, ..Self::default() }
    }

    /// Somebody wants the device.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns.max(self.from_ns));
    }

    /// Nobody does any more.
    pub(super) fn end(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.since_ns.take().filter(|since_ns| *since_ns < now_ns) {
            self.over.rotate_left(1);
            self.over[STRETCHES - 1] = (since_ns, now_ns);
        }
    }

    /// Whether somebody does.
    pub(super) fn is_under_way(&self) -> bool {
        self.since_ns.is_some()
    }

    /// How much of a stretch of time lies in it.
    fn within(&self, begin_ns: u64, end_ns: u64) -> u64 {
        let under_way = self.since_ns.map(|since_ns| (since_ns, u64::MAX));
        let stretches = self.over.iter().copied().chain(under_way);
        stretches.map(|stretch| overlap_ns(stretch, (begin_ns, end_ns))).sum()
    }

    /// What of a stretch of time lies in it, in up to five parts.
    pub(super) fn parts_within(&self, (begin_ns, end_ns): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
        let under_way = self.since_ns.map(|since_ns| (since_ns, u64::MAX));
        let cut = move |stretch: (u64, u64)| (stretch.0.max(begin_ns), stretch.1.min(end_ns));
        self.over.into_iter().chain(under_way).map(cut).filter(|(begin_ns, end_ns)| begin_ns < end_ns)
    }

    /// So much of it the tenant did not keep from the others: they were on the device.
    pub(super) fn excuse(&mut self, ns: u64) {
        self.busy_ns += ns;
    }

    /// The tenant reports that it kept the device busy from `begin_ns` to `end_ns`, of which `busy_ns` are news.
    pub(super) fn report(&mut self, begin_ns: u64, end_ns: u64, busy_ns: u64) {
        self.busy_ns += self.within(begin_ns, end_ns).min(busy_ns);
        self.reported_to_ns = self.reported_to_ns.max(end_ns);
    }

    /// The end of the latest work of this slice that was reported; 0 if there is none.
    pub(super) fn reported_to_ns(&self) -> u64 {
        self.reported_to_ns
    }

    /// How much of it, up to `end_ns`, was a pause, as far as can be known; and how much of it may have been one, because the
    /// tenant may have had work since `pending_from_ns` that it has not reported.
    pub(super) fn pauses_ns(&self, pending_from_ns: u64, end_ns: u64) -> (u64, u64) {
        let known_ns = self.within(0, pending_from_ns.min(end_ns));
        (known_ns.saturating_sub(self.busy_ns), self.within(pending_from_ns, end_ns))
    }
}

/// What of a tenant's slices may have been pauses, and is not booked as such until it has reported later work or says that
/// nothing is left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excused {
    ns: u64,
    /// In which time.
    stretch_ns: (u64, u64),
}

impl Excused {
    /// `ns` more, all of it in a stretch behind the others.
    pub(super) fn add(&mut self, ns: u64, begin_ns: u64, end_ns: u64) {
        if ns > 0 {
            let begin_ns = if self.ns > 0 { self.stretch_ns.0.min(begin_ns) } else { begin_ns };
            *self = Self { ns: self.ns.saturating_add(ns), stretch_ns: (begin_ns, end_ns) };
        }
    }

    /// The tenant reports work, as for [`Competition::report`]; how much of the news is of another time.
    pub(super) fn report(&mut self, begin_ns: u64, end_ns: u64, busy_ns: u64) -> u64 {
        let there_ns = overlap_ns(self.stretch_ns, (begin_ns, end_ns)).min(busy_ns).min(self.ns);
        self.ns -= there_ns;
        busy_ns - there_ns
    }

    /// What of a stretch of time lies in it.
    pub(super) fn part_within(&self, (begin_ns, end_ns): (u64, u64)) -> (u64, u64) {
        (self.stretch_ns.0.max(begin_ns), self.stretch_ns.1.min(end_ns))
    }

    /// So much of it was no pause.
    pub(super) fn lessen(&mut self, ns: u64) {
        self.ns = self.ns.saturating_sub(ns);
    }

    /// Until when it was.
    pub(super) fn end_ns(&self) -> u64 {
        self.stretch_ns.1
    }

    /// How much is left, which is a pause then.
    pub(super) fn take(&mut self) -> u64 {
        std::mem::take(self).ns
    }
}

fn overlap_ns(one: (u64, u64), other: (u64, u64)) -> u64 {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_somebody_wants_the_device_counts() {
        let mut competition = Competition::of_slice(100);
        competition.begin(50);
        competition.end(90);
        assert_eq!(competition.pauses_ns(1000, 1000), (0, 0), "it was not there yet");
        competition.begin(50);
        competition.begin(150);
        competition.end(200);
        competition.report(0, 150, 150);
        assert_eq!(competition.pauses_ns(1000, 1000), (50, 0));
        competition.begin(300);
        competition.report(200, 340, 40);
        assert_eq!(competition.pauses_ns(350, 400), (60, 50));
        assert_eq!(competition.pauses_ns(400, 400), (110, 0));
        competition.report(0, 400, 400);
        assert_eq!(competition.pauses_ns(400, 400), (0, 0));
    }

    #[test]
    fn of_many_stretches_the_last_count() {
        let mut competition = Competition::default();
        for at in 1..=9 {
            competition.begin(at * 100);
            competition.end(at * 100 + 10);
        }
        assert_eq!(competition.pauses_ns(1000, 1000), (40, 0));
    }

    #[test]
    fn what_is_excused_goes_with_what_is_reported_of_its_time() {
        let mut excused = Excused::default();
        excused.add(100, 1000, 1100);
        assert_eq!(excused.report(900, 1010, 110), 100);
        excused.add(50, 1200, 1250);
        assert_eq!(excused.report(1200, 1300, 100), 50);
        assert_eq!((excused.end_ns(), excused.take(), excused.take()), (1250, 90, 0));
        // Of two processes one reports first, and the other one after it what both have had, and more.
        excused.add(100, 1000, 1100);
        assert_eq!(excused.report(1000, 1100, 100), 0);
        assert_eq!(excused.report(900, 1500, 400), 400);
    }
}
