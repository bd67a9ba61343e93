//! Leases of a lower priority that make room for a request of a higher one that waits: they are told, their programs are sent a
//! signal, and after the grace their GPUs are taken from them, as by `gpool evict`. `policy` says who, and when.

use crate::clock;
use crate::lease::{Lease, Leases, about, slice_priority};
use crate::revocation;
use gpool_configuration::{NoticeSignal, Preemption};
use gpool_policy::preemption::{Candidate, Notice, Rule, Step};
use gpool_protocol::{ContainerId, EventKind, LeaseId, LeaseState, Leaving, Priority, format_seconds};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After a look that helped nobody who waits, the next one has time.
const REST: Duration = Duration::from_secs(5);

/// For whom a lease has to make room, and what it was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MakesRoom {
    /// What it was told.
    pub notice: Notice,
    /// Who waits for it.
    pub waits: Option<ContainerId>,
}

impl MakesRoom {
    /// That it has to go, if it was told so.
    pub fn leaving(&self) -> Option<Leaving> {
        let (waits, until_ns) = (self.waits.clone()?, self.notice.until_ns()?);
        Some(Leaving { waits, left_ns: until_ns.saturating_sub(clock::now_ns()) })
    }
}

/// Looks again and again.
#[derive(Debug, Default)]
pub struct Preemptions {
    /// Before this nobody is looked for who would make room.
    rests_until: Option<Instant>,
}

/// A lease whose time is over.
struct Due {
    id: LeaseId,
    priority: Priority,
    waits: ContainerId,
}

impl Preemptions {
    /// Looks at all leases; to be called once a second or so, after idle ones have made room.
    pub fn look(&mut self, leases: &Leases) {
        for due in self.note_all(leases) {
            take(leases, &due);
        }
    }

    /// Tells those that have to go and those that may stay, and says whose time is over.
    fn note_all(&mut self, leases: &Leases) -> Vec<Due> {
        let (rules, now_ns) = (leases.configuration().preemption.clone(), clock::now_ns());
        let rule = rule(&rules);
        let mut book = leases.book();
        let candidates = candidates(book.leases.values());
        let is_anybody_told = candidates.iter().any(|(_, its)| its.notice.until_ns().is_some());
        let is_resting = self.rests_until.is_some_and(|until| Instant::now() < until);
        if !is_anybody_told && (!rules.enabled || is_resting || book.queue.len() == 0) {
            return Vec::new();
        }
        let making = match rules.enabled {
            true => leases.making_room(&book, &candidates, (rule, now_ns)),
            false => Vec::new(),
        };
        self.rests_until = making.is_empty().then(|| Instant::now() + REST);
        let for_whom: BTreeMap<&LeaseId, &ContainerId> =
            making.iter().flat_map(|its| its.leases.iter().map(|id| (id, &its.waits))).collect();
        let mut due = Vec::new();
        for (id, _) in &candidates {
            let Some(lease) = book.leases.get_mut(id) else { continue };
            let waits = for_whom.get(id).copied();
            match lease.makes_room.notice.step(waits.is_some(), now_ns, rule) {
                Step::Rest => {}
                Step::Tell => {
                    let sent = signal(lease, rules.signal);
                    leases.counters.note_preemption("told");
                    let message = told(lease, waits, &rules, sent);
                    leases.events.note(EventKind::LeasePreempted, about(&lease.record, None), message);
                }
                Step::Withdraw => {
                    leases.counters.note_preemption("withdrawn");
                    let short = lease.record.container_id.short();
                    let message =
                        format!("{short} keeps its GPUs: nobody of a higher priority waits for its room any more");
                    leases.events.note(EventKind::LeasePreempted, about(&lease.record, None), message);
                }
                Step::Take => due.extend(waits.map(|waits| Due {
                    id: id.clone(),
                    priority: lease.record.priority,
                    waits: waits.clone(),
                })),
            }
            lease.makes_room.waits = waits.cloned();
        }
        due
    }
}

fn rule(rules: &Preemption) -> Rule {
    let ns = |seconds: u64| seconds.saturating_mul(1_000_000_000);
    Rule { grace_ns: ns(rules.grace_seconds), least_run_ns: ns(rules.least_run_seconds) }
}

/// Those that may have to go, the first first.
fn candidates<'a>(leases: impl Iterator<Item = &'a Lease>) -> Vec<(LeaseId, Candidate)> {
    let unix_ms = clock::unix_ms();
    let of = |lease: &Lease| Candidate {
        priority: slice_priority(lease.record.priority),
        ran_ns: unix_ms.saturating_sub(lease.record.created_unix_ms).saturating_mul(1_000_000),
        notice: lease.makes_room.notice,
    };
    let may = |lease: &&Lease| {
        let is_told = lease.makes_room.notice.until_ns().is_some();
        let runs = lease.state == LeaseState::Active && lease.record.revocation.is_none();
        runs && (is_told || lease.record.priority != Priority::Guaranteed)
    };
    let mut all: Vec<(LeaseId, Candidate)> =
        leases.filter(may).map(|lease| (lease.record.lease_id.clone(), of(lease))).collect();
    all.sort_by_key(|(id, its)| (its.order(), id.clone()));
    all
}

/// Sends the programs that use its GPUs what the configuration says; to how many.
fn signal(lease: &Lease, which: NoticeSignal) -> usize {
    let signal = match which {
        NoticeSignal::Term => Signal::TERM,
        NoticeSignal::Int => Signal::INT,
        NoticeSignal::Usr1 => Signal::USR1,
        NoticeSignal::Usr2 => Signal::USR2,
        NoticeSignal::None => return 0,
    };
    // A pidfd is nobody else's, whoever has the number by now.
    lease.processes.values().filter(|process| pidfd_send_signal(&process.watched.pidfd, signal).is_ok()).count()
}

/// Who makes room for whom, when, and what was sent.
fn told(lease: &Lease, waits: Option<&ContainerId>, rules: &Preemption, sent: usize) -> String {
    let record = &lease.record;
    let (short, priority, grace) = (record.container_id.short(), record.priority, format_seconds(rules.grace_seconds));
    let waits = waits.map_or("one", ContainerId::short);
    let sent = match (rules.signal, sent) {
        (NoticeSignal::None, _) => String::new(),
        (signal, 1) => format!("; its program there was sent {}", signal.text()),
        (signal, sent) => format!("; its {sent} programs there were sent {}", signal.text()),
    };
    format!(
        "{short} makes room for {waits}, which waits and comes before {priority}: its GPUs are taken from it in {grace}, as \
         [preemption] grace_seconds says, if that still waits then{sent}"
    )
}

/// Takes the GPUs from the container.
fn take(leases: &Leases, due: &Due) {
    let why = format!(
        "{} waits for the room and comes before {}, as [preemption] enabled = true asks",
        due.waits.short(),
        due.priority
    );
    let taken = revocation::take(leases, &due.id.0, &why, None);
    let mut book = leases.book();
    // Its container may have ended meanwhile.
    let lease = book.leases.get_mut(&due.id).filter(|lease| taken.is_ok() || lease.state == LeaseState::Active);
    let Some(lease) = lease else { return };
    leases.counters.note_preemption(if taken.is_ok() { "revoked" } else { "not_revoked" });
    let Err(error) = taken else { return };
    lease.makes_room = MakesRoom::default();
    lease.makes_room.notice.give_up();
    let short = lease.record.container_id.short();
    let message = format!("{short} has to make room, and its GPUs cannot be taken from it: {error}");
    leases.events.note(EventKind::LeasePreempted, about(&lease.record, None), message);
}
