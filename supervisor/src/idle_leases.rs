//! Leases whose containers make no use of their GPUs: they are told, and where their class says so they lose them, at once or once
//! somebody waits for the room. `policy` says when; here it is seen what use is, and done what follows.
//!
//! The GPUs are taken as by `gpool evict`: the container goes on without them and can have them again by a new start.

use crate::cgroup;
use crate::clock::{self, ns};
use crate::lease::{Lease, Leases, Taking, about, class_policy};
use crate::region::Report;
use crate::revocation;
use crate::suspension;
use gpool_configuration::{ClassPolicy, IdleAction};
use gpool_policy::idleness::{After, Rule, Step};
use gpool_protocol::{Class, ContainerId, EventKind, LeaseId, LeaseState, Mechanism, format_bytes, format_seconds};
use gpool_shared_region::Demand;
use std::time::{Duration, Instant};

/// What of a lease changes while it is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    charged_ns: u64,
    launches: u64,
    gate_wait_ns: u64,
    memory_bytes: Vec<u64>,
    processes: Vec<usize>,
}

/// After a look that helped nobody who waits, the next one has time.
const REST: Duration = Duration::from_secs(5);

/// Looks again and again.
#[derive(Debug, Default)]
pub struct IdleLeases {
    /// Before this nobody is looked for whom the end of an idle lease would help.
    rests_until: Option<Instant>,
}

/// An idle lease whose time is over.
struct Due {
    id: LeaseId,
    idle_ns: u64,
}

/// Those whose time is over: whoever waits, and once somebody does.
#[derive(Default)]
struct AllDue {
    taken: Vec<Due>,
    if_wanted: Vec<Due>,
}

impl IdleLeases {
    /// Looks at all leases; to be called once a second or so, after what they were charged has been noted. `has_figures` says
    /// whether NVML has just said how busy processes keep a GPU.
    pub fn look(&mut self, leases: &Leases, has_figures: impl Fn(usize) -> bool) {
        let AllDue { mut taken, mut if_wanted } = note_all(leases, clock::now_ns(), has_figures);
        // Those go first that have been idle for longest.
        let longest_first = |due: &Due| std::cmp::Reverse(due.idle_ns);
        taken.sort_by_key(longest_first);
        if_wanted.sort_by_key(longest_first);
        // One at a time: that takes a while, in which nobody else looks at the GPUs.
        if let Some(due) = taken.first() {
            take(leases, &due.id, None);
        }
        let is_resting = self.rests_until.is_some_and(|until| Instant::now() < until);
        if if_wanted.is_empty() || is_resting {
            return;
        }
        let ids: Vec<LeaseId> = if_wanted.into_iter().map(|due| due.id).collect();
        let giving_way = leases.giving_way(&ids);
        self.rests_until = giving_way.is_none().then(|| Instant::now() + REST);
        for (id, waits) in giving_way.iter().flat_map(|its| its.leases.iter().map(|id| (id, &its.waits))) {
            make_room(leases, id, waits);
        }
    }
}

/// Notes who is in use, tells who is not, and says whose time is over.
fn note_all(leases: &Leases, now_ns: u64, has_figures: impl Fn(usize) -> bool) -> AllDue {
    let configuration = leases.configuration();
    let (mut all, mut report) = (AllDue::default(), Report::new());
    leases.each_in_turn(|lease| {
        if is_in_use(lease, &has_figures, &mut report) {
            lease.idleness.note_use(now_ns);
            return;
        }
        let policy = class_policy(&configuration, lease.record.class);
        let step = lease.idleness.step(now_ns, rule(policy));
        // What is frozen cannot show that it is wanted, and has all its time again when it is thawed.
        if step != Step::Rest && lease.record.cgroup.as_deref().is_some_and(cgroup::is_frozen) {
            lease.idleness.note_use(now_ns);
            return;
        }
        let idle_ns = lease.idleness.idle_ns(now_ns);
        let due = || Due { id: lease.record.lease_id.clone(), idle_ns };
        match step {
            Step::Rest => {}
            Step::Tell => {
                let message = told(lease, idle_ns, policy);
                leases.counters.note_idle("told");
                leases.events.note(EventKind::LeaseIdle, about(&lease.record, None), message);
            }
            Step::Take => all.taken.push(due()),
            Step::TakeIfWanted => all.if_wanted.push(due()),
        }
    });
    all
}

/// Whether the lease is in use, or nobody can tell, or what it lacks is not its doing.
fn is_in_use(lease: &mut Lease, has_figures: impl Fn(usize) -> bool, report: &mut Report) -> bool {
    let was_seen = std::mem::take(&mut lease.was_seen);
    let has_shims = lease.record.mechanism.has_shims();
    // Without shims the device's figures are all that it could be seen by. Of whole MIG instances there are none, and whether the
    // driver counts what is done under an MPS server as its client's has not been seen on a real GPU.
    let is_mps = lease.record.mechanism == Mechanism::Mps;
    if is_mps || !has_shims && !lease.gpus().all(has_figures) {
        lease.signs = None;
        return true;
    }
    if lease.state != LeaseState::Active || lease.is_kept_from_running() {
        return true;
    }
    let charged_ns = lease.accounts.iter().fold(0, |sum: u64, account| sum.saturating_add(account.charged_ns()));
    // Of most leases that says all there is to know, and their regions need not be read for it.
    if let Some(known) = lease.signs.as_mut().filter(|known| known.charged_ns != charged_ns) {
        known.charged_ns = charged_ns;
        return true;
    }
    let figures = lease.figures(report);
    let memory_bytes = match has_shims {
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
    // Past the shims, too: whatever follows from that, it is use.
    was_seen || lease.bypassing > 0 || is_at_work || has_changed
}

fn rule(policy: &ClassPolicy) -> Rule {
    Rule {
        idle_ns: ns(policy.idle_seconds),
        grace_ns: ns(policy.idle_grace_seconds),
        after: match policy.idle_action {
            IdleAction::Event => After::Nothing,
            IdleAction::Yield | IdleAction::Suspend => After::TakenIfWanted,
            IdleAction::Revoke => After::Taken,
        },
    }
}

/// Has the container make room for that one, as its class says.
fn make_room(leases: &Leases, id: &LeaseId, waits: &ContainerId) {
    let class = leases.book().leases.get(id).map(|lease| lease.record.class);
    let action = class.map(|class| class_policy(&leases.configuration(), class).idle_action);
    if action != Some(IdleAction::Suspend) {
        return take(leases, id, Some(waits));
    }
    let Some((class, idle)) = still_due(leases, id, true) else { return };
    let why = format!(
        "it made no use of its GPUs for {idle}, as [class.{class}] idle_action = \"suspend\" asks, and {} waits for the room",
        waits.short()
    );
    let begun = suspension::begin(leases, &id.0, &why, suspension::By::Class);
    leases.counters.note_idle(if begun.is_ok() { "suspended" } else { "not_suspended" });
    let Err(error) = begun else { return };
    let mut book = leases.book();
    let Some(lease) = book.leases.get_mut(id) else { return };
    lease.idleness.give_up();
    leases.events.note_failure(EventKind::LeaseIdle, about(&lease.record, None), error.to_string());
}

/// Takes the GPUs from the container; for that one, if somebody waits for them. What has begun to work, has been paused or has
/// another class since it was looked at keeps them.
fn take(leases: &Leases, id: &LeaseId, waits: Option<&ContainerId>) {
    let Some((class, idle)) = still_due(leases, id, waits.is_some()) else { return };
    let action = if waits.is_some() { "yield" } else { "revoke" };
    let for_whom = waits.map_or_else(String::new, |waits| format!(", and {} waits for the room", waits.short()));
    let why =
        format!("it made no use of them for {idle}, as [class.{class}] idle_action = \"{action}\" asks{for_whom}");
    let taken = revocation::take(leases, &id.0, Taking::Idle, &why);
    let mut book = leases.book();
    // Its container may have ended meanwhile.
    let lease = book.leases.get_mut(id).filter(|lease| taken.is_ok() || lease.state == LeaseState::Active);
    let Some(lease) = lease else { return };
    leases.counters.note_idle(if taken.is_ok() { "revoked" } else { "not_revoked" });
    let Err(error) = taken else { return };
    lease.idleness.give_up();
    let short = lease.record.container_id.short();
    let message = format!("{short} has made no use of its GPUs for {idle}, and they cannot be taken from it: {error}");
    leases.events.note_failure(EventKind::LeaseIdle, about(&lease.record, None), message);
}

/// Its class, and for how long it has made no use of its GPUs, if they are to be taken from it still.
fn still_due(leases: &Leases, id: &LeaseId, is_wanted: bool) -> Option<(Class, String)> {
    let (configuration, now_ns) = (leases.configuration(), clock::now_ns());
    let mut book = leases.book();
    let lease = book.leases.get_mut(id)?;
    // What NVML says was asked a moment ago, and is not asked anew.
    if is_in_use(lease, |_| true, &mut Report::new()) {
        lease.idleness.note_use(now_ns);
        return None;
    }
    let class = lease.record.class;
    let step = lease.idleness.step(now_ns, rule(class_policy(&configuration, class)));
    let is_due = step == if is_wanted { Step::TakeIfWanted } else { Step::Take };
    is_due.then(|| (class, format_seconds(lease.idleness.idle_ns(now_ns) / 1_000_000_000)))
}

/// Who is idle, since when, what it keeps from others, and what follows or helps.
fn told(lease: &Lease, idle_ns: u64, policy: &ClassPolicy) -> String {
    let record = &lease.record;
    let (short, class, gpus) = (record.container_id.short(), record.class, record.gpus());
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
        IdleAction::Suspend => format!(
            "unless it is used again in {grace}, what it holds is moved to the host's memory for the first who waits for the room, as \
             [class.{class}] idle_action = \"suspend\", and comes back when it is used"
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
            (IdleAction::Suspend, ["used again in 10m", "[class.notebook] idle_action = \"suspend\""]),
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
