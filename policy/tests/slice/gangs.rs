//! The rules between tenants of several GPUs and latency tenants, one by one.

use crate::table::MS;
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, HostScheduler, Input, Parameters, Priority, Share};
use gpool_policy::timeline::Burst;

const GANG: TenantId = TenantId(1);
/// Of a scheduler that has seen no hand-off.
const SLICE: u64 = 12_800_000;
/// Another tenant on each GPU.
const OWN: [TenantId; 2] = [TenantId(2), TenantId(3)];

/// Two GPUs.
struct Host {
    now: u64,
    scheduler: HostScheduler,
}

fn latency(permille: u16) -> Share {
    Share { class: Class::Latency, ..Share::of(permille) }
}

impl Host {
    fn of(gang: Share, own: Share) -> Self {
        let mut host = Self { now: 1000 * MS, scheduler: HostScheduler::new(Parameters::default(), 2, 0) };
        assert_eq!(host.scheduler.server(0).slice_ns(), SLICE);
        host.scheduler.join(host.now, GANG, [0, 1].into_iter().collect(), gang, 0, &mut Vec::new());
        for (gpu, tenant) in OWN.into_iter().enumerate() {
            host.scheduler.join(host.now, tenant, [gpu].into_iter().collect(), own, 0, &mut Vec::new());
        }
        host
    }

    /// Lets time pass as the supervisor does, then takes an input. Who was opened and who was closed meanwhile.
    fn after(&mut self, ns: u64, input: Input) -> (Vec<TenantId>, Vec<TenantId>) {
        let (end, mut commands) = (self.now + ns, Vec::new());
        while let Some(at_ns) = self.scheduler.next_timer().filter(|at_ns| *at_ns < end) {
            self.now = self.now.max(at_ns);
            self.scheduler.handle(self.now, Input::Pass, &mut commands);
        }
        self.now = end;
        self.scheduler.handle(self.now, input, &mut commands);
        let opened = |command: &Command| match command {
            Command::Open { tenant, .. } => Some(*tenant),
            _ => None,
        };
        let closed = |command: &Command| match command {
            Command::Close { tenant } => Some(*tenant),
            _ => None,
        };
        (commands.iter().filter_map(opened).collect(), commands.iter().filter_map(closed).collect())
    }

    fn wants(&mut self, ns: u64, tenant: TenantId) -> (Vec<TenantId>, Vec<TenantId>) {
        self.after(ns, Input::Wants { tenant })
    }

    /// The latency tenants come by turns for 6 ms each, 3 ms of which they share, and keep the gang out for so long.
    fn keep_out(&mut self, ns: u64) {
        self.wants(0, OWN[0]);
        self.wants(0, GANG);
        let end = self.now + ns;
        for turn in 0.. {
            let (busy, comes) = (turn % 2, OWN[(turn + 1) % 2]);
            let first = self.wants(3 * MS, comes).0;
            assert_eq!(first, [comes]);
            if self.now + 3 * MS >= end {
                return;
            }
            let idle = self.after(3 * MS, Input::Idle { tenant: OWN[busy] });
            assert_eq!(idle, (vec![], vec![OWN[busy]]), "the other one is busy");
        }
    }

    /// One that takes long keeps the gang out until it is behind by a slice and takes its GPUs.
    fn miss_a_slice(&mut self) {
        self.wants(0, OWN[0]);
        self.wants(0, GANG);
        assert_eq!(self.after(2 * SLICE - MS, Input::Pass), (vec![], vec![]), "it is within its slack");
        assert_eq!(self.after(2 * MS, Input::Pass), (vec![GANG], vec![OWN[0]]));
        let burst = Burst { tenant: OWN[0], context: 0, start_ns: self.now - 2 * SLICE - MS, end_ns: self.now };
        self.scheduler.burst(self.now, 0, burst, &mut Vec::new());
        assert_eq!(self.after(0, Input::Idle { tenant: OWN[0] }), (vec![], vec![]));
        assert!((0..2).all(|gpu| self.scheduler.server(gpu).running() == Some(GANG)));
    }

    /// Both are idle.
    fn let_in(&mut self) {
        self.after(0, Input::Idle { tenant: OWN[0] });
        self.after(0, Input::Idle { tenant: OWN[1] });
        assert!((0..2).all(|gpu| self.scheduler.server(gpu).running() == Some(GANG)));
    }
}

#[test]
fn a_gang_that_missed_less_than_a_slice_gives_way_at_once() {
    let mut host = Host::of(Share::of(500), latency(500));
    host.keep_out(2 * SLICE - 3 * MS);
    host.let_in();
    assert_eq!(host.wants(MS, OWN[0]), (vec![OWN[0]], vec![GANG]));
}

#[test]
fn a_gang_that_missed_a_slice_has_one_and_who_came_meanwhile_is_next() {
    let mut host = Host::of(Share::of(500), latency(500));
    host.miss_a_slice();
    assert_eq!(host.wants(MS, OWN[0]), (vec![], vec![]));
    let estimated_end_ns = host.now + SLICE - MS;
    let (opened, closed) = host.after(SLICE - MS, Input::Announced { tenant: GANG, estimated_end_ns });
    assert_eq!((opened, closed), (vec![OWN[0]], vec![GANG]));
    assert_eq!(host.scheduler.server(1).running(), None, "the gang waits for both");
}

#[test]
fn a_gang_gives_way_at_once_again_when_it_has_caught_up() {
    let mut host = Host::of(Share::of(500), latency(500));
    host.miss_a_slice();
    for _ in 0..3 {
        assert_eq!(host.after(SLICE, Input::Announced { tenant: GANG, estimated_end_ns: host.now + SLICE }).1, []);
    }
    assert_eq!(host.wants(MS, OWN[0]), (vec![OWN[0]], vec![GANG]));
}

/// Who is held back is no rival, so nobody else would end the turn of one of which nothing is heard.
#[test]
fn a_gang_that_makes_up_and_is_silent_keeps_another_one_out_for_a_slice_and_the_drain_limit() {
    let (mut host, other) = (Host::of(Share::of(500), latency(500)), TenantId(4));
    host.scheduler.join(host.now, other, [0, 1].into_iter().collect(), Share::of(500), 0, &mut Vec::new());
    host.miss_a_slice();
    assert_eq!(host.wants(MS, other), (vec![], vec![]));
    assert_eq!(host.after(SLICE - 3 * MS, Input::Pass), (vec![], vec![]));
    assert_eq!(host.after(Parameters::default().drain_limit_ns + 3 * MS, Input::Pass), (vec![other], vec![GANG]));
}

#[test]
fn a_silent_latency_tenant_within_its_slack_does_not_keep_a_gang_out_for_ever() {
    let burst = |share| Share { priority: Priority::Burst, ..share };
    let mut host = Host::of(burst(Share::of(500)), burst(latency(500)));
    host.wants(0, OWN[0]);
    host.wants(MS, GANG);
    assert_eq!(host.after(2 * SLICE - 2 * MS, Input::Pass), (vec![], vec![]));
    assert_eq!(host.after(Parameters::default().drain_limit_ns + 2 * MS, Input::Pass), (vec![GANG], vec![OWN[0]]));
}

#[test]
fn without_a_promise_a_gang_waits_for_latency_tenants() {
    for priority in [Priority::Burst, Priority::Scavenger] {
        let own = Share { priority, ..latency(500) };
        let mut host = Host::of(Share { priority, ..Share::of(500) }, own);
        host.keep_out(3 * SLICE);
        host.let_in();
        assert_eq!(host.wants(MS, OWN[0]), (vec![OWN[0]], vec![GANG]));
    }
}

#[test]
fn a_latency_gang_takes_all_its_gpus_over_at_once() {
    let mut host = Host::of(latency(500), Share::of(500));
    OWN.iter().for_each(|&tenant| assert_eq!(host.wants(0, tenant).0, [tenant]));
    let (opened, closed) = host.wants(2 * MS, GANG);
    assert_eq!((&opened[..], &closed[..]), (&[GANG][..], &OWN[..]));
}

#[test]
fn a_latency_gang_waits_for_the_requests_of_others() {
    let mut host = Host::of(latency(500), latency(500));
    host.wants(0, OWN[0]);
    assert_eq!(host.wants(2 * MS, GANG), (vec![], vec![]));
    assert_eq!(host.after(MS, Input::Idle { tenant: OWN[0] }), (vec![GANG], vec![OWN[0]]));
}

#[test]
fn a_latency_gang_without_slack_on_one_gpu_waits_like_anybody() {
    let mut host = Host::of(latency(500), Share::of(500));
    host.wants(0, GANG);
    OWN.iter().for_each(|&tenant| _ = host.wants(0, tenant));
    // Its turn is over then, and they have not been silent for so long that theirs are.
    let (start_ns, end_ns) = (host.now, host.now + 60 * MS);
    host.after(60 * MS, Input::Pass);
    host.scheduler.burst(end_ns, 1, Burst { tenant: GANG, context: 0, start_ns, end_ns }, &mut Vec::new());
    host.after(0, Input::Announced { tenant: GANG, estimated_end_ns: end_ns });
    assert_eq!([0, 1].map(|gpu| host.scheduler.server(gpu).running()), OWN.map(Some));
    assert_eq!(host.wants(MS, GANG), (vec![], vec![]));
}
