//! What a tenant is entitled to.

/// How a tenant uses the device, as the person who started it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Short requests that somebody waits for: it may run ahead of its share by a bounded slack, and takes the device
    /// over at once.
    Latency,
    /// Works for as long as it gets.
    #[default]
    Batch,
    /// Works when a person has pressed a key; scheduled as batch.
    Notebook,
    /// A training job; scheduled as batch.
    Train,
}

impl Class {
    /// Whether it is scheduled as batch: all are but latency.
    pub(super) fn is_batch(self) -> bool {
        self != Class::Latency
    }
}

/// Which tenants are served before which others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Has a share that was promised.
    #[default]
    Guaranteed,
    /// Runs while no guaranteed tenant wants the device.
    Burst,
    /// Runs while nobody else wants the device.
    Scavenger,
}

impl Priority {
    /// How many there are; `self as usize` is below.
    pub const COUNT: usize = 3;
}

/// How long nothing of a tenant's work may end, though it should, before it counts as hung. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HangAfter {
    /// As a rule.
    pub usual_ns: u64,
    /// While a latency tenant waits for the GPU or works beside it; more than `usual_ns` is taken as that.
    pub latency_waits_ns: u64,
}

impl HangAfter {
    /// Whether it depends on latency tenants at all.
    pub(super) fn heeds_latency(self) -> bool {
        self.latency_waits_ns < self.usual_ns
    }
}

impl Default for HangAfter {
    fn default() -> Self {
        Self { usual_ns: 30_000_000_000, latency_waits_ns: 30_000_000_000 }
    }
}

/// What a lease is entitled to on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its entitlement in permille; 0 is taken as 1.
    pub weight_permille: u16,
    /// The most it may have, in permille of the GPU's time, also when the device is otherwise idle; 0 is taken as 1.
    pub limit_permille: Option<u16>,
    /// How it uses the device.
    pub class: Class,
    /// Before whom it is served.
    pub priority: Priority,
    /// When it counts as hung.
    pub hang: HangAfter,
}

impl Share {
    /// A guaranteed batch tenant without a limit.
    #[must_use]
    pub fn of(weight_permille: u16) -> Self {
        Self {
            weight_permille,
            limit_permille: None,
            class: Class::Batch,
            priority: Priority::Guaranteed,
            hang: HangAfter::default(),
        }
    }
}
