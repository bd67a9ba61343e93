//! What happened, for people and audits: the newest events in memory, and followers that wait for more.

use crate::audit::{Floods, Who};
use crate::clock;
use crate::log::{self, Priority};
use gpool_protocol::{ContainerId, Event, EventKind, EventPriority, GpuCharge, LeaseId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events kept.
const KEPT: usize = 10_000;

/// Of all users who administer nothing together no more are kept than this where others would go for them: whoever may ask again and again
/// does not drive out what an audit looks for.
const KEPT_OF_USERS: usize = KEPT / 2;

/// Events handed out at once, so that a reader who is slow keeps few of those that have fallen off.
pub const CHUNK: usize = 256;
/// No message is longer. What tenants name is bounded where it comes in; this bounds what is kept, whatever it is.
const MESSAGE_BYTES: usize = 8 << 10;

/// What an event is about.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The lease, if any.
    pub lease_id: Option<LeaseId>,
    /// The container, if any.
    pub container_id: Option<ContainerId>,
    /// Who asked for it, if anybody.
    pub uid: Option<u32>,
    /// Whose lease it is about: who brings it about where nobody asked. The event does not say it.
    pub owner_uid: Option<u32>,
    /// What a lease that has ended had.
    pub charged: Vec<GpuCharge>,
}

impl About {
    /// Who may bring it about again and again: who asked for it, else whose lease it is about, and where that is one who `administers`
    /// the lease itself, if it is `of_programs`; none for what the host and root do.
    fn who(&self, of_programs: bool, administers: impl Fn(u32) -> bool) -> Option<Who> {
        let user = self.uid.or(self.owner_uid).filter(|uid| !administers(*uid)).map(Who::User);
        let lease = || self.lease_id.clone().filter(|_| of_programs && self.uid.is_none()).map(Who::Lease);
        user.or_else(lease)
    }
}

/// Whether it is a lease's programs that bring such events about.
fn is_of_programs(kind: EventKind) -> bool {
    use EventKind::{
        AllocationRefused, AllocationSpilled, Breach, Bypass, Hung, Latency, MpsServerFault, OverCap, PlacesFull,
        ProgramFault, TimeSlicesChanged, UnderReported, Undercharged, UnknownVersion,
    };
    matches!(
        kind,
        AllocationRefused
            | AllocationSpilled
            | UnknownVersion
            | PlacesFull
            | Breach
            | UnderReported
            | Undercharged
            | Hung
            | Bypass
            | OverCap
            | ProgramFault
            | MpsServerFault
            | TimeSlicesChanged
            | Latency
    )
}

#[derive(Default)]
struct Kept {
    next: u64,
    counts: BTreeMap<EventKind, u64>,
    /// With each, whether it is of a user who administers nothing, or of a lease's programs.
    events: VecDeque<(Arc<Event>, bool)>,
    /// How many of those are.
    of_users: usize,
    /// Users without root who asked for something as administrators last.
    administrators: BTreeSet<u32>,
    /// Whether the audit takes them.
    is_written: bool,
    /// Those that it has not taken yet.
    unwritten: VecDeque<Arc<Event>>,
    /// How many it will never take: there was no room for them.
    lost: u64,
    /// Those that it takes, those that had no room among them.
    offered: u64,
    /// Which of users' events it takes.
    floods: Floods,
    /// What it is to say of those that it does not.
    remarks: Vec<String>,
}

/// What the audit takes at once.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// Events in their order.
    pub events: Vec<Arc<Event>>,
    /// How many had no room behind those.
    pub lost: u64,
    /// What is to be said of others that are left out.
    pub remarks: Vec<String>,
}

impl Kept {
    /// Takes it in, as one that `who` may bring about again and again.
    fn push(&mut self, event: Event, who: Option<Who>) {
        let is_a_users = who.is_some();
        self.of_users += usize::from(is_a_users);
        let event = Arc::new(event);
        if self.is_written {
            let is_warning = event.gravity() == EventPriority::Warning;
            let (is_taken, remark) = self.floods.lets_through(who, is_warning, clock::now_ns());
            self.remarks.extend(remark);
            self.offered += u64::from(is_taken);
            match self.unwritten.len() < Events::UNWRITTEN {
                _ if !is_taken => {}
                true => self.unwritten.push_back(event.clone()),
                false => self.lost += 1,
            }
        }
        self.events.push_back((event, is_a_users));
        if self.events.len() <= KEPT {
            return;
        }
        let is_too_many = is_a_users && self.of_users > KEPT_OF_USERS;
        let oldest = is_too_many.then(|| self.events.iter().position(|(_, is_a_users)| *is_a_users)).flatten();
        if let Some((_, was_a_users)) = self.events.remove(oldest.unwrap_or(0)) {
            self.of_users -= usize::from(was_a_users);
        }
    }
}

/// The event log of one life of the supervisor.
#[derive(Default)]
pub struct Events {
    kept: Mutex<Kept>,
    more: Condvar,
}

impl Events {
    /// So many wait for the audit here, and as many again in it when the disk is full.
    pub const UNWRITTEN: usize = 10_000;

    /// Those that the audit takes, too.
    pub fn for_the_audit() -> Self {
        let events = Self::default();
        events.lock().is_written = true;
        events
    }

    /// What the audit has not taken yet: waits up to `patience` if there is nothing.
    pub fn unwritten(&self, patience: Duration) -> Unwritten {
        let kept = self.lock();
        let has_none = |kept: &mut Kept| kept.unwritten.is_empty() && kept.lost == 0;
        let waited = self.more.wait_timeout_while(kept, patience, has_none);
        let (mut kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let remark = kept.floods.turn(clock::now_ns());
        kept.remarks.extend(remark);
        Unwritten {
            events: kept.unwritten.drain(..).collect(),
            lost: std::mem::take(&mut kept.lost),
            remarks: std::mem::take(&mut kept.remarks),
        }
    }

    /// How many events the audit takes, those included that had no room.
    pub fn offered(&self) -> u64 {
        self.lock().offered
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether a user may change everything. What administrators do is written down and kept as root's is.
    pub fn note_standing(&self, uid: u32, administers: bool) {
        let administrators = &mut self.lock().administrators;
        match administers && uid != 0 {
            true => administrators.insert(uid),
            false => administrators.remove(&uid),
        };
    }

    /// Writes an event down, on stderr too, where the journal takes it.
    pub fn note(&self, kind: EventKind, about: About, message: String) {
        self.say((kind, kind.priority()), about, message);
    }

    /// The same of something that was to be done and could not be, or of something that was lost: a warning, whatever its kind.
    pub fn note_failure(&self, kind: EventKind, about: About, message: String) {
        self.say((kind, EventPriority::Warning), about, message);
    }

    fn say(&self, (kind, priority): (EventKind, EventPriority), about: About, message: String) {
        let message = in_one_line(message);
        let of_the_line = match priority {
            EventPriority::Warning => Priority::Warning,
            EventPriority::Information => Priority::Information,
        };
        log::line(of_the_line, format_args!("{message}"));
        self.keep((kind, priority), about, message);
    }

    fn keep(&self, (kind, priority): (EventKind, EventPriority), about: About, message: String) {
        let mut kept = self.lock();
        let who = about.who(is_of_programs(kind), |uid| uid == 0 || kept.administrators.contains(&uid));
        kept.next += 1;
        *kept.counts.entry(kind).or_default() += 1;
        let event = Event {
            sequence: kept.next,
            unix_ms: clock::unix_ms(),
            started_unix_ms: None,
            kind,
            priority: Some(priority),
            lease_id: about.lease_id,
            container_id: about.container_id,
            uid: about.uid,
            charged: about.charged,
            message,
        };
        kept.push(event, who);
        self.more.notify_all();
    }

    /// How many there were of each kind that came up, those included that are no longer kept.
    pub fn counts(&self) -> Vec<(EventKind, u64)> {
        self.lock().counts.iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// The first [`CHUNK`] events after number `after`; waits up to `patience` for one if there is none yet.
    pub fn after(&self, after: u64, patience: Option<Duration>) -> Vec<Arc<Event>> {
        let newer = |kept: &Kept| {
            // Whoever has a later number has it from the supervisor before this one.
            let after = if after > kept.next { 0 } else { after };
            let first = kept.events.partition_point(|(event, _)| event.sequence <= after);
            kept.events.iter().skip(first).take(CHUNK).map(|(event, _)| event.clone()).collect::<Vec<_>>()
        };
        let kept = self.lock();
        let found = newer(&kept);
        let Some(patience) = patience.filter(|_| found.is_empty()) else { return found };
        let (kept, _) = self.more.wait_timeout(kept, patience).unwrap_or_else(PoisonError::into_inner);
        newer(&kept)
    }
}

/// A message that is one line of the log and no longer than may be.
fn in_one_line(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        let end = (0..=MESSAGE_BYTES).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or(0));
    }
    if message.contains(char::is_control) {
        message = message.replace(char::is_control, " ");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(kind: EventKind) -> (EventKind, EventPriority) {
        (kind, kind.priority())
    }

    #[test]
    fn followers_get_what_is_new_and_old_events_fall_off() {
        let events = Events::default();
        for number in 0..KEPT + 5 {
            events.keep(usual(EventKind::LeaseGranted), About::default(), format!("number {number}"));
        }
        let (mut after, mut all) = (0, 0);
        loop {
            let some = events.after(after, None);
            assert_eq!(some[0].sequence, if all == 0 { 6 } else { after + 1 });
            (after, all) = (some[some.len() - 1].sequence, all + some.len());
            if some.len() < CHUNK {
                break;
            }
        }
        assert_eq!((after, all), (KEPT as u64 + 5, KEPT));
        assert_eq!(events.counts(), [(EventKind::LeaseGranted, KEPT as u64 + 5)]);
        assert_eq!(events.after(after - 1, None).len(), 1);
        assert!(events.after(after, Some(Duration::from_millis(1))).is_empty());
    }

    #[test]
    fn the_audit_takes_each_once_and_knows_how_many_had_no_room() {
        let events = Events::for_the_audit();
        let note = |number: usize| events.keep(usual(EventKind::LeaseGranted), About::default(), number.to_string());
        (0..Events::UNWRITTEN + 3).for_each(note);
        let all = events.unwritten(Duration::ZERO);
        assert_eq!(
            (all.events.len(), all.lost, events.offered()),
            (Events::UNWRITTEN, 3, Events::UNWRITTEN as u64 + 3)
        );
        assert_eq!((all.events[0].sequence, all.events[1].sequence), (1, 2));
        note(7);
        assert_eq!(events.unwritten(Duration::ZERO).events.len(), 1);
        assert!(events.unwritten(Duration::from_millis(1)).events.is_empty());
        let none = Events::default();
        none.keep(usual(EventKind::LeaseGranted), About::default(), String::new());
        assert!(none.unwritten(Duration::ZERO).events.is_empty(), "without an audit nothing is kept for it");
    }

    #[test]
    fn users_who_ask_again_and_again_drive_out_no_more_than_half() {
        let events = Events::default();
        let by = |uid: u32| About { uid: Some(uid), ..About::default() };
        (0..KEPT).for_each(|_| events.keep(usual(EventKind::LeaseGranted), by(0), "root's".to_owned()));
        (0..3 * KEPT as u32)
            .for_each(|n| events.keep(usual(EventKind::LeaseRefused), by(1000 + n % 2), "refused".to_owned()));
        let kept = events.lock();
        let of = |uid: u32| kept.events.iter().filter(|(event, _)| event.uid == Some(uid)).count();
        assert_eq!((of(0), of(1000) + of(1001), kept.of_users), (KEPT / 2, KEPT / 2, KEPT / 2));
        assert!(kept.events.iter().zip(kept.events.iter().skip(1)).all(|(one, next)| one.0.sequence < next.0.sequence));
        assert_eq!(kept.events.back().unwrap().0.sequence, 4 * KEPT as u64);
    }

    #[test]
    fn what_becomes_of_a_users_lease_again_and_again_is_bounded_as_what_he_asks_for() {
        let events = Events::for_the_audit();
        let of = |owner_uid: u32| About { owner_uid: Some(owner_uid), ..About::default() };
        let taken = |kind: EventKind, about: About| {
            let before = events.offered();
            (0..3000).for_each(|_| events.keep(usual(kind), about.clone(), "x".to_owned()));
            events.offered() - before
        };
        assert_eq!(taken(EventKind::LeaseEnded, of(1000)), 1000);
        assert_eq!(taken(EventKind::LeaseBound, of(1000)), 0, "whatever kind they are of");
        assert_eq!(taken(EventKind::Breach, of(1000)), 1000, "what is to be found in the morning has room of its own");
        assert_eq!(taken(EventKind::LeaseEnded, of(0)), 3000, "root's are not bounded");
        assert_eq!(events.lock().of_users, 3 * 3000 - 2000, "nor do they drive out what root does");
        assert!(events.lock().events.iter().all(|(event, _)| event.uid.is_none()), "an event does not say it");
    }

    /// As docker's and a kubelet's are, which root starts for somebody.
    #[test]
    fn what_programs_of_roots_leases_do_again_and_again_is_bounded_for_each_lease() {
        let events = Events::for_the_audit();
        let of = |lease: &str, uid: Option<u32>| {
            let lease_id = Some(LeaseId(lease.to_owned()));
            About { lease_id, uid, owner_uid: Some(0), ..About::default() }
        };
        let taken = |kind: EventKind, about: About| {
            let before = events.offered();
            (0..3000).for_each(|_| events.keep(usual(kind), about.clone(), "x".to_owned()));
            events.offered() - before
        };
        assert_eq!([taken(EventKind::Bypass, of("01", None)), taken(EventKind::OverCap, of("01", None))], [1000, 0]);
        assert_eq!(taken(EventKind::Bypass, of("02", None)), 1000, "another's");
        assert_eq!(events.lock().of_users, 9000, "nor do they drive out what root does");
        assert_eq!(taken(EventKind::LeaseRevoked, of("01", None)), 3000, "what the host does");
        assert_eq!(taken(EventKind::Latency, of("01", Some(0))), 3000, "what root has asked for");
    }

    #[test]
    fn a_failure_is_a_warning_whatever_its_kind_and_has_the_warnings_room() {
        let events = Events::for_the_audit();
        let of = |owner_uid: u32| About { owner_uid: Some(owner_uid), ..About::default() };
        (0..2000).for_each(|_| events.keep(usual(EventKind::LeaseIdle), of(1000), "idle".to_owned()));
        let before = events.offered();
        events.note_failure(EventKind::LeaseRunTime, of(1000), "its GPUs cannot be taken from it".to_owned());
        assert_eq!(events.offered(), before + 1, "the floods of its owner do not drive it out");
        let kept = events.after(0, None);
        assert_eq!(
            (kept[0].priority, kept[0].gravity()),
            (Some(EventPriority::Information), EventPriority::Information)
        );
        let last = events.lock().events.back().unwrap().0.clone();
        assert_eq!((last.kind, last.gravity()), (EventKind::LeaseRunTime, EventPriority::Warning));
    }

    #[test]
    fn what_administrators_without_root_do_is_not_bounded() {
        let events = Events::for_the_audit();
        let taken = || {
            let before = events.offered();
            let by = About { uid: Some(1000), ..About::default() };
            (0..3000).for_each(|_| events.keep(usual(EventKind::Override), by.clone(), "x".to_owned()));
            events.offered() - before
        };
        events.note_standing(1000, true);
        assert_eq!((taken(), events.lock().of_users), (3000, 0));
        events.note_standing(1000, false);
        assert_eq!((taken(), events.lock().of_users), (1000, 3000));
    }

    #[test]
    fn what_strangers_name_forges_no_line_and_is_bounded() {
        assert_eq!(in_one_line("a\ngpool-supervisor: b\u{1b}".to_owned()), "a gpool-supervisor: b ");
        let long = in_one_line("\u{e9}".repeat(MESSAGE_BYTES));
        assert!(long.len() <= MESSAGE_BYTES && long.starts_with('\u{e9}'));
    }

    #[test]
    fn a_slow_reader_shares_the_events_that_are_kept() {
        let events = Events::default();
        (0..3 * CHUNK).for_each(|_| events.keep(usual(EventKind::Breach), About::default(), "x".to_owned()));
        let (one, other) = (events.after(0, None), events.after(0, None));
        assert_eq!(one.len(), CHUNK);
        assert!(Arc::ptr_eq(&one[0], &other[0]));
    }
}
