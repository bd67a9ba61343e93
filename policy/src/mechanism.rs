//! How a GPU is shared, or not: which mechanism serves a request on a host, and why the others do not.
//!
//! * [`Ask`] is what a container wants and what is known of it; [`Host`] is what there is;
//! * [`TABLE`] has the rows of `auto`, in order; [`choose`] takes the first that matches and can be served;
//! * [`GATES`] says which mechanisms a pool opens in which phase of a rollout;
//! * [`Trap`]s are combinations that do not do what they seem to, each with its remedy.
//!
//! The same request on the same host gives the same answer. Asking for more isolation or for less latency never gives a
//! weaker mechanism: at most none.

mod ask;
mod choose;
mod compute_mode;
mod gates;
mod host;
mod inside;
mod mps;
mod serve;
mod suitable;
mod table;
mod traps;

pub use ask::{Ask, Fact, Isolation, Mode, Trust, Workload};
pub use choose::{Choice, Decision, RowOutcome, choose};
pub use compute_mode::ComputeMode;
pub use gates::{GATES, Gate, Phase};
pub use host::{Gpu, Host, MigInstance, MigState, Pool};
pub use mps::{MPS_CLIENTS, MPS_SERVER_BYTES, MpsLimits, active_thread_percent};
pub use serve::{COARSE_BURST_US, Place};
pub use suitable::{Suitable, words};
pub(crate) use table::{BUSY_PERMILLE, NEARLY_WHOLE_PERMILLE};
pub use table::{Row, RowId, TABLE};
pub use traps::{Finding, Severity, Trap};

use std::fmt;

/// How a container gets its part of a GPU, the weakest first: by what keeps others away from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// The driver's own time slices, without limits: metered, not bounded.
    TimeSlice,
    /// Side by side under one MPS server: parts of the multiprocessors, one fate.
    Mps,
    /// Turns on the GPU and a memory cap, by gpool's shims.
    Slices,
    /// The same inside a MIG instance that belongs to one team.
    SlicesInMig,
    /// A MIG instance of its own.
    Mig,
    /// Whole GPUs.
    Exclusive,
}

impl Mechanism {
    /// All of them, the weakest first.
    pub const ALL: [Self; 6] =
        [Self::TimeSlice, Self::Mps, Self::Slices, Self::SlicesInMig, Self::Mig, Self::Exclusive];

    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::TimeSlice => "driver time slices without limits",
            Self::Mps => "an MPS group",
            Self::Slices => "slices",
            Self::SlicesInMig => "slices inside a MIG instance",
            Self::Mig => "a MIG instance",
            Self::Exclusive => "whole GPUs",
        }
    }

    /// For programs, and as `mode=` has it where there is a mode for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::TimeSlice => "timeslice",
            Self::Mps => "mps",
            Self::Slices => "slice",
            Self::SlicesInMig => "slice-in-mig",
            Self::Mig => "mig",
            Self::Exclusive => "exclusive",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
