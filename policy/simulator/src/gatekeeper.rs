//! Who opens which gate when.

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, SliceScheduler};

/// A design for sharing one GPU between tenants that each stand behind a gate.
///
/// It is told what the supervisor is told and answers as the scheduler answers, so that all designs work with the same
/// clients, delays and device, and differ in nothing but their rule.
pub trait Gatekeeper {
    /// Takes an input and adds what to do to `commands`.
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>);

    /// When it wants to be woken. `None`: never.
    fn next_timer(&self) -> Option<u64>;

    /// Its timer has come. `usage_ns` is what the driver's counters say a tenant has had of the GPU so far, for designs
    /// that read them.
    fn wake(&mut self, now_ns: u64, usage_ns: &dyn Fn(TenantId) -> u64, commands: &mut Vec<Command>) {
        let _ = usage_ns;
        self.handle(now_ns, Input::Pass, commands);
    }

    /// How many of the `wanted` launches the tenant may make now, for designs that count launches. Zero stops it until
    /// its gate is opened again.
    fn admit(&mut self, tenant: TenantId, wanted: u64) -> u64 {
        let _ = tenant;
        wanted
    }
}

impl Gatekeeper for SliceScheduler {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        SliceScheduler::handle(self, now_ns, input, commands);
    }

    fn next_timer(&self) -> Option<u64> {
        SliceScheduler::next_timer(self)
    }
}

impl Gatekeeper for Box<dyn Gatekeeper> {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        (**self).handle(now_ns, input, commands);
    }

    fn next_timer(&self) -> Option<u64> {
        (**self).next_timer()
    }

    fn wake(&mut self, now_ns: u64, usage_ns: &dyn Fn(TenantId) -> u64, commands: &mut Vec<Command>) {
        (**self).wake(now_ns, usage_ns, commands);
    }

    fn admit(&mut self, tenant: TenantId, wanted: u64) -> u64 {
        (**self).admit(tenant, wanted)
    }
}
