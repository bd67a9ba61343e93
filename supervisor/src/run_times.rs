//! Leases whose run time is over: they are told a while before, their programs are sent a signal, and then their GPUs are taken from
//! them, as by `gpool evict`. Who waits for that counts on it.

use crate::clock::{self, ns};
use crate::lease::{Leases, Record, Taking, about};
use crate::preemptions::{sent_text, signal_of};
use crate::revocation::{self, signal_users};
use gpool_configuration::RunTime;
use gpool_policy::run_time::{Step, notice_ns};
use gpool_protocol::{EventKind, LeaseState, format_seconds};

/// So many lose their GPUs in one look, those first that ended first: each takes a while, in which nobody else looks at the GPUs.
const AT_ONCE: usize = 4;

/// What is to be done for whom.
#[derive(Default)]
struct AllDue {
    /// Those that are told.
    told: Vec<Record>,
    /// Those whose GPUs are taken.
    over: Vec<Record>,
}

/// Looks at all leases; to be called once a second or so.
pub fn look(leases: &Leases) {
    let rules = leases.configuration().run_time.clone();
    let AllDue { told, mut over } = note_all(leases, &rules);
    told.iter().for_each(|record| tell(leases, record, &rules));
    over.sort_by_key(|record| record.ends_ns);
    over.iter().take(AT_ONCE).for_each(|record| take(leases, record));
}

/// Says whose time is about to be over, and whose is. Whose container has not begun by then ends at once.
fn note_all(leases: &Leases, rules: &RunTime) -> AllDue {
    let now_ns = clock::now_ns();
    let (mut all, mut never_began) = (AllDue::default(), Vec::new());
    let run_dir = leases.configuration().paths.run_dir.clone();
    let mut book = leases.book();
    for lease in book.leases.values_mut() {
        let Some(ends_ns) = lease.record.ends_ns.filter(|_| lease.record.revocation.is_none()) else { continue };
        if lease.state == LeaseState::Pending {
            never_began.extend((ends_ns <= now_ns).then(|| lease.record.lease_id.clone()));
            continue;
        }
        if !matches!(lease.state, LeaseState::Active | LeaseState::Ending) {
            continue;
        }
        let notice_ns = notice_ns(ns(rules.notice_seconds), ns(lease.record.run_seconds.unwrap_or(0)));
        match lease.end_notice.step(Some(ends_ns), now_ns, notice_ns) {
            Step::Rest => {}
            Step::Tell => {
                // Before it is: of two signals the second may end a program that writes its state down because of the first.
                lease.record.told_of_end_ns = Some(ends_ns);
                if let Err(error) = lease.record.write(&run_dir) {
                    log!("{error}; the next supervisor tells of that end again");
                }
                all.told.push(lease.record.clone());
            }
            Step::Take => all.over.push(lease.record.clone()),
        }
    }
    for id in never_began {
        leases.end(&mut book, &id, "its run time was over before its container began");
    }
    all
}

/// Tells a lease that its time is about to be over.
fn tell(leases: &Leases, record: &Record, rules: &RunTime) {
    let sent = signal_of(rules.signal).map_or(0, |signal| signal_users(leases, &record.lease_id, signal));
    let sent = sent_text(rules.signal, sent);
    leases.counters.note_run_time("told");
    let left_ns = record.run_left_ns().unwrap_or(0);
    let message = format!(
        "the run time of {} is over in {}, and its GPUs are taken from it then{sent}",
        record.container_id.short(),
        format_seconds(left_ns.div_ceil(1_000_000_000)),
    );
    leases.events.note(EventKind::LeaseRunTime, about(record, None), message);
}

/// Takes the GPUs from a lease, unless its end has been put off since.
fn take(leases: &Leases, record: &Record) {
    let (id, ends_ns) = (&record.lease_id, record.ends_ns.unwrap_or(0));
    let is_still = leases.book().leases.get(id).is_some_and(|lease| lease.record.ends_ns == Some(ends_ns));
    if !is_still {
        return;
    }
    let why = format!("its run time of {} is over", format_seconds(record.run_seconds.unwrap_or(0)));
    let taken = revocation::take(leases, &id.0, Taking::RunTime, &why);
    if taken.is_ok() {
        leases.counters.note_run_time("revoked");
    }
    let Err(error) = taken else { return };
    let mut book = leases.book();
    // Its container may have ended meanwhile.
    let Some(lease) = book.leases.get_mut(id) else { return };
    leases.counters.note_run_time("not_revoked");
    lease.end_notice.note_failed(ends_ns, revocation::again_ns(&error, clock::now_ns()));
    let short = lease.record.container_id.short();
    let message = format!("the run time of {short} is over, and its GPUs cannot be taken from it: {error}");
    leases.events.note_failure(EventKind::LeaseRunTime, about(&lease.record, None), message);
}
