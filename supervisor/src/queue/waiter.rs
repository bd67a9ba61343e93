//! One that waits for room.

use crate::clock::{self, ns};
use crate::lease::{SETTLE_NS, Since};
use crate::procfs::WatchedProcess;
use gpool_policy::preemption::Wait;
use gpool_policy::queue::Claim;
use gpool_protocol::{Deadline, GpuUuid, LeaseRequest, Request, WaitingView};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The first in the queue asks again after this.
const RETRY: Duration = Duration::from_millis(200);
/// Each further one after so much more, so that a long queue costs little.
const RETRY_PER_PLACE: Duration = Duration::from_millis(50);
/// The last one asks as often as this at least.
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// Behind the first one both grow with a queue of more than so many: it asks no oftener in all than one of so many does, as each asks with
/// the book held and looks at all before him.
const LONG_QUEUE: u32 = 100;
/// Nobody who waits pauses for longer than this, whatever he is told.
const RETRY_MOST: Duration = Duration::from_secs(5);
/// Who has not asked for three of those times and this is gone: who asks waits 4 s for an answer and then half a second.
const SILENCE: Duration = Duration::from_secs(8);
/// Between two looks at the moment of one that has a deadline.
const PLANNED_EVERY_NS: u64 = 1_000_000_000;
/// What has come to nothing for so long is given up: GPUs and their memory may be away for a moment.
const FAILS_NS: u64 = 5_000_000_000;
/// What is kept for one that does not ask to see it is kept for no longer between two looks than this.
const KEEP_STEP: Duration = Duration::from_secs(5);

/// When and where one begins that has to be through by a moment; CLOCK_MONOTONIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appointment {
    /// From when on nobody else is given what it needs there.
    pub begins_ns: u64,
    /// Until when.
    pub ends_ns: u64,
    pub gpus: Vec<GpuUuid>,
    /// Whether others of a lower priority have to make room for it until then.
    #[serde(default)]
    pub is_made: bool,
}

/// One that waits for room.
#[derive(Debug)]
pub struct Waiter {
    /// What it asks for.
    pub asked: LeaseRequest,
    /// Who starts it.
    pub uid: u32,
    /// Who makes the container.
    pub requester: WatchedProcess,
    /// What its place follows from.
    pub claim: Claim,
    /// Since when it waits, for people.
    pub since_unix_ms: u64,
    /// When this attempt at it began, CLOCK_MONOTONIC: the place may be an earlier one's.
    pub attempt_ns: u64,
    /// Why it has no room.
    pub cause: String,
    /// Whether that is a quota of its own: then it is in nobody's way.
    pub is_over_quota: bool,
    /// Whether it lacks the host's memory: then it is in nobody's way on a GPU.
    pub lacks_host_memory: bool,
    /// Since when it has lacked nothing but room on GPUs, CLOCK_MONOTONIC; none while it lacks something else, or waits for its moment.
    pub lacks_room_since_ns: Option<u64>,
    /// When it asked last, CLOCK_MONOTONIC.
    pub asked_ns: u64,
    /// When it was told to ask again.
    pub retry: Duration,
    /// The user who took it out of the queue, until it has been told so.
    pub cancelled_by: Option<u32>,
    /// The user who holds it back, if somebody does: it has its place again when it is released.
    pub held_by: Option<u32>,
    /// Whether somebody has put it before the others of its priority.
    pub is_first: bool,
    /// Whether it has a lease whose MPS daemon is started: if that does not, it waits on.
    pub is_seated: bool,
    /// Whether there was room when it asked last, and its lease could not be made: it tries again, in nobody's way.
    pub has_failed: bool,
    /// Where it goes, once there was room for it: what those behind it are given must not change that.
    pub planned: RefCell<Vec<GpuUuid>>,
    /// Where others make room for it by going, as long as they do.
    pub making_on: RefCell<Vec<GpuUuid>>,
    /// What is kept for it, once it was the first without room.
    pub kept_on: RefCell<Vec<GpuUuid>>,
    /// For how long in all, in nanoseconds, and when that was looked at last, CLOCK_MONOTONIC.
    pub kept_ns: Cell<u64>,
    pub kept_at_ns: Cell<Option<u64>>,
    /// When it can begin there at the latest, CLOCK_MONOTONIC, if anybody knows.
    pub begins_ns: Cell<Option<u64>>,
    /// The moment that was given to it, if it has a deadline, as long as that can be kept to.
    pub appointment: RefCell<Option<Appointment>>,
    /// Whether it has been told that it has none any more.
    pub has_lost: Cell<bool>,
    /// When it was looked at last for that, and since when that has come to nothing; CLOCK_MONOTONIC.
    planned_ns: Cell<Option<u64>>,
    fails_since_ns: Cell<Option<u64>>,
}

impl Waiter {
    /// One that has just asked.
    pub fn new(asked: &LeaseRequest, uid: u32, requester: WatchedProcess, claim: Claim) -> Self {
        Self {
            asked: asked.clone(),
            uid,
            requester,
            claim,
            since_unix_ms: clock::unix_ms(),
            attempt_ns: claim.since_ns,
            cause: String::new(),
            is_over_quota: false,
            lacks_host_memory: false,
            lacks_room_since_ns: None,
            asked_ns: claim.since_ns,
            retry: RETRY_LONGEST,
            cancelled_by: None,
            held_by: None,
            is_first: false,
            is_seated: false,
            has_failed: false,
            planned: RefCell::default(),
            making_on: RefCell::default(),
            kept_on: RefCell::default(),
            kept_ns: Cell::default(),
            kept_at_ns: Cell::default(),
            begins_ns: Cell::default(),
            appointment: RefCell::default(),
            has_lost: Cell::default(),
            planned_ns: Cell::default(),
            fails_since_ns: Cell::default(),
        }
    }

    /// Whether this is its request: of the same user, for the same container or for the next attempt at it in a pod.
    pub fn is_for(&self, asked: &LeaseRequest, uid: u32) -> bool {
        let is_next_attempt = asked.in_pod.is_some() && self.asked.in_pod == asked.in_pod;
        self.uid == uid && (self.asked.container_id == asked.container_id || is_next_attempt)
    }

    /// Whether it waits: not who was taken out and is to be told, nor who is about to have its lease.
    pub fn is_there(&self) -> bool {
        self.cancelled_by.is_none() && !self.is_seated
    }

    /// Whether it stands in the line: who is held back waits, and is not in it.
    pub fn is_in_line(&self) -> bool {
        self.is_there() && self.held_by.is_none()
    }

    /// Whether those behind it have the room on GPUs that it asks for.
    pub fn is_in_nobodys_way(&self) -> bool {
        self.is_over_quota || self.lacks_host_memory || self.has_failed || self.has_settled_plan()
    }

    /// Notes whether it lacks room on GPUs and nothing else, as it has just been told: not where it `lacks_other`
    /// things, as who is held back or whose lease could not be made. Whether that is new.
    pub fn note_lack(&mut self, lacks_other: bool, now_ns: u64) -> bool {
        let lacks_other = lacks_other || self.is_over_quota || self.lacks_host_memory;
        let lacks_room = !lacks_other && self.appointment.get_mut().is_none();
        let before = self.lacks_room_since_ns;
        self.lacks_room_since_ns = lacks_room.then(|| before.unwrap_or(now_ns));
        self.lacks_room_since_ns != before
    }

    /// Whether room on GPUs is kept or made for it.
    pub fn has_room_kept(&self) -> bool {
        !self.kept_on.borrow().is_empty() || !self.making_on.borrow().is_empty()
    }

    /// Where it goes if it can: where others make room for it, or where there was room for it.
    pub fn preferred(&self) -> Vec<GpuUuid> {
        if let Some(its) = self.appointment.borrow().as_ref().filter(|its| !its.is_made) {
            return its.gpus.clone();
        }
        let making_on = self.making_on.borrow();
        if making_on.is_empty() { self.planned.borrow().clone() } else { making_on.clone() }
    }

    /// How long it has waited, earlier attempts included.
    pub fn waited(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.claim.since_ns))
    }

    /// How long this attempt has waited.
    pub fn waited_in_this_attempt(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.attempt_ns))
    }

    /// Whether it has waited for as long as it wanted, in this attempt.
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.waited_in_this_attempt(now_ns) >= Duration::from_secs(self.asked.request.wait_seconds.unwrap_or(0))
    }

    /// How it stands for whoever might make room for it: what is left is of this attempt.
    pub fn wait_for_room(&self, now_ns: u64) -> Wait {
        let as_ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let longest = Duration::from_secs(self.asked.request.wait_seconds.unwrap_or(0));
        Wait {
            priority: self.claim.priority,
            waited_ns: as_ns(self.waited(now_ns)),
            left_ns: as_ns(longest.saturating_sub(self.waited_in_this_attempt(now_ns))),
        }
    }

    /// Whether nobody is there any more who would take the lease.
    pub fn is_gone(&self, now_ns: u64) -> bool {
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.asked_ns));
        silent >= self.retry * 3 + SILENCE || self.requester.has_ended()
    }

    /// Who asks for it now, which is another process and has another id with the next attempt in a pod. Whether that is new.
    pub fn note_asker(&mut self, asked: &LeaseRequest, requester: WatchedProcess) -> bool {
        let is_new = self.requester.name != requester.name || self.asked.container_id != asked.container_id;
        let request = self.asked.request.clone();
        (self.asked, self.requester) = (LeaseRequest { request, ..asked.clone() }, requester);
        is_new
    }

    /// It has asked again, and stands at `place` of `waiting`.
    pub fn note_asked(&mut self, cause: String, (place, waiting): (u32, u32), now_ns: u64) {
        let grown = |time: Duration| time.saturating_mul(waiting.max(LONG_QUEUE)) / LONG_QUEUE;
        let further = grown(RETRY_PER_PLACE).saturating_mul(place.saturating_sub(1));
        let longest = grown(RETRY_LONGEST).min(RETRY_MOST);
        (self.cause, self.asked_ns, self.retry) = (cause, now_ns, RETRY.saturating_add(further).min(longest));
    }

    /// Whether room may still be kept for it, for `keep` in all.
    pub fn may_keep(&self, keep: Duration) -> bool {
        Duration::from_nanos(self.kept_ns.get()) < keep
    }

    /// Room is kept for it there, in which it can begin then at the latest.
    pub fn keep_on(&self, gpus: Vec<GpuUuid>, begins_ns: Option<u64>, now_ns: u64) {
        *self.kept_on.borrow_mut() = gpus;
        self.begins_ns.set(begins_ns);
        if let Some(at_ns) = self.kept_at_ns.replace(Some(now_ns)) {
            let step_ns = now_ns.saturating_sub(at_ns).min(KEEP_STEP.as_nanos() as u64);
            self.kept_ns.set(self.kept_ns.get().saturating_add(step_ns));
        }
    }

    /// What is planned for it is as if it were kept, for as long as need be.
    pub fn note_kept(&self, its: &Appointment) {
        self.kept_on.borrow_mut().clone_from(&its.gpus);
        self.begins_ns.set(Some(its.begins_ns));
        self.kept_at_ns.set(None);
    }

    /// Since when it waits.
    pub fn since(&self) -> Since {
        Since { first_ns: self.claim.since_ns, attempt_ns: self.attempt_ns }
    }

    /// Whether its moment is to be looked at, which is said once each time: once in a while, and always when that has come.
    pub fn is_to_be_planned(&self, now_ns: u64) -> bool {
        let is_fresh = self.planned_ns.get().is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < PLANNED_EVERY_NS);
        let is_to_be = !is_fresh || self.is_due(now_ns);
        if is_to_be {
            self.planned_ns.set(Some(now_ns));
        }
        is_to_be
    }

    /// Whether it keeps its moment, which `is_good` as it seems now, or has not been for a short time only.
    pub fn keeps_its_moment(&self, is_good: bool, now_ns: u64) -> bool {
        if is_good {
            self.fails_since_ns.set(None);
            return true;
        }
        let since_ns = self.fails_since_ns.get().unwrap_or(now_ns);
        self.fails_since_ns.set(Some(since_ns));
        now_ns.saturating_sub(since_ns) < FAILS_NS
    }

    /// Whether it is to begin elsewhere or at another moment than was written down, for more than a second; or has no moment any more.
    pub fn has_moved(&self, before: Option<&Appointment>) -> bool {
        let now = self.appointment.borrow();
        match (now.as_ref(), before) {
            (Some(now), Some(before)) => {
                now.gpus != before.gpus || now.begins_ns.abs_diff(before.begins_ns) > 1_000_000_000
            }
            (now, before) => now.is_some() != before.is_some(),
        }
    }

    /// When it begins for whom others have to make room, if that is so soon that they have to be told.
    pub fn made_within(&self, lead_ns: u64, now_ns: u64) -> Option<u64> {
        let appointment = self.appointment.borrow();
        let made = appointment.as_ref().filter(|its| its.is_made).map(|its| its.begins_ns);
        made.filter(|at_ns| *at_ns <= now_ns.saturating_add(lead_ns))
    }

    /// Whether it begins in time without anybody's going for it.
    pub fn has_settled_plan(&self) -> bool {
        self.appointment.borrow().as_ref().is_some_and(|its| !its.is_made)
    }

    /// Whether its moment has come, or is about to: from then on it begins as soon as what it needs is free.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let appointment = self.appointment.borrow();
        appointment.as_ref().is_some_and(|its| its.begins_ns <= now_ns.saturating_add(SETTLE_NS))
    }

    /// Nothing is kept for it now.
    pub fn keep_nothing(&self) {
        self.kept_on.borrow_mut().clear();
        self.kept_at_ns.set(None);
        self.begins_ns.set(None);
    }

    /// Whether it is the same request, asked again: but for what is left of its time.
    pub fn asks_the_same(&self, asked: &LeaseRequest) -> bool {
        asks_the_same(&self.asked, asked)
    }

    /// Whether this comes long before it was told to ask again.
    pub fn is_early(&self, now_ns: u64) -> bool {
        Duration::from_nanos(now_ns.saturating_sub(self.asked_ns)) < self.retry / 2
    }

    /// Who takes turns with the others for it.
    pub fn owner(&self) -> String {
        owner_of(&self.asked, self.uid)
    }

    /// As the socket shows it.
    pub fn view(&self, place: u32) -> WaitingView {
        let appointment = self.appointment.borrow();
        let planned = appointment.as_ref().filter(|its| !its.is_made);
        WaitingView {
            container_id: self.asked.container_id.clone(),
            pod: self.asked.pod.clone(),
            place,
            request: self.asked.request.clone(),
            owner_uid: self.uid,
            since_unix_ms: self.since_unix_ms,
            waited_ms: self.waited(clock::now_ns()).as_millis() as u64,
            cause: self.cause.clone(),
            kept_on: match (planned, self.making_on.borrow().as_slice()) {
                (Some(its), _) => its.gpus.clone(),
                (None, []) => self.kept_on.borrow().clone(),
                (None, making_on) => making_on.to_vec(),
            },
            begins_unix_ms: appointment
                .as_ref()
                .map(|its| its.begins_ns)
                .or(self.begins_ns.get())
                .map(clock::unix_ms_at),
            deadline_unix_ms: self.asked.request.deadline.map(|deadline| match deadline {
                Deadline::Within(seconds) => clock::unix_ms_at(self.claim.since_ns.saturating_add(ns(seconds))),
                Deadline::At(unix_s) => unix_s.saturating_mul(1000),
            }),
            // Who was let in without a moment has lost it.
            is_at_risk: self.asked.request.deadline.is_some() && appointment.is_none(),
            owner_had_gpu_seconds: None,
            held_by: self.held_by,
            is_first: self.is_first,
        }
    }
}

/// Whether both ask for the same, but for how long they wait.
pub fn asks_the_same(one: &LeaseRequest, other: &LeaseRequest) -> bool {
    let wait_seconds = other.request.wait_seconds;
    Request { wait_seconds, ..one.request.clone() } == other.request
}

/// Who takes turns: the team, or who starts it.
pub fn owner_of(asked: &LeaseRequest, uid: u32) -> String {
    owner_of_team(asked.request.team.as_deref(), uid)
}

/// The same of what names this team, or none.
pub fn owner_of_team(team: Option<&str>, uid: u32) -> String {
    team.map_or_else(|| format!("user {uid}"), |team| format!("team {team}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::slice::Priority;
    use gpool_protocol::HostPid;

    const SECOND: u64 = 1_000_000_000;

    fn waiter() -> Waiter {
        let text = r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#;
        let asked: LeaseRequest = serde_json::from_str(text).unwrap();
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let claim = Claim { priority: Priority::Guaranteed, is_ordinary: true, round: 0, since_ns: 10 * SECOND };
        Waiter::new(&asked, 0, this, claim)
    }

    #[test]
    fn who_is_silent_is_gone_and_a_long_queue_asks_less_often() {
        let mut waiter = waiter();
        let mut told = |place| {
            waiter.note_asked("no room".into(), place, 20 * SECOND);
            waiter.retry
        };
        assert_eq!([told((1, 1000)), told((11, 11)), told((11, 200))].map(|its| its.as_millis()), [200, 700, 1200]);
        assert_eq!([told((200, 200)), told((u32::MAX, 1000))], [2 * RETRY_LONGEST, RETRY_MOST]);
        let mut asks_each_second =
            |waiting: u32| (1..=waiting).map(|place| 1.0 / told((place, waiting)).as_secs_f64()).sum::<f64>();
        let (of_many, of_some) = (asks_each_second(200), asks_each_second(100));
        assert!(of_many < of_some, "{of_many} and {of_some}");
        waiter.note_asked("no room".into(), (1, 1), 20 * SECOND);
        assert!(!waiter.is_gone(28 * SECOND) && waiter.is_gone(29 * SECOND));
        waiter.note_asked("no room".into(), (1000, 50), 20 * SECOND);
        assert_eq!(waiter.retry, RETRY_LONGEST);
        assert!(!waiter.is_gone(33 * SECOND) && waiter.is_gone(34 * SECOND));
        assert!(!waiter.is_over(69 * SECOND) && waiter.is_over(70 * SECOND));
    }

    #[test]
    fn who_lacked_something_else_lacks_room_from_then_on_alone() {
        let mut waiter = waiter();
        assert!(waiter.note_lack(false, 20 * SECOND) && !waiter.note_lack(false, 21 * SECOND));
        assert_eq!(waiter.lacks_room_since_ns, Some(20 * SECOND));
        waiter.is_over_quota = true;
        assert!(waiter.note_lack(false, 22 * SECOND) && waiter.lacks_room_since_ns.is_none());
        waiter.is_over_quota = false;
        assert!(waiter.note_lack(false, 30 * SECOND));
        assert_eq!(waiter.lacks_room_since_ns, Some(30 * SECOND));
        assert!(waiter.note_lack(true, 31 * SECOND) && waiter.lacks_room_since_ns.is_none(), "it has room");
    }

    #[test]
    fn room_is_kept_for_so_long_in_all_and_no_longer() {
        let waiter = waiter();
        let keep = Duration::from_secs(5);
        let keep_at = |seconds: u64| waiter.keep_on(vec![GpuUuid("GPU-1".into())], None, seconds * SECOND);
        assert!(waiter.may_keep(keep) && !waiter.may_keep(Duration::ZERO));
        [20, 22, 23].into_iter().for_each(keep_at);
        assert!(waiter.may_keep(keep));
        // Another one is before it for an hour, for whom room is kept meanwhile.
        waiter.keep_nothing();
        [3600, 3601].into_iter().for_each(keep_at);
        assert!(waiter.may_keep(keep), "of five seconds four are over");
        keep_at(3602);
        assert!(!waiter.may_keep(keep));
    }

    #[test]
    fn what_is_left_of_the_time_makes_no_other_request() {
        let waiter = waiter();
        let mut asked = waiter.asked.clone();
        asked.request.wait_seconds = Some(5);
        assert!(waiter.asks_the_same(&asked));
        asked.request.fraction_permille = 400;
        assert!(!waiter.asks_the_same(&asked));
    }

    #[test]
    fn a_process_that_has_ended_waits_for_nothing() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let requester = WatchedProcess::open(HostPid(child.id())).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(Waiter { requester, ..waiter() }.is_gone(10 * SECOND));
    }
}
