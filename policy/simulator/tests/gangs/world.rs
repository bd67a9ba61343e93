//! Several GPUs whose tenants behave as the shim does, in steps of virtual time: as much work ahead as the gate allows, an
//! announcement at the end of a slice, a word when nothing is left. What is launched goes on behind a closed gate, beside
//! what others have launched.

use std::collections::VecDeque;

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, HostScheduler, Input, Parameters, Share};
use gpool_policy::timeline::Burst;
use gpool_policy_simulator::random::Random;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;
pub const SECOND: u64 = 1_000 * MS;
/// Time goes on in steps of this.
const STEP: u64 = 20 * US;
/// From the opening of a gate to the first launch behind it.
const HANDOFF: u64 = 100 * US;
/// Silence after which a client says that it is idle.
const SILENCE: u64 = 500 * US;
/// Work is reported in pieces of this length.
const PIECE: u64 = MS;

/// What a tenant wants to run.
#[derive(Clone, Copy, Debug)]
pub enum Demand {
    /// Always more.
    Always,
    /// Requests that know nothing of each other: the GPU time of each, and which part of a GPU they take in the mean, in
    /// permille.
    Requests { work_ns: u64, permille: u64 },
}

/// What a tenant has said last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Announced,
    /// That the work has ended that it had announced the end of.
    Ended,
    Wants,
    Drained,
}

/// What a tenant does on one of its GPUs.
struct Rank {
    gpu: usize,
    launched_ns: u64,
    done_ns: u64,
    /// The beginning of the work of which nothing has been reported.
    since_ns: Option<u64>,
}

impl Rank {
    fn left_ns(&self) -> u64 {
        self.launched_ns - self.done_ns
    }
}

/// One tenant, on one GPU or on several.
pub struct Tenant {
    id: TenantId,
    ranks: Vec<Rank>,
    /// Its ranks get on only together.
    coupled: bool,
    demand: Demand,
    arrivals: Random,
    next_arrival_ns: u64,
    /// All that it has ever wanted to run, on each of its GPUs.
    wanted_ns: u64,
    /// When a request came, and what will have been done when it has been served.
    requests: VecDeque<(u64, u64)>,
    gate: Option<(u64, u64)>,
    /// When it sees that its gate has been opened.
    sees_ns: u64,
    said: Said,
    silent_since_ns: Option<u64>,
    stands_since_ns: Option<u64>,
    /// How long its requests took.
    pub served_ns: Vec<u64>,
    /// How long it stood at its gate, each time.
    pub stood_ns: Vec<u64>,
}

impl Tenant {
    /// All that it has ever wanted to run.
    pub fn wanted_ns(&self) -> u64 {
        self.wanted_ns
    }

    fn unlaunched_ns(&self, rank: &Rank) -> u64 {
        self.wanted_ns.saturating_sub(rank.launched_ns)
    }

    fn wants(&self) -> bool {
        self.ranks.iter().any(|rank| self.unlaunched_ns(rank) > 0)
    }

    fn left_ns(&self) -> u64 {
        self.ranks.iter().map(Rank::left_ns).max().unwrap_or(0)
    }

    fn done_ns(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.done_ns).min().unwrap_or(0)
    }
}

/// All of it.
pub struct World {
    pub now: u64,
    pub scheduler: HostScheduler,
    pub tenants: Vec<Tenant>,
    /// How many commands there have been.
    pub commands: usize,
    gpus: usize,
    seed: u64,
}

impl World {
    pub fn new(gpus: usize, seed: u64) -> Self {
        let scheduler = HostScheduler::new(Parameters::default(), gpus, 0);
        Self { now: 0, scheduler, tenants: Vec::new(), commands: 0, gpus, seed }
    }

    /// A tenant of these GPUs begins.
    pub fn add(&mut self, gpus: &[usize], share: Share, demand: Demand, coupled: bool) -> usize {
        let index = self.tenants.len();
        let id = TenantId(index as u64);
        let rank = |&gpu: &usize| Rank { gpu, launched_ns: 0, done_ns: 0, since_ns: None };
        let mut tenant = Tenant {
            id,
            ranks: gpus.iter().map(rank).collect(),
            coupled,
            demand,
            arrivals: Random::stream(self.seed, index as u64),
            next_arrival_ns: u64::MAX,
            wanted_ns: 0,
            requests: VecDeque::new(),
            gate: None,
            sees_ns: 0,
            said: Said::Nothing,
            silent_since_ns: None,
            stands_since_ns: None,
            served_ns: Vec::new(),
            stood_ns: Vec::new(),
        };
        match demand {
            Demand::Always => tenant.wanted_ns = u64::MAX,
            Demand::Requests { .. } => tenant.next_arrival_ns = self.now,
        }
        self.tenants.push(tenant);
        let mut commands = Vec::new();
        self.scheduler.join(self.now, id, gpus.iter().copied().collect(), share, 0, &mut commands);
        self.obey(commands);
        index
    }

    pub fn run_until(&mut self, end: u64) {
        while self.now < end {
            self.now += STEP;
            self.work();
            for index in 0..self.tenants.len() {
                self.arrive(index);
                self.report(index);
                self.look(index);
            }
            if self.scheduler.next_timer().is_some_and(|at_ns| at_ns <= self.now) {
                self.tell(Input::Pass);
            }
        }
    }

    /// What a tenant has had of each of its GPUs, in permille of all the time: where least.
    pub fn permille(&self, index: usize) -> u64 {
        self.tenants[index].done_ns() * 1_000 / self.now
    }

    fn tell(&mut self, input: Input) {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        self.obey(commands);
    }

    fn obey(&mut self, commands: Vec<Command>) {
        let now = self.now;
        self.commands += commands.len();
        for command in commands {
            match command {
                Command::Open { tenant, until_ns, depth_ns, .. } => {
                    let tenant = &mut self.tenants[tenant.0 as usize];
                    if tenant.gate.is_none() {
                        tenant.sees_ns = now + HANDOFF;
                    }
                    if let Some(since_ns) = tenant.stands_since_ns.take() {
                        tenant.stood_ns.push(now - since_ns);
                    }
                    (tenant.gate, tenant.said) = (Some((until_ns, depth_ns)), Said::Nothing);
                }
                Command::Close { tenant } => {
                    let tenant = &mut self.tenants[tenant.0 as usize];
                    // Who has announced stands at its gate already.
                    let stands = matches!(tenant.said, Said::Announced | Said::Ended);
                    (tenant.gate, tenant.said) = (None, if stands { Said::Wants } else { Said::Nothing });
                    tenant.stands_since_ns = stands.then_some(now);
                }
                Command::Hung { tenant, .. } => panic!("{tenant:?} does not hang"),
            }
        }
    }

    /// The devices work for one step. Each takes turns among those that have work on it.
    fn work(&mut self) {
        let mut crowd = vec![0; self.gpus];
        for rank in self.tenants.iter().flat_map(|tenant| &tenant.ranks).filter(|rank| rank.left_ns() > 0) {
            crowd[rank.gpu] += 1;
        }
        for tenant in &mut self.tenants {
            let slowest = tenant.ranks.iter().map(|rank| crowd[rank.gpu]).max().unwrap_or(1);
            let waits = tenant.coupled && tenant.ranks.iter().any(|rank| rank.left_ns() == 0);
            for rank in tenant.ranks.iter_mut().filter(|rank| rank.left_ns() > 0) {
                rank.since_ns.get_or_insert(self.now - STEP);
                let others = if tenant.coupled { slowest } else { crowd[rank.gpu] };
                if !waits {
                    rank.done_ns += (STEP / others).min(rank.left_ns());
                }
            }
            let done_ns = tenant.done_ns();
            while let Some(&(arrived_ns, _)) = tenant.requests.front().filter(|(_, mark_ns)| *mark_ns <= done_ns) {
                tenant.requests.pop_front();
                tenant.served_ns.push(self.now - arrived_ns);
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let Demand::Requests { work_ns, permille } = tenant.demand else { return };
        let per_second = permille as f64 * 1e6 / work_ns as f64;
        while tenant.next_arrival_ns <= self.now {
            if tenant.next_arrival_ns > 0 {
                tenant.wanted_ns += work_ns;
                tenant.requests.push_back((tenant.next_arrival_ns, tenant.wanted_ns));
            }
            tenant.next_arrival_ns += tenant.arrivals.interval_ns(per_second).max(1);
        }
    }

    /// Tells what has been done on each GPU since the last time.
    fn report(&mut self, index: usize) {
        for rank in 0..self.tenants[index].ranks.len() {
            let now = self.now;
            let tenant = &mut self.tenants[index];
            let (id, rank) = (tenant.id, &mut tenant.ranks[rank]);
            let has_work = rank.left_ns() > 0;
            let Some(since_ns) = rank.since_ns.filter(|since_ns| !has_work || now - since_ns >= PIECE) else {
                continue;
            };
            rank.since_ns = has_work.then_some(now);
            let burst = Burst { tenant: id, context: 0, start_ns: since_ns, end_ns: now };
            let mut commands = Vec::new();
            self.scheduler.burst(now, rank.gpu, burst, &mut commands);
            self.obey(commands);
        }
    }

    /// Launches what may be launched and says what is to be said.
    fn look(&mut self, index: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[index];
        let id = tenant.id;
        if let Some((until_ns, depth_ns)) = tenant.gate.filter(|_| tenant.sees_ns <= now) {
            let wanted_ns = tenant.wanted_ns;
            for rank in &mut tenant.ranks {
                let room_ns = depth_ns.min(until_ns.saturating_sub(now)).saturating_sub(rank.left_ns());
                rank.launched_ns += room_ns.min(wanted_ns.saturating_sub(rank.launched_ns));
            }
        }
        let (wants, left_ns) = (tenant.wants(), tenant.left_ns());
        if wants || left_ns > 0 {
            tenant.silent_since_ns = None;
        }
        let (said, input) = match (tenant.gate, tenant.said) {
            _ if !wants && left_ns == 0 => return self.be_silent(index),
            _ if !wants => return,
            (Some((until_ns, _)), Said::Nothing) if tenant.sees_ns <= now && now + left_ns + STEP > until_ns => {
                let estimated_end_ns = (now + left_ns).max(until_ns);
                (Said::Announced, Input::Announced { tenant: id, estimated_end_ns })
            }
            (Some(_), Said::Announced) if left_ns == 0 => {
                (Said::Ended, Input::Announced { tenant: id, estimated_end_ns: now })
            }
            (None, Said::Nothing) => (Said::Wants, Input::Wants { tenant: id }),
            (None, Said::Wants) if left_ns == 0 => (Said::Drained, Input::Drained { tenant: id }),
            _ => return,
        };
        tenant.said = said;
        if tenant.gate.is_none() {
            tenant.stands_since_ns.get_or_insert(now);
        }
        self.tell(input);
    }

    fn be_silent(&mut self, index: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[index];
        if tenant.gate.is_none() {
            return;
        }
        let since_ns = *tenant.silent_since_ns.get_or_insert(now);
        if now >= since_ns + SILENCE {
            (tenant.gate, tenant.said, tenant.silent_since_ns) = (None, Said::Nothing, None);
            let input = Input::Idle { tenant: tenant.id };
            self.tell(input);
        }
    }
}

/// The value that so many in a hundred stay below.
pub fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}
