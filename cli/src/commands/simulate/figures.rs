//! The figures of runs, for people and for programs.

use crate::output::{Column, borderless, csv, figure, text};
use gpool_policy_simulator::measure::latency::Latency;
use gpool_policy_simulator::scenario::Scenario;
use gpool_policy_simulator::{Outcome, TenantOutcome};
use serde::Serialize;

/// A run for programs: nanoseconds, and millionths of the GPU (10,000 ppm are one point).
#[derive(Debug, Serialize)]
pub struct RunView {
    scenario: String,
    seed: u64,
    scheduler: &'static str,
    duration_ns: u64,
    busy_ppm: u64,
    share_error_1s_ppm: Option<u64>,
    share_error_10s_ppm: Option<u64>,
    handoffs: u64,
    /// A hexadecimal number, as text, because not every reader of JSON keeps 64 bits.
    trace_hash: String,
    tenants: Vec<TenantView>,
}

#[derive(Debug, Serialize)]
struct TenantView {
    name: String,
    fraction_permille: u16,
    limit_permille: Option<u16>,
    received_ns: u64,
    received_ppm: u64,
    longest_kernel_ns: u64,
    requests: Option<LatencyView>,
    over_limit_ns: Option<i64>,
    shares_1s_ppm: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct LatencyView {
    served: u64,
    unserved: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl From<Latency> for LatencyView {
    fn from(latency: Latency) -> Self {
        let Latency { served, unserved, p50_ns, p99_ns, max_ns } = latency;
        Self { served, unserved, p50_ns, p99_ns, max_ns }
    }
}

impl From<&TenantOutcome> for TenantView {
    fn from(tenant: &TenantOutcome) -> Self {
        Self {
            name: tenant.name.clone(),
            fraction_permille: tenant.share.weight_permille,
            limit_permille: tenant.share.limit_permille,
            received_ns: tenant.received_ns,
            received_ppm: tenant.received_ppm,
            longest_kernel_ns: tenant.longest_kernel_ns,
            requests: tenant.latency.map(LatencyView::from),
            over_limit_ns: tenant.excess_ns,
            shares_1s_ppm: tenant.shares_ppm.clone(),
        }
    }
}

impl RunView {
    /// The run of a scenario.
    pub fn new(scenario: &Scenario, outcome: &Outcome) -> Self {
        Self {
            scenario: scenario.name.clone(),
            seed: outcome.seed,
            scheduler: outcome.design.name(),
            duration_ns: outcome.duration_ns,
            busy_ppm: outcome.busy_ppm,
            share_error_1s_ppm: outcome.share_error_1s_ppm,
            share_error_10s_ppm: outcome.share_error_10s_ppm,
            handoffs: outcome.handoffs,
            trace_hash: format!("{:016x}", outcome.trace_hash),
            tenants: outcome.tenants.iter().map(TenantView::from).collect(),
        }
    }
}

const COLUMNS: [Column; 9] = [
    text("SCHEDULER"),
    figure("GPU BUSY"),
    figure("SHARE ERROR 1S"),
    figure("10S"),
    figure("P50"),
    figure("P99"),
    figure("MAX"),
    figure("OVER LIMIT"),
    figure("HAND-OFFS/S"),
];

const TENANT_COLUMNS: [Column; 8] = [
    text("TENANT"),
    figure("SHARE"),
    figure("LIMIT"),
    figure("RECEIVED"),
    figure("REQUESTS"),
    figure("P50"),
    figure("P99"),
    figure("OVER LIMIT"),
];

/// A table of the designs beside each other, of several seeds the worst of each figure; and a table of the tenants of
/// the first seed under the first design, or under each.
pub fn render(scenario: &Scenario, outcomes: &[Outcome], tenants_of_all: bool) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let last_seed = outcomes.iter().map(|outcome| outcome.seed).max().unwrap_or(first.seed);
    let seconds = scenario.duration_ns / 1_000_000_000;
    let seeds = match first.seed == last_seed {
        true => format!("seed {last_seed}"),
        false => format!("seeds {} to {last_seed}, the worst of each figure", first.seed),
    };
    let rows = outcomes.chunk_by(|one, other| one.design == other.design).map(design_cells);
    let mut text = format!(
        "{}, {seconds} s of virtual time, {seeds}; errors in points of the GPU, times in ms\n\n{}",
        scenario.name,
        borderless(&COLUMNS, rows)
    );
    let shown = outcomes.iter().filter(|outcome| outcome.seed == first.seed);
    for outcome in shown.take(if tenants_of_all { usize::MAX } else { 1 }) {
        let tenants = borderless(&TENANT_COLUMNS, outcome.tenants.iter().map(tenant_cells));
        text += &format!("\nTenants under {}, seed {}:\n\n{tenants}", outcome.design.name(), outcome.seed);
    }
    text
}

fn design_cells(runs: &[Outcome]) -> Vec<String> {
    let worst = |of: fn(&Outcome) -> Option<u64>| runs.iter().filter_map(of).max();
    let latency = |of: fn(Latency) -> u64| runs.iter().filter_map(|run| run.latency.map(of)).max();
    let excess = runs.iter().flat_map(|run| run.tenants.iter().filter_map(|tenant| tenant.excess_ns)).max();
    let handoffs = runs.iter().map(|run| run.handoffs * 1_000_000_000 / run.duration_ns.max(1)).max();
    vec![
        runs.first().map_or_else(String::new, |run| run.design.name().to_owned()),
        runs.iter().map(|run| run.busy_ppm).min().map_or_else(dash, |ppm| format!("{} %", points(ppm))),
        worst(|run| run.share_error_1s_ppm).map_or_else(dash, points),
        worst(|run| run.share_error_10s_ppm).map_or_else(dash, points),
        latency(|latency| latency.p50_ns).map_or_else(dash, ms),
        latency(|latency| latency.p99_ns).map_or_else(dash, ms),
        latency(|latency| latency.max_ns).map_or_else(dash, ms),
        excess.map_or_else(dash, signed_ms),
        handoffs.map_or_else(dash, |count| count.to_string()),
    ]
}

fn tenant_cells(tenant: &TenantOutcome) -> Vec<String> {
    let percent = |permille: u16| format!("{} %", points(u64::from(permille) * 1000));
    let latency = |of: fn(Latency) -> u64| tenant.latency.map(of).map_or_else(dash, ms);
    vec![
        tenant.name.clone(),
        percent(tenant.share.weight_permille),
        tenant.share.limit_permille.map_or_else(dash, percent),
        format!("{} %", points(tenant.received_ppm)),
        tenant
            .latency
            .map_or_else(dash, |latency| format!("{} of {}", latency.served, latency.served + latency.unserved)),
        latency(|latency| latency.p50_ns),
        latency(|latency| latency.p99_ns),
        tenant.excess_ns.map_or_else(dash, signed_ms),
    ]
}

/// One line a run and tenant.
pub fn render_csv(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    const HEADER: [&str; 20] = [
        "scenario",
        "seed",
        "scheduler",
        "duration_ns",
        "busy_ppm",
        "share_error_1s_ppm",
        "share_error_10s_ppm",
        "handoffs",
        "tenant",
        "fraction_permille",
        "limit_permille",
        "received_ns",
        "received_ppm",
        "longest_kernel_ns",
        "requests_served",
        "p50_ns",
        "p99_ns",
        "max_ns",
        "over_limit_ns",
        "requests_unserved",
    ];
    fn number(value: Option<impl ToString>) -> String {
        value.map_or_else(String::new, |value| value.to_string())
    }
    let lines = outcomes.iter().flat_map(|run| run.tenants.iter().map(move |tenant| (run, tenant)));
    csv(
        &HEADER,
        lines.map(|(run, tenant)| {
            vec![
                scenario.name.clone(),
                run.seed.to_string(),
                run.design.name().to_owned(),
                run.duration_ns.to_string(),
                run.busy_ppm.to_string(),
                number(run.share_error_1s_ppm),
                number(run.share_error_10s_ppm),
                run.handoffs.to_string(),
                tenant.name.clone(),
                tenant.share.weight_permille.to_string(),
                number(tenant.share.limit_permille),
                tenant.received_ns.to_string(),
                tenant.received_ppm.to_string(),
                tenant.longest_kernel_ns.to_string(),
                number(tenant.latency.map(|latency| latency.served)),
                number(tenant.latency.map(|latency| latency.p50_ns)),
                number(tenant.latency.map(|latency| latency.p99_ns)),
                number(tenant.latency.map(|latency| latency.max_ns)),
                number(tenant.excess_ns),
                number(tenant.latency.map(|latency| latency.unserved)),
            ]
        }),
    )
}

fn dash() -> String {
    "-".to_owned()
}

/// Millionths as hundredths of a point, rounded.
fn points(ppm: u64) -> String {
    let hundredths = (ppm + 50) / 100;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn ms(ns: u64) -> String {
    let tenths = (ns + 50_000) / 100_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn signed_ms(ns: i64) -> String {
    let size = ms(ns.unsigned_abs());
    if ns < 0 { format!("-{size}") } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_not_cut() {
        assert_eq!((points(4_262), points(999_990), points(50)), ("0.43".into(), "100.00".into(), "0.01".into()));
        assert_eq!((ms(10_250_000), ms(9_960_000)), ("10.3".into(), "10.0".into()));
        assert_eq!(signed_ms(-12_000_000), "-12.0");
    }
}
