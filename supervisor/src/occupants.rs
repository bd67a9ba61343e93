//! Whom the device last listed as holding memory, so that what a dead process held counts until the device has it back.
//!
//! A process's end and the end of what it held are two things: the driver takes time to clean up, and a child that it
//! has forked may keep its descriptors and so its memory. The sampler asks NVML and notes the answer here; who has seen a
//! death asks it to look at once.

use crate::procfs::{self, ProcessName};
use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Without an answer of NVML for so long after a death, what is dead counts as gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// For so long after a death NVML is asked more often; longer than it is waited for. What the device has not let go of by then
/// is held by somebody, as a child is who has it open, and is seen to be free by the looks that are taken anyway.
const HASTE: Duration = Duration::from_secs(6);
/// A driver that has nothing else to do is done within this.
const FIRST: Duration = Duration::from_secs(1);
/// Between two questions to a GPU after a death, within that and later.
const FIRST_PERIOD: Duration = Duration::from_millis(20);
const LATER_PERIOD: Duration = Duration::from_millis(80);
/// Looks that are asked for are at least so far apart.
const LEAST_PERIOD: Duration = Duration::from_millis(5);
/// Those that are asked for before a refusal are: who is refused again and again must not keep NVML busy.
const REFUSAL_PERIOD: Duration = Duration::from_millis(100);

/// What is known of all GPUs. Its lock is taken last of all.
#[derive(Debug)]
pub struct Occupants {
    state: Mutex<State>,
    asked: Condvar,
    looked: Condvar,
}

/// Why a wait is over; because of its time, if neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Woken {
    /// Somebody asks for a look at all GPUs.
    pub is_asked: bool,
    /// GPUs that may just be letting go of what somebody held who has died.
    pub letting_go: BTreeSet<usize>,
    /// Who may have opened the device node of a GPU.
    pub opened_by: BTreeSet<TenantId>,
}

impl Woken {
    /// Its time is over.
    pub const LATE: Self = Self { is_asked: false, letting_go: BTreeSet::new(), opened_by: BTreeSet::new() };
}

#[derive(Debug)]
struct State {
    woken: Woken,
    gpus: Vec<Option<Look>>,
    /// Whom each GPU lists without a break, with the start times of the processes that had these pids at first.
    first: Vec<BTreeMap<HostPid, Option<u64>>>,
    /// When a look at each GPU was asked for last because somebody had died.
    hurried: Vec<Option<Instant>>,
    /// When the last look at all GPUs was begun that is over.
    looked: Option<Instant>,
}

/// One answer.
#[derive(Debug)]
struct Look {
    /// When it was asked for.
    since: Instant,
    /// With the start times of the processes that had these pids then; none of one that had ended.
    listed: BTreeMap<HostPid, Option<u64>>,
}

impl Occupants {
    /// Nothing is known of so many GPUs.
    pub fn new(gpus: usize) -> Self {
        let (looks, first) = ((0..gpus).map(|_| None).collect(), vec![BTreeMap::new(); gpus]);
        let state = State { woken: Woken::LATE, gpus: looks, first, hurried: vec![None; gpus], looked: None };
        Self { state: Mutex::new(state), asked: Condvar::new(), looked: Condvar::new() }
    }

    /// NVML, asked at `since`, lists these on GPU `gpu`, with the start times of the processes that have these pids.
    pub fn note(&self, gpu: usize, since: Instant, listed: BTreeMap<HostPid, Option<u64>>) {
        if let Some(place) = self.state.lock().unwrap_or_else(PoisonError::into_inner).gpus.get_mut(gpu) {
            *place = Some(Look { since, listed });
        }
    }

    /// GPU `gpu` is another one from now on, of which nothing is known.
    pub fn forget(&self, gpu: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.gpus.get_mut(gpu).map(Option::take);
        state.first.get_mut(gpu).map(BTreeMap::clear);
    }

    /// Of those that NVML lists on GPU `gpu` now, with the start times of the processes that have these pids, the pids that
    /// have come to another process since they were listed first. A child may go on holding what the one before has opened.
    pub fn inherited(&self, gpu: usize, listed: &BTreeMap<HostPid, Option<u64>>) -> BTreeSet<HostPid> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = state.first.get_mut(gpu) else { return BTreeSet::new() };
        first.retain(|pid, _| listed.contains_key(pid));
        let mut is_another = |(pid, now): (&HostPid, &Option<u64>)| {
            let then = *first.entry(*pid).or_insert(*now);
            (now.is_some() && *now != then).then_some(*pid)
        };
        listed.iter().filter_map(&mut is_another).collect()
    }

    /// Whether any GPU listed the process when it was asked last.
    pub fn lists(&self, pid: HostPid) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut looks = state.gpus.iter().flatten();
        // A pid that has gone to another process since says nothing of that one.
        looks.any(|look| {
            look.listed.get(&pid).is_some_and(|start| start.is_some() && *start == procfs::start_ticks(pid))
        })
    }

    /// All those that [`lists`](Self::lists) is true of.
    pub fn all_listed(&self) -> BTreeSet<HostPid> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = state.gpus.iter().flatten().flat_map(|look| &look.listed);
        listed
            .filter(|(pid, start)| start.is_some() && **start == procfs::start_ticks(**pid))
            .map(|(pid, _)| *pid)
            .collect()
    }

    /// Whether any GPU listed this process, alive or dead, when it was asked last.
    pub fn listed(&self, process: &ProcessName) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut looks = state.gpus.iter().flatten();
        looks
            .any(|look| look.listed.get(&process.pid).is_some_and(|start_ticks| procfs::is_same(process, *start_ticks)))
    }

    /// Whether GPU `gpu` has back what the process held that was seen dead at `died`. A process that has come to the same
    /// pid since is another one.
    pub fn has_let_go(&self, gpu: usize, process: ProcessName, died: Instant) -> bool {
        self.lists_none(gpu, died, |pid, start_ticks| pid == process.pid && procfs::is_same(&process, start_ticks))
    }

    /// The same of a process of which no name is known: it has as soon as none is listed that has ended, or is at its end,
    /// which takes as long as the driver has to do and in which no lock is held any more, nor one that `may_be` it.
    pub fn has_let_go_of_unnamed(&self, gpu: usize, died: Instant, may_be: impl Fn(HostPid) -> bool) -> bool {
        self.lists_none(gpu, died, |pid, start_ticks| !procfs::goes_on(pid, start_ticks) || may_be(pid))
    }

    /// Whether GPU `gpu`, asked after `died`, lists none of these. Without an answer that counts as so after a while.
    fn lists_none(&self, gpu: usize, died: Instant, is_it: impl Fn(HostPid, Option<u64>) -> bool) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.gpus.get(gpu).and_then(Option::as_ref) {
            Some(look) if look.since > died => !look.listed.iter().any(|(pid, start_ticks)| is_it(*pid, *start_ticks)),
            _ => died.elapsed() > PATIENCE,
        }
    }

    /// Whether NVML has said who is on GPU `gpu` when it was asked after `at`. Where it does not answer, that counts as said
    /// after a while.
    pub fn has_told(&self, gpu: usize, at: Instant) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let look = state.gpus.get(gpu).and_then(Option::as_ref);
        look.is_some_and(|look| look.since > at) || at.elapsed() > PATIENCE
    }

    /// How many processes NVML last listed on GPU `gpu`, of those that `is_alive` still finds, which looks at each of them: nobody waits
    /// for that.
    pub fn living(&self, gpu: usize, is_alive: impl Fn(HostPid) -> bool) -> u32 {
        let listed: Vec<HostPid> = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let look = state.gpus.get(gpu).and_then(Option::as_ref);
            look.into_iter().flat_map(|look| look.listed.keys().copied()).collect()
        };
        let count = listed.into_iter().filter(|pid| is_alive(*pid)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// A process of one of these opens the device node of a GPU.
    pub fn note_opening(&self, tenants: BTreeSet<TenantId>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).woken.opened_by.extend(tenants);
        self.asked.notify_one();
    }

    /// Asks for a look at each of these GPUs on which somebody has died so lately at `now` that it may just be letting go, unless
    /// it was asked for a short while ago. After how long it is worth asking again, if it is.
    pub fn ask_soon_after(&self, deaths: impl Iterator<Item = (usize, Instant)>, now: Instant) -> Option<Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut soonest = None;
        for (gpu, died) in deaths {
            let period = match now.saturating_duration_since(died) {
                since if since < FIRST => FIRST_PERIOD,
                since if since < HASTE => LATER_PERIOD,
                _ => continue,
            };
            soonest = Some(soonest.map_or(period, |soonest: Duration| soonest.min(period)));
            let Some(hurried) = state.hurried.get_mut(gpu) else { continue };
            if hurried.is_none_or(|at| now.saturating_duration_since(at) >= period) {
                *hurried = Some(now);
                state.woken.letting_go.insert(gpu);
                self.asked.notify_one();
            }
        }
        soonest
    }

    /// A look at all GPUs is over that was begun at `since`.
    pub fn note_looked(&self, since: Instant) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).looked = Some(since);
        self.looked.notify_all();
    }

    /// Asks for a look and waits until one is over that was begun after this, or until `deadline`; whether there was one.
    /// NVML may hang meanwhile: no other lock is to be held.
    pub fn look_again(&self, deadline: Instant) -> bool {
        let begun = Instant::now();
        let last = self.state.lock().unwrap_or_else(PoisonError::into_inner).looked;
        let due = last.map_or(begun, |last| last + REFUSAL_PERIOD).min(deadline);
        std::thread::sleep(due.saturating_duration_since(begun));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |state: &State| state.looked.is_some_and(|since| since >= begun);
        if !is_over(&state) {
            state.woken.is_asked = true;
            self.asked.notify_one();
        }
        while !is_over(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.looked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until somebody asks for a look or opens a device, or until `deadline`.
    pub fn wait(&self, deadline: Instant) -> Woken {
        std::thread::sleep(LEAST_PERIOD);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // First of all: somebody who asks again and again must not keep what is done at the deadline from it.
            if left.is_zero() {
                return Woken::LATE;
            }
            if state.woken != Woken::LATE {
                return std::mem::take(&mut state.woken);
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_count_until_a_later_look_does_not_list_them() {
        let (occupants, process) = (Occupants::new(1), ProcessName { pid: HostPid(7), start_ticks: 100 });
        let listed = |pid, start_ticks| BTreeMap::from([(HostPid(pid), start_ticks)]);
        let before = Instant::now();
        occupants.note(0, before, BTreeMap::new());
        let died = Instant::now() + Duration::from_nanos(1);
        assert!(!occupants.has_let_go(0, process, died), "the look is older than the death");
        for start_ticks in [None, Some(100)] {
            occupants.note(0, died + Duration::from_millis(1), listed(7, start_ticks));
            assert!(!occupants.has_let_go(0, process, died), "it still holds something");
        }
        assert!(occupants.listed(&process) && !occupants.listed(&ProcessName { pid: HostPid(8), ..process }));
        occupants.note(0, died + Duration::from_millis(2), listed(7, Some(101)));
        assert!(!occupants.listed(&process));
        assert!(occupants.has_let_go(0, process, died), "another process that has its pid");
        occupants.note(0, died + Duration::from_millis(3), listed(8, None));
        assert!(occupants.has_let_go(0, process, died));
        assert!(!occupants.has_let_go(1, process, died), "another GPU");
        assert_eq!((occupants.living(0, |_| true), occupants.living(0, |pid| pid == process.pid)), (1, 0));
        assert_eq!(occupants.living(0, |_| occupants.state.try_lock().is_ok()), 1, "who looks keeps nobody waiting");
        occupants.forget(0);
        assert_eq!(occupants.living(0, |_| true), 0, "it was another instance's place");
    }

    #[test]
    fn one_without_a_name_counts_as_long_as_any_is_listed_that_may_be_it() {
        let occupants = Occupants::new(1);
        let has_let_go = |pid: u32, start_ticks, may_be: bool| {
            let died = Instant::now();
            occupants.note(0, died + Duration::from_nanos(1), BTreeMap::from([(HostPid(pid), start_ticks)]));
            occupants.has_let_go_of_unnamed(0, died, |_| may_be)
        };
        let me = std::process::id();
        let mine = procfs::start_ticks(HostPid(me));
        assert!(has_let_go(me, mine, false), "one that goes on, and is another");
        assert_eq!(occupants.all_listed(), BTreeSet::from([HostPid(me)]));
        assert!(!has_let_go(me, mine, true) && !has_let_go(me, None, false));
        assert!(!has_let_go(me, mine.map(|ticks| ticks + 1), false), "it has ended since it was listed");
        assert_eq!(occupants.all_listed(), BTreeSet::new());
        // One that has ended and that nobody has waited for has its pid still.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ticks = procfs::start_ticks(HostPid(child.id()));
        while procfs::is_alive(HostPid(child.id())) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!has_let_go(child.id(), ticks, false));
        child.wait().unwrap();
        assert!(!has_let_go(child.id(), ticks, false));
    }

    #[test]
    fn a_pid_that_was_listed_before_its_process_began_is_inherited() {
        let occupants = Occupants::new(1);
        let inherited = |listed: &[(u32, Option<u64>)]| {
            occupants.inherited(0, &listed.iter().map(|(pid, ticks)| (HostPid(*pid), *ticks)).collect())
        };
        let none = BTreeSet::new();
        assert_eq!(inherited(&[(7, Some(100)), (8, None), (9, Some(50))]), none);
        assert_eq!(inherited(&[(7, None), (8, None), (9, Some(50))]), none, "it has ended, and holds something");
        let both = BTreeSet::from([HostPid(7), HostPid(8)]);
        for _ in 0..2 {
            assert_eq!(inherited(&[(7, Some(200)), (8, Some(200)), (9, Some(50))]), both);
        }
        assert_eq!(inherited(&[(8, Some(200))]), BTreeSet::from([HostPid(8)]));
        assert_eq!(inherited(&[(7, Some(200))]), none, "the device has let go of the one before");
        assert_eq!(occupants.inherited(1, &BTreeMap::from([(HostPid(7), None)])), none, "no such GPU");
    }

    #[test]
    fn a_new_look_is_one_that_was_begun_after_it_was_asked_for() {
        let occupants = Occupants::new(1);
        let (begun, patience) = (Instant::now(), Duration::from_secs(60));
        let answered_with = |since: fn(Instant) -> Instant, patience: Duration| {
            std::thread::scope(|scope| {
                let asks = scope.spawn(|| occupants.look_again(Instant::now() + patience));
                while !asks.is_finished() {
                    if occupants.wait(Instant::now() + Duration::from_millis(20)).is_asked {
                        occupants.note_looked(since(begun));
                    }
                }
                asks.join().unwrap()
            })
        };
        assert!(!answered_with(|begun| begun, Duration::from_millis(300)), "a look that was under way");
        assert!(answered_with(|_| Instant::now(), patience));
    }

    #[test]
    fn looks_before_a_refusal_are_a_while_apart() {
        let occupants = Occupants::new(1);
        let (begun, patience) = (Instant::now(), Duration::from_secs(60));
        let looks = std::thread::scope(|scope| {
            let refused: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..4).all(|_| occupants.look_again(begun + patience)))).collect();
            let mut looks = Vec::new();
            while !refused.iter().all(|asks| asks.is_finished()) {
                if occupants.wait(Instant::now() + Duration::from_millis(50)).is_asked {
                    looks.push(Instant::now());
                    occupants.note_looked(looks[looks.len() - 1]);
                }
            }
            looks
        });
        assert!(
            looks.len() >= 4 && looks.len() as u128 <= 2 * (1 + begun.elapsed().as_millis() / 100),
            "{}",
            looks.len()
        );
    }

    #[test]
    fn what_is_not_let_go_of_for_long_is_left_to_the_looks_that_are_taken_anyway() {
        let (occupants, start) = (Occupants::new(1), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let asks = |deaths: &[u64], now| {
            let period = occupants.ask_soon_after(deaths.iter().map(|seconds| (0, at(*seconds))), at(now));
            let woken = std::mem::take(&mut occupants.state.lock().unwrap().woken);
            assert!(!woken.is_asked && woken.letting_go.is_empty() == period.is_none());
            period
        };
        assert!(asks(&[], 0).is_none() && HASTE > PATIENCE);
        assert_eq!([asks(&[1], 1), asks(&[1], 6)], [Some(FIRST_PERIOD), Some(LATER_PERIOD)]);
        assert_eq!([asks(&[1], 7), asks(&[1], 86_400)], [None, None]);
        assert_eq!(asks(&[1, 86_400], 86_401), Some(LATER_PERIOD), "another death");
    }

    #[test]
    fn a_death_has_its_own_gpu_asked_and_not_as_often_as_that_answers() {
        let (occupants, start) = (Occupants::new(3), Instant::now());
        let mut asked = [0; 3];
        // Somebody has died on the second GPU, and half a second later on the third; it is looked at each millisecond.
        for ms in 0..8000 {
            let deaths = [(1, start), (2, start + Duration::from_millis(500))];
            let now = start + Duration::from_millis(ms);
            occupants.ask_soon_after(deaths.into_iter().filter(|(_, died)| *died <= now), now);
            let woken = std::mem::take(&mut occupants.state.lock().unwrap().woken);
            assert!(!woken.is_asked, "all of them are nobody's concern");
            woken.letting_go.into_iter().for_each(|gpu| asked[gpu] += 1);
        }
        // 50 in the first second, and one each 80 ms in the five that follow.
        assert_eq!(asked[0], 0);
        assert!(asked[1..].iter().all(|count| (112..=113).contains(count)), "{asked:?}");
    }

    #[test]
    fn who_asks_is_heard_once() {
        let occupants = Occupants::new(1);
        let ask = || occupants.state.lock().unwrap().woken.is_asked = true;
        let died = Instant::now();
        ask();
        ask();
        for _ in 0..2 {
            occupants.ask_soon_after([(0, died), (7, died)].into_iter(), died);
        }
        occupants.note_opening(BTreeSet::from([TenantId(7)]));
        let later = Instant::now() + Duration::from_secs(60);
        let all = Woken { is_asked: true, letting_go: BTreeSet::from([0]), opened_by: BTreeSet::from([TenantId(7)]) };
        assert_eq!(occupants.wait(later), all);
        assert_eq!(occupants.wait(Instant::now()), Woken::LATE);
        ask();
        assert_eq!(occupants.wait(Instant::now()), Woken::LATE, "the deadline comes first");
    }
}
