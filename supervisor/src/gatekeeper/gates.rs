//! The schedulers of all GPUs, and the gates that they move.

use super::handoffs::Handoffs;
use super::order::{Left, Notice, Standing, Statistics};
use super::tenant::{Heard, Tenant};
use crate::clock;
use crate::region::Report;
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Explanation, HostScheduler, Input, Parameters, ServerSet, Share};
use std::collections::BTreeMap;

/// The tenants by id.
pub type Tenants = BTreeMap<TenantId, Tenant>;

/// The gates of this host.
pub struct Gates {
    scheduler: HostScheduler,
    heard: Heard,
    handoffs: Handoffs,
    commands: Vec<Command>,
    opens: u64,
    closes: u64,
}

impl Gates {
    /// `gpus` GPUs without tenants.
    pub fn new(gpus: usize, now_ns: u64) -> Self {
        let scheduler = HostScheduler::new(Parameters::default(), gpus, now_ns);
        let handoffs = Handoffs::new(now_ns);
        Self { scheduler, heard: Heard::default(), handoffs, commands: Vec::new(), opens: 0, closes: 0 }
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
        self.scheduler.join(now_ns, id, servers, share, debt_ns, &mut self.commands);
        self.carry_out(tenants, &[], now_ns, notices);
    }

    /// Feeds one input and carries out what follows.
    pub fn handle(&mut self, tenants: &mut Tenants, input: Input, notices: &mut Vec<Notice>) {
        let now_ns = clock::now_ns();
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
        let mut demands = Vec::new();
        for tenant in tenants.values_mut().filter(|tenant| tenant.gpus.iter().any(|gpu| looked[*gpu])) {
            let rang = rung.contains(&tenant.id);
            if !rang && !tenant.is_live() {
                continue;
            }
            tenant.collect(report, &mut self.heard, notices);
            if rang {
                demands.extend(tenant.demand(report));
            }
        }
        self.hear();
        for input in demands.into_iter().chain([Input::Pass]) {
            self.scheduler.handle(clock::now_ns(), input, &mut self.commands);
        }
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

    /// Ends a tenant; how it stood on each of its GPUs.
    pub fn leave(&mut self, tenants: &mut Tenants, id: TenantId, notices: &mut Vec<Notice>) -> Vec<Left> {
        let Some(tenant) = tenants.get(&id) else { return Vec::new() };
        let on = |gpu: usize| {
            let scheduler = self.scheduler.server(gpu);
            Left { gpu, charged_ns: scheduler.charged_ns(id).unwrap_or(0), debt_ns: scheduler.debt_ns(id) }
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
                late_ns: scheduler.late_ns(tenant.id).unwrap_or(0),
                lag_ns: scheduler.lag_ns(tenant.id).unwrap_or(0),
            }
        };
        let all = tenants.values().flat_map(|tenant| tenant.gpus.iter().map(move |gpu| (tenant, *gpu)));
        let servers = || (0..self.scheduler.server_count()).map(|gpu| self.scheduler.server(gpu));
        Statistics {
            at_ns,
            standings: all.map(on).collect(),
            handoff_ns: servers().map(|server| server.handoff_ns()).max().unwrap_or(0),
            slice_ns: servers().map(|server| server.slice_ns()).max().unwrap_or(0),
            handoffs: self.handoffs.figures(at_ns),
            gate_opens: self.opens,
            gate_closes: self.closes,
        }
    }

    /// Feeds what has been collected, the charges first.
    fn hear(&mut self) {
        for (gpu, burst) in self.heard.bursts.drain(..) {
            self.scheduler.burst(clock::now_ns(), gpu, burst, &mut self.commands);
        }
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
        for command in self.commands.drain(..) {
            match command {
                Command::Open { tenant, until_ns, depth_ns } => {
                    self.opens += 1;
                    if let Some(tenant) = tenants.get_mut(&tenant) {
                        let due = tenant.gpus.iter().filter_map(|gpu| due_ns.get(*gpu).copied().flatten()).min();
                        tenant.open(clock::now_ns(), due.unwrap_or(now_ns), until_ns, depth_ns);
                    }
                }
                Command::Close { tenant } => {
                    self.closes += 1;
                    if let Some(tenant) = tenants.get_mut(&tenant) {
                        tenant.close();
                    }
                }
                Command::Hung { tenant, since_ns } => notices.push(Notice::Hung { tenant, since_ns }),
            }
        }
    }
}

#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "garbage_tests.rs"]
mod garbage_tests;
