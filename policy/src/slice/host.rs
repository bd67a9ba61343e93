//! All GPUs of a host: one scheduler each, and the gangs that hold several.
//!
//! A tenant with several GPUs has an account on each and one gate. Its gate opens only when all its GPUs grant it: one
//! of them chooses it by the usual rule, and on the others it is eligible as well and takes the slice over from
//! whoever holds it, if that one has had a whole slice or more than its share, or if the gang has been due for long. One of
//! the class `latency` takes over at once while it is within its slack on all of them. Whether it goes on is decided for all
//! its GPUs together; when one of them takes its slice away, the others are free for the next one.
//!
//! Latency tenants that come at different times to different GPUs of a gang would leave it less than it was promised. So one
//! that is [behind](Arrears) by a slice has whole slices until it has caught up: a latency tenant that comes meanwhile waits
//! for the end of the slice and is served next, and one that has a slice gives it up if the gang has waited for long.

use std::collections::BTreeMap;

use super::server_set::ServerSet;
use super::{Command, Input, Parameters, Share, SliceScheduler, TenantId};
use crate::timeline::Burst;

mod gangs;

use gangs::{Gang, earlier};

/// How often one input may move gangs about before the rest waits for the next one.
const ROUNDS: usize = 16;
/// When the rest is looked at, if nothing happens before.
const RECHECK_NS: u64 = 1_000_000;

/// Decides for all GPUs of a host whose gates are open.
#[derive(Clone, Debug)]
pub struct HostScheduler {
    servers: Vec<SliceScheduler>,
    homes: BTreeMap<TenantId, ServerSet>,
    /// Tenants with several GPUs.
    gangs: BTreeMap<TenantId, Gang>,
    /// GPUs that have changed since the gangs were judged.
    unjudged: ServerSet,
    /// GPUs that have changed since gangs were looked for that are first there.
    untried: ServerSet,
    /// When all gangs were judged last, or would have been judged as before.
    judged_ns: u64,
    /// Gangs that were heard of, or whose gates have moved, and whose silences have to be looked at.
    news: Vec<TenantId>,
    /// When a gang that is held back may be let go.
    recheck_ns: Option<u64>,
    now_ns: u64,
    buffer: Vec<Command>,
    /// Whether all gangs are looked at each time, to compare with that.
    #[cfg(test)]
    looks_at_all: bool,
}

impl HostScheduler {
    /// So many GPUs without tenants. Times are nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn new(parameters: Parameters, servers: usize, now_ns: u64) -> Self {
        Self {
            servers: (0..servers.min(ServerSet::LIMIT)).map(|_| SliceScheduler::new(parameters, now_ns)).collect(),
            homes: BTreeMap::new(),
            gangs: BTreeMap::new(),
            unjudged: ServerSet::default(),
            untried: ServerSet::default(),
            judged_ns: now_ns,
            news: Vec::new(),
            recheck_ns: None,
            now_ns,
            buffer: Vec::new(),
            #[cfg(test)]
            looks_at_all: false,
        }
    }

    /// A lease begins on these GPUs and owes `debt_ns` on each. Of a tenant that has joined already, only the share is
    /// taken. Unknown GPUs are left out; on none it never runs.
    pub fn join(
        &mut self,
        now_ns: u64,
        tenant: TenantId,
        servers: ServerSet,
        share: Share,
        debt_ns: u64,
        commands: &mut Vec<Command>,
    ) {
        if !self.homes.contains_key(&tenant) {
            let servers: ServerSet = servers.iter().filter(|&index| index < self.servers.len()).collect();
            self.homes.insert(tenant, servers);
            if servers.len() > 1 {
                self.gangs.insert(tenant, Gang::of(servers));
                servers.iter().for_each(|index| _ = self.servers[index].gangs.insert(tenant));
            }
        }
        self.handle(now_ns, Input::Join { tenant, share, debt_ns }, commands);
    }

    /// Takes an input and adds what to do to `commands`: an input about a tenant goes to all its GPUs, `Pass` to all
    /// that there are. A burst belongs to one GPU: see [`burst`](Self::burst).
    pub fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        self.now_ns = self.now_ns.max(now_ns);
        let touched = match tenant_of(&input) {
            Some(tenant) => self.servers_of(tenant),
            None if input == Input::Away => (0..self.servers.len()).collect(),
            None => self.due(),
        };
        touched.iter().for_each(|index| self.take(index, input, commands));
        if input == Input::Away {
            self.forgive_gangs();
        }
        if let Some(tenant) = tenant_of(&input) {
            self.note_news(tenant);
        }
        if let Input::Announced { tenant, .. } = input {
            self.renew_early(tenant, commands);
        }
        if let Input::Leave { tenant } = input {
            self.homes.remove(&tenant);
            self.gangs.remove(&tenant);
        }
        self.settle(touched, commands);
    }

    /// A context of a tenant had work on one GPU.
    pub fn burst(&mut self, now_ns: u64, server: usize, burst: Burst, commands: &mut Vec<Command>) {
        self.arrival(now_ns, server, burst, burst.start_ns, commands);
    }

    /// The same where it stood before that GPU from `queued_ns` on, which is not after the burst's start.
    pub fn arrival(&mut self, now_ns: u64, server: usize, burst: Burst, queued_ns: u64, commands: &mut Vec<Command>) {
        self.arrivals(now_ns, [(server, burst, queued_ns)], commands);
    }

    /// Several of those, in the order of their ends: what follows is decided when all are known. On a host of many gangs, each of
    /// which is looked at for a decision, that is also less work.
    pub fn arrivals(
        &mut self,
        now_ns: u64,
        bursts: impl IntoIterator<Item = (usize, Burst, u64)>,
        commands: &mut Vec<Command>,
    ) {
        self.now_ns = self.now_ns.max(now_ns);
        let mut touched = ServerSet::default();
        for (server, burst, queued_ns) in bursts {
            if self.servers_of(burst.tenant).contains(server) {
                self.take_arrival(server, burst, queued_ns, commands);
                touched.insert(server);
            }
        }
        if !touched.is_empty() {
            self.settle(touched, commands);
        }
    }

    fn take_arrival(&mut self, server: usize, burst: Burst, queued_ns: u64, commands: &mut Vec<Command>) {
        let Burst { tenant, context, start_ns, end_ns } = burst;
        // A gang hangs when nothing of it ends on any of its GPUs: it may have nothing to do on some of them.
        for other in self.servers_of(tenant).iter().filter(|&other| other != server) {
            self.servers[other].hear(tenant, end_ns.min(self.now_ns));
        }
        let input = if queued_ns < start_ns {
            Input::Arrival { tenant, context, queued_ns, start_ns, end_ns }
        } else {
            Input::Burst { tenant, context, start_ns, end_ns }
        };
        self.take(server, input, commands);
    }

    /// A tenant has used GPU time of one GPU, before `until_ns`, that it did not report: see [`Input::Owe`].
    pub fn owe(
        &mut self,
        now_ns: u64,
        server: usize,
        tenant: TenantId,
        (ns, until_ns): (u64, u64),
        commands: &mut Vec<Command>,
    ) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.servers_of(tenant).contains(server) {
            self.take(server, Input::Owe { tenant, ns, until_ns }, commands);
            self.settle(ServerSet::one(server), commands);
        }
    }

    /// What follows when a tenant hangs is another now: if it hangs and that has been told, it is told once more.
    pub fn tell_again(&mut self, now_ns: u64, tenant: TenantId, commands: &mut Vec<Command>) {
        // On all its GPUs before one of them tells for all.
        self.servers_of(tenant).iter().for_each(|index| self.servers[index].untell(tenant));
        self.handle(now_ns, Input::Pass, commands);
    }

    /// A period of the audit begins on all GPUs: see [`SliceScheduler::begin_period`].
    pub fn begin_period(&mut self, now_ns: u64) {
        self.servers.iter_mut().for_each(|server| server.begin_period(now_ns));
    }

    /// When to call [`handle`](Self::handle) with [`Input::Pass`], if nothing else happens before. `None`: never.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        self.servers.iter().filter_map(SliceScheduler::next_timer).chain(self.recheck_ns).min()
    }

    /// Number of GPUs.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// How the gate of a tenant that has just fallen idle may be left open, if each of its GPUs leaves it so: see
    /// [`SliceScheduler::left_open`].
    #[must_use]
    pub fn left_open(&self, tenant: TenantId) -> Option<Command> {
        let mut until_ns = None;
        for index in self.servers_of(tenant).iter() {
            until_ns = earlier(until_ns, Some(end_of(&self.servers[index].left_open(tenant)?)?));
        }
        Some(self.open_until(tenant, until_ns?))
    }

    /// One GPU's scheduler, to look at.
    ///
    /// # Panics
    /// When there is no such GPU.
    #[must_use]
    pub fn server(&self, index: usize) -> &SliceScheduler {
        &self.servers[index]
    }

    /// The GPUs of a tenant; none of one that has not joined.
    #[must_use]
    pub fn servers_of(&self, tenant: TenantId) -> ServerSet {
        self.homes.get(&tenant).copied().unwrap_or_default()
    }

    /// GPUs on which something is due.
    fn due(&self) -> ServerSet {
        if self.recheck_ns.is_some_and(|at_ns| at_ns <= self.now_ns) {
            return (0..self.servers.len()).collect();
        }
        let is_due = |server: &SliceScheduler| server.next_timer().is_some_and(|at_ns| at_ns <= self.now_ns);
        self.servers.iter().enumerate().filter(|(_, server)| is_due(server)).map(|(index, _)| index).collect()
    }

    fn take(&mut self, index: usize, input: Input, commands: &mut Vec<Command>) {
        let mut own = std::mem::take(&mut self.buffer);
        let is_still = input == Input::Pass && self.servers[index].is_still_at(self.now_ns);
        self.servers[index].take_in(self.now_ns, input, &mut own);
        if !is_still || !own.is_empty() {
            self.note_change(index);
        }
        self.mediate(index, &mut own, commands);
        self.buffer = own;
    }

    /// Lets the touched GPUs decide, and those that this touches.
    fn settle(&mut self, touched: ServerSet, commands: &mut Vec<Command>) {
        self.settle_gates(touched, commands);
        self.note_silences();
    }

    fn settle_gates(&mut self, mut touched: ServerSet, commands: &mut Vec<Command>) {
        self.recheck_ns = None;
        for _ in 0..ROUNDS {
            touched = touched.union(self.judge_gangs());
            let mut next = self.admit_gangs(commands);
            for index in touched.iter() {
                if next.contains(index) {
                    // It has become free meanwhile, and what gangs may have must be judged anew first.
                    continue;
                }
                let mut own = std::mem::take(&mut self.buffer);
                if self.servers[index].decide(&mut own) {
                    self.note_change(index);
                }
                next = next.union(self.mediate(index, &mut own, commands));
                self.buffer = own;
                if let Some(gang) = self.servers[index].take_due_gang() {
                    next = next.union(self.decide_on(gang, commands));
                }
            }
            if next.is_empty() {
                return;
            }
            touched = next;
        }
        self.recheck_ns = Some(self.now_ns + RECHECK_NS);
    }

    /// Passes on what one GPU wants done with gates; of gangs, to their other GPUs as well. The GPUs that have become
    /// free by it.
    fn mediate(&mut self, index: usize, own: &mut Vec<Command>, commands: &mut Vec<Command>) -> ServerSet {
        let mut freed = ServerSet::default();
        for command in own.drain(..) {
            match command {
                Command::Open { tenant, until_ns, .. } if self.gangs.contains_key(&tenant) => {
                    freed = freed.union(self.gather(index, tenant, until_ns, commands));
                }
                Command::Close { tenant } if self.gangs.contains_key(&tenant) => {
                    freed = freed.union(self.disband(tenant, commands));
                }
                Command::Hung { tenant, .. } if self.gangs.contains_key(&tenant) => {
                    self.servers_of(tenant).iter().for_each(|other| self.servers[other].note_told(tenant));
                    commands.push(command);
                }
                other => commands.push(other),
            }
        }
        freed
    }

    /// The gate of a gang opens, or its slice is cut: the same on all its GPUs, for as long as the strictest of them allows.
    fn gather(&mut self, index: usize, gang: TenantId, mut until_ns: u64, commands: &mut Vec<Command>) -> ServerSet {
        let (mut freed, servers) = (ServerSet::default(), self.servers_of(gang));
        let was_open = self.set_open(gang, true);
        for other in servers.iter().filter(|&other| other != index && !was_open) {
            let mut closed = Vec::new();
            until_ns = until_ns.min(self.servers[other].seize(self.now_ns, gang, &mut closed));
            freed = freed.union(self.mediate(other, &mut closed, commands));
        }
        for server in servers.iter() {
            self.servers[server].set_turn_end(gang, until_ns);
            self.note_change(server);
        }
        commands.push(self.open_until(gang, until_ns));
        freed
    }

    /// The gate of a gang closes: on all its GPUs.
    fn disband(&mut self, gang: TenantId, commands: &mut Vec<Command>) -> ServerSet {
        if !self.set_open(gang, false) {
            return ServerSet::default();
        }
        commands.push(Command::Close { tenant: gang });
        let servers = self.servers_of(gang);
        for index in servers.iter() {
            self.servers[index].release(gang);
            self.note_change(index);
        }
        servers
    }

    /// The work of a gang comes to its end: it goes on if all its GPUs would choose it again.
    fn decide_on(&mut self, gang: TenantId, commands: &mut Vec<Command>) -> ServerSet {
        let servers = self.servers_of(gang);
        let mut goes_on = true;
        for index in servers.iter() {
            goes_on &= self.servers[index].prefers_holder();
            self.note_change(index);
        }
        if !goes_on {
            return self.disband(gang, commands);
        }
        self.renew(gang, commands);
        ServerSet::default()
    }

    /// Gives a gang that runs another slice on all its GPUs.
    fn renew(&mut self, gang: TenantId, commands: &mut Vec<Command>) {
        let (mut own, servers) = (Vec::new(), self.servers_of(gang));
        servers.iter().for_each(|index| self.servers[index].renew(&mut own));
        if let Some(until_ns) = own.iter().filter_map(end_of).min() {
            servers.iter().for_each(|index| self.servers[index].set_turn_end(gang, until_ns));
            commands.push(self.open_until(gang, until_ns));
        }
    }

    /// A gang that nobody competes with on any of its GPUs goes on as soon as it asks: neither its launches nor the devices wait for a
    /// decision that has one outcome.
    fn renew_early(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        let servers = self.servers_of(tenant);
        let is_open = self.gangs.get(&tenant).is_some_and(Gang::is_open);
        if is_open && servers.iter().all(|index| self.servers[index].may_be_renewed()) {
            self.renew(tenant, commands);
            servers.iter().for_each(|index| self.note_change(index));
        }
    }

    /// A gang may work on each of its GPUs as the strictest of them allows. One that it has never used and nobody else is on bounds
    /// nothing, if there are others.
    fn open_until(&self, gang: TenantId, until_ns: u64) -> Command {
        let servers = self.servers_of(gang);
        let strict: ServerSet = servers.iter().filter(|&index| !self.servers[index].is_left_alone_by(gang)).collect();
        let bounding = if strict.is_empty() { servers } else { strict };
        let least = |of: fn(&SliceScheduler, TenantId) -> u64| {
            bounding.iter().map(|index| of(&self.servers[index], gang)).min().unwrap_or(0)
        };
        let (depth_ns, burst_ns) = (least(SliceScheduler::depth_ns), least(SliceScheduler::burst_ns));
        Command::Open { tenant: gang, until_ns, depth_ns, burst_ns }
    }

    /// Something has changed on a GPU: what the gangs there may have is another question now.
    fn note_change(&mut self, index: usize) {
        self.unjudged.insert(index);
        self.untried.insert(index);
    }
}

/// The end of the slice for which a gate is opened.
fn end_of(command: &Command) -> Option<u64> {
    match *command {
        Command::Open { until_ns, .. } => Some(until_ns),
        Command::Close { .. } | Command::Hung { .. } => None,
    }
}

fn tenant_of(input: &Input) -> Option<TenantId> {
    match *input {
        Input::Join { tenant, .. }
        | Input::Leave { tenant }
        | Input::Change { tenant, .. }
        | Input::Pause { tenant }
        | Input::Resume { tenant }
        | Input::Owe { tenant, .. }
        | Input::Wants { tenant }
        | Input::Announced { tenant, .. }
        | Input::Leaves { tenant, .. }
        | Input::Stays { tenant }
        | Input::Drained { tenant }
        | Input::Idle { tenant }
        | Input::Excuse { tenant }
        | Input::Burst { tenant, .. }
        | Input::Arrival { tenant, .. }
        | Input::FirstLaunch { tenant, .. } => Some(tenant),
        Input::Away | Input::Pass => None,
    }
}

#[cfg(test)]
mod tests;
