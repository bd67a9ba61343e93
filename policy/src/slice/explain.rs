//! Why a tenant stands where it stands.

use super::scheduler::SliceScheduler;
use super::{Class, Share, TenantId};

/// What a tenant does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It wants nothing.
    Idle,
    /// Its gate is held closed.
    Paused,
    /// It holds the slice.
    Running {
        /// The end of its slice, `CLOCK_MONOTONIC`.
        until_ns: u64,
    },
    /// It stands at its gate.
    Waiting {
        /// Since when, `CLOCK_MONOTONIC`.
        since_ns: u64,
        /// Who holds the slice.
        behind: Option<TenantId>,
        /// Why.
        cause: WaitCause,
    },
}

/// Why a tenant waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// It is another one's turn.
    Turn,
    /// It has had more than its share, and others want theirs.
    Debt,
    /// It has had all that its limit allows.
    Ceiling {
        /// Until then, `CLOCK_MONOTONIC`.
        until_ns: u64,
    },
    /// One of a higher priority is served.
    Priority,
    /// Another GPU of it is not to be had now.
    Gang,
}

/// A tenant's standing on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What it does.
    pub state: State,
    /// GPU time that it is owed (positive) or owes.
    pub lag_ns: i64,
    /// GPU time charged since it joined.
    pub charged_ns: u64,
    /// What it is entitled to.
    pub share: Share,
    /// The most that one turn of it can consume: `u = r + a + k`, the slice, what may be launched ahead, and the
    /// longest burst that was seen.
    pub turn_bound_ns: u64,
    /// The greatest of these among all active tenants and this one, U. Over a time `T` in which it has always work, its
    /// share misses what its weight gives by at most `(u + U) / T`.
    pub longest_turn_ns: u64,
    /// Weights of all active tenants of its priority, in permille.
    pub weight_sum: u64,
}

impl SliceScheduler {
    /// Where a tenant stands; none of one that has not joined.
    #[must_use]
    pub fn explain(&self, tenant: TenantId) -> Option<Explanation> {
        let place = self.queue.get(tenant)?;
        let bound_of = |tenant| self.turn_bound_ns(tenant).unwrap_or(0);
        let turn_bound_ns = bound_of(tenant);
        let active = self.queue.iter().filter(|(_, place)| place.account.is_active());
        let longest_turn_ns = active.map(|(tenant, _)| bound_of(tenant)).max().unwrap_or(0).max(turn_bound_ns);
        Some(Explanation {
            state: self.state(tenant)?,
            lag_ns: self.queue.lag_ns(place),
            charged_ns: u64::try_from(place.account.charged_ns()).unwrap_or(0),
            share: place.share,
            turn_bound_ns,
            longest_turn_ns,
            weight_sum: self.queue.clock_of(place).weight_sum(),
        })
    }

    fn turn_bound_ns(&self, tenant: TenantId) -> Option<u64> {
        let place = self.queue.get(tenant)?;
        let burst_ns = place.habits.longest_ns();
        let most_ns = if place.share.class == Class::Latency {
            self.queue.most_slack_ns(place).max(self.queue.full_slice_ns(place))
        } else {
            // Who is alone may work further ahead, until somebody comes.
            let depth_ns = self.depth_ns(tenant).min(self.parameters.depth_ns);
            self.queue.full_slice_ns(place).saturating_add(depth_ns)
        };
        Some(most_ns.saturating_add(burst_ns))
    }

    fn state(&self, tenant: TenantId) -> Option<State> {
        let place = self.queue.get(tenant)?;
        if place.paused {
            return Some(State::Paused);
        }
        if let Some(turn) = self.turn.filter(|turn| turn.tenant == tenant) {
            return Some(State::Running { until_ns: turn.until_ns });
        }
        let Some(since_ns) = place.wants_since_ns else { return Some(State::Idle) };
        let behind = self.running();
        let outranked = behind.and_then(|holder| self.queue.get(holder)).map(|holder| holder.share.priority);
        let blocked_ns = self.queue.opens_ns(place);
        let cause = match blocked_ns.filter(|until_ns| *until_ns > self.now_ns) {
            Some(until_ns) if !self.queue.is_ready(tenant) => WaitCause::Ceiling { until_ns },
            _ if place.held_back => WaitCause::Gang,
            _ if outranked.is_some_and(|priority| priority < place.share.priority) => WaitCause::Priority,
            _ if !self.queue.eligibility(tenant).0 => WaitCause::Debt,
            _ => WaitCause::Turn,
        };
        Some(State::Waiting { since_ns, behind, cause })
    }
}
