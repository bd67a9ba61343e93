//! One run of a scenario under one design, and its figures.

use gpool_device_model::DeviceParameters;
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Share};

use crate::World;
use crate::client::Client;
use crate::designs::Design;
use crate::gatekeeper::Gatekeeper;
use crate::measure::ceiling::worst_excess_ns;
use crate::measure::latency::{Latency, latency};
use crate::measure::share_error::{Shares, ppm};
use crate::random::Random;
use crate::scenario::{Demand, Scenario};
use crate::work::{Steps, Work};

const SECOND_NS: u64 = 1_000_000_000;
/// Left out of share errors: clients first have to learn what a launch costs, and designs that work by feedback have to
/// find their settings.
const SETTLING_NS: u64 = 5 * SECOND_NS;
/// Left out of what passes a limit, of each lease: it has no ceiling before it is known what its launches cost.
const LEARNING_NS: u64 = SECOND_NS;
/// The windows of the plots.
pub const PLOT_WINDOW_NS: u64 = SECOND_NS;

/// What came of a run. Shares are in millionths of the GPU (ppm): 10,000 are one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Who decided.
    pub design: Design,
    /// The seed.
    pub seed: u64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// Time in which kernels executed, of the time in which there was work; switches count as lost.
    pub busy_ppm: u64,
    /// The worst deviation of a share over any second from the sixth on, see
    /// [`share_error`](crate::measure::share_error).
    pub share_error_1s_ppm: Option<u64>,
    /// The same over any ten seconds.
    pub share_error_10s_ppm: Option<u64>,
    /// Requests of the latency class, or of everybody if that class has none.
    pub latency: Option<Latency>,
    /// How often the gate of another tenant than before was opened.
    pub handoffs: u64,
    /// Differs if any command or its time does.
    pub trace_hash: u64,
    /// By tenant, in the scenario's order.
    pub tenants: Vec<TenantOutcome>,
}

/// What came of a run for one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantOutcome {
    /// Its name.
    pub name: String,
    /// Its share, as configured.
    pub share: Share,
    /// GPU time received.
    pub received_ns: u64,
    /// The same, of the run's duration.
    pub received_ppm: u64,
    /// Its longest kernel.
    pub longest_kernel_ns: u64,
    /// Its requests.
    pub latency: Option<Latency>,
    /// GPU time above its limit in the worst window from the second second of its lease on; none without a limit.
    pub excess_ns: Option<i64>,
    /// Its share in each whole second.
    pub shares_ppm: Vec<u64>,
}

/// Runs `scenario` with `seed` under `design`. Arrivals and kernel lengths of a seed are the same for all designs.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64, design: Design) -> Outcome {
    let mut world = world(scenario, seed, design.gatekeeper(&scenario.tenants));
    world.run_until(scenario.duration_ns);
    measure(scenario, seed, design, &world)
}

/// The scenario's world at its beginning.
pub fn world<G: Gatekeeper>(scenario: &Scenario, seed: u64, gatekeeper: G) -> World<G> {
    let device = DeviceParameters {
        time_slice_ns: scenario.time_slice_ns,
        switch_cost_ns: scenario.switch_cost_ns,
        // Memory is no part of scenarios: every tenant has a context, whatever their number.
        context_bytes: 1,
        ..DeviceParameters::standard(0)
    };
    let mut world = World::new(device, scenario.delays, seed, gatekeeper);
    for (index, plan) in scenario.tenants.iter().enumerate() {
        let tenant = TenantId(index as u64);
        let lengths = Random::stream(seed, 2 * index as u64);
        let client = world.add_client(tenant, Work::new(plan.lengths, lengths));
        world.tell_at(plan.start_ns, Input::Join { tenant, share: plan.share, debt_ns: 0 });
        let end_ns = plan.stop_ns.unwrap_or(u64::MAX).min(scenario.duration_ns);
        let mut arrivals = Random::stream(seed, 2 * index as u64 + 1);
        let mut at_ns = plan.start_ns;
        match plan.demand {
            Demand::Backlog => world.demand(at_ns, client, true),
            Demand::OnOff { on_ns, off_ns } => {
                while at_ns < end_ns {
                    world.demand(at_ns, client, true);
                    world.demand(at_ns + on_ns, client, false);
                    at_ns += on_ns + off_ns;
                }
            }
            Demand::Steps { work_ns, rest_ns } => world.steps(at_ns, client, Steps { work_ns, rest_ns }),
            Demand::Poisson { rate_per_second, work_ns } => loop {
                at_ns += arrivals.interval_ns(rate_per_second);
                if at_ns >= end_ns {
                    break;
                }
                world.request(at_ns, client, work_ns);
            },
        }
        if let Some(stop_ns) = plan.stop_ns {
            world.end_at(stop_ns, client);
        }
    }
    world
}

fn measure<G: Gatekeeper>(scenario: &Scenario, seed: u64, design: Design, world: &World<G>) -> Outcome {
    let duration_ns = scenario.duration_ns;
    let configured: Vec<Share> = scenario.tenants.iter().map(|plan| plan.share).collect();
    let shares = Shares::new(&world.record, &configured, duration_ns);
    let is_latency = |client: &&Client| {
        let index = client.tenant.0 as usize;
        scenario.tenants[index].share.class == Class::Latency
    };
    let of_class = latency(world.clients.iter().filter(is_latency), duration_ns);
    Outcome {
        design,
        seed,
        duration_ns,
        busy_ppm: ppm(world.device.meter().busy_ns, world.record.work_ns),
        share_error_1s_ppm: shares.worst_error_ppm(SECOND_NS, SETTLING_NS),
        share_error_10s_ppm: shares.worst_error_ppm(10 * SECOND_NS, SETTLING_NS),
        latency: of_class.or_else(|| latency(world.clients.iter(), duration_ns)),
        handoffs: handoffs(world.trace.iter().map(|(_, command)| command)),
        trace_hash: world.trace_hash(),
        tenants: (0..world.clients.len()).map(|index| tenant(scenario, world, index)).collect(),
    }
}

fn tenant<G: Gatekeeper>(scenario: &Scenario, world: &World<G>, index: usize) -> TenantOutcome {
    let (plan, client, execution) = (&scenario.tenants[index], &world.clients[index], &world.record.executions[index]);
    let duration_ns = scenario.duration_ns;
    let window = |begin_ns: u64| {
        let had_ns = execution.received_before(begin_ns + PLOT_WINDOW_NS) - execution.received_before(begin_ns);
        ppm(had_ns, PLOT_WINDOW_NS)
    };
    TenantOutcome {
        name: plan.name.clone(),
        share: plan.share,
        received_ns: execution.received_ns(),
        received_ppm: ppm(execution.received_ns(), duration_ns),
        longest_kernel_ns: client.longest_ns,
        latency: latency(std::iter::once(client), duration_ns),
        excess_ns: plan
            .share
            .limit_permille
            .map(|limit| worst_excess_ns(execution, limit, plan.start_ns + LEARNING_NS)),
        shares_ppm: (0..duration_ns / PLOT_WINDOW_NS).map(|second| window(second * PLOT_WINDOW_NS)).collect(),
    }
}

fn handoffs<'a>(commands: impl Iterator<Item = &'a Command>) -> u64 {
    let (mut count, mut last) = (0, None);
    for command in commands {
        if let Command::Open { tenant, .. } = command {
            count += u64::from(last.is_some_and(|last| last != *tenant));
            last = Some(*tenant);
        }
    }
    count
}
