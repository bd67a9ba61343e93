//! How long the requests of a container take on its GPUs, and what of that is whose.
//!
//! A request is what lies between two times at which the container has nothing to do there: it begins when one of its programs
//! comes to the gate, or launches behind one that was left open, and ends when the last work of it has. So a container that always
//! has work has no requests that end, and those of several programs that overlap are one.
//!
//! What others add to a request are the stretches in which it stood at its closed gate with nothing of its own on the GPU, what
//! the hardware gave to others from then until its first work, and while it had work there itself. Of a long kernel of another one that is only known when
//! it has ended, so requests are looked at a while after their ends.

use crate::slice::QUEUED_LEAST_NS;
use crate::timeline::Use;
use std::collections::VecDeque;

/// Stretches at the gate that are told apart in one request; those that come after them go on from the last one of their kind.
const STANDS: usize = 64;
/// Requests that wait to be looked at; those that come on top of them are not measured.
const ENDED: usize = 1024;

/// Why a container stood at its closed gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It was another one's turn.
    Turn,
    /// It had had more than its share, and others wanted theirs.
    Share,
}

/// A stretch at the closed gate. Nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    from_ns: u64,
    /// When the gate opened.
    to_ns: u64,
    /// When the first work behind it began.
    begun_ns: Option<u64>,
    wait: Wait,
}

impl Stand {
    /// When it came onto the GPU after that, as far as is known.
    fn reached_ns(&self) -> u64 {
        self.begun_ns.unwrap_or(self.to_ns)
    }
}

/// One that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    began_ns: u64,
    ended_ns: u64,
    stands: Vec<Stand>,
    /// When it stood before the GPU behind its open gate: from when to when, in order, no time twice.
    queues: Vec<(u64, u64)>,
}

/// What a request took. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From its begin to the end of its last work.
    pub length_ns: u64,
    /// The part of that which others added, within what is promised to them and beyond it.
    pub others_ns: u64,
    /// The part for which it had to wait because it had had its share.
    pub share_ns: u64,
}

impl Timing {
    /// What it would have taken if nobody had been in its way within its share.
    #[must_use]
    pub fn without_others_ns(&self) -> u64 {
        self.length_ns.saturating_sub(self.others_ns)
    }

    /// What it would have taken with the GPUs to itself.
    #[must_use]
    pub fn alone_ns(&self) -> u64 {
        self.without_others_ns().saturating_sub(self.share_ns)
    }
}

impl Request {
    /// When it began.
    #[must_use]
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// What it took, where `use_of` says what its container had of the GPUs between two times.
    pub fn timing(&self, use_of: impl Fn(u64, u64) -> Use) -> Timing {
        let length_ns = self.ended_ns.saturating_sub(self.began_ns);
        let whole = use_of(self.began_ns, self.ended_ns);
        let (mut others_ns, mut share_ns) = (whole.busy_ns.saturating_sub(whole.charged_ns), 0u64);
        for stand in &self.stands {
            // What it had launched before goes on: only then nothing of it happens when that has ended.
            let worked_ns = use_of(stand.from_ns, stand.to_ns).busy_ns;
            let stood_ns = stand.to_ns.saturating_sub(stand.from_ns).saturating_sub(worked_ns);
            let sum = match stand.wait {
                Wait::Turn => &mut others_ns,
                Wait::Share => &mut share_ns,
            };
            *sum = sum.saturating_add(stood_ns);
            // The hardware comes to it when those that have work there have had their turns.
            others_ns = others_ns.saturating_add(use_of(stand.to_ns, stand.reached_ns()).others_ns);
        }
        for (from_ns, to_ns) in &self.queues {
            others_ns = others_ns.saturating_add(use_of(*from_ns, *to_ns).others_ns);
        }
        let others_ns = others_ns.min(length_ns);
        Timing { length_ns, others_ns, share_ns: share_ns.min(length_ns - others_ns) }
    }
}

/// One that is under way.
#[derive(Clone, Debug)]
struct UnderWay {
    began_ns: u64,
    /// The end of its latest work.
    worked_until_ns: Option<u64>,
    stands: Vec<Stand>,
    queues: Vec<(u64, u64)>,
    /// Since when it stands at the closed gate, and why.
    standing: Option<(u64, Wait)>,
}

impl UnderWay {
    fn since(began_ns: u64) -> Self {
        Self { began_ns, worked_until_ns: None, stands: Vec::new(), queues: Vec::new(), standing: None }
    }

    fn stood(&mut self, from_ns: u64, to_ns: u64, wait: Wait) {
        if from_ns >= to_ns {
            return;
        }
        if self.stands.len() < STANDS {
            self.stands.push(Stand { from_ns, to_ns, begun_ns: None, wait });
        } else if let Some(last) = self.stands.iter_mut().rfind(|stand| stand.wait == wait) {
            // Its own work in between is taken out of it, as in each.
            last.to_ns = to_ns;
        }
    }
}

impl UnderWay {
    /// What comes on top of so many counts as its own.
    fn stood_before_the_gpu(&mut self, from_ns: u64, to_ns: u64) {
        let known_ns = self.queues.last().map_or(0, |last| last.1).max(self.stands.last().map_or(0, Stand::reached_ns));
        // Since then it stands at the gate, which counts by itself.
        let to_ns = self.standing.map_or(to_ns, |(since_ns, _)| to_ns.min(since_ns));
        let from_ns = from_ns.max(known_ns);
        if from_ns.saturating_add(QUEUED_LEAST_NS) <= to_ns && self.queues.len() < STANDS {
            self.queues.push((from_ns, to_ns));
        }
    }
}

/// The requests of one container.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    under_way: Option<UnderWay>,
    ended: VecDeque<Request>,
    /// The end of the latest one.
    last_end_ns: u64,
    /// One that began before is no measure.
    void_before_ns: u64,
}

impl Requests {
    /// It stands at its closed gate, and why; where its own ceiling keeps it there, `from_ns` is when that does no longer. Said again while
    /// it stands there, as both may have changed.
    pub fn wants(&mut self, now_ns: u64, from_ns: u64, wait: Wait) {
        let its = self.under_way.get_or_insert_with(|| UnderWay::since(now_ns));
        let from_ns = from_ns.max(now_ns);
        if let Some((since_ns, known)) = its.standing
            && since_ns <= now_ns
        {
            if (known, from_ns) == (wait, now_ns) {
                return;
            }
            its.stood(since_ns, now_ns, known);
        }
        // What was launched behind an opening of before has begun by now, if anything was.
        its.stands.last_mut().iter_mut().for_each(|stand| _ = stand.begun_ns.get_or_insert(stand.to_ns));
        its.standing = Some((from_ns, wait));
    }

    /// Whether it stands at its closed gate.
    #[must_use]
    pub fn is_standing(&self) -> bool {
        self.under_way.as_ref().is_some_and(|its| its.standing.is_some())
    }

    /// Its gate is open.
    pub fn opened(&mut self, now_ns: u64) {
        let Some(its) = &mut self.under_way else { return };
        if let Some((since_ns, wait)) = its.standing.take() {
            its.stood(since_ns, now_ns, wait);
        }
    }

    /// It has had work on a GPU, before which it stood from `queued_ns` on.
    pub fn worked(&mut self, queued_ns: u64, start_ns: u64, end_ns: u64) {
        if end_ns <= self.last_end_ns {
            return;
        }
        let (queued_ns, start_ns) = (queued_ns.max(self.last_end_ns), start_ns.max(self.last_end_ns));
        let its = self.under_way.get_or_insert_with(|| UnderWay::since(queued_ns));
        its.began_ns = its.began_ns.min(queued_ns);
        its.worked_until_ns = its.worked_until_ns.max(Some(end_ns));
        if let Some(stand) = its.stands.last_mut().filter(|stand| stand.begun_ns.is_none() && stand.to_ns < end_ns) {
            stand.begun_ns = Some(start_ns.max(stand.to_ns));
        } else {
            // Its gate was open all the time.
            its.stood_before_the_gpu(queued_ns, start_ns);
        }
    }

    /// It has nothing to do there. What it had no work for was no request.
    pub fn idle(&mut self) {
        let Some(UnderWay { began_ns, worked_until_ns: Some(ended_ns), stands, queues, .. }) = self.under_way.take()
        else {
            return;
        };
        self.last_end_ns = self.last_end_ns.max(ended_ns);
        if began_ns >= self.void_before_ns && self.ended.len() < ENDED {
            self.ended.push_back(Request { began_ns, ended_ns, stands, queues });
        }
    }

    /// What happens to it is nobody's measure: it is kept from running, or was away. What began before `from_ns` counts for nothing.
    pub fn forget(&mut self, from_ns: u64) {
        self.void_before_ns = self.void_before_ns.max(from_ns);
    }

    /// Nor do those that have ended and were not taken.
    pub fn begin_anew(&mut self, from_ns: u64) {
        self.forget(from_ns);
        self.ended.clear();
    }

    /// The first one that ended before then and has not been taken.
    pub fn take_ended(&mut self, before_ns: u64) -> Option<Request> {
        let is_due = self.ended.front().is_some_and(|request| request.ended_ns < before_ns);
        if is_due { self.ended.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it had of the GPUs: work in these stretches, half of it where it says so.
    fn used(work: &'static [(u64, u64, bool)]) -> impl Fn(u64, u64) -> Use {
        move |from, to| {
            let part = |its: &(u64, u64, bool)| its.1.min(to).saturating_sub(its.0.max(from));
            let busy_ns = work.iter().map(part).sum();
            let charged_ns = work.iter().map(|its| if its.2 { part(its) / 2 } else { part(its) }).sum();
            let others_ns = to.min(138).saturating_sub(from.max(132));
            Use { busy_ns, charged_ns, others_ns }
        }
    }

    fn timing(requests: &mut Requests, work: &'static [(u64, u64, bool)]) -> Timing {
        requests.take_ended(u64::MAX).unwrap().timing(used(work))
    }

    #[test]
    fn what_stands_before_the_gpu_behind_an_open_gate_is_others_doing() {
        const US: u64 = 1000;
        let mut requests = Requests::default();
        requests.worked(1000 * US, 1300 * US, 1500 * US);
        requests.worked(1500 * US, 1500 * US, 1600 * US);
        requests.worked(1100 * US, 1400 * US, 1600 * US);
        requests.idle();
        let timing = requests.take_ended(u64::MAX).unwrap().timing(|from_ns, to_ns| {
            let overlap =
                |begin_us: u64, end_us: u64| (end_us * US).min(to_ns).saturating_sub((begin_us * US).max(from_ns));
            Use { busy_ns: overlap(1300, 1600), charged_ns: overlap(1300, 1600), others_ns: overlap(900, 1250) }
        });
        assert_eq!(timing, Timing { length_ns: 600 * US, others_ns: 250 * US, share_ns: 0 }, "no time twice");
    }

    #[test]
    fn many_ways_to_the_gpu_take_no_stand_at_the_gate_its_place() {
        let mut requests = Requests::default();
        for burst in 0..200 {
            requests.worked(burst * 1_000_000, burst * 1_000_000 + 300_000, burst * 1_000_000 + 900_000);
        }
        requests.wants(300_000_000, 300_000_000, Wait::Share);
        requests.opened(310_000_000);
        requests.worked(310_000_000, 310_000_000, 311_000_000);
        requests.idle();
        let timing = requests.take_ended(u64::MAX).unwrap().timing(|_, _| Use::default());
        assert_eq!((timing.others_ns, timing.share_ns), (0, 10_000_000));
    }

    #[test]
    fn a_request_lies_between_two_times_of_nothing_to_do() {
        let mut requests = Requests::default();
        requests.wants(100, 0, Wait::Turn);
        requests.wants(105, 0, Wait::Turn);
        requests.opened(130);
        requests.worked(120, 120, 129);
        requests.worked(135, 135, 150);
        requests.worked(155, 155, 165);
        requests.idle();
        requests.worked(200, 200, 240);
        requests.idle();
        let work = &[(135, 150, false), (155, 165, false), (200, 240, true)];
        assert_eq!(
            timing(&mut requests, work),
            Timing { length_ns: 65, others_ns: 33, share_ns: 0 },
            "30 at the gate, and 3 behind it"
        );
        let shared = timing(&mut requests, work);
        assert_eq!((shared.length_ns, shared.others_ns, shared.alone_ns()), (40, 20, 20), "half of it was another's");
        assert_eq!(requests.take_ended(u64::MAX), None);
    }

    #[test]
    fn what_it_launched_before_is_no_wait_and_its_share_and_its_ceiling_are_nobody_elses() {
        let mut requests = Requests::default();
        requests.worked(100, 100, 110);
        requests.wants(105, 0, Wait::Turn);
        requests.worked(110, 110, 120);
        requests.opened(140);
        requests.worked(140, 140, 150);
        requests.wants(150, 170, Wait::Share);
        requests.opened(200);
        requests.worked(200, 200, 210);
        requests.idle();
        let work = &[(100, 120, false), (140, 150, false), (200, 210, false)];
        let its = timing(&mut requests, work);
        assert_eq!((its.length_ns, its.others_ns, its.share_ns), (110, 20, 30), "20 at its ceiling are its own");
        assert_eq!((its.without_others_ns(), its.alone_ns()), (90, 60));
    }

    #[test]
    fn why_it_stands_there_is_heard_again() {
        let mut requests = Requests::default();
        requests.wants(100, 0, Wait::Share);
        requests.wants(110, 0, Wait::Share);
        requests.wants(120, 0, Wait::Turn);
        requests.wants(130, 150, Wait::Turn);
        requests.wants(140, 170, Wait::Turn);
        requests.wants(180, 0, Wait::Turn);
        assert!(requests.is_standing());
        requests.opened(190);
        requests.worked(190, 190, 200);
        requests.idle();
        let its = timing(&mut requests, &[(190, 200, false)]);
        assert_eq!((its.length_ns, its.share_ns), (100, 20));
        assert_eq!(its.others_ns, 10 + 20, "40 at its ceiling are its own, which is moved while it stands there");
    }

    #[test]
    fn what_was_no_work_and_what_was_kept_from_running_is_no_request() {
        let mut requests = Requests::default();
        requests.wants(100, 0, Wait::Turn);
        requests.idle();
        requests.wants(200, 0, Wait::Turn);
        requests.opened(210);
        requests.worked(210, 210, 220);
        requests.forget(230);
        // What was under way goes on, and what comes to the gate meanwhile stands there for long.
        requests.worked(225, 225, 240);
        requests.idle();
        requests.wants(300, 0, Wait::Turn);
        requests.forget(9000);
        requests.opened(9000);
        requests.worked(9000, 9000, 9010);
        requests.idle();
        assert_eq!(requests.take_ended(u64::MAX), None);
        requests.worked(9020, 9020, 9030);
        requests.idle();
        assert_eq!(requests.take_ended(9030), None, "it is looked at later");
        assert_eq!(requests.take_ended(9031).map(|its| (its.began_ns(), its.ended_ns)), Some((9020, 9030)));
        requests.worked(9040, 9040, 9050);
        requests.idle();
        requests.begin_anew(9100);
        requests.worked(9090, 9090, 9110);
        requests.idle();
        assert_eq!(requests.take_ended(u64::MAX), None, "neither what was before, nor what began then");
    }

    #[test]
    fn behind_an_opening_with_nothing_launched_the_next_work_is_not_awaited() {
        let mut requests = Requests::default();
        requests.wants(100, 0, Wait::Turn);
        requests.opened(110);
        requests.wants(120, 150, Wait::Turn);
        requests.opened(150);
        requests.worked(150, 150, 160);
        requests.idle();
        let its = timing(&mut requests, &[(150, 160, false)]);
        assert_eq!((its.length_ns, its.others_ns), (60, 10));
    }

    #[test]
    fn floods_are_bounded() {
        let mut requests = Requests::default();
        for number in 0..5000 {
            requests.worked(10 * number, 10 * number, 10 * number + 5);
            requests.idle();
        }
        assert_eq!(std::iter::from_fn(|| requests.take_ended(u64::MAX)).count(), ENDED);
        requests.worked(60_000, 60_000, 60_001);
        (0..500).for_each(|number| {
            requests.wants(60_001 + 10 * number, 0, Wait::Turn);
            requests.opened(60_005 + 10 * number);
        });
        requests.worked(70_000, 70_000, 70_001);
        requests.idle();
        let long = requests.take_ended(u64::MAX).unwrap();
        assert_eq!(long.stands.len(), STANDS);
        assert_eq!(
            long.stands.last().map(|stand| stand.to_ns),
            Some(60_005 + 10 * 499),
            "what comes after that is not lost"
        );
    }
}
