//! Who has several GPUs to itself is treated as who has one.

use crate::table::MS;
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, HostScheduler, Input, Parameters, Share};
use gpool_policy::timeline::Burst;

const GANG: TenantId = TenantId(1);
const OTHER: TenantId = TenantId(2);
const USUAL: Parameters = Parameters::DEFAULT;
const SHARED: (u64, u64) = (USUAL.depth_ns, USUAL.burst_ns);
const SOLE: (u64, u64) = (USUAL.sole_burst_ns, USUAL.sole_burst_ns);

/// Three GPUs, two of which are the gang's.
struct Host {
    now: u64,
    scheduler: HostScheduler,
}

impl Host {
    /// The gang has had a second of both, and is idle.
    fn of(share: Share) -> Self {
        let mut host = Self { now: 1000 * MS, scheduler: HostScheduler::new(USUAL, 3, 0) };
        host.scheduler.join(host.now, GANG, [0, 1].into_iter().collect(), share, 0, &mut Vec::new());
        host.tell(Input::Wants { tenant: GANG });
        host.now += 1000 * MS;
        host.work(1000 * MS);
        host.tell(Input::Idle { tenant: GANG });
        host.now += 100 * MS;
        host
    }

    fn tell(&mut self, input: Input) -> Vec<Command> {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        commands
    }

    fn after(&mut self, ns: u64, input: Input) -> Vec<Command> {
        self.now += ns;
        self.tell(input)
    }

    fn join(&mut self, gpu: usize) -> Vec<Command> {
        let mut commands = Vec::new();
        let gpus = [gpu].into_iter().collect();
        self.scheduler.join(self.now, OTHER, gpus, Share::of(300), 0, &mut commands);
        commands
    }

    /// Both GPUs have worked for the gang until now.
    fn work(&mut self, ns: u64) {
        let burst = |gpu: u64| Burst { tenant: GANG, context: gpu, start_ns: self.now - ns, end_ns: self.now };
        let bursts = [(0, burst(0), self.now - ns), (1, burst(1), self.now - ns)];
        self.scheduler.arrivals(self.now, bursts, &mut Vec::new());
    }
}

/// Until when the last opened gate is open, how far ahead it lets its tenant work, and in what bursts.
fn opened(commands: &[Command]) -> Option<(u64, (u64, u64))> {
    commands.iter().rev().find_map(|command| match *command {
        Command::Open { tenant: GANG, until_ns, depth_ns, burst_ns } => Some((until_ns, (depth_ns, burst_ns))),
        _ => None,
    })
}

#[test]
fn a_gang_that_has_its_gpus_to_itself_measures_long_bursts_until_somebody_joins_one_of_them() {
    for gpu in [0, 1] {
        let mut host = Host::of(Share::of(300));
        let began = host.tell(Input::Wants { tenant: GANG });
        assert_eq!(opened(&began), Some((host.now + USUAL.sole_ns, SOLE)));
        host.now += MS;
        let joined = host.join(gpu);
        let latest = host.now + host.scheduler.server(gpu).slice_ns();
        assert_eq!(opened(&joined), Some((latest, SHARED)), "at once, on both");
        let left = host.after(MS, Input::Leave { tenant: OTHER });
        assert_eq!(left, [], "with its next slice");
        host.work(MS);
        let announced = host.after(MS, Input::Announced { tenant: GANG, estimated_end_ns: latest });
        assert_eq!(
            opened(&announced),
            Some((latest + USUAL.sole_ns, SOLE)),
            "when it asks, and not when it has drained"
        );
    }
}

#[test]
fn who_is_on_another_gpu_is_nothing_to_it() {
    let mut host = Host::of(Share::of(300));
    host.tell(Input::Wants { tenant: GANG });
    assert_eq!(host.join(2), []);
    host.work(MS);
    host.tell(Input::Idle { tenant: GANG });
    assert_eq!(opened(&host.after(MS, Input::Wants { tenant: GANG })).map(|(_, ahead)| ahead), Some(SOLE));
}

#[test]
fn beside_somebody_idle_on_one_gpu_it_has_what_that_gpu_allows() {
    const QUIET: (u64, u64) = (USUAL.depth_ns, USUAL.quiet_burst_ns);
    let mut host = Host::of(Share::of(300));
    host.join(1);
    assert_eq!(opened(&host.tell(Input::Wants { tenant: GANG })), Some((host.now + USUAL.alone_ns, SHARED)));
    host.work(MS);
    host.tell(Input::Idle { tenant: GANG });
    host.after(1000 * MS, Input::Pass);
    assert_eq!(opened(&host.tell(Input::Wants { tenant: GANG })), Some((host.now + USUAL.alone_ns, QUIET)));
    // Who comes ends that on both.
    let comes = host.after(30 * MS, Input::Wants { tenant: OTHER });
    let latest = host.now + host.scheduler.server(1).slice_ns();
    assert!(opened(&comes).is_some_and(|(until_ns, ahead)| until_ns <= latest && ahead == SHARED), "{comes:?}");
    let asks = Input::Announced { tenant: GANG, estimated_end_ns: latest };
    assert_eq!(host.after(MS, asks), [], "with a rival on one it is decided when its work ends");
}

#[test]
fn a_gate_is_open_for_as_long_as_the_strictest_gpu_allows() {
    for gpu in [0, 1] {
        let mut host = Host::of(Share::of(300));
        host.join(gpu);
        host.tell(Input::Wants { tenant: OTHER });
        host.after(MS, Input::Idle { tenant: OTHER });
        // It counts for as long as it lingers.
        let began = host.after(MS, Input::Wants { tenant: GANG });
        assert_eq!(opened(&began), Some((host.now + host.scheduler.server(gpu).slice_ns(), SHARED)));
    }
}

#[test]
fn a_gang_with_a_ceiling_or_of_the_latency_class_works_as_beside_others() {
    let limited = Share { limit_permille: Some(500), ..Share::of(300) };
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    for share in [limited, latency] {
        let mut host = Host::of(share);
        assert_eq!(opened(&host.after(1000 * MS, Input::Wants { tenant: GANG })).map(|(_, ahead)| ahead), Some(SHARED));
        let mut host = Host::of(Share::of(300));
        host.tell(Input::Wants { tenant: GANG });
        let changed = host.after(MS, Input::Change { tenant: GANG, share });
        let latest = host.now + host.scheduler.server(0).slice_ns();
        assert_eq!(opened(&changed), Some((latest, SHARED)), "and does so soon");
    }
}

#[test]
fn its_gate_may_stay_open_while_it_is_idle_and_nobody_is_at_work_on_any_of_its_gpus() {
    let mut host = Host::of(Share::of(300));
    let until_ns = host.now + USUAL.left_open_ns;
    host.tell(Input::Pass);
    assert_eq!(opened(host.scheduler.left_open(GANG).as_slice()), Some((until_ns, SOLE)));
    host.tell(Input::Wants { tenant: GANG });
    assert_eq!(host.scheduler.left_open(GANG), None, "it has a slice");
    host.tell(Input::Idle { tenant: GANG });
    host.join(1);
    assert!(host.scheduler.left_open(GANG).is_some());
    host.tell(Input::Wants { tenant: OTHER });
    assert_eq!(host.scheduler.left_open(GANG), None);
    assert_eq!(host.scheduler.left_open(TenantId(9)), None, "nobody knows it");
}
