//! The schedulers of all GPUs, and the gates that they move.

use super::handoffs::Handoffs;
use super::measured::{AT_A_LOOK, AT_AN_END, Measured};
use super::order::{Left, Notice, Standing, Statistics};
use super::tenant::{Heard, Tenant};
use crate::clock;
use crate::region::Report;
use gpool_policy::TenantId;
use gpool_policy::request::Wait;
use gpool_policy::slice::{Command, Explanation, HostScheduler, Input, Parameters, ServerSet, Share};
use gpool_shared_region::Opening;
use std::collections::BTreeMap;

/// The tenants by id.
pub type Tenants = BTreeMap<TenantId, Tenant>;

/// The gates of this host.
pub struct Gates {
    scheduler: HostScheduler,
    heard: Heard,
    handoffs: Handoffs,
    commands: Vec<Command>,
    /// By GPU, who fell idle last and whose gate was left open: the next launch of a program that is alone at work need not
    /// wait.
    left_open: Vec<Option<TenantId>>,
    opens: u64,
    closes: u64,
}

impl Gates {
    /// `gpus` GPUs without tenants.
    pub fn new(gpus: usize, now_ns: u64) -> Self {
        let scheduler = HostScheduler::new(Parameters::default(), gpus, now_ns);
        let handoffs = Handoffs::new(now_ns);
        let (heard, commands, left_open) = (Heard::default(), Vec::new(), vec![None; gpus]);
        Self { scheduler, heard, handoffs, commands, left_open, opens: 0, closes: 0 }
    }

    /// When to look next, if nothing happens before.
    pub fn next_timer(&self) -> Option<u64> {
        self.scheduler.next_timer()
    }

    /// A tenant begins on its GPUs.
    pub fn join(&mut self, tenants: &mut Tenants, id: TenantId, share: Share, debt_ns: u64, notices: &mut Vec<Notice>) {
        let Some(tenant) = tenants.get(&id) else { return };
        let now_ns = clock::now_ns();
        let servers: ServerSet = tenant.gpus.iter().copied().collect();
        self.shut(tenants, |gpu, _| servers.contains(gpu));
        self.scheduler.join(now_ns, id, servers, share, debt_ns, &mut self.commands);
        self.carry_out(tenants, &[], now_ns, notices);
    }

    /// Feeds one input and carries out what follows.
    pub fn handle(&mut self, tenants: &mut Tenants, input: Input, notices: &mut Vec<Notice>) {
        let now_ns = clock::now_ns();
        if let Input::Pause { tenant } | Input::Change { tenant, .. } | Input::Leave { tenant } = input {
            self.shut(tenants, |_, idle| idle == tenant);
        }
        forget_requests(tenants, input, now_ns);
        self.scheduler.handle(now_ns, input, &mut self.commands);
        self.carry_out(tenants, &[], now_ns, notices);
    }

    /// Books a debt of a tenant on one GPU: so many nanoseconds that were used before a time, and not reported.
    pub fn owe(
        &mut self,
        tenants: &mut Tenants,
        id: TenantId,
        gpu: usize,
        debt: (u64, u64),
        notices: &mut Vec<Notice>,
    ) {
        let now_ns = clock::now_ns();
        self.scheduler.owe(now_ns, gpu, id, debt, &mut self.commands);
        self.carry_out(tenants, &[], now_ns, notices);
    }

    /// What follows when a tenant hangs has changed.
    pub fn tell_again(&mut self, tenants: &mut Tenants, id: TenantId, notices: &mut Vec<Notice>) {
        let now_ns = clock::now_ns();
        self.scheduler.tell_again(now_ns, id, &mut self.commands);
        self.carry_out(tenants, &[], now_ns, notices);
    }

    /// A period of the audit begins.
    pub fn begin_period(&mut self, at_ns: u64) {
        self.scheduler.begin_period(at_ns);
    }

    /// Collects what the live tenants of each GPU have measured whose time has come or from which somebody rang, then
    /// hears those of `rung`, then lets time pass.
    ///
    /// Charges come first, so that a decision sees all that is known.
    pub fn look(&mut self, tenants: &mut Tenants, rung: &[TenantId], report: &mut Report, notices: &mut Vec<Notice>) {
        let now_ns = clock::now_ns();
        let due_ns: Vec<Option<u64>> = (0..self.scheduler.server_count())
            .map(|gpu| self.scheduler.server(gpu).next_timer().filter(|at_ns| *at_ns <= now_ns))
            .collect();
        let mut looked: Vec<bool> = due_ns.iter().map(Option::is_some).collect();
        for tenant in rung.iter().filter_map(|id| tenants.get(id)) {
            tenant.gpus.iter().for_each(|gpu| looked[*gpu] = true);
        }
        let is_due = self.scheduler.next_timer().is_some_and(|at_ns| at_ns <= now_ns);
        if !is_due && !looked.contains(&true) {
            return;
        }
        let (mut demands, mut unasked) = (Vec::new(), Vec::new());
        for tenant in tenants.values_mut().filter(|tenant| tenant.gpus.iter().any(|gpu| looked[*gpu])) {
            let mut rang = rung.contains(&tenant.id);
            if !rang && !tenant.is_live() && !tenant.is_left_open() {
                continue;
            }
            let known = self.heard.bursts.len();
            tenant.collect(report, &mut self.heard, notices);
            if tenant.has_changed_its_mind(report) {
                unasked.push(Input::Stays { tenant: tenant.id });
            }
            if tenant.is_left_open() && self.heard.bursts.len() > known {
                // It has worked, as it may while nobody else wants to: what it used is not to be a debt.
                unasked.push(Input::Wants { tenant: tenant.id });
                rang = true;
            }
            if rang {
                demands.extend(tenant.demand(report).into_iter().flatten());
            }
        }
        for input in unasked {
            self.scheduler.handle(clock::now_ns(), input, &mut self.commands);
        }
        self.hear();
        for input in demands.into_iter().chain([Input::Pass]) {
            let now_ns = clock::now_ns();
            self.scheduler.handle(now_ns, input, &mut self.commands);
            self.note_request(tenants, input, now_ns);
        }
        self.note_waits(tenants, clock::now_ns());
        self.carry_out(tenants, &due_ns, now_ns, notices);
    }

    /// Takes the last bursts of a tenant, some process of which has ended.
    pub fn collect_last(
        &mut self,
        tenants: &mut Tenants,
        id: TenantId,
        report: &mut Report,
        notices: &mut Vec<Notice>,
    ) {
        let Some(tenant) = tenants.get_mut(&id) else { return };
        tenant.collect(report, &mut self.heard, notices);
        self.hear();
        self.carry_out(tenants, &[], clock::now_ns(), notices);
    }

    /// Takes what all tenants have measured by now: of one that is alone nobody listens for most of a slice.
    pub fn collect_all(&mut self, tenants: &mut Tenants, report: &mut Report, notices: &mut Vec<Notice>) {
        for tenant in tenants.values_mut().filter(|tenant| tenant.is_live()) {
            tenant.collect(report, &mut self.heard, notices);
        }
        self.hear();
        self.carry_out(tenants, &[], clock::now_ns(), notices);
    }

    /// How long the requests of a tenant take is measured from now on, or no longer.
    pub fn measure(&self, tenants: &mut Tenants, id: TenantId, is_measured: bool, promise_ns: Option<u64>) {
        let (Some(tenant), now_ns) = (tenants.get_mut(&id), clock::now_ns()) else { return };
        match &mut tenant.measured {
            Some(measured) if is_measured => measured.promise(now_ns, promise_ns),
            measured => *measured = is_measured.then(|| Measured::new(now_ns, promise_ns)),
        }
    }

    /// What was measured of a tenant's requests is no measure of what comes from then on.
    pub fn measure_anew(&self, tenants: &mut Tenants, id: TenantId, from_ns: u64) {
        if let Some(measured) = tenants.get_mut(&id).and_then(|tenant| tenant.measured.as_mut()) {
            measured.begin_anew(from_ns);
        }
    }

    /// Notes that a request of a tenant has begun, waits or has ended, by what it has just said.
    fn note_request(&self, tenants: &mut Tenants, said: Input, now_ns: u64) {
        let (Input::Wants { tenant: id } | Input::Drained { tenant: id } | Input::Idle { tenant: id }) = said else {
            return;
        };
        let Some(tenant) = tenants.get_mut(&id) else { return };
        let (is_open, Some(measured)) = (tenant.is_open(), &mut tenant.measured) else { return };
        match said {
            Input::Idle { .. } => {
                measured.idle();
                measured.settle(now_ns, AT_AN_END, &self.scheduler, (id, &tenant.gpus));
            }
            // Behind a gate that was left open nobody waits.
            _ if is_open => {}
            // It may be served at once.
            _ => measured.wants(now_ns, wait_of(&self.scheduler, id, &tenant.gpus).unwrap_or((0, Wait::Turn))),
        }
    }

    /// Notes why those stand at their gates who do: what they are owed, and what their ceilings allow, changes meanwhile.
    fn note_waits(&self, tenants: &mut Tenants, now_ns: u64) {
        for tenant in tenants.values_mut().filter(|tenant| !tenant.is_open()) {
            if let Some(measured) = tenant.measured.as_mut().filter(|measured| measured.is_standing())
                && let Some(why) = wait_of(&self.scheduler, tenant.id, &tenant.gpus)
            {
                measured.wants(now_ns, why);
            }
        }
    }

    /// What is under way is no measure: nobody has looked for a while.
    pub fn forget_requests(&self, tenants: &mut Tenants) {
        forget_requests(tenants, Input::Away, clock::now_ns());
    }

    /// Looks at the requests of all tenants that have ended for long enough.
    pub fn settle_requests(&self, tenants: &mut Tenants) {
        let now_ns = clock::now_ns();
        for tenant in tenants.values_mut() {
            if let Some(measured) = &mut tenant.measured {
                measured.settle(now_ns, AT_A_LOOK, &self.scheduler, (tenant.id, &tenant.gpus));
            }
        }
    }

    /// Ends a tenant; how it stood on each of its GPUs.
    pub fn leave(&mut self, tenants: &mut Tenants, id: TenantId, notices: &mut Vec<Notice>) -> Vec<Left> {
        let Some(tenant) = tenants.get(&id) else { return Vec::new() };
        let on = |gpu: usize| {
            let scheduler = self.scheduler.server(gpu);
            let used_ns = scheduler.charged_ns(id).unwrap_or(0).saturating_add(scheduler.found_ns(id).unwrap_or(0));
            Left { gpu, used_ns, debt_ns: scheduler.debt_ns(id) }
        };
        let left = tenant.gpus.iter().copied().map(on).collect();
        self.handle(tenants, Input::Leave { tenant: id }, notices);
        left
    }

    /// Where a tenant stands on each of its GPUs.
    pub fn explain(&self, tenant: &Tenant) -> Vec<Explanation> {
        tenant.gpus.iter().filter_map(|gpu| self.scheduler.server(*gpu).explain(tenant.id)).collect()
    }

    /// The figures of this moment.
    pub fn statistics(&self, tenants: &Tenants) -> Statistics {
        let at_ns = clock::now_ns();
        let on = |(tenant, gpu): (&Tenant, usize)| {
            let scheduler = self.scheduler.server(gpu);
            Standing {
                tenant: tenant.id,
                gpu,
                charged_ns: scheduler.charged_ns(tenant.id).unwrap_or(0),
                reported_ns: scheduler.reported_ns(tenant.id).unwrap_or(0),
                redeemed_ns: scheduler.redeemed_ns(tenant.id).unwrap_or(0),
                found_ns: scheduler.found_ns(tenant.id).unwrap_or(0),
                late_ns: scheduler.late_ns(tenant.id).unwrap_or(0),
                lag_ns: scheduler.lag_ns(tenant.id).unwrap_or(0),
            }
        };
        let all = tenants.values().flat_map(|tenant| tenant.gpus.iter().map(move |gpu| (tenant, *gpu)));
        let servers = || (0..self.scheduler.server_count()).map(|gpu| self.scheduler.server(gpu));
        Statistics {
            at_ns,
            standings: all.map(on).collect(),
            requests: tenants
                .values()
                .filter_map(|tenant| Some((tenant.id, tenant.measured.as_ref()?.figures(at_ns))))
                .collect(),
            handoff_ns: servers().map(|server| server.handoff_ns()).max().unwrap_or(0),
            slice_ns: servers().map(|server| server.slice_ns()).max().unwrap_or(0),
            handoffs: self.handoffs.figures(at_ns),
            gate_opens: self.opens,
            gate_closes: self.closes,
        }
    }

    /// Feeds what has been collected, the charges first.
    fn hear(&mut self) {
        // By their ends: what others did while one stood before the device has ended before that one's work has.
        self.heard.bursts.sort_by_key(|(_, burst, _)| burst.end_ns);
        self.scheduler.arrivals(clock::now_ns(), self.heard.bursts.drain(..), &mut self.commands);
        for input in self.heard.inputs.drain(..) {
            let now_ns = clock::now_ns();
            if let Input::FirstLaunch { after_open_ns, .. } = input {
                self.handoffs.add(now_ns, after_open_ns);
            }
            self.scheduler.handle(now_ns, input, &mut self.commands);
        }
    }

    /// `due_ns` says by GPU when a decision was due that is made now: a late timer is part of the hand-off.
    fn carry_out(&mut self, tenants: &mut Tenants, due_ns: &[Option<u64>], now_ns: u64, notices: &mut Vec<Notice>) {
        let (mut commands, mut idle) = (std::mem::take(&mut self.commands), Vec::new());
        for command in commands.drain(..) {
            match command {
                Command::Open { tenant: id, until_ns, depth_ns, burst_ns } => {
                    self.opens += 1;
                    let gpus = self.scheduler.servers_of(id);
                    self.shut(tenants, |gpu, idle| gpus.contains(gpu) && idle != id);
                    if let Some(tenant) = tenants.get_mut(&id) {
                        let due = tenant.gpus.iter().filter_map(|gpu| due_ns.get(*gpu).copied().flatten()).min();
                        let opening = self.opening(id, (until_ns, depth_ns, burst_ns), false);
                        tenant.open(clock::now_ns(), due.unwrap_or(now_ns), opening);
                    }
                }
                Command::Close { tenant } => {
                    self.closes += 1;
                    if let Some(tenant) = tenants.get_mut(&tenant) {
                        tenant.close();
                        idle.extend(tenant.is_idle().then_some(tenant.id));
                        // Who has announced that it wants more stands there from now on, and need not say it again.
                        if let Some(measured) = &mut tenant.measured
                            && let Some(why) = wait_of(&self.scheduler, tenant.id, &tenant.gpus)
                        {
                            measured.wants(clock::now_ns(), why);
                        }
                    }
                }
                Command::Hung { tenant, since_ns } => notices.push(Notice::Hung { tenant, since_ns }),
            }
        }
        self.commands = commands;
        idle.into_iter().for_each(|id| self.leave_open(tenants, id));
    }

    /// Leaves the gate of a tenant that has just fallen idle open, where nobody else is at work.
    fn leave_open(&mut self, tenants: &mut Tenants, id: TenantId) {
        let Some(tenant) = tenants.get_mut(&id) else { return };
        if let Some(Command::Open { until_ns, depth_ns, burst_ns, .. }) = self.scheduler.left_open(id) {
            let opening = self.opening(id, (until_ns, depth_ns, burst_ns), true);
            tenant.leave_open(clock::now_ns(), opening);
            // Of two that fall idle at once one has it.
            let gpus = self.scheduler.servers_of(id);
            self.shut(tenants, |at, other| gpus.contains(at) && other != id);
            gpus.iter().for_each(|gpu| self.left_open[gpu] = Some(id));
        }
    }

    /// How the gate of a tenant is opened, as all its GPUs have it.
    fn opening(&self, id: TenantId, (until_ns, depth_ns, burst_ns): (u64, u64, u64), is_left_open: bool) -> Opening {
        let gpus = self.scheduler.servers_of(id);
        let heeds_leaving = gpus.iter().all(|gpu| self.scheduler.server(gpu).heeds_leaving(id));
        let stands_alone = gpus.iter().all(|gpu| self.scheduler.server(gpu).stands_alone(id));
        Opening { until_ns, depth_ns, burst_ns, is_left_open, heeds_leaving, stands_alone }
    }

    /// Closes gates that were left open: `which` is given a GPU and a tenant.
    fn shut(&mut self, tenants: &mut Tenants, which: impl Fn(usize, TenantId) -> bool) {
        for (gpu, left_open) in self.left_open.iter_mut().enumerate() {
            if let Some(id) = left_open.take_if(|id| which(gpu, *id))
                && let Some(tenant) = tenants.get_mut(&id).filter(|tenant| tenant.is_left_open())
            {
                tenant.close();
            }
        }
    }
}

/// Why a tenant stands at its gate, if it does: until when its ceiling on any of its GPUs keeps it there, and what does after that. It is
/// let in by all of them or by none.
fn wait_of(scheduler: &HostScheduler, id: TenantId, gpus: &[usize]) -> Option<(u64, Wait)> {
    let waits = gpus.iter().filter_map(|gpu| scheduler.server(*gpu).wait_of(id));
    waits.reduce(|one, other| {
        let wait = if [one.1, other.1].contains(&Wait::Share) { Wait::Share } else { Wait::Turn };
        (one.0.max(other.0), wait)
    })
}

/// Of a request under way it is no measure what happens while its tenant is kept from running, cannot say that it has ended, or
/// while nobody has looked.
fn forget_requests(tenants: &mut Tenants, input: Input, now_ns: u64) {
    match input {
        Input::Pause { tenant: id } | Input::Resume { tenant: id } | Input::Excuse { tenant: id } => {
            if let Some(measured) = tenants.get_mut(&id).and_then(|tenant| tenant.measured.as_mut()) {
                measured.forget(now_ns);
            }
        }
        Input::Away => {
            tenants.values_mut().filter_map(|tenant| tenant.measured.as_mut()).for_each(|its| its.forget(now_ns));
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "garbage_tests.rs"]
mod garbage_tests;
