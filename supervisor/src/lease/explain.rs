//! Why a lease runs or waits, in the words of the socket.

use super::book::{Book, Lease};
use super::giving_way::ForWhom;
use super::grant::Leases;
use super::record::Record;
use crate::clock;
use gpool_configuration::Configuration;
use gpool_policy::TenantId;
use gpool_policy::promise::share_error_ppm;
use gpool_policy::slice::{Explanation, Priority, State, WaitCause as SliceCause};
use gpool_protocol::{
    ContainerId, ErrorBody, GpuExplanation, GpuUuid, LeaseExplanation, Leaving, RunLeft, ShareErrorBound, Standing,
    WaitCause,
};

/// Windows for which the bound on the share error is told: 1 s, 10 s, 60 s.
const WINDOWS_NS: [u64; 3] = [1_000_000_000, 10_000_000_000, 60_000_000_000];

impl Leases {
    /// Where a lease stands on each of its GPUs, why, and what it is promised beside those who are there.
    ///
    /// # Errors
    /// An unknown lease.
    pub fn explain(&self, lease: &str) -> Result<LeaseExplanation, ErrorBody> {
        let mut book = self.book();
        let (tenant, record) = {
            let lease = book.find(lease)?;
            (lease.tenant, lease.record.clone())
        };
        let explained = self.gatekeeper.explain(tenant);
        let gpus = record.gpus().iter().zip(&explained.gpus);
        let lease = book.find(&record.lease_id.0)?;
        let charged: Vec<u64> = lease.accounts.iter().map(|account| account.charged_ns()).collect();
        let of_gpu = |((uuid, explanation), charged_ns): ((&GpuUuid, &Explanation), u64)| {
            let name = |tenant| container_of(&book, tenant);
            let on_gpu = explained_on(uuid, explanation, explained.at_ns, charged_ns, name);
            // Who has no gate gets its turns from others.
            let share_error = if record.mechanism.has_shims() { on_gpu.share_error } else { Vec::new() };
            GpuExplanation { share_error, ..on_gpu }
        };
        let gpus = gpus.zip(charged).map(of_gpu).collect();
        let lease = book.find(&record.lease_id.0)?;
        let (memory, leaving) = (lease.view(), leaving(lease, &self.configuration()));
        let beyond_budget = self.beyond_budget(&book, &record);
        Ok(LeaseExplanation {
            run: run_left(&record),
            lease_id: record.lease_id,
            container_id: record.container_id,
            mechanism: record.mechanism,
            fraction_permille: record.fraction_permille,
            limit_permille: record.limit_permille,
            class: record.class,
            priority: record.priority,
            beyond_budget,
            fault: memory.fault,
            p99_ns: record.p99_ns,
            requests: memory.requests,
            held_for: memory.held_for,
            memory_cap_bytes: memory.memory_cap_bytes,
            memory_peak_bytes: memory.memory_peak_bytes,
            spill_bytes: memory.spill_bytes,
            spilled_bytes: memory.spilled_bytes,
            leaving,
            suspension: memory.suspension,
            gpus,
        })
    }
}

/// For how long it has its GPUs, if it has not lost them.
fn run_left(record: &Record) -> Option<RunLeft> {
    Some(RunLeft { run_seconds: record.run_seconds?, left_ns: record.run_left_ns()? })
}

/// That it has to make room for another one.
fn leaving(lease: &Lease, configuration: &Configuration) -> Option<Leaving> {
    let (for_whom, until_ns) = (lease.makes_room.for_whom.clone()?, lease.leaves_ns()?);
    let (waits, reservation) = match for_whom {
        ForWhom::Waits(container) => (Some(container), None),
        ForWhom::Reservation(name) => (None, Some(name)),
    };
    let served = lease.served_meanwhile(configuration);
    Some(Leaving {
        waits,
        reservation,
        left_ns: until_ns.saturating_sub(clock::now_ns()),
        served_permille: served.map(|(permille, _)| permille),
        served_as: served.map(|(_, priority)| priority),
    })
}

fn container_of(book: &Book, tenant: TenantId) -> Option<ContainerId> {
    let lease = book.leases.values().find(|lease| lease.tenant == tenant);
    lease.map(|lease| lease.record.container_id.clone())
}

/// One GPU's part. `charged_ns` counts earlier lives of the supervisor too, the scheduler's figure does not.
fn explained_on(
    uuid: &GpuUuid,
    explanation: &Explanation,
    at_ns: u64,
    charged_ns: u64,
    container_of: impl Fn(TenantId) -> Option<ContainerId>,
) -> GpuExplanation {
    let bound = |window_ns| {
        let bound_ppm = share_error_ppm(explanation.turn_bound_ns, explanation.longest_turn_ns, window_ns);
        ShareErrorBound { window_ns, bound_ppm }
    };
    // Whoever comes behind others has what they leave, which has no bound: also who is beyond its budget, or makes room meanwhile.
    let is_promised = explanation.share.priority == Priority::Guaranteed;
    GpuExplanation {
        gpu_uuid: uuid.clone(),
        standing: match explanation.state {
            State::Idle => Standing::Idle,
            State::Paused => Standing::Paused,
            State::Running { until_ns } => Standing::Running { left_ns: until_ns.saturating_sub(at_ns) },
            State::Waiting { since_ns, behind, cause } => Standing::Waiting {
                waited_ns: at_ns.saturating_sub(since_ns),
                behind: behind.and_then(container_of),
                cause: match cause {
                    SliceCause::Turn => WaitCause::Turn,
                    SliceCause::Debt => WaitCause::Debt,
                    SliceCause::Ceiling { until_ns } => WaitCause::Ceiling { left_ns: until_ns.saturating_sub(at_ns) },
                    SliceCause::Priority => WaitCause::Priority,
                    SliceCause::Gang => WaitCause::Gang,
                },
            },
        },
        lag_ns: explanation.lag_ns,
        charged_gpu_ns: charged_ns,
        weight_sum_permille: explanation.weight_sum,
        turn_bound_ns: explanation.turn_bound_ns,
        longest_turn_ns: explanation.longest_turn_ns,
        share_error: if is_promised { WINDOWS_NS.map(bound).to_vec() } else { Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::slice::Share;

    #[test]
    fn an_explanation_counts_from_now_and_names_the_other_container() {
        let explanation = Explanation {
            state: State::Waiting {
                since_ns: 70,
                behind: Some(TenantId(2)),
                cause: SliceCause::Ceiling { until_ns: 130 },
            },
            lag_ns: -5,
            charged_ns: 1,
            share: Share::of(300),
            turn_bound_ns: 9_000_000,
            longest_turn_ns: 21_000_000,
            weight_sum: 900,
        };
        let name = |tenant: TenantId| (tenant == TenantId(2)).then(|| ContainerId("other".into()));
        let on_gpu = explained_on(&GpuUuid("GPU-1".into()), &explanation, 100, 7, name);
        let want = Standing::Waiting {
            waited_ns: 30,
            behind: Some(ContainerId("other".into())),
            cause: WaitCause::Ceiling { left_ns: 30 },
        };
        assert_eq!((on_gpu.standing, on_gpu.charged_gpu_ns), (want, 7));
        let bounds: Vec<u64> = on_gpu.share_error.iter().map(|bound| bound.bound_ppm).collect();
        assert_eq!(bounds, [30_000, 3_000, 500], "3 points a second, 0.3 over ten, 0.05 over a minute");
        for priority in [Priority::Burst, Priority::Scavenger] {
            let share = Share { priority, ..Share::of(300) };
            let behind = explained_on(&GpuUuid("GPU-1".into()), &Explanation { share, ..explanation }, 100, 7, name);
            assert_eq!(behind.share_error, [], "it has what the others leave");
        }
    }
}
