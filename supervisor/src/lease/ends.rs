//! When leases end by their run times, and when one that waits can begin at the latest because of that.

use super::ahead::Ahead;
use super::book::Lease;
use super::entitlement::class_policy;
use super::grant::Leases;
use super::record::Record;
use super::room::Scene;
use crate::clock::{self, ns};
use crate::queue::Waiter;
use gpool_policy::backfill::first_begin;
use gpool_protocol::{
    Class, ErrorBody, ErrorCode, LONGEST_SECONDS, LeaseRequest, LeaseState, LeaseUpdate, Request, format_seconds,
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// A lease that is there for so long after its end is one whose GPUs cannot be taken: nobody counts on its end any more.
const OVERDUE_NS: u64 = 30_000_000_000;

/// For how long somebody has GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    /// Seconds in all; none for as long as the container runs.
    pub seconds: Option<u64>,
    /// When that is over, CLOCK_MONOTONIC.
    pub ends_ns: Option<u64>,
}

impl Record {
    /// When it had its GPUs first, CLOCK_MONOTONIC.
    pub fn begun_ns(&self, now_ns: u64) -> u64 {
        let by_run_time = self.ends_ns.zip(self.run_seconds).map(|(ends_ns, run)| ends_ns.saturating_sub(ns(run)));
        by_run_time.unwrap_or_else(|| now_ns.saturating_sub(self.age_ns(now_ns)))
    }

    /// How long ago it was granted. Clocks on the wall are put forward and back; where nothing else was written down they say so.
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        let by_wall = || clock::unix_ms().saturating_sub(self.created_unix_ms).saturating_mul(1_000_000);
        self.created_ns.map_or_else(by_wall, |created_ns| now_ns.saturating_sub(created_ns))
    }

    /// What is left of its run time, nanoseconds; none of one that has no end or has lost its GPUs.
    pub fn run_left_ns(&self) -> Option<u64> {
        let ends_ns = self.ends_ns.filter(|_| self.revocation.is_none())?;
        Some(ends_ns.saturating_sub(clock::now_ns()))
    }

    /// When it ends, as far as anybody counts on that at `now_ns`; CLOCK_MONOTONIC. From whom nothing can be taken, or was taken in
    /// vain, nobody counts on anything.
    pub fn planned_end_ns(&self, now_ns: u64) -> Option<u64> {
        let can_be_taken = self.revocation.is_none() && (self.init.is_none() || self.cgroup.is_some());
        self.ends_ns.filter(|ends_ns| can_be_taken && ends_ns.saturating_add(OVERDUE_NS) > now_ns)
    }
}

impl Lease {
    /// Until when it has its GPUs, if it was told that its run time is about to be over; CLOCK_MONOTONIC. Not of one that has lost
    /// them or has ended.
    pub fn time_over_ns(&self) -> Option<u64> {
        let runs = matches!(self.state, LeaseState::Active | LeaseState::Ending) && self.record.revocation.is_none();
        self.end_notice.until_ns(self.record.ends_ns).filter(|_| runs)
    }
}

impl Leases {
    /// For how long a request would have its GPUs at most, in seconds: as it says, or as this host does for its class.
    pub fn run_seconds(&self, request: &Request) -> Option<u64> {
        request.run_seconds.or(self.longest_run_seconds(request.class))
    }

    /// The longest run time of a class, in seconds; none where it has no bound.
    pub fn longest_run_seconds(&self, class: Class) -> Option<u64> {
        class_policy(&self.configuration(), class).longest_run_seconds
    }

    /// For how long one that asks now would have GPUs. Who comes back to a place that was kept has what was left of its time.
    pub fn run_of(&self, asked: &LeaseRequest, kept: Option<&Record>) -> Run {
        if let Some(record) = kept.filter(|record| record.ends_ns.is_some()) {
            return Run { seconds: record.run_seconds, ends_ns: record.ends_ns };
        }
        let seconds = self.run_seconds(&asked.request);
        Run { seconds, ends_ns: seconds.map(|seconds| clock::now_ns().saturating_add(ns(seconds))) }
    }

    /// Whether anything is lent to those who say when they end: where their GPUs can be taken then.
    pub fn lends(&self) -> bool {
        self.configuration().queue.backfill && !self.may_not_take.load(Ordering::Relaxed)
    }

    /// When one that waits can begin at the latest, and where, by the ends of those that have their GPUs and of those before it who are
    /// about to. None where nobody's end helps it that could be counted on. Who wants all of a GPU, as `is_whole` says, has processes
    /// without a lease in its way.
    pub fn begins(&self, waiter: &Waiter, scene: &Scene<'_>, ahead: &Ahead, is_whole: bool) -> Option<Begin> {
        let now_ns = clock::now_ns();
        // What nobody knows the end of is no reason to look.
        let ends = scene.planned_ends_ns(now_ns, ahead);
        if ends.is_empty() || !self.lends() {
            return None;
        }
        let outside = if is_whole { self.left_without_leases(scene.gpus, scene.book) } else { Vec::new() };
        let run_ns = self.run_seconds(&waiter.asked.request).map(ns);
        let times: Vec<u64> = std::iter::once(now_ns).chain(ends).collect();
        let first = |has_later_reservations: bool| {
            first_begin(&times, |at_ns| {
                let mut then = scene.as_of(at_ns, now_ns, &outside);
                if !has_later_reservations {
                    then.reserved.keep_open();
                }
                let is_left = |place: usize| ahead.ends_ns[place].is_none_or(|ends_ns| ends_ns > at_ns);
                let ends_ns = run_ns.map(|run_ns| at_ns.saturating_add(run_ns));
                self.place_beside(waiter, &then, (&ahead.only(is_left), ends_ns))
            })
        };
        let (at_ns, places) = first(true)?;
        // A reservation that has not begun may be over by then, so that it could begin before: nothing is lent for longer than that.
        let is_sure = !scene.reserved.begins_soon();
        let lent_until_ns =
            if is_sure { at_ns } else { first(false).map_or(at_ns, |(earlier_ns, _)| earlier_ns.min(at_ns)) };
        Some(Begin { at_ns, places, lent_until_ns })
    }
}

/// When one that waits can begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// At the latest, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// On which GPUs, by their places.
    pub places: Vec<usize>,
    /// Until when what is kept for it is lent: no later.
    pub lent_until_ns: u64,
}

/// Whether a container can lose its GPUs when its run time is over: one without a cgroup of its own can not.
///
/// # Errors
/// It has a run time, and none.
pub fn check_end_can_come(record: &Record, cgroup: Option<&str>) -> Result<(), ErrorBody> {
    let Some(run_seconds) = record.run_seconds.filter(|_| cgroup.is_none()) else { return Ok(()) };
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!(
            "container {} of class={} has a run time, {}, and no cgroup of its own by which its GPUs could be taken when that is over",
            record.container_id.short(),
            record.class,
            format_seconds(run_seconds)
        ),
        format!(
            "start it with a cgroup (podman without --cgroups=disabled, and without root on cgroup version 2 alone); or leave run-time out, \
             which only helps where [class.{}] longest_run_seconds is not set either",
            record.class
        ),
    ))
}

/// Whether a class with this bound may run for so long.
///
/// # Errors
/// Names the class and what would do.
pub fn check_run_time(run_seconds: Option<u64>, class: Class, longest: Option<u64>) -> Result<(), ErrorBody> {
    let Some((asked, longest)) = run_seconds.zip(longest).filter(|(asked, longest)| asked > longest) else {
        return Ok(());
    };
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("run-time={} is longer than this host allows with class={class}", format_seconds(asked)),
        format!(
            "ask for {} or less, or raise [class.{class}] longest_run_seconds in config.toml and run gpool config reload",
            format_seconds(longest)
        ),
    ))
}

/// Whether one that is to be of another class has a run time as that one may: where it is bounded, some.
///
/// # Errors
/// It has a longer one, or none.
pub fn check_has_end(run_seconds: Option<u64>, class: Class, longest: Option<u64>) -> Result<(), ErrorBody> {
    let (None, Some(most)) = (run_seconds, longest) else { return check_run_time(run_seconds, class, longest) };
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("it has no run time, and class={class} has one of {} at most", format_seconds(most)),
        "give run-time as well",
    ))
}

/// For how long a lease has its GPUs after a change. Who does not administer this host may bring its end forward and not put it off:
/// those who wait count on it.
///
/// # Errors
/// A run time that is over already or cannot be, one for a lease whose GPUs were taken, or a later end.
pub fn run_changed(old: &Record, change: &LeaseUpdate, administers: bool, now_ns: u64) -> Result<Run, ErrorBody> {
    let short = old.container_id.short();
    let run = match (change.run_seconds, change.no_run_time) {
        (None, false) => return Ok(Run { seconds: old.run_seconds, ends_ns: old.ends_ns }),
        (None, true) => Run::default(),
        (Some(seconds), _) => {
            Run { seconds: Some(seconds), ends_ns: Some(old.begun_ns(now_ns).saturating_add(ns(seconds))) }
        }
    };
    let wrong = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
    if change.no_run_time && change.run_seconds.is_some() {
        return wrong("run_seconds and no_run_time do not go together".to_owned(), "give one of them");
    }
    if change.run_seconds.is_some_and(|seconds| !(1..=LONGEST_SECONDS).contains(&seconds)) {
        return wrong("run_seconds lies between 1 and 31536000".to_owned(), "correct the value");
    }
    if old.revocation.is_some() {
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("the GPUs were taken from container {short}"),
            "start it anew: it asks for its share again",
        ));
    }
    if run.ends_ns.is_some_and(|ends_ns| ends_ns <= now_ns) {
        let ran = format_seconds(now_ns.saturating_sub(old.begun_ns(now_ns)) / 1_000_000_000);
        let message = format!("container {short} has had its GPUs for {ran} already, and the run time is all of that");
        return wrong(message, "give a longer one, or take its GPUs from it with gpool evict");
    }
    let is_later = old.ends_ns.is_some_and(|old_ns| run.ends_ns.is_none_or(|new_ns| new_ns > old_ns));
    if is_later && !administers {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("the run time of container {short} may be shortened and not made longer: others count on its end"),
            "ask root or a member of the socket's group, or give a shorter one",
        ));
    }
    Ok(run)
}

impl Scene<'_> {
    /// When leases, kept places, those who are about to begin or have a plan, and reservations end, each moment once, in order.
    pub fn planned_ends_ns(&self, now_ns: u64, ahead: &Ahead) -> BTreeSet<u64> {
        let records = self.book.leases.values().map(|lease| &lease.record);
        let records = records.chain(self.book.held.iter().map(|held| &held.record));
        let leases = records.filter(|record| !record.has_no_share()).filter_map(|its| its.planned_end_ns(now_ns));
        let ends = leases.chain(ahead.ends_ns.iter().copied().flatten());
        let ends = ends.chain(self.plans.ends_ns());
        ends.chain(self.reserved.ends_ns(now_ns)).filter(|ends_ns| *ends_ns > now_ns).collect()
    }

    /// The same when those have ended whose time is over by `at_ns`, and what is about to be free is. A place that is kept is not: its
    /// container may come back.
    pub fn as_of(&self, at_ns: u64, now_ns: u64, outside: &[u32]) -> Self {
        let mut then = self.without_ended(at_ns, now_ns, outside);
        then.free_what_comes(outside);
        then.reserved.end_until(at_ns, now_ns);
        then.plans = then.plans.as_of(at_ns);
        then
    }

    /// The same without those whose time is over by `at_ns`.
    pub fn without_ended(&self, at_ns: u64, now_ns: u64, outside: &[u32]) -> Self {
        let mut then = Self { is_imagined: true, ..self.clone() };
        then.free(outside, |record, _| record.planned_end_ns(now_ns).is_some_and(|ends_ns| ends_ns <= at_ns));
        then
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::{Book, Held};
    use super::super::capacity::capacities;
    use super::super::record::sample;
    use super::*;
    use crate::device::Gpu;
    use crate::procfs::ProcessName;
    use gpool_protocol::{HostPid, LeaseId};

    #[test]
    fn an_end_that_was_not_kept_to_is_counted_on_no_more() {
        let record = Record { ends_ns: Some(ns(100)), run_seconds: Some(40), ..sample() };
        assert_eq!((record.planned_end_ns(0), record.planned_end_ns(ns(129))), (Some(ns(100)), Some(ns(100))));
        assert_eq!((record.planned_end_ns(ns(130)), sample().planned_end_ns(0)), (None, None));
        assert_eq!(record.begun_ns(ns(70)), ns(60));
        let of_none =
            Record { init: Some(ProcessName { pid: HostPid(7), start_ticks: 1 }), cgroup: None, ..record.clone() };
        assert_eq!(of_none.planned_end_ns(0), None, "nothing can be taken from it");
        assert!(check_end_can_come(&of_none, None).is_err() && check_end_can_come(&of_none, Some("/c")).is_ok());
        assert!(check_end_can_come(&sample(), None).is_ok());
    }

    #[test]
    fn how_long_somebody_runs_is_no_matter_of_clocks_on_the_wall() {
        // Granted ten seconds ago, when the clock on the wall was an hour ahead, or a year behind.
        for created_unix_ms in [clock::unix_ms() + 3_600_000, clock::unix_ms() - 31_536_000_000] {
            let record = Record { created_unix_ms, created_ns: Some(ns(60)), ..sample() };
            assert_eq!((record.age_ns(ns(70)), record.begun_ns(ns(70))), (ns(10), ns(60)));
            let change = LeaseUpdate { run_seconds: Some(30), ..LeaseUpdate::default() };
            assert_eq!(run_changed(&record, &change, true, ns(70)).unwrap().ends_ns, Some(ns(90)));
        }
        let of_an_older_supervisor = Record { created_unix_ms: clock::unix_ms() - 5000, ..sample() };
        assert!((ns(5)..ns(60)).contains(&of_an_older_supervisor.age_ns(ns(70))));
    }

    #[test]
    fn nobody_runs_for_longer_than_his_class_may() {
        let may = |run_seconds, longest| check_run_time(run_seconds, Class::Notebook, longest).is_ok();
        assert!(may(None, Some(60)) && may(Some(60), Some(60)) && may(Some(61), None) && !may(Some(61), Some(60)));
        let changes =
            |run_seconds, longest| check_has_end(run_seconds, Class::Notebook, longest).map_err(|its| its.message);
        assert!(
            changes(None, None).is_ok() && changes(Some(60), Some(60)).is_ok() && changes(Some(61), Some(60)).is_err()
        );
        assert!(changes(None, Some(60)).unwrap_err().contains("class=notebook has one of 1m at most"));
    }

    #[test]
    fn what_is_free_then_is_what_ends_have_freed() {
        let gpus = [Gpu::sample(0)];
        let place = |id: &str, ends_ns| {
            let record = Record { lease_id: LeaseId(id.into()), ends_ns, run_seconds: ends_ns.map(|_| 60), ..sample() };
            Held { record, gpus: vec![0], until: std::time::Instant::now() }
        };
        let now_ns = clock::now_ns();
        let held = vec![place("01", None), place("02", Some(now_ns + 5)), place("03", Some(now_ns + 9))];
        let book = Book { held, ..Book::default() };
        let own = LeaseId("03".into());
        let scene = Scene {
            book: &book,
            own: Some(&own),
            gpus: &gpus,
            capacities: capacities(&gpus, &[], &[], &book, Some(&own)),
            standing: None,
            reserved: Default::default(),
            gone: std::iter::once(own.clone()).collect(),
            is_imagined: false,
            is_unheard: false,
            is_emptied: false,
            may_enter_closed: false,
            plans: Default::default(),
        };
        let share = |at_ns| scene.as_of(at_ns, now_ns, &[]).capacities[0].fraction_leased_permille;
        assert_eq!(
            [share(now_ns + 4), share(now_ns + 5), share(now_ns + 9)],
            [600, 300, 300],
            "its own is free already"
        );
        let ends: Vec<u64> = scene.planned_ends_ns(now_ns, &Ahead::default()).into_iter().collect();
        assert_eq!(ends, [now_ns + 5, now_ns + 9]);
    }

    #[test]
    fn an_end_is_put_off_by_an_administrator_alone() {
        let old = Record { ends_ns: Some(ns(100)), run_seconds: Some(40), ..sample() };
        let to = |run_seconds, no_run_time, administers| {
            let change = LeaseUpdate { run_seconds, no_run_time, ..LeaseUpdate::default() };
            run_changed(&old, &change, administers, ns(70)).map(|run| run.ends_ns).map_err(|error| error.code)
        };
        assert_eq!(to(Some(20), false, false), Ok(Some(ns(80))), "since it was granted");
        assert_eq!((to(None, false, false), to(Some(40), false, false)), (Ok(Some(ns(100))), Ok(Some(ns(100)))));
        assert_eq!((to(Some(50), false, true), to(None, true, true)), (Ok(Some(ns(110))), Ok(None)));
        for later in [to(Some(50), false, false), to(None, true, false)] {
            assert_eq!(later, Err(ErrorCode::NotPermitted));
        }
        for wrong in [to(Some(10), false, true), to(Some(0), false, true), to(Some(50), true, true)] {
            assert_eq!(wrong, Err(ErrorCode::RequestInvalid));
        }
    }
}
