//! How long the requests of one tenant take: what the thread that opens gates sees of them.

use gpool_policy::TenantId;
use gpool_policy::latency::{Figures, Latency};
use gpool_policy::request::{Requests, Timing, Wait};
use gpool_policy::slice::HostScheduler;
use gpool_policy::timeline::{Bounds, Use};

/// A request is looked at so long after its end: by then it is known who else had work meanwhile, but for kernels that take longer.
const SETTLED_NS: u64 = 2_000_000_000;
/// So many are looked at when one ends: more than one, so that they do not pile up, and few, so that nobody waits for long.
pub const AT_AN_END: usize = 16;
/// And so many once a second: of all that can wait for it a quarter, so that none is looked at when the timelines have forgotten it.
pub const AT_A_LOOK: usize = 256;

/// The requests of a tenant and what they took.
pub struct Measured {
    requests: Requests,
    latency: Latency,
}

impl Measured {
    /// None yet; `promise_ns` is what 99 of 100 are to take at most.
    pub fn new(now_ns: u64, promise_ns: Option<u64>) -> Self {
        Self { requests: Requests::default(), latency: Latency::new(now_ns, promise_ns) }
    }

    /// Something else is promised from now on.
    pub fn promise(&mut self, now_ns: u64, promise_ns: Option<u64>) {
        self.latency.promise(now_ns, promise_ns);
    }

    /// What was measured is no measure of what comes; nor is what began before `from_ns`.
    pub fn begin_anew(&mut self, from_ns: u64) {
        self.latency.begin_anew(from_ns);
        self.requests.begin_anew(from_ns);
    }

    /// It stands at its closed gate; until when its own ceiling keeps it there, and what does after that.
    pub fn wants(&mut self, now_ns: u64, (from_ns, wait): (u64, Wait)) {
        self.requests.wants(now_ns, from_ns, wait);
    }

    /// Whether it stands there, as far as is known.
    pub fn is_standing(&self) -> bool {
        self.requests.is_standing()
    }

    /// Its gate is open.
    pub fn opened(&mut self, now_ns: u64) {
        self.requests.opened(now_ns);
    }

    /// It has reported a burst, which is believed as far as it is charged, and stood before the GPU from `queued_ns` on.
    pub fn worked(&mut self, now_ns: u64, queued_ns: u64, (start_ns, end_ns): (u64, u64)) {
        if start_ns <= end_ns && start_ns < now_ns {
            let end_ns = end_ns.min(now_ns);
            let earliest_ns = end_ns.saturating_sub(Bounds::default().longest_burst_ns);
            self.requests.worked(queued_ns.max(earliest_ns), start_ns.max(earliest_ns), end_ns);
        }
    }

    /// It has nothing to do.
    pub fn idle(&mut self) {
        self.requests.idle();
    }

    /// It is kept from running, or nobody has looked.
    pub fn forget(&mut self, now_ns: u64) {
        self.requests.forget(now_ns);
    }

    /// Looks at requests that have ended for long enough.
    pub fn settle(&mut self, now_ns: u64, most: usize, scheduler: &HostScheduler, (id, gpus): (TenantId, &[usize])) {
        let remembered_ns = gpus.iter().map(|gpu| scheduler.server(*gpu).remembered_from_ns()).max().unwrap_or(0);
        for _ in 0..most {
            let Some(request) = self.requests.take_ended(now_ns.saturating_sub(SETTLED_NS)) else { return };
            let mut timing = request.timing(|from_ns, to_ns| use_of(scheduler, id, gpus, (from_ns, to_ns)));
            // By whose doing it took that long is not known any more.
            if request.began_ns() < remembered_ns {
                timing = Timing { length_ns: timing.length_ns, ..Timing::default() };
            }
            self.latency.note(now_ns, timing);
        }
    }

    /// How long recent ones took.
    pub fn figures(&self, now_ns: u64) -> Figures {
        self.latency.figures(now_ns)
    }
}

/// What a tenant had of its GPUs between two times: how long of that one on which it was longest, and what others had of the one on
/// which that was most.
fn use_of(scheduler: &HostScheduler, id: TenantId, gpus: &[usize], (from_ns, to_ns): (u64, u64)) -> Use {
    let on = |gpu: &usize| scheduler.server(*gpu).use_of(id, from_ns, to_ns);
    let (mut most, mut shared_ns) = (Use::default(), 0);
    for its in gpus.iter().map(on) {
        most.busy_ns = its.busy_ns.max(most.busy_ns);
        most.others_ns = its.others_ns.max(most.others_ns);
        shared_ns = its.busy_ns.saturating_sub(its.charged_ns).max(shared_ns);
    }
    Use { charged_ns: most.busy_ns.saturating_sub(shared_ns), ..most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::slice::{Class, Parameters, ServerSet, Share};
    use gpool_policy::timeline::Burst;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    #[test]
    fn a_request_is_looked_at_when_it_is_known_who_had_work_meanwhile() {
        let (mut scheduler, mut commands) = (HostScheduler::new(Parameters::default(), 2, 0), Vec::new());
        let latency = Share { class: Class::Latency, ..Share::of(300) };
        scheduler.join(0, TenantId(1), ServerSet::one(0).union(ServerSet::one(1)), latency, 0, &mut commands);
        scheduler.join(0, TenantId(2), ServerSet::one(1), Share::of(300), 0, &mut commands);
        let mut burst = |now_ns, tenant, gpu, start_ns, end_ns| {
            let burst = Burst { tenant: TenantId(tenant), context: 0, start_ns, end_ns };
            scheduler.burst(now_ns, gpu, burst, &mut commands);
        };
        let mut measured = Measured::new(0, Some(20 * MS));
        measured.worked(S + 24 * MS, S, (S, S + 24 * MS));
        measured.worked(S, S + 30 * MS, (S + 30 * MS, S + 40 * MS));
        measured.worked(S + 40 * MS, S + 40 * MS, (S + 40 * MS, S + 30 * MS));
        measured.idle();
        burst(S + 24 * MS, 1, 0, S, S + 12 * MS);
        burst(S + 24 * MS, 1, 1, S, S + 24 * MS);
        // A kernel of another one that began before and ends later is heard of late.
        burst(2 * S, 2, 1, S - 10 * MS, S + 90 * MS);
        let settle = |measured: &mut Measured, now_ns| measured.settle(now_ns, 9, &scheduler, (TenantId(1), &[0, 1]));
        settle(&mut measured, 3 * S);
        assert_eq!(measured.figures(3 * S).all, 0, "too early");
        settle(&mut measured, 3 * S + 25 * MS);
        let figures = measured.figures(3 * S + 25 * MS);
        assert_eq!((figures.count, figures.late), (1, 1));
        assert!(
            figures.p50_ns.is_some_and(|ns| (24 * MS..26 * MS).contains(&ns)),
            "what cannot have been is not believed: {figures:?}"
        );
        measured.begin_anew(4 * S);
        measured.worked(5 * S, 3 * S + 30 * MS, (3 * S + 30 * MS, 3 * S + 31 * MS));
        measured.idle();
        settle(&mut measured, 9 * S);
        assert_eq!(measured.figures(9 * S).all, 1, "that was before");
    }
}
