//! A run and what was seen of it.

use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Parameters, QUEUED_LEAST_NS, SliceScheduler};
use gpool_policy_simulator::record::{Execution, Wanted};
use gpool_policy_simulator::scenario::{Demand, Scenario};
use gpool_policy_simulator::{Gatekeeper, World, world_of};

use crate::generate::SECOND;

/// Before this nothing is judged. What a launch costs is not known before the first has ended: a client whose first
/// kernel was much shorter than its others issues a slice of guesses, a hundred milliseconds and more of work, and then
/// pays for it.
pub const WARM_NS: u64 = 3 * SECOND;

/// The scheduler, and what it was told and did.
pub struct Watched {
    pub scheduler: SliceScheduler,
    /// Every burst that was reported: whose, from, to.
    pub bursts: Vec<(TenantId, u64, u64)>,
    /// The longest slice of a tenant without debt so far.
    pub slice_ns: u64,
    /// By tenant: the most work ahead that it was ever allowed, and the most that a turn could consume.
    tenants: Vec<Most>,
}

#[derive(Clone, Copy, Default)]
struct Most {
    ahead_ns: u64,
    turn_ns: u64,
    slice_ns: u64,
}

impl Gatekeeper for Watched {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        let known = commands.len();
        self.scheduler.handle(now_ns, input, commands);
        self.slice_ns = self.slice_ns.max(self.scheduler.slice_ns());
        match input {
            Input::Burst { tenant, start_ns, end_ns, .. } => self.bursts.push((tenant, start_ns, end_ns)),
            Input::Arrival { tenant, queued_ns, start_ns, end_ns, .. } => {
                let has_stood = start_ns - queued_ns >= QUEUED_LEAST_NS;
                self.bursts.push((tenant, if has_stood { start_ns } else { queued_ns }, end_ns));
            }
            _ => {}
        }
        for command in &commands[known..] {
            let Command::Open { tenant, depth_ns, until_ns, burst_ns } = *command else { continue };
            let turn_ns = self.scheduler.explain(tenant).map_or(0, |explanation| explanation.turn_bound_ns);
            let most = &mut self.tenants[tenant.0 as usize];
            most.ahead_ns = most.ahead_ns.max(depth_ns + burst_ns);
            most.turn_ns = most.turn_ns.max(turn_ns);
            most.slice_ns = most.slice_ns.max(until_ns.saturating_sub(now_ns));
        }
    }

    fn next_timer(&self) -> Option<u64> {
        self.scheduler.next_timer()
    }
}

/// A scenario and its run.
pub struct Run {
    pub scenario: Scenario,
    pub seed: u64,
    pub world: World<Watched>,
}

impl Run {
    /// At its beginning.
    pub fn new(scenario: Scenario, seed: u64) -> Self {
        Self::with_parameters(scenario, seed, Parameters::default())
    }

    pub fn with_parameters(scenario: Scenario, seed: u64, parameters: Parameters) -> Self {
        let scheduler = SliceScheduler::new(parameters, 0);
        let tenants = vec![Most::default(); scenario.tenants.len()];
        let watched = Watched { scheduler, bursts: Vec::new(), slice_ns: 0, tenants };
        let world = world_of(&scenario, seed, watched);
        Self { scenario, seed, world }
    }

    /// At its end.
    pub fn finished(scenario: Scenario, seed: u64) -> Self {
        let mut run = Self::new(scenario, seed);
        run.world.run_until(WARM_NS.min(run.scenario.duration_ns));
        run.world.clients.iter_mut().for_each(|client| client.most_ahead_ns = 0);
        run.world.run_until(run.scenario.duration_ns);
        run
    }

    pub fn count(&self) -> usize {
        self.scenario.tenants.len()
    }

    pub fn weight(&self, tenant: usize) -> u64 {
        u64::from(self.scenario.tenants[tenant].share.weight_permille)
    }

    pub fn execution(&self, tenant: usize) -> &Execution {
        &self.world.record.executions[tenant]
    }

    pub fn is_limited(&self, tenant: usize) -> bool {
        self.scenario.tenants[tenant].share.limit_permille.is_some()
    }

    /// The most that one turn can consume: `u = r + a + k`, its slice, what may be launched ahead, and the longest
    /// kernel. Of the latency class `r` is what it may run ahead, as the scheduler has learnt it, if that is more.
    pub fn turn_ns(&self, tenant: usize) -> u64 {
        let most = &self.world.scheduler.tenants[tenant];
        let is_latency = self.scenario.tenants[tenant].share.class == Class::Latency;
        let learnt_ns = if is_latency { most.turn_ns + most.ahead_ns } else { 0 };
        self.batch_turn_ns(tenant).max(learnt_ns)
    }

    /// The same of a tenant that may not run ahead.
    pub fn batch_turn_ns(&self, tenant: usize) -> u64 {
        let ahead_ns = self.world.scheduler.tenants[tenant].ahead_ns;
        self.slice_ns(tenant) + ahead_ns + self.world.clients[tenant].longest_ns
    }

    /// The same where several kernels of a turn's end were longer than they were expected to be.
    pub fn real_turn_ns(&self, tenant: usize) -> u64 {
        self.batch_turn_ns(tenant).max(self.slice_ns(tenant) + self.world.clients[tenant].most_ahead_ns)
    }

    /// Its longest slice. Of kernels that are longer than the usual one it is as long as they are measured, and they
    /// take longer when they overlap; but no longer than the longest slice that there is.
    pub fn slice_ns(&self, tenant: usize) -> u64 {
        let given_ns = self.world.scheduler.tenants[tenant].slice_ns.min(Parameters::default().slice_max_ns);
        given_ns.max(self.world.scheduler.slice_ns).max(self.world.clients[tenant].longest_ns)
    }

    /// The most that a turn of anybody can consume, U.
    pub fn longest_turn_ns(&self) -> u64 {
        (0..self.count()).map(|tenant| self.turn_ns(tenant)).max().unwrap_or(0)
    }

    /// When a tenant had work without end: from, to.
    pub fn endless(&self, tenant: usize) -> Vec<(u64, u64)> {
        let (mut spans, mut since_ns) = (Vec::new(), None);
        for &(at_ns, wanted) in &self.world.record.wanted[tenant] {
            match wanted {
                Wanted::On => since_ns = since_ns.or(Some(at_ns)),
                Wanted::Off | Wanted::Gone => spans.extend(since_ns.take().map(|since_ns| (since_ns, at_ns))),
                Wanted::Request(_) => {}
            }
        }
        spans.extend(since_ns.map(|since_ns| (since_ns, self.scenario.duration_ns)));
        spans
    }

    /// Whether a tenant has work without end from the first moment to the last.
    pub fn is_backlogged(&self, tenant: usize) -> bool {
        self.scenario.tenants[tenant].demand == Demand::Backlog
    }

    /// When somebody's kernel executed: stretches in order that do not touch.
    pub fn device_busy(&self) -> Vec<(u64, u64)> {
        let stretches = self.world.record.executions.iter().flat_map(Execution::stretches);
        union(stretches.map(|ran| (ran.start_ns, ran.end_ns)).collect())
    }

    /// For a failure: the scenario that it happened in.
    pub fn story(&self) -> String {
        format!("seed {}: {:#?}", self.seed, self.scenario)
    }
}

/// The union of stretches of time, in order; those that touch become one.
pub fn union(mut stretches: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    stretches.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start_ns, end_ns) in stretches.into_iter().filter(|(start_ns, end_ns)| start_ns < end_ns) {
        match joined.last_mut().filter(|last| last.1 >= start_ns) {
            Some(last) => last.1 = last.1.max(end_ns),
            None => joined.push((start_ns, end_ns)),
        }
    }
    joined
}

/// The time that both have, of two such unions.
pub fn common_ns(one: &[(u64, u64)], other: &[(u64, u64)]) -> u64 {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut sum_ns = 0;
    while let (Some(&&(from, to)), Some(&&(begin, end))) = (one.peek(), other.peek()) {
        sum_ns += to.min(end).saturating_sub(from.max(begin));
        let _ = if to <= end { one.next() } else { other.next() };
    }
    sum_ns
}

/// How long such a union is.
pub fn length_ns(stretches: &[(u64, u64)]) -> u64 {
    stretches.iter().map(|(start_ns, end_ns)| end_ns - start_ns).sum()
}

/// A part in thousandths of the whole, rounded up.
pub fn permille(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000).div_ceil(u128::from(whole.max(1))) as u64
}
