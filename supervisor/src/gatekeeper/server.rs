//! One GPU's scheduler with its tenants' gates.

use super::order::Notice;
use super::tenant::Tenant;
use crate::clock;
use crate::region::Report;
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Parameters, SliceScheduler};
use std::collections::BTreeMap;

/// A GPU.
pub struct Server {
    pub scheduler: SliceScheduler,
    inputs: Vec<Input>,
    commands: Vec<Command>,
}

impl Server {
    /// A GPU without tenants.
    pub fn new(now_ns: u64) -> Self {
        let scheduler = SliceScheduler::new(Parameters::default(), now_ns);
        Self { scheduler, inputs: Vec::new(), commands: Vec::new() }
    }

    /// Feeds one input and carries out what follows.
    pub fn handle(&mut self, tenants: &mut BTreeMap<TenantId, Tenant>, input: Input) {
        let now_ns = clock::now_ns();
        self.scheduler.handle(now_ns, input, &mut self.commands);
        self.carry_out(tenants, now_ns);
    }

    /// Collects what every live tenant of this GPU has measured, then hears those of `rung`, then lets time pass.
    ///
    /// Charges come first, so that a decision sees all that is known.
    pub fn look(
        &mut self,
        gpu: usize,
        tenants: &mut BTreeMap<TenantId, Tenant>,
        rung: &[TenantId],
        report: &mut Report,
        notices: &mut Vec<Notice>,
    ) {
        let now_ns = clock::now_ns();
        let due_ns = self.scheduler.next_timer().map_or(now_ns, |at_ns| at_ns.min(now_ns));
        let mut demands = Vec::new();
        for tenant in tenants.values_mut().filter(|tenant| tenant.gpu == gpu) {
            let rang = rung.contains(&tenant.id);
            if !rang && !tenant.is_live() {
                continue;
            }
            tenant.collect(report, &mut self.inputs, notices);
            if rang {
                demands.extend(tenant.demand(report));
            }
        }
        self.inputs.extend(demands);
        for input in std::mem::take(&mut self.inputs) {
            self.scheduler.handle(clock::now_ns(), input, &mut self.commands);
        }
        self.scheduler.handle(clock::now_ns(), Input::Pass, &mut self.commands);
        self.carry_out(tenants, due_ns);
    }

    fn carry_out(&mut self, tenants: &mut BTreeMap<TenantId, Tenant>, due_ns: u64) {
        for command in self.commands.drain(..) {
            match command {
                Command::Open { tenant, until_ns, .. } => {
                    if let Some(tenant) = tenants.get_mut(&tenant) {
                        tenant.open(clock::now_ns(), due_ns, until_ns);
                    }
                }
                Command::Hung { .. } => {}
                Command::Close { tenant } => {
                    if let Some(tenant) = tenants.get_mut(&tenant) {
                        tenant.close();
                    }
                }
            }
        }
    }
}
