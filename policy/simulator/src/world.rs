//! A device, a gatekeeper, clients, and the delays between them.

use std::hash::{Hash, Hasher};

use gpool_device_model::{Device, DeviceParameters};
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Share};

use crate::agenda::{Agenda, Event, Seen};
use crate::client::Client;
use crate::delays::Delays;
use crate::gatekeeper::Gatekeeper;
use crate::random::Random;
use crate::record::{Record, Wanted};
use crate::work::{Steps, Work};

/// A command and when it was given.
pub type Traced = (u64, Command);

/// Everything that happens on one GPU, under a clock that jumps from event to event.
pub struct World<G> {
    /// The present, in nanoseconds.
    pub now: u64,
    /// The GPU.
    pub device: Device,
    /// Who decides.
    pub scheduler: G,
    /// The tenants' processes, in the order in which they were added.
    pub clients: Vec<Client>,
    /// Every command so far.
    pub trace: Vec<Traced>,
    /// What takes time on the host.
    pub delays: Delays,
    /// What the meter has shown.
    pub record: Record,
    agenda: Agenda,
    random: Random,
    commands: u64,
    timer_lateness_ns: u64,
    /// Until when a client's bell is busy: what it says arrives in order.
    heard_ns: Vec<u64>,
    owners: Vec<String>,
    /// How often a client has looked: the number of its present sleep.
    sleeps: Vec<u64>,
}

impl<G: Gatekeeper> World<G> {
    /// A world without tenants. The seed is that of the delays; works bring their own.
    pub fn new(device: DeviceParameters, delays: Delays, seed: u64, scheduler: G) -> Self {
        Self {
            now: 0,
            device: Device::new(device, 0),
            scheduler,
            clients: Vec::new(),
            trace: Vec::new(),
            delays,
            record: Record::default(),
            agenda: Agenda::default(),
            random: Random::stream(seed, u64::MAX),
            commands: 0,
            timer_lateness_ns: 0,
            heard_ns: Vec::new(),
            owners: Vec::new(),
            sleeps: Vec::new(),
        }
    }

    /// Adds a process whose lease has not begun: see [`tell_at`](Self::tell_at) with [`Input::Join`]. The index of its
    /// client.
    pub fn add_client(&mut self, tenant: TenantId, work: Work) -> usize {
        let index = self.clients.len();
        let owner = index.to_string();
        let process = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let context = self.device.create_context(self.now, process, &owner).expect("a context fits into the memory");
        self.clients.push(Client::new(tenant, context, work));
        self.record.executions.push(Default::default());
        self.record.wanted.push(Vec::new());
        self.heard_ns.push(0);
        self.owners.push(owner);
        self.sleeps.push(0);
        index
    }

    /// Adds a process and begins its lease now.
    pub fn add_tenant(&mut self, tenant: TenantId, share: Share, debt_ns: u64, work: Work) -> usize {
        let index = self.add_client(tenant, work);
        self.tell(Input::Join { tenant, share, debt_ns });
        index
    }

    /// From `at` on, a client's application has work without end, or no longer.
    pub fn demand(&mut self, at: u64, client: usize, on: bool) {
        self.agenda.add(at, Event::Demand { client, on });
    }

    /// At `at`, a client's application gets a request for so much GPU time.
    pub fn request(&mut self, at: u64, client: usize, work_ns: u64) {
        self.agenda.add(at, Event::Request { client, work_ns });
    }

    /// From `at` on, a client's application has one piece of work after the other.
    pub fn steps(&mut self, at: u64, client: usize, steps: Steps) {
        self.clients[client].work.steps = Some(steps);
        self.request(at, client, steps.work_ns);
    }

    /// At `at`, the gatekeeper is told something.
    pub fn tell_at(&mut self, at: u64, input: Input) {
        self.agenda.add(at, Event::Tell { input });
    }

    /// At `at`, a client's process and its lease end.
    pub fn end_at(&mut self, at: u64, client: usize) {
        self.agenda.add(at, Event::End { client });
    }

    /// Whose client that is.
    pub fn tenant(&self, client: usize) -> TenantId {
        self.clients[client].tenant
    }

    /// GPU time a client has received, from the device's meter.
    pub fn received(&self, client: usize) -> u64 {
        self.device.meter().owners.get(&self.owners[client]).map_or(0, |usage| usage.busy_ns)
    }

    /// The same of all clients.
    pub fn all_received(&self) -> Vec<u64> {
        (0..self.clients.len()).map(|client| self.received(client)).collect()
    }

    /// Gives the gatekeeper an input and sets its commands on their way.
    pub fn tell(&mut self, input: Input) {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        self.carry_out(commands);
    }

    fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.trace.push((self.now, command));
            self.commands += 1;
            let commanded_ns = self.now;
            let (tenant, seen) = match command {
                Command::Hung { .. } => continue,
                Command::Open { tenant, until_ns, depth_ns, burst_ns } => {
                    (tenant, Seen::Open { until_ns, depth_ns, burst_ns, commanded_ns })
                }
                Command::Close { tenant } => (tenant, Seen::Closed),
            };
            let Some(client) = self.clients.iter().position(|client| client.tenant == tenant) else { continue };
            let at = self.now + self.delays.gate.draw(&mut self.random);
            self.agenda.add(at, Event::Gate { client, command: self.commands, seen });
        }
    }

    /// Runs up to `end`.
    pub fn run_until(&mut self, end: u64) {
        self.run_with(end, |_| {});
    }

    /// Runs and calls `each` after everything that happens.
    pub fn run_with(&mut self, end: u64, mut each: impl FnMut(&mut Self)) {
        while let Some((at, what)) = self.next(end) {
            self.advance(at);
            match what {
                Next::Timer => {
                    self.timer_lateness_ns = self.delays.timer.draw(&mut self.random);
                    self.wake_gatekeeper();
                }
                Next::Device => self.notice_ends(),
                Next::Event => {
                    if let Some(event) = self.agenda.take() {
                        self.happen(event);
                    }
                }
            }
            each(self);
        }
        self.advance(end);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ring { inputs } => {
                self.read_reports();
                let clients = &self.clients;
                let is_said = |input: &Input| clients.iter().all(|client| client.still_says(input));
                let said: Vec<Input> = inputs.into_iter().filter(is_said).collect();
                said.into_iter().for_each(|input| self.tell(input));
            }
            Event::Tell { input } => self.tell(input),
            Event::Look { client } => self.look(client),
            Event::Wake { client, sleep } if self.sleeps[client] == sleep => self.look(client),
            Event::Wake { .. } => {}
            Event::End { client } => self.end(client),
            Event::Demand { client, .. } | Event::Request { client, .. } if self.clients[client].mute => {}
            Event::Demand { client, on } => {
                self.record.wanted[client].push((self.now, if on { Wanted::On } else { Wanted::Off }));
                self.clients[client].work.demand = on;
                self.look(client);
            }
            Event::Request { client, work_ns } => {
                self.record.wanted[client].push((self.now, Wanted::Request(work_ns)));
                self.clients[client].work.arrive(self.now, work_ns);
                self.look(client);
            }
            Event::Gate { client, command, seen } => {
                self.clients[client].see_gate(command, seen);
                self.look(client);
            }
        }
    }

    fn end(&mut self, index: usize) {
        self.record.wanted[index].push((self.now, Wanted::Gone));
        self.read_reports();
        let client = &mut self.clients[index];
        client.end(self.now);
        let (tenant, context) = (client.tenant, client.context);
        self.device.destroy_context(self.now, context);
        self.tell(Input::Leave { tenant });
    }

    /// A number that differs if any command or its time does.
    pub fn trace_hash(&self) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        self.trace.hash(&mut hasher);
        hasher.finish()
    }

    /// Charges come first, so that a decision sees all that is known.
    fn read_reports(&mut self) {
        for client in 0..self.clients.len() {
            self.clients[client].take_report().into_iter().for_each(|input| self.tell(input));
        }
    }

    fn wake_gatekeeper(&mut self) {
        self.read_reports();
        let mut commands = Vec::new();
        let (clients, owners, meter) = (&self.clients, &self.owners, self.device.meter());
        let usage_ns = |tenant| {
            let owner = clients.iter().position(|client| client.tenant == tenant).map(|index| &owners[index]);
            owner.and_then(|owner| meter.owners.get(owner)).map_or(0, |usage| usage.busy_ns)
        };
        self.scheduler.wake(self.now, &usage_ns, &mut commands);
        self.carry_out(commands);
    }

    /// Goes on to `at`, which is not beyond the device's next change, and records what the meter shows of it.
    fn advance(&mut self, at: u64) {
        if at <= self.now {
            return;
        }
        let has_work = |client: &Client| client.work.waits() || self.device.queued(client.context) > 0;
        if self.clients.iter().any(has_work) {
            self.record.work_ns += at - self.now;
        }
        self.now = at;
        self.device.advance(at);
        for (client, execution) in self.record.executions.iter_mut().enumerate() {
            let usage = self.device.meter().owners.get(&self.owners[client]);
            let ran_ns = usage.map_or(0, |usage| usage.busy_ns) - execution.received_ns();
            if ran_ns > 0 {
                execution.add(at - ran_ns, at);
            }
        }
    }

    /// Wakes the clients whose bursts have ended.
    fn notice_ends(&mut self) {
        for (index, client) in self.clients.iter_mut().enumerate() {
            if client.notices_end(self.device.last_completed(client.context)) {
                let at = self.now + self.delays.wake.draw(&mut self.random);
                self.agenda.add(at, Event::Look { client: index });
            }
        }
    }

    fn look(&mut self, client: usize) {
        let scheduler = &mut self.scheduler;
        let mut admit = |tenant, wanted| scheduler.admit(tenant, wanted);
        let served = self.clients[client].served.len();
        let wish = self.clients[client].look(self.now, &mut self.device, &mut admit);
        if let Some(Steps { work_ns, rest_ns }) = self.clients[client].work.steps {
            let ended = self.clients[client].served.len() - served;
            (0..ended).for_each(|_| self.agenda.add(self.now + rest_ns, Event::Request { client, work_ns }));
        }
        self.sleeps[client] += 1;
        if let Some(at) = wish.look_ns {
            let sleep = self.sleeps[client];
            self.agenda.add(at + self.delays.wake.draw(&mut self.random), Event::Wake { client, sleep });
        }
        if !wish.ring.is_empty() {
            let at = (self.now + self.delays.ring.draw(&mut self.random)).max(self.heard_ns[client]);
            self.heard_ns[client] = at;
            self.agenda.add(at, Event::Ring { inputs: wish.ring });
        }
    }

    fn next(&mut self, end: u64) -> Option<(u64, Next)> {
        let timer = self.scheduler.next_timer().map(|at| ((at + self.timer_lateness_ns).max(self.now), Next::Timer));
        let changed = self.device.next_change_ns().map(|at| (at, Next::Device));
        let event = self.agenda.next_ns().map(|at| (at.max(self.now), Next::Event));
        // The device first: nothing may pass over its change.
        [changed, event, timer].into_iter().flatten().min_by_key(|&(at, _)| at).filter(|&(at, _)| at <= end)
    }
}

enum Next {
    Timer,
    Device,
    Event,
}

/// FNV-1a (Fowler, Noll & Vo), which is the same in every version of the standard library.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
