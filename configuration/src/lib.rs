//! `/etc/gpool/config.toml` and `conf.d/`: keys, their defaults and origins, and errors that name the line.
//!
//! An absent or empty file works. Unknown keys are refused with the nearest known one.
#![forbid(unsafe_code)]

mod audit;
mod bounds;
mod catalogue;
mod default_request;
mod error;
mod flat;
mod gpus;
mod health;
mod keys;
mod latency;
mod layers;
#[cfg(feature = "layouts")]
pub mod layouts;
mod overflow;
mod policy;
mod preemption;
mod quantity;
mod quota;
mod rates;
mod reservation;
mod run_time;
mod spill;
mod unknown;
mod windows;

pub use audit::Audit;
pub use catalogue::{Effect, Key, SHIPPED, catalogue};
pub use default_request::{DefaultPriority, DefaultRequest};
pub use error::ConfigurationError;
pub use flat::{Difference, differences, flat};
pub use gpus::Gpus;
pub use health::{HEALTH_FINDINGS, Health};
pub use keys::{
    BypassAction, ClassName, ClassPolicy, Classes, Compat, Configuration, Driver, DriverMount, FailedAction,
    HALF_LIFE_DAYS_MAX, HANG_SECONDS_MAX, HEADROOM_BYTES_MAX, HangAction, IDLE_SECONDS_MAX, IdleAction, Lease, Ledger,
    LiarAction, Mig, Paths, Queue, Runtime, SUPERVISOR_PATIENCE_SECONDS_MAX, SUPERVISOR_PATIENCE_SECONDS_MIN, Socket,
};
pub use latency::{HOLD_SECONDS_MAX, HOLD_SECONDS_MIN, Latency, LatencyAction};
pub use layers::{
    DEFAULT_PATH, Layered, Origin, check, load, load_layered, load_strictly, parse, parse_strictly, socket_path,
    state_dir,
};
pub use overflow::{OVERFLOW_SECONDS_MAX, Overflow};
pub use policy::{EnvPolicy, Placer, Policy, REQUEST_KEYS};
pub use preemption::{NoticeSignal, PREEMPTION_SECONDS_MAX, Preemption, PreemptionAction};
pub use quantity::{GpuAmount, GpuHours, MemoryAmount, Period};
pub use quota::{Ceiling, Quota, Uid};
pub use rates::{Currency, Day, Part, Price, PricePerHour, Rates, SHARES_MAX, Team};
pub use reservation::{LeastPriority, Moment, Phase, RESERVATION_AHEAD_SECONDS_MAX, RESERVATION_GPUS_MAX, Reservation};
pub use run_time::{NOTICE_SECONDS_MAX, RUN_SECONDS_MAX, RunTime};
pub use spill::Spill;
pub use windows::{Window, open_for};

#[cfg(test)]
mod tests;
