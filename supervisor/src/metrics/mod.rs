//! Figures for Prometheus, in its text format (version 0.0.4): what leases, GPUs and the supervisor itself stand at.

mod counters;
mod families;
mod kept;
mod lent;
mod own;
mod promised;
mod text;

pub use counters::Counters;
use counters::Waits;
pub use families::reference;

use crate::clock;
use crate::device::{Gpu, Kind};
use crate::gpu_tests;
use crate::health;
use crate::lease::{Charges, Leases, ReadAhead};
use crate::log;
use crate::overflow;
use crate::quotas;
use crate::reservations;
use crate::service::Identity;
use families::{Family, GPU_NS_PER_SECOND};
use gpool_protocol::{
    EventKind, GpuUuid, GpuView, LeaseState, LeaseView, Mechanism, PodName, Priority, PromiseState, QuotaView,
    ReservationView, SuspensionStage,
};
use kept::Kept;
use lent::lent_permille;
use own::OwnUse;
use promised::{of_a_quota, of_a_reservation};
use std::collections::{BTreeMap, BTreeSet};
use text::Page;

/// What a page is called in HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that a page shows, as of one moment.
struct Moment {
    started_unix_ms: u64,
    leases: Vec<LeaseView>,
    /// Each with what all leases together were charged of it, and what it has drawn, in millijoules, if it counts that.
    gpus: Vec<(GpuView, Charges, Option<u64>)>,
    /// Of those that are MIG instances: the board and NVIDIA's name of the profile.
    instances: BTreeMap<GpuUuid, (GpuUuid, String)>,
    /// By GPU and number.
    xids: Vec<(GpuUuid, u64, u64)>,
    healths: Vec<health::Count>,
    gpu_tests: Vec<gpu_tests::Count>,
    handoff_s: [Option<f64>; 2],
    slice_s: f64,
    gates: [(&'static str, u64); 2],
    events: Vec<(EventKind, u64)>,
    refusals: Vec<(&'static str, u64)>,
    /// How many wait for room, and how long the first to come has.
    queue: (usize, f64),
    /// Whether the host is short of room, and what those who wait would have: thousandths of GPUs, bytes.
    overflow: (bool, [u64; 2]),
    /// Boards that are served, and those that were left out.
    boards: [(&'static str, usize); 2],
    overrides: usize,
    waits: Vec<(&'static str, Waits)>,
    quotas: Vec<QuotaView>,
    reservations: Vec<ReservationView>,
    guard_actions: Vec<(&'static str, u64)>,
    idle_actions: Vec<(&'static str, u64)>,
    preemptions: Vec<(&'static str, u64)>,
    suspensions: Vec<(&'static str, u64)>,
    run_times: Vec<(&'static str, u64)>,
    deadlines: Vec<(&'static str, u64)>,
    lent: u64,
    rounds: [(&'static str, u64); 2],
    complaints: u64,
    log_lines_lost: u64,
    kept: Kept,
    own: OwnUse,
    /// Whether the driver's libraries are of another version than its kernel module.
    is_driver_replaced: bool,
    /// Whether the files of the configuration can be used.
    is_configuration_usable: bool,
}

/// The page of this moment.
pub fn page(leases: &Leases, identity: &Identity) -> String {
    let statistics = leases.gatekeeper.recent_statistics();
    let ahead = ReadAhead::of(&leases.book);
    let (views, gpus, queue, quotas, reservations, overflow) = {
        let book = leases.book();
        let told = (&leases.time_slices, &leases.memory_limits, &leases.compute_modes, &leases.sites);
        let closed = (&leases.silence, &leases.drains, &leases.healths);
        let gpus = book.gpu_views(&leases.gpus(), &leases.memory_in_use(), told, closed);
        let charged = |place: usize| book.charges.get(&place).cloned().unwrap_or_default();
        let waited_s = book.queue.longest_wait(clock::now_ns()).as_secs_f64();
        let drawn = |place: usize| book.energy_millijoules.get(&place).copied();
        let gpus = gpus.into_iter().map(|(place, gpu)| (gpu, charged(place), drawn(place))).collect();
        let quotas = quotas::views(leases, &book);
        let reservations = reservations::views(leases, &book);
        let short = overflow::view(leases, &book);
        let overflow = (short.is_short, [short.wanted_permille, short.wanted_memory_bytes]);
        (book.views(&ahead), gpus, (book.queue.len(), waited_s), quotas, reservations, overflow)
    };
    let handoffs = statistics.handoffs;
    render(&Moment {
        started_unix_ms: identity.started_unix_ms,
        leases: views,
        gpus,
        instances: instances(leases),
        xids: leases.xids.counts(),
        healths: leases.healths.counts(),
        gpu_tests: leases.gpu_tests.counts(),
        handoff_s: [handoffs.map(|it| seconds(it.p50_ns)), handoffs.map(|it| seconds(it.p99_ns))],
        slice_s: seconds(statistics.slice_ns),
        gates: [("open", statistics.gate_opens), ("close", statistics.gate_closes)],
        events: with_zeroes(leases.events.counts()),
        refusals: leases.counters.refusals(),
        queue,
        waits: leases.counters.waits(),
        quotas,
        reservations,
        guard_actions: leases.counters.guard_actions(),
        idle_actions: leases.counters.idle_actions(),
        preemptions: leases.counters.preemptions(),
        suspensions: leases.counters.suspensions(),
        overflow,
        boards: boards(leases),
        overrides: leases.overrides.at(clock::unix_ms()).len(),
        run_times: leases.counters.run_times(),
        deadlines: leases.counters.deadlines(),
        lent: leases.counters.lent(),
        rounds: [("sampler", leases.progress.sampler.count()), ("attendant", leases.progress.attendant.count())],
        complaints: leases.progress.complaints.count(),
        log_lines_lost: log::lost(),
        kept: Kept::of(leases, identity),
        own: OwnUse::now(),
        is_driver_replaced: leases.replaced_driver().is_some(),
        is_configuration_usable: leases.settings.unusable().is_none(),
    })
}

fn instances(leases: &Leases) -> BTreeMap<GpuUuid, (GpuUuid, String)> {
    let of_one = |gpu: &Gpu| match &gpu.kind {
        Kind::Instance(its) => Some((gpu.uuid.clone(), (its.board.clone(), its.profile.clone()))),
        _ => None,
    };
    leases.gpus().iter().filter_map(of_one).collect()
}

/// How many boards are served and how many are not, by their words.
fn boards(leases: &Leases) -> [(&'static str, usize); 2] {
    let gpus = leases.gpus();
    let there = gpus.iter().filter(|gpu| gpu.kind != Kind::Gone);
    let served: BTreeSet<u32> = there.map(|gpu| gpu.index).collect();
    [("served", served.len()), ("left-out", leases.silence.left_out().len())]
}

/// Every kind of event: what has not come up did so no time, beside which Prometheus sees the first.
fn with_zeroes(counts: Vec<(EventKind, u64)>) -> Vec<(EventKind, u64)> {
    let mut all: BTreeMap<EventKind, u64> = EventKind::ALL.map(|kind| (kind, 0)).into();
    all.extend(counts);
    all.into_iter().collect()
}

/// Nanoseconds in the unit that Prometheus wants.
fn seconds(ns: u64) -> f64 {
    ns as f64 / GPU_NS_PER_SECOND
}

fn joules(millijoules: u64) -> f64 {
    millijoules as f64 / 1000.0
}

fn ratio(permille: impl Into<f64>) -> f64 {
    permille.into() / 1000.0
}

fn render(moment: &Moment) -> String {
    let mut page = Page::default();
    of_the_supervisor(&mut page, moment);
    for (state, count) in moment.boards {
        page.add(Family::Gpus, &[("state", state)], count as f64);
    }
    moment.gpus.iter().for_each(|gpu| of_a_gpu(&mut page, gpu, moment.instances.get(&gpu.0.uuid)));
    for (uuid, number, count) in &moment.xids {
        page.add(Family::GpuXids, &[("gpu_uuid", &uuid.0), ("xid", &number.to_string())], *count as f64);
    }
    for its in &moment.healths {
        let labels = [("gpu_uuid", its.uuid.0.as_str()), ("kind", its.kind)];
        page.add(Family::GpuHealth, &labels, f64::from(u8::from(its.is_found)));
        page.add(Family::GpuHealthAccepted, &labels, f64::from(u8::from(its.is_accepted)));
        page.add(Family::GpuHealthEvents, &labels, its.count as f64);
    }
    for its in &moment.gpu_tests {
        let uuid = ("gpu_uuid", its.uuid.0.as_str());
        for (outcome, count) in its.by_outcome {
            page.add(Family::GpuTests, &[uuid, ("outcome", &outcome.to_string())], count as f64);
        }
        if let Some(ended_unix_ms) = its.ended_unix_ms {
            page.add(Family::GpuTestedAt, &[uuid], ended_unix_ms as f64 / 1000.0);
        }
    }
    for quota in &moment.quotas {
        of_a_quota(&mut page, quota);
    }
    for reservation in &moment.reservations {
        of_a_reservation(&mut page, reservation);
    }
    for (lease, lent) in moment.leases.iter().zip(lent_permille(moment)) {
        of_a_lease(&mut page, lease, &lent);
    }
    page.finish()
}

fn of_the_supervisor(page: &mut Page, moment: &Moment) {
    page.add(Family::BuildInfo, &[("version", gpool_protocol::version())], 1.0);
    page.add(Family::StartTime, &[], moment.started_unix_ms as f64 / 1000.0);
    moment.own.show(page);
    let mut by_state: BTreeMap<&str, u64> = [
        LeaseState::Pending,
        LeaseState::Active,
        LeaseState::Revoked,
        LeaseState::Ending,
        LeaseState::Held,
        LeaseState::Stranded,
    ]
    .map(|it| (state(it), 0))
    .into();
    for lease in &moment.leases {
        *by_state.entry(state(lease.state)).or_default() += 1;
    }
    for (state, count) in by_state {
        page.add(Family::Leases, &[("state", state)], count as f64);
    }
    for (family, value) in [Family::HandoffMedian, Family::HandoffLate].into_iter().zip(moment.handoff_s) {
        if let Some(value) = value {
            page.add(family, &[], value);
        }
    }
    page.add(Family::Slice, &[], moment.slice_s);
    for (to, count) in moment.gates {
        page.add(Family::GateMoves, &[("to", to)], count as f64);
    }
    for (code, count) in &moment.refusals {
        page.add(Family::Refusals, &[("code", code)], *count as f64);
    }
    page.add(Family::QueueWaiting, &[], moment.queue.0 as f64);
    let (is_short, [wanted_permille, wanted_bytes]) = moment.overflow;
    page.add(Family::Overflow, &[], f64::from(u8::from(is_short)));
    page.add(Family::OverflowGpus, &[], wanted_permille as f64 / 1000.0);
    page.add(Family::OverflowMemory, &[], wanted_bytes as f64);
    page.add(Family::Overrides, &[], moment.overrides as f64);
    page.add(Family::QueueOldest, &[], moment.queue.1);
    for (how, waits) in &moment.waits {
        page.add(Family::QueueLeft, &[("how", how)], waits.count as f64);
        page.add(Family::QueueWaited, &[("how", how)], seconds(waits.total_ns));
    }
    for (action, count) in &moment.idle_actions {
        page.add(Family::IdleActions, &[("action", action)], *count as f64);
    }
    page.add(Family::QueueBackfilled, &[], moment.lent as f64);
    for (outcome, count) in &moment.suspensions {
        page.add(Family::Suspensions, &[("outcome", outcome)], *count as f64);
    }
    for (outcome, count) in &moment.deadlines {
        page.add(Family::Deadlines, &[("outcome", outcome)], *count as f64);
    }
    for (outcome, count) in &moment.run_times {
        page.add(Family::RunTimes, &[("outcome", outcome)], *count as f64);
    }
    for (outcome, count) in &moment.preemptions {
        page.add(Family::Preemptions, &[("outcome", outcome)], *count as f64);
    }
    for (action, count) in &moment.guard_actions {
        page.add(Family::GuardActions, &[("action", action)], *count as f64);
    }
    for (kind, count) in &moment.events {
        page.add(Family::Events, &[("kind", &kind.word())], *count as f64);
    }
    for (thread, count) in moment.rounds {
        page.add(Family::Rounds, &[("thread", thread)], count as f64);
    }
    page.add(Family::Complaints, &[], moment.complaints as f64);
    page.add(Family::LogLinesLost, &[], moment.log_lines_lost as f64);
    moment.kept.show(page);
    page.add(Family::ConfigurationUsable, &[], f64::from(u8::from(moment.is_configuration_usable)));
    page.add(Family::DriverReplaced, &[], f64::from(u8::from(moment.is_driver_replaced)));
}

fn of_a_gpu(
    page: &mut Page,
    (gpu, charges, drawn): &(GpuView, Charges, Option<u64>),
    instance: Option<&(GpuUuid, String)>,
) {
    let uuid = gpu.uuid.0.as_str();
    let island = gpu.nvlink_island.map(|island| island.to_string()).unwrap_or_default();
    let (board, profile) = instance.map_or(("", ""), |(board, profile)| (board.0.as_str(), profile.as_str()));
    let info = [
        ("gpu_uuid", uuid),
        ("index", &gpu.index.to_string()),
        ("name", &gpu.name),
        ("driver_version", &gpu.driver_version),
        ("nvlink_island", &island),
        ("board_uuid", board),
        ("mig_profile", profile),
    ];
    page.add(Family::GpuInfo, &info, 1.0);
    page.add(Family::GpuMemory, &[("gpu_uuid", uuid)], gpu.memory_total_bytes as f64);
    page.add(Family::GpuDrained, &[("gpu_uuid", uuid)], f64::from(u8::from(gpu.drained.is_some())));
    page.add(Family::GpuSilent, &[("gpu_uuid", uuid)], f64::from(u8::from(gpu.silent)));
    // A divided board is not asked: its instances are. What one said before it fell silent is over.
    if !gpu.divided && !gpu.silent {
        page.add(Family::GpuMemoryUsed, &[("gpu_uuid", uuid)], gpu.memory_used_bytes as f64);
        page.add(Family::GpuMemoryOutside, &[("gpu_uuid", uuid)], gpu.memory_outside_bytes as f64);
    }
    if !gpu.divided {
        page.add(Family::GpuMemoryHeadroom, &[("gpu_uuid", uuid)], gpu.memory_headroom_bytes as f64);
    }
    page.add(Family::GpuMemoryLeased, &[("gpu_uuid", uuid)], gpu.memory_leased_bytes as f64);
    page.add(Family::GpuShareLeased, &[("gpu_uuid", uuid)], ratio(gpu.fraction_leased_permille));
    // Of an instance that a lease has as a whole NVML has no figures, and of a divided board its instances have them.
    if !gpu.divided && gpu.mechanism != Some(Mechanism::Mig) {
        page.add(Family::GpuCharged, &[("gpu_uuid", uuid)], ratio(charges.permille()));
        page.add(Family::GpuTime, &[("gpu_uuid", uuid)], seconds(charges.total_ns()));
    }
    if let Some(millijoules) = drawn.filter(|_| !gpu.divided) {
        page.add(Family::GpuEnergy, &[("gpu_uuid", uuid)], joules(millijoules));
    }
}

/// How long the requests of a lease take, and what was promised.
fn of_requests(page: &mut Page, lease: &LeaseView) {
    let labels = [("container_id", lease.container_id.0.as_str()), ("lease_id", lease.lease_id.0.as_str())];
    let its = lease.requests;
    if let Some(its) = its {
        page.add(Family::LeaseRequests, &labels, its.all as f64);
        let lengths = [
            (Family::LeaseRequestMiddle, its.p50_ns),
            (Family::LeaseRequestLate, its.p99_ns),
            (Family::LeaseRequestAlone, its.p99_alone_ns),
        ];
        for (family, ns) in lengths {
            if let Some(ns) = ns {
                page.add(family, &labels, seconds(ns));
            }
        }
    }
    let Some(p99_ns) = lease.p99_ns else { return };
    page.add(Family::LeasePromise, &labels, seconds(p99_ns));
    // Nobody counts them in a container that has no slices.
    let Some(its) = its else { return };
    page.add(Family::LeaseRequestsLate, &labels, its.all_late as f64);
    let Some(promise) = its.promise else { return };
    let causes = [
        ("itself", PromiseState::MissedItself),
        ("share", PromiseState::MissedShare),
        ("others", PromiseState::MissedOthers),
    ];
    for (cause, state) in causes {
        let is_it = f64::from(u8::from(promise == state));
        page.add(Family::LeasePromiseMissed, &[labels[0], labels[1], ("cause", cause)], is_it);
    }
}

fn of_a_lease(page: &mut Page, lease: &LeaseView, lent: &[u16]) {
    let container = ("container_id", lease.container_id.0.as_str());
    let id = ("lease_id", lease.lease_id.0.as_str());
    let in_pod = |part: fn(&PodName) -> &String| lease.pod.as_ref().map_or("", |pod| part(pod).as_str());
    let about = [
        container,
        id,
        ("owner_uid", &lease.owner_uid.to_string()),
        ("class", &lease.class.to_string()),
        ("priority", &lease.priority.to_string()),
        ("mechanism", &word(&lease.mechanism)),
        ("enforcement", &lease.enforcement),
        ("team", lease.team.as_deref().unwrap_or_default()),
        ("project", lease.project.as_deref().unwrap_or_default()),
        ("cost_center", lease.cost_center.as_deref().unwrap_or_default()),
        ("pod_namespace", in_pod(|pod| &pod.namespace)),
        ("pod_name", in_pod(|pod| &pod.pod)),
        ("pod_container", in_pod(|pod| &pod.container)),
    ];
    page.add(Family::LeaseInfo, &about, 1.0);
    page.add(Family::LeaseMemoryCap, &[container, id], lease.memory_cap_bytes as f64);
    page.add(Family::LeasePaused, &[container, id], f64::from(u8::from(lease.paused)));
    page.add(Family::LeaseHeldBack, &[container, id], f64::from(u8::from(lease.held_for.is_some())));
    page.add(Family::LeaseSuspended, &[container, id], f64::from(u8::from(lease.suspension.is_some())));
    let host_bytes = lease.suspension.as_ref().map_or(0, |suspension| suspension.host_bytes);
    page.add(Family::LeaseHostMemory, &[container, id], host_bytes as f64);
    if let Some(limit_permille) = lease.limit_permille {
        page.add(Family::LeaseLimit, &[container, id], ratio(limit_permille));
    }
    // A kept place uses nothing; its counters are over. What a stranded lease uses nobody reads: no figure is better than 0.
    if matches!(lease.state, LeaseState::Held | LeaseState::Stranded) {
        return;
    }
    if lease.spill_bytes > 0 || lease.spilled_bytes > 0 {
        page.add(Family::LeaseSpillLimit, &[container, id], lease.spill_bytes as f64);
        page.add(Family::LeaseSpilled, &[container, id], lease.spilled_bytes as f64);
    }
    page.add(Family::LeaseMemoryPeak, &[container, id], lease.memory_peak_bytes as f64);
    // The shims count these: without them nobody knows, and no figure is better than 0.
    if lease.mechanism.has_shims() {
        page.add(Family::LeaseRefused, &[container, id], lease.allocations_refused as f64);
        page.add(Family::LeaseProgramFaults, &[container, id], lease.program_faults as f64);
        page.add(Family::LeaseUnknownVersions, &[container, id], lease.unknown_versions as f64);
        page.add(Family::LeaseGateWait, &[container, id], seconds(lease.gate_wait_ns));
        page.add(Family::LeaseLaunches, &[container, id], lease.launches as f64);
        page.add(Family::LeaseProcesses, &[container, id], f64::from(lease.processes));
    }
    of_requests(page, lease);
    if lease.kernel_ns > 0 {
        page.add(Family::LeaseKernel, &[container, id], seconds(lease.kernel_ns));
    }
    if let Some(idle_seconds) = lease.idle_seconds {
        page.add(Family::LeaseIdle, &[container, id], idle_seconds as f64);
    }
    let entitled_permille = entitled_permille(lease);
    // Nobody else has what is left of a whole GPU, of an instance, or of the threads that an MPS server grants.
    let is_lent = entitled_permille > 0 && matches!(lease.mechanism, Mechanism::Slice | Mechanism::TimeSlice);
    for (gpu, lent_permille) in lease.gpus.iter().zip(lent) {
        let labels = [container, id, ("gpu_uuid", gpu.gpu_uuid.0.as_str())];
        page.add(Family::LeaseEntitled, &labels, ratio(entitled_permille));
        page.add(Family::LeaseMemoryUsed, &labels, gpu.memory_used_bytes as f64);
        if let Some(limit_bytes) = gpu.memory_limit_bytes {
            page.add(Family::LeaseMemoryLimit, &labels, limit_bytes as f64);
        }
        // Of an instance's time NVML has no figures.
        if lease.mechanism != Mechanism::Mig {
            page.add(Family::LeaseGpuTime, &labels, seconds(gpu.charged_gpu_ns));
            page.add(Family::LeaseUsed, &labels, ratio(gpu.received_permille));
            page.add(Family::LeaseEnergy, &labels, joules(gpu.energy_millijoules));
        }
        if lease.mechanism == Mechanism::Slice {
            page.add(Family::LeaseLag, &labels, gpu.lag_ns as f64 / GPU_NS_PER_SECOND);
        }
        if is_lent {
            page.add(Family::LeaseLent, &labels, ratio(*lent_permille));
        }
    }
}

/// What the lease is promised of each of its GPUs. Of shares only guaranteed ones are a promise, and the driver's time slices
/// are none by themselves; whoever has whole GPUs or an instance has all of it, whatever his priority.
fn entitled_permille(lease: &LeaseView) -> u16 {
    match lease.mechanism {
        _ if lease.state == LeaseState::Revoked => 0,
        _ if lease.suspension.as_ref().is_some_and(|its| its.stage == SuspensionStage::Suspended) => 0,
        Mechanism::Exclusive | Mechanism::Mig => 1000,
        Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => match lease.priority {
            Priority::Guaranteed => lease.fraction_permille,
            Priority::Burst | Priority::Scavenger => 0,
        },
    }
}

/// The word that the socket uses.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn state(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Pending => "pending",
        LeaseState::Active => "active",
        LeaseState::Revoked => "revoked",
        LeaseState::Ending => "ending",
        LeaseState::Held => "held",
        LeaseState::Stranded => "stranded",
    }
}

#[cfg(test)]
mod tests;
