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
}

impl Share {
    /// A guaranteed batch tenant without a limit.
    #[must_use]
    pub fn of(weight_permille: u16) -> Self {
        Self { weight_permille, limit_permille: None, class: Class::Batch, priority: Priority::Guaranteed }
    }
}
