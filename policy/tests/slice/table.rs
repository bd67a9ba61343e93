//! A scheduler and a clock that the test moves.

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Parameters, Share, SliceScheduler};

pub const MS: u64 = 1_000_000;
pub const A: TenantId = TenantId(1);
pub const B: TenantId = TenantId(2);
/// A slice on the table: short, so that steps of a millisecond are few.
pub const SLICE: u64 = 10 * MS;

pub struct Table {
    pub scheduler: SliceScheduler,
    pub now: u64,
}

impl Table {
    /// Two joined tenants of equal weight at 1 s.
    pub fn new() -> Self {
        Self::of(&[(A, Share::of(500)), (B, Share::of(500))])
    }

    /// These tenants, joined at 1 s. Who is alone has slices like anybody.
    pub fn of(shares: &[(TenantId, Share)]) -> Self {
        Self::with_alone(SLICE, shares)
    }

    /// The same where slices of one that is alone are so long.
    pub fn with_alone(alone_ns: u64, shares: &[(TenantId, Share)]) -> Self {
        let now = 1000 * MS;
        let usual = Parameters::default();
        let exchange_ns = SLICE / usual.slice_per_handover - usual.handoff_initial_ns;
        let parameters = Parameters { exchange_ns, alone_ns, ..usual };
        let mut table = Self { scheduler: SliceScheduler::new(parameters, now), now };
        assert_eq!(table.scheduler.slice_ns(), SLICE);
        for &(tenant, share) in shares {
            assert_eq!(table.tell(Input::Join { tenant, share, debt_ns: 0 }), []);
        }
        table
    }

    pub fn tell(&mut self, input: Input) -> Vec<Command> {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        commands
    }

    pub fn after(&mut self, ns: u64, input: Input) -> Vec<Command> {
        self.now += ns;
        self.tell(input)
    }

    pub fn burst(&mut self, tenant: TenantId, ns: u64) {
        self.tell(Input::Burst { tenant, context: 0, start_ns: self.now - ns, end_ns: self.now });
    }
}
