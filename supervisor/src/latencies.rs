//! Requests that take longer than is promised: once a second it is looked at what became of each promise, and done what `[latency]`
//! says. `policy` says whose doing it is, and for how long others are kept from running.

use crate::clock::{self, ns};
use crate::gatekeeper::{Order, Statistics};
use crate::lease::{Book, Lease, Leases, about};
use gpool_configuration::{Latency as Rules, LatencyAction};
use gpool_policy::TenantId;
use gpool_policy::latency::{Cause, Figures, HoldStep, News, Verdict};
use gpool_protocol::{
    ContainerId, EventKind, LeaseId, LeaseState, Priority, format_permille, format_seconds, format_short_time,
};
use std::collections::BTreeMap;

/// Who is kept from running has launched something before: what comes to its end within this is no measure of what follows.
const IN_FLIGHT_NS: u64 = 2_000_000_000;

/// Looks at all leases; to be called once a second or so.
pub fn look(leases: &Leases, statistics: &Statistics) {
    let (rules, now_ns) = (leases.configuration().latency, clock::now_ns());
    let figures: BTreeMap<TenantId, Figures> = statistics.requests.iter().copied().collect();
    let mut book = leases.book();
    let below: BTreeMap<LeaseId, bool> =
        book.leases.iter().map(|(id, lease)| (id.clone(), has_any_below(&book, lease))).collect();
    for (id, lease) in &mut book.leases {
        // What was looked at before the promise was changed is no measure of it.
        let is_of_it = |figures: &Figures| figures.promise_ns == lease.record.p99_ns;
        lease.promise.figures = figures.get(&lease.tenant).copied().filter(is_of_it);
        judge(leases, lease, (&rules, now_ns), below.get(id) == Some(&true));
    }
    keep_from_running(leases, &mut book);
}

/// Whether `other` is beside `lease`, was promised nothing that would be before it, and can be kept from running.
fn is_below(other: &Lease, lease: &Lease) -> bool {
    let is_beside = || other.gpus().any(|gpu| lease.place_of(gpu).is_some());
    let record = &other.record;
    let is_lower = record.priority > lease.record.priority && record.priority != Priority::Guaranteed;
    // Who does not run anyway is in nobody's way.
    let is_served = !record.paused && record.suspension.is_none() && record.revocation.is_none();
    let runs = other.state == LeaseState::Active && is_served;
    // Who has to go is served for that.
    let is_leaving = other.leaves_ns().is_some() || other.time_over_ns().is_some();
    is_lower && runs && !is_leaving && record.mechanism.has_shims() && is_beside()
}

fn has_any_below(book: &Book, lease: &Lease) -> bool {
    lease.record.p99_ns.is_some() && book.leases.values().any(|other| is_below(other, lease))
}

/// Tells what has become of a lease's promise, and begins or ends that others are kept from running for it.
fn judge(leases: &Leases, lease: &mut Lease, (rules, now_ns): (&Rules, u64), has_any_below: bool) {
    let calm_ns = ns(rules.hold_seconds);
    let verdict = fresh_verdict(lease);
    if let Some(news) = lease.promise.watch.look(now_ns, verdict, calm_ns) {
        let message = told(lease, news, rules.action);
        leases.events.note(EventKind::Latency, about(&lease.record, None), message);
    }
    tell_whether_closed(leases, lease, rules.action, (now_ns, calm_ns));
    if rules.action < LatencyAction::Hold || !lease.has_promise() {
        if lease.promise.hold.end() {
            begin_anew(leases, lease, now_ns);
        }
        return;
    }
    let short = lease.record.container_id.short().to_owned();
    let step = lease.promise.hold.step(now_ns, verdict, has_any_below, calm_ns);
    let message = match step {
        HoldStep::Rest => return,
        HoldStep::Begin { for_ns } => {
            let time = format_seconds(for_ns / 1_000_000_000);
            format!("containers of lower priorities beside {short} are kept from running for {time}")
        }
        HoldStep::End { was_vain: false } => format!("containers of lower priorities beside {short} run again"),
        HoldStep::End { was_vain: true } => format!(
            "containers of lower priorities beside {short} run again: without them its requests take longer than is promised, too"
        ),
    };
    let in_flight_ns = if matches!(step, HoldStep::Begin { .. }) { IN_FLIGHT_NS } else { 0 };
    begin_anew(leases, lease, now_ns.saturating_add(in_flight_ns));
    leases.events.note(EventKind::Latency, about(&lease.record, None), message);
}

/// What has become of its promise. Where no request was late since the last look, nobody has been in its way.
fn fresh_verdict(lease: &mut Lease) -> Option<Verdict> {
    let figures = lease.promise.figures?;
    let is_late = std::mem::replace(&mut lease.promise.seen_late, figures.all_late) != figures.all_late;
    let is_news = |verdict: &Verdict| *verdict == Verdict::Kept || is_late;
    figures.verdict.filter(|verdict| is_news(verdict) && lease.has_promise())
}

/// Tells that its GPUs take others in again.
fn tell_whether_closed(leases: &Leases, lease: &mut Lease, action: LatencyAction, (now_ns, calm_ns): (u64, u64)) {
    let is_closed = action >= LatencyAction::Close && lease.closes_its_gpus(now_ns, calm_ns);
    if std::mem::replace(&mut lease.promise.was_closed, is_closed) && !is_closed {
        let message = format!("the GPUs of {} take new containers again", lease.record.container_id.short());
        leases.events.note(EventKind::Latency, about(&lease.record, None), message);
    }
}

/// What was measured before is no measure of what comes from then on.
fn begin_anew(leases: &Leases, lease: &Lease, from_ns: u64) {
    leases.gatekeeper.order(Order::MeasureAnew { tenant: lease.tenant, from_ns });
}

/// Closes the gates of those that are to be kept from running now, and opens those of the others.
fn keep_from_running(leases: &Leases, book: &mut Book) {
    let for_whom: BTreeMap<LeaseId, ContainerId> = {
        let holding: Vec<&Lease> = book.leases.values().filter(|lease| lease.promise.hold.is_on()).collect();
        let holder = |other: &Lease| holding.iter().find(|lease| is_below(other, lease));
        let held = |(id, other)| Some((LeaseId::clone(id), holder(other)?.record.container_id.clone()));
        book.leases.iter().filter_map(held).collect()
    };
    for (id, lease) in &mut book.leases {
        let (now, was_held) = (for_whom.get(id), lease.promise.held_for.is_some());
        lease.promise.held_for = now.cloned();
        let short = lease.record.container_id.short();
        match (was_held, now) {
            (false, Some(whose)) => {
                leases.gatekeeper.order(Order::Pause { tenant: lease.tenant });
                let message =
                    format!("{short} is kept from running: requests of {} take longer than is promised", whose.short());
                leases.events.note(EventKind::Latency, about(&lease.record, None), message);
            }
            (true, None) => {
                if !lease.is_kept_from_running() {
                    leases.gatekeeper.order(Order::Resume { tenant: lease.tenant });
                }
                let message = format!("{short} is kept from running no longer");
                leases.events.note(EventKind::Latency, about(&lease.record, None), message);
            }
            _ => {}
        }
    }
}

/// What has become of a promise, in words.
fn told(lease: &Lease, news: News, action: LatencyAction) -> String {
    let record = &lease.record;
    let time = |ns: Option<u64>| ns.map_or("?".to_owned(), format_short_time);
    let (p99, alone) = lease.promise.figures.map_or((None, None), |its| (its.p99_ns, its.p99_alone_ns));
    let (p99, alone, promised) = (time(p99), time(alone), time(record.p99_ns));
    let short = record.container_id.short();
    let cause = match news {
        News::Kept => {
            return format!("99 of 100 requests of {short} take {p99} or less again, of {promised} that are promised");
        }
        News::Missed(Cause::Itself) => {
            format!("with its GPUs to itself that would be {alone}, so its own work or its own limit takes that long")
        }
        News::Missed(Cause::Share) => format!(
            "it wants more than its share of {}, and waits while others have theirs",
            format_permille(record.fraction_permille.into())
        ),
        News::Missed(Cause::Others) => {
            let closes = action >= LatencyAction::Close && record.priority == Priority::Guaranteed;
            let closed = if closes { "; its GPUs take no new containers meanwhile" } else { "" };
            format!("with its GPUs to itself that would be {alone}{closed}")
        }
    };
    format!("99 of 100 requests of {short} take up to {p99}, and {promised} are promised: {cause}")
}
