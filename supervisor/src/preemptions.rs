//! Leases of a lower priority that make room for a request of a higher one that waits, or for a reservation: they are told, their
//! programs are sent a signal, and after the grace their GPUs are taken from them, as by `gpool evict`. `policy` says who, and when.

use crate::cgroup;
use crate::clock::{self, ns};
use crate::gatekeeper::Order;
use crate::lease::{Book, ForWhom, Lease, Leases, MakingRoom, Record, Taking, about, slice_priority};
use crate::revocation;
use crate::suspension;
use gpool_configuration::{Configuration, NoticeSignal, Preemption, PreemptionAction};
use gpool_policy::preemption::{Candidate, Need, Notice, Rule, Step, Turn};
use gpool_protocol::{EventKind, LeaseId, LeaseState, Priority, format_permille, format_seconds};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After a look that helped nobody who waits, the next one has time.
const REST: Duration = Duration::from_secs(5);

/// For whom a lease has to make room, and what it was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MakesRoom {
    /// What it was told.
    pub notice: Notice,
    /// For whom.
    pub for_whom: Option<ForWhom>,
    /// How it is served meanwhile.
    pub turn: Option<Turn>,
}

/// That a lease was told to make room, as written down: the next supervisor neither tells it again nor gives it another grace, and who
/// waits for the room goes on being the one for whom it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldToGo {
    /// Until when it may stay, CLOCK_MONOTONIC of the record's boot.
    pub until_ns: u64,
    /// For whom it goes.
    pub for_whom: Option<ForWhom>,
}

impl MakesRoom {
    /// What a lease was told by the supervisor that has written this record. Of one whose GPUs were taken since, or that was suspended,
    /// that is over.
    pub fn of(record: &Record) -> Self {
        let runs = record.revocation.is_none() && record.suspension.is_none();
        record.told_to_go.clone().filter(|_| runs).map_or_else(Self::default, |told| Self {
            notice: Notice::told_until(told.until_ns),
            for_whom: told.for_whom,
            turn: None,
        })
    }

    /// What of it the next supervisor has to know.
    pub fn told_to_go(&self) -> Option<ToldToGo> {
        let until_ns = self.notice.until_ns()?;
        Some(ToldToGo { until_ns, for_whom: self.for_whom.clone() })
    }
}

/// Looks again and again.
#[derive(Debug, Default)]
pub struct Preemptions {
    /// Before this nobody is looked for who would make room.
    rests_until: Option<Instant>,
}

/// Leases whose time is over, all that go for one.
struct Due {
    leases: Vec<LeaseId>,
    for_whom: ForWhom,
}

impl Preemptions {
    /// Looks at all leases; to be called once a second or so, after idle ones have made room.
    pub fn look(&mut self, leases: &Leases) {
        let rules = leases.configuration().preemption.clone();
        let (told, due) = self.note_all(leases, &rules);
        told.iter().for_each(|id| tell(leases, id, &rules));
        due.iter().for_each(|due| take(leases, due));
    }

    /// Tells those that may stay, and says who is to be told to go and whose time is over.
    fn note_all(&mut self, leases: &Leases, rules: &Preemption) -> (Vec<LeaseId>, Vec<Due>) {
        let now_ns = clock::now_ns();
        let (rule, is_on) = (rule(rules), leases.preempts());
        let mut book = leases.book();
        let is_anybody_told = book.leases.values().any(|lease| lease.leaves_ns().is_some());
        let is_resting = self.rests_until.is_some_and(|until| Instant::now() < until);
        if !is_on {
            book.queue.in_order().iter().for_each(|waiter| waiter.making_on.borrow_mut().clear());
            book.making_on.borrow_mut().clear();
        }
        // For whom anybody would go.
        let is_nobody_there = || book.queue.len() == 0 && !leases.reserves(&book);
        if !is_anybody_told && is_nobody_there() {
            book.making_on.borrow_mut().clear();
        }
        if !is_anybody_told && (!is_on || is_resting || is_nobody_there()) {
            return (Vec::new(), Vec::new());
        }
        let candidates = candidates(book.leases.values());
        let making = match is_on {
            true => leases.making_room(&book, &candidates, (rule, now_ns)),
            false => Vec::new(),
        };
        self.rests_until = making.is_empty().then(|| Instant::now() + REST);
        let turns = leases.turns(&book, &making);
        let for_whom: BTreeMap<&LeaseId, &MakingRoom> =
            making.iter().flat_map(|its| its.leases.iter().map(move |id| (id, its))).collect();
        let (mut told, mut over) = (Vec::new(), BTreeSet::<&LeaseId>::new());
        for (id, _) in &candidates {
            let Some(lease) = book.leases.get_mut(id) else { continue };
            let its = for_whom.get(id);
            let step = lease.makes_room.notice.step(its.map_or(Need::No, |its| its.need), now_ns, rule);
            match its {
                Some(its) => lease.makes_room.for_whom = Some(its.for_whom.clone()),
                None if lease.leaves_ns().is_none() => lease.makes_room.for_whom = None,
                None => {}
            }
            // Before anybody is sent a signal: of two the second may end a program that writes its state down because of the first.
            write_down(leases, lease);
            serve(leases, lease, turns.get(id).copied());
            match step {
                Step::Rest => {}
                Step::Tell => told.push(id.clone()),
                Step::Withdraw => withdraw(leases, lease),
                Step::Take => drop(over.insert(id)),
            }
        }
        // Nobody goes for one that could not begin yet.
        let are_all_over = |its: &&MakingRoom| !its.leases.is_empty() && its.leases.iter().all(|id| over.contains(id));
        let due = making.iter().filter(are_all_over);
        let due = due.map(|its| Due { leases: its.leases.clone(), for_whom: its.for_whom.clone() }).collect();
        (told, due)
    }
}

/// Has its record say what it was told, for the next supervisor.
fn write_down(leases: &Leases, lease: &mut Lease) {
    let told = lease.makes_room.told_to_go();
    if lease.record.told_to_go == told {
        return;
    }
    lease.record.told_to_go = told;
    if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
        log!("{error}; the next supervisor may tell it anew to make room");
    }
}

/// Has the scheduler serve it so from now on, if it leaves.
fn serve(leases: &Leases, lease: &mut Lease, turn: Option<Turn>) {
    let turn = turn.filter(|_| lease.leaves_ns().is_some());
    if std::mem::replace(&mut lease.makes_room.turn, turn) != turn {
        let (tenant, share) = (lease.tenant, lease.share(&leases.configuration()));
        leases.gatekeeper.order(Order::Change { tenant, share });
    }
}

/// What a lease was told is over, as its record says or is about to.
pub fn forget(leases: &Leases, lease: &mut Lease) {
    serve(leases, lease, None);
    lease.makes_room = MakesRoom::default();
}

/// Tells a lease that it has to go. Whoever uses its GPUs is sent the signal, also where there are no shims to register with.
fn tell(leases: &Leases, id: &LeaseId, rules: &Preemption) {
    let sent = signal_of(rules.signal).map_or(0, |signal| revocation::signal_users(leases, id, signal));
    let book = leases.book();
    // Its container may have ended meanwhile.
    let Some(lease) = book.leases.get(id) else { return };
    leases.counters.note_preemption("told");
    leases.events.note(
        EventKind::LeasePreempted,
        about(&lease.record, None),
        told(lease, &leases.configuration(), sent),
    );
}

/// Tells it that it may stay.
fn withdraw(leases: &Leases, lease: &mut Lease) {
    lease.makes_room.for_whom = None;
    leases.counters.note_preemption("withdrawn");
    let short = lease.record.container_id.short();
    let message = format!("{short} keeps its GPUs: its room is not needed for anybody of a higher priority any more");
    leases.events.note(EventKind::LeasePreempted, about(&lease.record, None), message);
}

impl Leases {
    /// Whether lower priorities make room here: not where their GPUs can be taken from nobody, as far as is known, nor where nobody can be
    /// started on them.
    pub fn preempts(&self) -> bool {
        let is_possible = preempts(&self.configuration().preemption, self.may_not_take.load(Ordering::Relaxed));
        is_possible && self.replaced_driver().is_none()
    }
}

/// What is suspended loses nothing that the kernel would have to deny it.
fn preempts(rules: &Preemption, may_not_take: bool) -> bool {
    rules.enabled && (rules.action == PreemptionAction::Suspend || !may_not_take)
}

pub fn rule(rules: &Preemption) -> Rule {
    Rule {
        after_ns: ns(rules.after_seconds),
        grace_ns: ns(rules.grace_seconds),
        least_run_ns: ns(rules.least_run_seconds),
    }
}

/// Those that may have to go, the first first. From one without a cgroup of its own nothing can be taken; one that is frozen would
/// hear of it when it is over.
pub fn candidates<'a>(leases: impl Iterator<Item = &'a Lease>) -> Vec<(LeaseId, Candidate)> {
    let now_ns = clock::now_ns();
    let of = |lease: &Lease| Candidate {
        priority: slice_priority(lease.record.priority),
        ran_ns: lease.record.age_ns(now_ns),
        came_back: lease.back_until.is_some(),
        notice: lease.makes_room.notice,
    };
    let may = |lease: &&Lease| {
        let runs = lease.state == LeaseState::Active && lease.record.revocation.is_none();
        let runs = runs && lease.record.suspension.is_none();
        let is_lower = || lease.record.priority != Priority::Guaranteed;
        let can = || lease.record.cgroup.as_deref().is_some_and(|cgroup| !cgroup::is_frozen(cgroup));
        runs && (lease.leaves_ns().is_some() || is_lower() && can())
    };
    let mut all: Vec<(LeaseId, Candidate)> =
        leases.filter(may).map(|lease| (lease.record.lease_id.clone(), of(lease))).collect();
    all.sort_by_key(|(id, its)| (its.order(), id.clone()));
    all
}

/// The signal that the configuration names; none if none is to be sent.
pub fn signal_of(which: NoticeSignal) -> Option<Signal> {
    Some(match which {
        NoticeSignal::Term => Signal::TERM,
        NoticeSignal::Int => Signal::INT,
        NoticeSignal::Usr1 => Signal::USR1,
        NoticeSignal::Usr2 => Signal::USR2,
        NoticeSignal::None => return None,
    })
}

/// What is said of a signal that so many programs on the GPUs were sent: the end of a sentence.
pub fn sent_text(which: NoticeSignal, programs: usize) -> String {
    match (which, programs) {
        (NoticeSignal::None, _) | (_, 0) => String::new(),
        (signal, 1) => format!("; its program there was sent {}", signal.text()),
        (signal, programs) => format!("; its {programs} programs there were sent {}", signal.text()),
    }
}

/// Who makes room for whom, when, and what was sent.
fn told(lease: &Lease, configuration: &Configuration, sent: usize) -> String {
    let (record, rules) = (&lease.record, &configuration.preemption);
    let (short, priority, grace) = (record.container_id.short(), record.priority, format_seconds(rules.grace_seconds));
    let (who, if_still) = match &lease.makes_room.for_whom {
        Some(ForWhom::Reservation(name)) => (format!("reservation {name}, which"), "that still needs it"),
        Some(ForWhom::Waits(container)) => (format!("{}, which waits and", container.short()), "that still waits"),
        None => ("one that waits and".to_owned(), "that still waits"),
    };
    let sent = sent_text(rules.signal, sent);
    let served = lease.served_meanwhile(configuration).map_or_else(String::new, |(permille, priority)| {
        format!("; until then it is served with {} as {priority}", format_permille(permille.into()))
    });
    let what = match rules.action {
        PreemptionAction::Revoke => "its GPUs are taken from it",
        PreemptionAction::Suspend => "it is suspended, or if that cannot be its GPUs are taken from it,",
    };
    format!(
        "{short} makes room for {who} comes before {priority}: {what} in {grace}, as [preemption] grace_seconds says, if \
         {if_still} then{sent}{served}"
    )
}

/// Takes the GPUs from those that go for one, who begins when the last has lost them: at the first from whom they cannot be taken
/// the others keep theirs.
fn take(leases: &Leases, due: &Due) {
    for id in &due.leases {
        let Some(priority) = still_due(leases, id, &due.for_whom) else { return };
        let why = why(&due.for_whom, priority);
        let suspends = leases.configuration().preemption.action == PreemptionAction::Suspend;
        // What is found to be in the way while it is moved has it lose them later, by `take_instead`.
        let by = suspension::By::Preemption(&due.for_whom);
        let is_moved = suspends && suspension::begin(leases, &id.0, &why, by).is_ok();
        // What cannot be moved has to go all the same.
        if !is_moved && !revoke(leases, id, &why) {
            return;
        }
    }
}

/// Takes the GPUs from one that was to be suspended for this one and could not be, if its room is needed still: its grace is over, and it has
/// no second one.
pub fn take_instead(leases: &Leases, id: &LeaseId, for_whom: &ForWhom) {
    let is_on = leases.preempts();
    let priority = {
        let book = leases.book();
        let lease = book.leases.get(id).filter(|lease| lease.record.revocation.is_none());
        lease.filter(|_| is_on && is_awaited(leases, &book, for_whom)).map(|lease| lease.record.priority)
    };
    let Some(priority) = priority.filter(|priority| *priority != Priority::Guaranteed) else { return };
    revoke(leases, id, &why(for_whom, priority));
}

/// Why it goes, the end of a sentence.
fn why(for_whom: &ForWhom, priority: Priority) -> String {
    let who = match for_whom {
        ForWhom::Waits(container) => format!("{} waits for the room and", container.short()),
        ForWhom::Reservation(name) => format!("reservation {name} needs the room and"),
    };
    format!("{who} comes before {priority}, as [preemption] enabled = true asks")
}

/// Takes the GPUs from one; whether those that are to go with it may go.
fn revoke(leases: &Leases, id: &LeaseId, why: &str) -> bool {
    let taken = revocation::take(leases, &id.0, Taking::MadeRoom, why);
    let mut book = leases.book();
    // Its container may have ended meanwhile.
    let lease = book.leases.get_mut(id).filter(|lease| taken.is_ok() || lease.state == LeaseState::Active);
    let Some(lease) = lease else { return true };
    leases.counters.note_preemption(if taken.is_ok() { "revoked" } else { "not_revoked" });
    forget(leases, lease);
    write_down(leases, lease);
    let Err(error) = taken else { return true };
    lease.makes_room.notice.give_up(revocation::again_ns(&error, clock::now_ns()));
    let short = lease.record.container_id.short();
    let message = format!("{short} has to make room, and its GPUs cannot be taken from it: {error}");
    leases.events.note_failure(EventKind::LeasePreempted, about(&lease.record, None), message);
    false
}

/// Its priority, if the lease has to go for this one still, and that waits or something of it is missing.
fn still_due(leases: &Leases, id: &LeaseId, for_whom: &ForWhom) -> Option<Priority> {
    let book = leases.book();
    let lease = book.leases.get(id).filter(|lease| lease.leaves_ns().is_some())?;
    let priority = lease.record.priority;
    (is_awaited(leases, &book, for_whom)
        && lease.makes_room.for_whom.as_ref() == Some(for_whom)
        && priority != Priority::Guaranteed)
        .then_some(priority)
}

/// Whether that one still waits, or something of it is missing.
fn is_awaited(leases: &Leases, book: &Book, for_whom: &ForWhom) -> bool {
    match for_whom {
        ForWhom::Waits(waits) => book.queue.in_order().iter().any(|waiter| waiter.asked.container_id == *waits),
        ForWhom::Reservation(name) => leases.is_short(book, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{RevocationRecord, lease_in, lease_of};
    use gpool_protocol::ContainerId;

    #[test]
    fn nobody_counts_on_what_cannot_be_taken() {
        let rules = Preemption { enabled: true, action: PreemptionAction::Revoke, ..Preemption::default() };
        assert!(preempts(&rules, false) && !preempts(&rules, true));
        let suspends = Preemption { action: PreemptionAction::Suspend, ..rules.clone() };
        assert!(preempts(&suspends, true));
        assert!(!preempts(&Preemption { enabled: false, ..rules }, false));
    }

    #[test]
    fn what_a_lease_was_told_is_known_to_the_next_supervisor() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = lease_in(dir.path(), "01");
        assert_eq!((lease.record.told_to_go.clone(), lease.leaves_ns()), (None, None));
        let rule = Rule { after_ns: 0, grace_ns: 30, least_run_ns: 0 };
        let steps: Vec<Step> = (0..3).map(|_| lease.makes_room.notice.step(Need::Yes, 100, rule)).collect();
        assert_eq!(steps.last(), Some(&Step::Tell));
        lease.makes_room.for_whom = Some(ForWhom::Waits(ContainerId("waits".into())));
        let told = lease.makes_room.told_to_go();
        let written = Record { told_to_go: told, ..lease.record.clone() };
        let text = serde_json::to_string(&written).unwrap();
        assert!(text.contains(r#""told_to_go":{"until_ns":130,"for_whom":{"waits":"waits"}}"#), "{text}");
        let read: Record = serde_json::from_str(&text).unwrap();
        assert_eq!((&read, MakesRoom::of(&read)), (&written, lease.makes_room.clone()));
        let mut next = lease_of(dir.path(), read.clone(), "next");
        assert_eq!((next.leaves_ns(), &next.record), (Some(130), &read));
        assert_eq!(next.makes_room.notice.step(Need::Yes, 129, rule), Step::Rest, "it is not told again");
        assert_eq!(next.makes_room.notice.step(Need::Yes, 130, rule), Step::Take, "nor has it another grace");
        // What became of it before that was written down.
        let devices = [(195, 0)].into();
        let revocation = RevocationRecord { devices, is_denied: false, is_settled: false, by: Taking::MadeRoom };
        let next = lease_of(dir.path(), Record { revocation: Some(revocation), ..read }, "taken");
        assert_eq!((next.makes_room, next.record.told_to_go), (MakesRoom::default(), None));
    }
}
