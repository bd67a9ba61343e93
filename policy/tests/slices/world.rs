//! A device, a scheduler, clients, and the delays between them.

use std::hash::{DefaultHasher, Hash, Hasher};

use gpool_device_model::{Device, DeviceParameters};
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Parameters, Share, SliceScheduler};

use crate::client::Client;
use crate::events::{Agenda, Event};
use crate::random::Random;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// One tenant of a scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    pub weight: u16,
    pub kernel_ns: (u64, u64),
    pub debt_ns: u64,
}

pub fn plan(weight: u16, kernel_ns: u64) -> Plan {
    Plan { weight, kernel_ns: (kernel_ns, kernel_ns), debt_ns: 0 }
}

/// A command and when it was given.
pub type Traced = (u64, Command);

pub struct World {
    pub now: u64,
    pub device: Device,
    pub scheduler: SliceScheduler,
    pub clients: Vec<Client>,
    pub trace: Vec<Traced>,
    /// How many of a thousand wake-ups take 3 ms, as they do between busy processes on two cores.
    pub late_permille: u64,
    agenda: Agenda,
    random: Random,
    commands: u64,
    timer_lateness_ns: u64,
    /// When the next burst ends and whose it is, unless something was issued since.
    next_end: Option<(u64, usize)>,
    changed: bool,
}

impl World {
    /// Tenants with ids 1, 2, 3 ... that all have work from the start.
    pub fn new(seed: u64, plans: &[Plan]) -> Self {
        let ids: Vec<u64> = (1..=plans.len() as u64).collect();
        Self::named(seed, plans, &ids)
    }

    pub fn named(seed: u64, plans: &[Plan], ids: &[u64]) -> Self {
        let mut world = Self::without_demand(seed, plans, ids);
        (0..plans.len()).for_each(|client| world.demand(0, client, true));
        world
    }

    pub fn without_demand(seed: u64, plans: &[Plan], ids: &[u64]) -> Self {
        let mut world = Self {
            now: 0,
            device: Device::new(DeviceParameters { switch_cost_ns: 50_000, ..DeviceParameters::standard(0) }, 0),
            scheduler: SliceScheduler::new(Parameters::default(), 0),
            clients: Vec::new(),
            trace: Vec::new(),
            late_permille: 0,
            agenda: Agenda::default(),
            random: Random::new(seed),
            commands: 0,
            timer_lateness_ns: 0,
            next_end: None,
            changed: true,
        };
        for (index, (plan, &id)) in plans.iter().zip(ids).enumerate() {
            let tenant = TenantId(id);
            let context = world.device.create_context(0, index as u32 + 1, &index.to_string()).expect("memory");
            world.clients.push(Client::new(tenant, context, plan.kernel_ns));
            world.tell(Input::Join { tenant, share: Share::of(plan.weight), debt_ns: plan.debt_ns });
        }
        world
    }

    pub fn demand(&mut self, at: u64, client: usize, on: bool) {
        self.agenda.add(at, Event::Demand { client, on });
    }

    pub fn tenant(&self, client: usize) -> TenantId {
        self.clients[client].tenant
    }

    /// GPU time a client has received, from the device's meter.
    pub fn received(&self, client: usize) -> u64 {
        self.device.meter().owners.get(&client.to_string()).map_or(0, |usage| usage.busy_ns)
    }

    pub fn all_received(&self) -> Vec<u64> {
        (0..self.clients.len()).map(|client| self.received(client)).collect()
    }

    /// Gives the scheduler an input and sets its commands on their way.
    pub fn tell(&mut self, input: Input) {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        for command in commands {
            self.trace.push((self.now, command));
            self.commands += 1;
            let (tenant, until_ns) = match command {
                Command::Hung { .. } => continue,
                Command::Open { tenant, until_ns, .. } => (tenant, Some(until_ns)),
                Command::Close { tenant } => (tenant, None),
            };
            let Some(client) = self.clients.iter().position(|client| client.tenant == tenant) else { continue };
            let at = self.now + self.random.within(50_000, 150_000) + self.late();
            let event = Event::Gate { client, command: self.commands, until_ns, commanded_ns: self.now };
            self.agenda.add(at, event);
        }
    }

    pub fn run_until(&mut self, end: u64) {
        self.run_with(end, |_| {});
    }

    /// Runs and calls `each` after everything that happens.
    pub fn run_with(&mut self, end: u64, mut each: impl FnMut(&mut Self)) {
        while let Some((at, what)) = self.next(end) {
            self.now = self.now.max(at);
            self.device.advance(self.now);
            match what {
                Next::Timer => {
                    self.timer_lateness_ns = self.random.within(5_000, 40_000) + self.late();
                    self.tell(Input::Pass);
                }
                Next::End(client) => {
                    self.changed = true;
                    let wake = self.random.within(10_000, 30_000);
                    self.agenda.add(self.now + wake, Event::Look { client });
                }
                Next::Event => match self.agenda.take().expect("an event") {
                    Event::Ring { inputs } => inputs.into_iter().for_each(|input| self.tell(input)),
                    Event::Look { client } => self.look(client),
                    Event::Demand { client, on } => {
                        self.clients[client].demand = on;
                        self.look(client);
                    }
                    Event::Gate { client, command, until_ns, commanded_ns } => {
                        self.clients[client].see_gate(command, until_ns, commanded_ns);
                        self.look(client);
                    }
                },
            }
            each(self);
        }
        self.now = end;
        self.device.advance(end);
    }

    /// A number that differs if any command or its time does.
    pub fn trace_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.trace.hash(&mut hasher);
        hasher.finish()
    }

    fn late(&mut self) -> u64 {
        if self.late_permille > 0 && self.random.within(1, 1000) <= self.late_permille { 3 * MS } else { 0 }
    }

    fn look(&mut self, client: usize) {
        let wish = self.clients[client].look(self.now, &mut self.device, &mut self.random);
        self.changed |= wish.issued;
        if let Some(at) = wish.look_ns {
            self.agenda.add(at, Event::Look { client });
        }
        if !wish.ring.is_empty() {
            let at = self.now + self.random.within(20_000, 60_000) + self.late();
            self.agenda.add(at, Event::Ring { inputs: wish.ring });
        }
    }

    fn next(&mut self, end: u64) -> Option<(u64, Next)> {
        if self.changed {
            self.changed = false;
            self.next_end = self.project();
        }
        let timer = self.scheduler.next_timer().map(|at| (at.max(self.now) + self.timer_lateness_ns, Next::Timer));
        let finished = self.next_end.map(|(at, client)| (at, Next::End(client)));
        let event = self.agenda.next_ns().map(|at| (at, Next::Event));
        [event, finished, timer].into_iter().flatten().min_by_key(|&(at, _)| at).filter(|&(at, _)| at <= end)
    }

    /// The next end of a burst that is still to come.
    fn project(&self) -> Option<(u64, usize)> {
        let ends = self.clients.iter().enumerate().filter_map(|(index, client)| {
            let ticket = client.next_end_after(self.device.last_completed(client.context))?;
            Some((self.device.projected_completion(client.context, ticket)?, index))
        });
        ends.min()
    }
}

enum Next {
    Timer,
    End(usize),
    Event,
}

/// A part in 1/10000 of the whole.
pub fn permyriad(part: u64, whole: u64) -> i64 {
    (u128::from(part) * 10_000 / u128::from(whole)) as i64
}
