//! Why a lease runs or waits now, and what it is promised beside those who are there.

use crate::class::{Class, Priority};
use crate::identity::{ContainerId, GpuUuid, LeaseId};
use crate::latency::RequestFigures;
use crate::lease_state::{LeaseFault, SuspensionView};
use crate::mechanism::Mechanism;
use serde::{Deserialize, Serialize};

/// The answer to `GET /v1/leases/ID/explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseExplanation {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its container.
    pub container_id: ContainerId,
    /// What it is; an older supervisor does not say so.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// Its share of each GPU, permille.
    pub fraction_permille: u16,
    /// Its ceiling, permille.
    pub limit_permille: Option<u16>,
    /// How it uses the GPU.
    pub class: Class,
    /// Before whom it is served.
    pub priority: Priority,
    /// That this is less than it asked for, because a budget is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_budget: Option<BeyondBudget>,
    /// What its processes cannot recover from, if that has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<LeaseFault>,
    /// How long 99 of 100 of its requests are to take at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// How long they take, of class latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestFigures>,
    /// For whose sake its gate is kept closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_for: Option<ContainerId>,
    /// Its memory cap on each GPU, contexts included.
    #[serde(default)]
    pub memory_cap_bytes: u64,
    /// The most that it has held on one GPU so far. 0 from an older supervisor.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// How much of what it allocates beyond its cap may lie in the host's memory; 0: nothing.
    #[serde(default)]
    pub spill_bytes: u64,
    /// What lies there now.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// For how long it has its GPUs, if not for as long as its container runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunLeft>,
    /// That it has to make room for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
    /// Its way out of the GPU's memory and back, while it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<SuspensionView>,
    /// One GPU after the other.
    pub gpus: Vec<GpuExplanation>,
}

/// That a lease has what is idle in place of its share, because a budget of its team or its user was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeyondBudget {
    /// Whose is spent, as in the words of a refusal. None where there are GPU hours again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<String>,
    /// When the next period begins, Unix seconds. None where there will be no hours then either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_s: Option<u64>,
    /// Why it has no promise of its share though there are hours: that is not free, for example. None where it has in a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// For how long a lease has its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLeft {
    /// In all, seconds.
    pub run_seconds: u64,
    /// What of that is left, in nanoseconds.
    pub left_ns: u64,
}

/// That a lease has to make room for a container of a higher priority that waits, if that still does then, or for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// The container that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<ContainerId>,
    /// The name of the reservation, where nobody waits yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// In how many nanoseconds.
    pub left_ns: u64,
    /// By which share of each GPU it is served until then, permille, if not by its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_permille: Option<u16>,
    /// And before whom, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<Priority>,
}

/// What the scheduler of one GPU knows of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuExplanation {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// Where the lease stands there.
    pub standing: Standing,
    /// GPU time that it is owed (positive) or owes (negative).
    pub lag_ns: i64,
    /// GPU time charged so far.
    pub charged_gpu_ns: u64,
    /// Sum of the shares of all leases that compete now, permille.
    pub weight_sum_permille: u64,
    /// The most that one of its own turns can use: u_i.
    pub turn_bound_ns: u64,
    /// The most that one turn of anybody can use: U.
    pub longest_turn_ns: u64,
    /// The bound on the share error, (u_i + U) / T, for several T. None of one that comes behind others, whose priority is not
    /// guaranteed or whose budget is spent, nor of one to whom gpool gives no turns.
    pub share_error: Vec<ShareErrorBound>,
}

/// While it always has work, a lease's share over any time this long is off by at most so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareErrorBound {
    /// T.
    pub window_ns: u64,
    /// In millionths of a GPU: 10,000 is a point.
    pub bound_ppm: u64,
}

/// Where a lease stands on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Standing {
    /// Wants nothing.
    Idle,
    /// Kept from running until it is resumed.
    Paused,
    /// Holds the slice.
    Running {
        /// How much of it is left.
        left_ns: u64,
    },
    /// Stands at its gate.
    Waiting {
        /// For how long now.
        waited_ns: u64,
        /// Whom it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        behind: Option<ContainerId>,
        /// Why.
        cause: WaitCause,
    },
}

/// Why a lease waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum WaitCause {
    /// It is another's turn.
    Turn,
    /// It has had more than its share.
    Debt,
    /// It is at its ceiling.
    Ceiling {
        /// For so much longer.
        left_ns: u64,
    },
    /// Somebody of a higher priority wants the GPU.
    Priority,
    /// Another of its GPUs is not free yet.
    Gang,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_names_its_cause_on_the_wire() {
        let cause = WaitCause::Ceiling { left_ns: 7 };
        let standing = Standing::Waiting { waited_ns: 5, behind: None, cause };
        let text = serde_json::to_string(&standing).unwrap();
        assert_eq!(text, r#"{"state":"waiting","waited_ns":5,"cause":{"kind":"ceiling","left_ns":7}}"#);
        assert_eq!(serde_json::from_str::<Standing>(&text).unwrap(), standing);
    }
}
