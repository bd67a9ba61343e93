//! How long requests of leases take, beside what was promised, and which GPUs take nobody in because of that.

use super::book::{Book, Lease};
use super::grant::Leases;
use super::prospect::add_wait;
use super::record::Record;
use super::room::Scene;
use crate::clock::{self, ns};
use crate::device::Gpu;
use crate::gatekeeper::Order;
use gpool_configuration::LatencyAction;
use gpool_policy::TenantId;
use gpool_policy::latency::{Cause, Figures, Hold, Verdict, Watch};
use gpool_protocol::{
    Class, ContainerId, ErrorBody, ErrorCode, LeaseRequest, LeaseState, LeaseUpdate, Priority, PromiseState,
    RequestFigures, check_p99, format_short_time,
};
use std::collections::BTreeMap;

/// What is known of a lease's requests, and what follows from that.
#[derive(Debug, Default)]
pub struct PromiseNotes {
    /// How long they take; none while nobody knows.
    pub figures: Option<Figures>,
    /// What was told of the promise.
    pub watch: Watch,
    /// Whether others are kept from running for its sake.
    pub hold: Hold,
    /// For whose sake it is kept from running itself.
    pub held_for: Option<ContainerId>,
    /// How many of its requests had been late at the last look.
    pub seen_late: u64,
    /// Whether its GPUs took nobody in for it then.
    pub was_closed: bool,
}

impl Lease {
    /// Whether its gate has to stay closed, whoever wants it opened.
    pub fn is_kept_from_running(&self) -> bool {
        let record = &self.record;
        let is_held = self.promise.held_for.is_some();
        record.paused || is_held || record.suspension.is_some() || record.revocation.is_some()
    }

    /// How long its requests take, as the socket has it.
    pub fn request_figures(&self) -> Option<RequestFigures> {
        self.promise.figures.map(shown)
    }

    /// What was promised is another thing now: what was known of that is no measure of it.
    pub fn note_promise_changed(&mut self) {
        let held_for = self.promise.held_for.take();
        self.promise = PromiseNotes { held_for, ..PromiseNotes::default() };
    }

    /// Whether it runs with a promise that others can be in the way of.
    pub fn has_promise(&self) -> bool {
        let record = &self.record;
        record.p99_ns.is_some() && self.state == LeaseState::Active && !self.is_kept_from_running()
    }

    /// Whether its GPUs take nobody in because others are in the way of what it was promised. Who was promised no share keeps nobody
    /// out.
    pub fn closes_its_gpus(&self, now_ns: u64, calm_ns: u64) -> bool {
        let is_guaranteed = self.record.priority == Priority::Guaranteed;
        is_guaranteed && self.has_promise() && self.promise.watch.is_closed(now_ns, calm_ns)
    }
}

/// What the gatekeeper is told of who has this record: of whom somebody waits for the answers it is measured how long they take.
pub fn measure(record: &Record, tenant: TenantId) -> Order {
    let is_measured = record.mechanism.has_shims() && record.class == Class::Latency;
    Order::Measure { tenant, is_measured, promise_ns: record.p99_ns }
}

/// What is promised after a change.
///
/// # Errors
/// What does not go together.
pub fn promise_changed(old: &Record, change: &LeaseUpdate) -> Result<Option<u64>, ErrorBody> {
    if change.no_p99 && change.p99_ns.is_some() {
        return Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            "p99_ns and no_p99 do not go together",
            "give one of them",
        ));
    }
    let p99_ns = if change.no_p99 { None } else { change.p99_ns.or(old.p99_ns) };
    let class = change.class.unwrap_or(old.class);
    match check_p99(p99_ns, class) {
        // It is not what this change asks for.
        Err(refusal) if change.p99_ns.is_none() => Err(ErrorBody {
            remedy: "take it away with that (gpool update --no-p99), or leave the class as it is".into(),
            ..refusal
        }),
        checked => checked.map(|()| p99_ns),
    }
}

impl Leases {
    /// Those of `open` that take somebody in, and why the others do not, as ends of a sentence.
    ///
    /// # Errors
    /// There would be as many as are `wanted` with those.
    pub fn without_closed(
        &self,
        open: Vec<usize>,
        scene: &Scene<'_>,
        (asked, uid): (&LeaseRequest, u32),
        wanted: usize,
    ) -> Result<(Vec<usize>, Vec<String>), ErrorBody> {
        let closing = self.closing_to(scene, (asked, uid));
        let (closed, left): (Vec<usize>, Vec<usize>) = open.into_iter().partition(|gpu| closing.contains_key(gpu));
        let told = |gpu: &usize| Some(told_closed(&scene.gpus[*gpu], closing.get(gpu)?));
        let told: Vec<String> = closed.iter().filter_map(told).collect();
        if closed.is_empty() || left.len() >= wanted || left.len() + closed.len() < wanted {
            return Ok((left, told));
        }
        Err(ErrorBody::new(
            ErrorCode::ShareNotFree,
            told.join(", "),
            format!("{}, to wait until that is over (gpool latency), or ask for another GPU", add_wait("10m")),
        ))
    }

    /// The GPUs that do not take in who asks, each with the lease for whose sake.
    pub fn closing_to<'a>(&self, scene: &Scene<'a>, (asked, uid): (&LeaseRequest, u32)) -> BTreeMap<usize, &'a Lease> {
        if scene.is_emptied || scene.may_enter_closed {
            return BTreeMap::new();
        }
        let closing = self.closing(scene.book).filter(|lease| !scene.gone.contains(&lease.record.lease_id));
        let mut all: BTreeMap<usize, &Lease> =
            closing.flat_map(|lease| lease.gpus().map(move |gpu| (gpu, lease))).collect();
        if all.is_empty() {
            return all;
        }
        // Who comes back from the host's memory was there before.
        let is_its = |lease: &&Lease| {
            lease.record.is_out() && lease.record.container_id == asked.container_id && lease.record.owner_uid == uid
        };
        let back = scene.book.leases.values().filter(is_its).flat_map(Lease::gpus);
        back.for_each(|gpu| _ = all.remove(&gpu));
        all
    }

    /// For whom a GPU takes nobody in, if it does not.
    pub fn closed_for(&self, book: &Book, gpu: usize) -> Option<ContainerId> {
        self.closing(book).find(|lease| lease.place_of(gpu).is_some()).map(|lease| lease.record.container_id.clone())
    }

    /// Leases whose GPUs take nobody in.
    fn closing<'a>(&self, book: &'a Book) -> impl Iterator<Item = &'a Lease> {
        let rules = self.configuration().latency;
        let (does_close, calm_ns) = (rules.action >= LatencyAction::Close, ns(rules.hold_seconds));
        let now_ns = clock::now_ns();
        book.leases.values().filter(move |lease| does_close && lease.closes_its_gpus(now_ns, calm_ns))
    }
}

fn told_closed(gpu: &Gpu, lease: &Lease) -> String {
    format!(
        "{} takes nobody in while requests of {} take longer than the {} that are promised",
        gpu.uuid,
        lease.record.container_id.short(),
        lease.record.p99_ns.map(format_short_time).unwrap_or_default()
    )
}

fn shown(figures: Figures) -> RequestFigures {
    let Figures { all, all_late, count, p50_ns, p99_ns, p99_alone_ns, late, verdict, .. } = figures;
    let promise = verdict.map(|verdict| match verdict {
        Verdict::Kept => PromiseState::Kept,
        Verdict::Missed(Cause::Itself) => PromiseState::MissedItself,
        Verdict::Missed(Cause::Share) => PromiseState::MissedShare,
        Verdict::Missed(Cause::Others) => PromiseState::MissedOthers,
    });
    RequestFigures { all, all_late, count, p50_ns, p99_ns, p99_alone_ns, late, promise }
}
