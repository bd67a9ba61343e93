//! What a run consists of: a device, delays, tenants and their work.

mod check;
mod error;
mod file;
mod shipped;

use gpool_policy::slice::Share;

use crate::delays::Delays;
use crate::random::Lengths;

pub use error::ScenarioError;
pub use shipped::{SHIPPED, shipped};

/// A scenario, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// How it is called: the file's name without its ending.
    pub name: String,
    /// How long it lasts.
    pub duration_ns: u64,
    /// First and last seed, both included.
    pub seeds: (u64, u64),
    /// How long a context keeps the GPU while another one has work.
    pub time_slice_ns: u64,
    /// What a switch between contexts costs.
    pub switch_cost_ns: u64,
    /// What takes time on the host.
    pub delays: Delays,
    /// Who shares the device. Never empty.
    pub tenants: Vec<TenantPlan>,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPlan {
    /// How it is called, once in a scenario.
    pub name: String,
    /// Weight, limit, class, priority.
    pub share: Share,
    /// Lengths of its kernels.
    pub lengths: Lengths,
    /// What it wants to run.
    pub demand: Demand,
    /// When its lease begins.
    pub start_ns: u64,
    /// When its lease ends and its process is gone; never if absent.
    pub stop_ns: Option<u64>,
}

/// What a tenant wants to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Demand {
    /// Always more.
    Backlog,
    /// Always more for a while, then nothing for a while, and so on.
    OnOff {
        /// How long it has work.
        on_ns: u64,
        /// How long it has none.
        off_ns: u64,
    },
    /// One piece of work after the other, as a training job that loads its next batch in between.
    Steps {
        /// GPU time of each.
        work_ns: u64,
        /// From the end of one to the next.
        rest_ns: u64,
    },
    /// Requests that know nothing of each other.
    Poisson {
        /// How many a second.
        rate_per_second: f64,
        /// GPU time of each.
        work_ns: u64,
    },
}

impl Scenario {
    /// Reads a scenario. `file` is named in errors, and its stem becomes the scenario's name.
    ///
    /// # Errors
    ///
    /// Names the file, the line, the field and what to write instead.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        check::scenario(file, text)
    }
}
