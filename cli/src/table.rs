//! The table of leases, shared by `gpool ps`, `gpool top` and the demo.

mod figures;

pub use figures::render_csv;

use crate::output::{Column, borderless, figure, text};
use gpool_protocol::{
    Class, GpuView, LeaseFault, LeaseState, LeaseView, Mechanism, Priority, SuspensionStage, SuspensionView,
    format_bytes, format_permille, format_seconds, format_short_time, is_limit_of,
};

/// How long a container's threads stood at a closed gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateWait {
    /// All of it so far, in nanoseconds.
    TotalNs(u64),
    /// Thousandths of the time since the last look; above 1000 when several threads wait.
    Permille(u64),
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow {
    /// Short container id, or a name.
    pub container: String,
    /// Which container of which pod that is, `namespace/pod/container`.
    pub pod: Option<String>,
    /// Short identities of its GPUs.
    pub gpus: Vec<String>,
    /// Share asked for, of each GPU.
    pub share_permille: u64,
    /// The most that it may have of each GPU.
    pub limit_permille: Option<u64>,
    /// How it uses the GPU.
    pub class: Class,
    /// How long 99 of 100 of its requests take, and how long they are to at most.
    pub p99_ns: (Option<u64>, Option<u64>),
    /// Before whom it is served.
    pub priority: Priority,
    /// Who pays.
    pub team: Option<String>,
    /// For which project.
    pub project: Option<String>,
    /// On whose bill.
    pub cost_center: Option<String>,
    /// Whether its gate is kept closed.
    pub paused: bool,
    /// Whether that is so for the sake of another one.
    pub is_held_back: bool,
    /// How far it is out of the GPU's memory, if it is suspended.
    pub suspension: Option<SuspensionView>,
    /// Whether its GPUs are about to be taken from it.
    pub is_leaving: bool,
    /// Whether it has what is idle in place of its share, because a budget is spent.
    pub is_beyond_budget: bool,
    /// Share received lately. Whoever has a better meter than the supervisor's charges may put its figure here.
    pub received_permille: u64,
    /// Memory held, contexts included.
    pub memory_used_bytes: u64,
    /// The most that it has held.
    pub memory_peak_bytes: u64,
    /// Memory cap.
    pub memory_cap_bytes: u64,
    /// What lies in the host's memory beside that, and how much may.
    pub spilled_of_bytes: (u64, u64),
    /// Allocations refused because of the cap.
    pub allocations_refused: u64,
    /// Time at a closed gate.
    pub gate_wait: GateWait,
    /// For how long its GPUs have not been used, in seconds; none where nobody knows.
    pub idle_seconds: Option<u64>,
    /// In how many seconds its run time is over.
    pub run_left_seconds: Option<u64>,
    /// Processes that use the GPU.
    pub processes: u32,
    /// Where the lease stands.
    pub state: LeaseState,
    /// What it is, which says what of it is known.
    pub mechanism: Mechanism,
    /// What its processes cannot recover from.
    pub fault: Option<LeaseFault>,
    /// What the share rests on: `hardware`, `driver` or `co-operative`.
    pub enforcement: String,
    /// Who keeps the memory cap.
    pub cap_kept_by: &'static str,
    /// Calls of the driver that count and are not counted.
    pub uncounted_calls: u32,
    /// Who started it, by number.
    pub owner_uid: u32,
    /// The lease's own id.
    pub lease: String,
}

impl From<&LeaseView> for LeaseRow {
    fn from(lease: &LeaseView) -> Self {
        Self {
            container: lease.container_id.short().to_owned(),
            pod: lease.pod.as_ref().map(ToString::to_string),
            gpus: match &lease.mig_profile {
                Some(profile) => vec![format!("{} {profile}", short_gpu(&lease.gpu_uuid.0))],
                None => all_gpus(lease).map(|uuid| short_gpu(uuid).to_owned()).collect(),
            },
            share_permille: lease.fraction_permille.into(),
            limit_permille: lease.limit_permille.map(u64::from),
            class: lease.class,
            p99_ns: (lease.requests.and_then(|its| its.p99_ns), lease.p99_ns),
            priority: lease.priority,
            team: lease.team.clone(),
            project: lease.project.clone(),
            cost_center: lease.cost_center.clone(),
            paused: lease.paused,
            is_held_back: lease.held_for.is_some(),
            suspension: lease.suspension.clone(),
            is_leaving: lease.leaves_unix_ms.is_some(),
            is_beyond_budget: lease.beyond_budget,
            received_permille: lease.received_permille.into(),
            memory_used_bytes: lease.memory_used_bytes,
            memory_peak_bytes: lease.memory_peak_bytes,
            memory_cap_bytes: lease.memory_cap_bytes,
            spilled_of_bytes: (lease.spilled_bytes, lease.spill_bytes),
            allocations_refused: lease.allocations_refused,
            gate_wait: GateWait::TotalNs(lease.gate_wait_ns),
            idle_seconds: lease.idle_seconds,
            run_left_seconds: lease.run_left_seconds,
            processes: lease.processes,
            state: lease.state,
            mechanism: lease.mechanism,
            fault: lease.fault,
            enforcement: lease.enforcement.clone(),
            cap_kept_by: cap_kept_by(lease),
            uncounted_calls: lease.uncounted_calls,
            owner_uid: lease.owner_uid,
            lease: lease.lease_id.to_string(),
        }
    }
}

/// The GPUs of a lease, also of one that an older supervisor shows.
pub fn all_gpus(lease: &LeaseView) -> impl Iterator<Item = &str> {
    let first = lease.gpus.is_empty().then_some(&lease.gpu_uuid);
    first.into_iter().chain(lease.gpus.iter().map(|gpu| &gpu.gpu_uuid)).map(|uuid| uuid.0.as_str())
}

/// What the driver itself lets a container have of each of its GPUs, in bytes; none where it keeps no limit on one of them.
pub fn driver_limit_bytes(lease: &LeaseView) -> Option<u64> {
    let limits: Option<Vec<u64>> = lease.gpus.iter().map(|gpu| gpu.memory_limit_bytes).collect();
    limits?.into_iter().max()
}

/// Who keeps the memory cap: the hardware, the driver, an MPS server, or the shims in the container; `-` where there is none.
fn cap_kept_by(lease: &LeaseView) -> &'static str {
    let is_kept = driver_limit_bytes(lease).is_some_and(|limit_bytes| is_limit_of(limit_bytes, lease.memory_cap_bytes));
    match lease.mechanism {
        Mechanism::Exclusive | Mechanism::Mig => "hardware",
        // Whether it binds clients of an MPS server is not known.
        Mechanism::Slice | Mechanism::TimeSlice if is_kept => "driver",
        Mechanism::Slice => "shims",
        Mechanism::Mps => "server",
        Mechanism::TimeSlice => "-",
    }
}

const COLUMNS: [Column; 10] = [
    text("CONTAINER"),
    text("GPU"),
    figure("SHARE"),
    figure("RECEIVED"),
    figure("MEMORY USED / CAP"),
    figure("REFUSED"),
    figure("GATE WAIT"),
    figure("PROCS"),
    text("STATE"),
    text("ENFORCED"),
];

/// The table's text: a header and one line a row, each with a newline.
pub fn render(rows: &[LeaseRow]) -> String {
    borderless(&COLUMNS, rows.iter().map(cells))
}

/// What `--format wide` shows beyond the table.
const WIDE_COLUMNS: [Column; 16] = [
    text("CAP BY"),
    text("GPUS"),
    figure("LIMIT"),
    figure("PEAK"),
    figure("SPILLED"),
    figure("IDLE"),
    figure("ENDS IN"),
    figure("P99"),
    text("CLASS"),
    text("PRIORITY"),
    text("TEAM"),
    text("PROJECT"),
    text("COST CENTER"),
    text("USER"),
    text("POD"),
    text("LEASE"),
];

/// The table with every column.
pub fn render_wide(rows: &[LeaseRow]) -> String {
    let columns: Vec<Column> = COLUMNS.into_iter().chain(WIDE_COLUMNS).collect();
    borderless(&columns, rows.iter().map(|row| [cells(row), wide_cells(row)].concat()))
}

fn wide_cells(row: &LeaseRow) -> Vec<String> {
    vec![
        row.cap_kept_by.to_owned(),
        row.gpus.join(","),
        row.limit_permille.map_or_else(|| "-".to_owned(), format_permille),
        format_bytes(row.memory_peak_bytes),
        spilled_cell(row.spilled_of_bytes),
        // Who is in use was so a moment ago.
        row.idle_seconds.filter(|seconds| *seconds > 2).map_or_else(|| "-".to_owned(), format_seconds),
        row.run_left_seconds.map_or_else(|| "-".to_owned(), format_seconds),
        p99_cell(row.p99_ns),
        row.class.to_string(),
        row.priority.to_string(),
        row.team.clone().unwrap_or_else(|| "-".to_owned()),
        row.project.clone().unwrap_or_else(|| "-".to_owned()),
        row.cost_center.clone().unwrap_or_else(|| "-".to_owned()),
        row.owner_uid.to_string(),
        row.pod.clone().unwrap_or_else(|| "-".to_owned()),
        row.lease.clone(),
    ]
}

/// What lies in the host's memory, of how much; `-` where nothing may.
fn spilled_cell(spilled_of_bytes: (u64, u64)) -> String {
    match spilled_of_bytes {
        (0, 0) => "-".to_owned(),
        (spilled, limit) => format!("{} / {}", format_bytes(spilled), format_bytes(limit)),
    }
}

/// How long 99 of 100 requests take, of how long they are to; `-` where nobody knows.
fn p99_cell((p99_ns, promised_ns): (Option<u64>, Option<u64>)) -> String {
    let p99 = p99_ns.map_or_else(|| "-".to_owned(), format_short_time);
    promised_ns.map_or_else(|| p99.clone(), |promised_ns| format!("{p99} / {}", format_short_time(promised_ns)))
}

/// The first GPU, and how many more there are.
fn gpu_cell(gpus: &[String]) -> String {
    match gpus {
        [] => String::new(),
        [one] => one.clone(),
        [first, more @ ..] => format!("{first} +{}", more.len()),
    }
}

/// Where a lease stands, or what else there is to know of one that runs: that it has failed, has to make room,
/// is suspended or waits to come back, is paused, is kept from running for another one, or has no promise of its share because a budget is spent.
pub fn state_cell(row: &LeaseRow) -> &'static str {
    if let Some(fault) = row.fault {
        return fault.text();
    }
    match row.state {
        LeaseState::Active if row.is_leaving => "leaving",
        LeaseState::Active if row.suspension.is_some() => suspension_cell(row),
        LeaseState::Active if row.paused => "paused",
        LeaseState::Active if row.is_held_back => "held-back",
        LeaseState::Active if row.is_beyond_budget => "over-budget",
        state => state_name(state),
    }
}

fn suspension_cell(row: &LeaseRow) -> &'static str {
    match &row.suspension {
        Some(its) if its.stage == SuspensionStage::Suspended && its.is_wanted => "waking",
        Some(its) => its.stage.text(),
        None => "",
    }
}

fn cells(row: &LeaseRow) -> Vec<String> {
    let its = Known::of(row.state, row.mechanism);
    let if_known = |is_known: bool, shown: String| if is_known { shown } else { UNKNOWN.to_owned() };
    vec![
        row.container.clone(),
        gpu_cell(&row.gpus),
        or_none(row.share_permille, format_permille),
        if_known(its.gpu_time, format_tenths(row.received_permille)),
        format!(
            "{} / {}",
            if_known(its.memory, format_bytes(row.memory_used_bytes)),
            or_none(row.memory_cap_bytes, format_bytes)
        ),
        if_known(its.reports, row.allocations_refused.to_string()),
        if_known(
            its.reports,
            match row.gate_wait {
                GateWait::TotalNs(ns) => format_duration(ns),
                GateWait::Permille(permille) => format_tenths(permille),
            },
        ),
        if_known(its.reports, row.processes.to_string()),
        state_cell(row).to_owned(),
        enforcement_cell(row),
    ]
}

/// What nobody knows, as docker writes it.
pub const UNKNOWN: &str = "--";

/// Which figures of a lease are known; the others are 0 on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// What it holds of a GPU's memory.
    pub memory: bool,
    /// GPU time.
    pub gpu_time: bool,
    /// What its programs report: processes, launches, waits, refusals.
    pub reports: bool,
}

impl Known {
    /// Of a lease in this state, by this mechanism.
    pub fn of(state: LeaseState, mechanism: Mechanism) -> Self {
        // Nobody reads or counts for who is not taken over.
        let is_read = state != LeaseState::Stranded;
        Self {
            memory: is_read,
            // NVML has no busy time of processes in a MIG instance.
            gpu_time: is_read && mechanism != Mechanism::Mig,
            // Programs without shims report nothing.
            reports: is_read && mechanism.has_shims(),
        }
    }
}

/// A share or a cap; `-` of who takes turns without a share, was promised nothing and has no cap.
pub fn or_none(amount: u64, shown: fn(u64) -> String) -> String {
    if amount == 0 { "-".to_owned() } else { shown(amount) }
}

/// What the share rests on, and how much of the driver that leaves out.
fn enforcement_cell(row: &LeaseRow) -> String {
    match row.uncounted_calls {
        0 => row.enforcement.clone(),
        calls => format!("{} ({calls} uncounted)", row.enforcement),
    }
}

/// `GPU-` and the first eight digits tell the GPUs of one host apart.
pub fn short_gpu(uuid: &str) -> &str {
    uuid.get(..12).unwrap_or(uuid)
}

/// Whether a GPU is a MIG instance, which has no device node of its own.
pub fn is_mig_instance(gpu: &GpuView) -> bool {
    gpu.uuid.0.starts_with("MIG-")
}

/// The state as people and programs see it.
pub fn state_name(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Pending => "pending",
        LeaseState::Active => "active",
        LeaseState::Revoked => "revoked",
        LeaseState::Ending => "ending",
        LeaseState::Held => "held",
        LeaseState::Stranded => "stranded",
    }
}

/// A measured share keeps its tenth, so that the figures of a column stand under one another.
pub fn format_tenths(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// A duration in the largest unit that shows three digits: `870us`, `12.4ms`, `3.1s`, `2m05s`.
pub fn format_duration(ns: u64) -> String {
    let tenths = |unit: u64, name: &str| format!("{}.{}{name}", ns / unit, ns % unit * 10 / unit);
    match ns {
        0 => "0s".to_owned(),
        1..1_000_000 => format!("{}us", ns.div_ceil(1_000)),
        1_000_000..1_000_000_000 => tenths(1_000_000, "ms"),
        1_000_000_000..60_000_000_000 => tenths(1_000_000_000, "s"),
        _ => format!("{}m{:02}s", ns / 60_000_000_000, ns / 1_000_000_000 % 60),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::lease as sample;
