//! Leases whose containers make no use of their GPUs: they are told, and where their class says so they lose them, at once or once
//! somebody waits for the room. `policy` says when; here it is seen what use is, and done what follows.
//!
//! The GPUs are taken as by `gpool evict`: the container goes on without them and can have them again by a new start.

use crate::clock;
use crate::lease::{Lease, Leases, about, class_policy};
use crate::region::Report;
use crate::revocation;
use gpool_configuration::{ClassPolicy, IdleAction};
use gpool_policy::idleness::{After, Rule, Step};
use gpool_protocol::{Class, ContainerId, EventKind, LeaseId, LeaseState, Mechanism, format_bytes, format_seconds};
use gpool_shared_region::Demand;

/// What of a lease changes while it is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    charged_ns: u64,
    launches: u64,
    gate_wait_ns: u64,
    memory_bytes: Vec<u64>,
    processes: Vec<usize>,
}

/// An idle lease whose time is over.
struct Due {
    id: LeaseId,
    class: Class,
    idle_ns: u64,
}

/// Looks at all leases; to be called once a second or so, after what they were charged has been noted.
pub fn look(leases: &Leases) {
    let (taken, mut if_wanted) = note_all(leases, clock::now_ns());
    for due in taken {
        take(leases, &due, None);
    }
    // Those go first that have been idle for longest.
    if_wanted.sort_by_key(|due| std::cmp::Reverse(due.idle_ns));
    let ids: Vec<LeaseId> = if_wanted.iter().map(|due| due.id.clone()).collect();
    let Some(giving_way) = (!ids.is_empty()).then(|| leases.giving_way(&ids)).flatten() else { return };
    for due in if_wanted.iter().filter(|due| giving_way.leases.contains(&due.id)) {
        take(leases, due, Some(&giving_way.waits));
    }
}

/// Notes who is in use, tells who is not, and says whose time is over: whoever waits, and once somebody does.
fn note_all(leases: &Leases, now_ns: u64) -> (Vec<Due>, Vec<Due>) {
    let configuration = leases.configuration();
    let (mut taken, mut if_wanted, mut report) = (Vec::new(), Vec::new(), Report::new());
    let mut book = leases.book();
    for lease in book.leases.values_mut() {
        if is_in_use(lease, &mut report) {
            lease.idleness.note_use(now_ns);
            continue;
        }
        let class = lease.record.class;
        let policy = class_policy(&configuration, class);
        let due =
            |lease: &Lease| Due { id: lease.record.lease_id.clone(), class, idle_ns: lease.idleness.idle_ns(now_ns) };
        match lease.idleness.step(now_ns, rule(policy)) {
            Step::Rest => {}
            Step::Tell => {
                let message = told(lease, lease.idleness.idle_ns(now_ns), class, policy);
                leases.counters.note_idle("told");
                leases.events.note(EventKind::LeaseIdle, about(&lease.record, None), message);
            }
            Step::Take => taken.push(due(lease)),
            Step::TakeIfWanted => if_wanted.push(due(lease)),
        }
    }
    (taken, if_wanted)
}

/// Whether the lease is in use, or nobody can tell, or what it lacks is not its doing.
fn is_in_use(lease: &mut Lease, report: &mut Report) -> bool {
    let cannot_be_told = lease.record.mechanism == Mechanism::Mig;
    if cannot_be_told || lease.state != LeaseState::Active || lease.record.paused || lease.record.revocation.is_some() {
        return true;
    }
    let charged_ns = lease.accounts.iter().fold(0, |sum: u64, account| sum.saturating_add(account.charged_ns()));
    // Of most leases that says all there is to know, and their regions need not be read for it.
    if let Some(known) = lease.signs.as_mut().filter(|known| known.charged_ns != charged_ns) {
        known.charged_ns = charged_ns;
        return true;
    }
    let figures = lease.figures(report);
    let memory_bytes = match lease.record.mechanism.has_shims() {
        true => figures.held[..lease.accounts.len()].iter().map(|held| held.bytes(0)).collect(),
        false => lease.accounts.iter().map(|account| account.seen_bytes()).collect(),
    };
    let signs = Signs {
        charged_ns,
        launches: figures.launches,
        gate_wait_ns: figures.gate_wait_ns,
        memory_bytes,
        processes: lease.processes.keys().copied().collect(),
    };
    // Who waits, or has work on the GPU that goes on, has nothing new to count.
    let live = |slot: &usize| lease.processes.contains_key(slot);
    let mut alive = report.taken().filter(|(slot, _)| live(slot));
    let is_at_work = alive.any(|(_, its)| its.demand() != Demand::Idle || its.waiters() > 0);
    // The first look, as after a restart of the supervisor, has nothing to compare with.
    let has_changed = lease.signs.as_ref().is_some_and(|known| *known != signs);
    lease.signs = Some(signs);
    is_at_work || has_changed
}

fn rule(policy: &ClassPolicy) -> Rule {
    let ns = |seconds: u64| seconds.saturating_mul(1_000_000_000);
    Rule {
        idle_ns: ns(policy.idle_seconds),
        grace_ns: ns(policy.idle_grace_seconds),
        after: match policy.idle_action {
            IdleAction::Event => After::Nothing,
            IdleAction::Yield => After::TakenIfWanted,
            IdleAction::Revoke => After::Taken,
        },
    }
}

/// Takes the GPUs from the container; for that one, if somebody waits for them.
fn take(leases: &Leases, due: &Due, waits: Option<&ContainerId>) {
    let action = if waits.is_some() { "yield" } else { "revoke" };
    let for_whom = waits.map_or_else(String::new, |waits| format!(", and {} waits for the room", waits.short()));
    let idle = format_seconds(due.idle_ns / 1_000_000_000);
    let why = format!(
        "it made no use of them for {idle}, as [class.{}] idle_action = \"{action}\" asks{for_whom}",
        due.class
    );
    let taken = revocation::take(leases, &due.id.0, &why, None);
    leases.counters.note_idle(if taken.is_ok() { "revoked" } else { "not_revoked" });
    let Err(error) = taken else { return };
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(&due.id) else { return };
    lease.idleness.give_up();
    let short = lease.record.container_id.short();
    let message = format!("{short} has made no use of its GPUs for {idle}, and they cannot be taken from it: {error}");
    leases.events.note(EventKind::LeaseIdle, about(&lease.record, None), message);
}

/// Who is idle, since when, what it keeps from others, and what follows or helps.
fn told(lease: &Lease, idle_ns: u64, class: Class, policy: &ClassPolicy) -> String {
    let record = &lease.record;
    let (short, gpus) = (record.container_id.short(), record.gpus());
    let gpus = gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "{short} has made no use of {gpus} for {} ([class.{class}] idle_seconds = {}), and keeps {} of its memory: {}",
        format_seconds(idle_ns / 1_000_000_000),
        policy.idle_seconds,
        format_bytes(record.promised_bytes()),
        follows(class, policy),
    )
}

fn follows(class: Class, policy: &ClassPolicy) -> String {
    let grace = format_seconds(policy.idle_grace_seconds);
    match policy.idle_action {
        IdleAction::Event => format!(
            "nothing follows but this event, as [class.{class}] idle_action = \"event\"; gpool evict takes it for others"
        ),
        IdleAction::Yield => format!(
            "unless it is used again in {grace}, it is taken for the first who waits for the room, as [class.{class}] \
             idle_action = \"yield\""
        ),
        IdleAction::Revoke => format!(
            "unless it is used again in {grace}, it is taken from it, as [class.{class}] idle_action = \"revoke\""
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_said_with_the_key_that_says_so() {
        let of = |idle_action| follows(Class::Notebook, &ClassPolicy { idle_action, ..ClassPolicy::default() });
        for (action, parts) in [
            (IdleAction::Event, ["nothing follows", "idle_action = \"event\""]),
            (IdleAction::Yield, ["used again in 10m", "[class.notebook] idle_action = \"yield\""]),
            (IdleAction::Revoke, ["used again in 10m", "[class.notebook] idle_action = \"revoke\""]),
        ] {
            let text = of(action);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn a_rule_is_the_class_s() {
        let policy = ClassPolicy { idle_seconds: 7, idle_grace_seconds: 2, ..ClassPolicy::default() };
        let its = |idle_action| rule(&ClassPolicy { idle_action, ..policy.clone() });
        assert_eq!((its(IdleAction::Event).idle_ns, its(IdleAction::Event).grace_ns), (7_000_000_000, 2_000_000_000));
        let after = [IdleAction::Event, IdleAction::Yield, IdleAction::Revoke].map(|action| its(action).after);
        assert_eq!(after, [After::Nothing, After::TakenIfWanted, After::Taken]);
    }
}
