//! Bounds that hold in any scenario: lag, busy time, conservation.

use crate::plans::{MS, Plan, SECOND, permyriad, world};
use gpool_policy_simulator::random::Random;

const SCENARIOS: u64 = 60;
const LASTS_NS: u64 = 3 * SECOND;
/// What a launch costs is not known before the first has ended, and a client issues a slice of guesses until then. By
/// this time everybody has paid for them.
const WARM_NS: u64 = 10 * SECOND;
/// Estimated work that a client may have on the device: its depth, and the burst that it issues just before that.
const AHEAD_NS: u64 = 7 * MS;

/// Two to eight tenants with weights that sum to at most 1000 and kernels of 50 us to 8 ms.
fn scenario(seed: u64) -> Vec<Plan> {
    let mut random = Random::new(seed);
    let count = random.within(2, 8);
    (0..count)
        .map(|_| {
            let shortest = random.within(50_000, 5 * MS);
            let longest = if random.within(0, 1) == 0 { shortest } else { random.within(shortest, 8 * MS) };
            let weight = random.within(20, 1000 / count) as u16;
            Plan { weight, kernel_ns: (shortest, longest), debt_ns: 0 }
        })
        .collect()
}

/// The extremes of `S_i/w_i - S_j/w_j`, times `w_i w_j`.
struct Pair {
    one: usize,
    other: usize,
    least: i128,
    most: i128,
}

#[test]
fn the_lag_between_two_backlogged_tenants_is_bounded() {
    let mut worst = 0;
    for seed in 0..SCENARIOS {
        let plans = scenario(seed);
        let mut world = world(seed, &plans);
        world.run_until(WARM_NS);
        let count = plans.len();
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        let mut pairs: Vec<Pair> =
            pairs.map(|(one, other)| Pair { one, other, least: i128::MAX, most: i128::MIN }).collect();
        let mut slice = 0;
        world.run_with(WARM_NS + LASTS_NS, |world| {
            slice = slice.max(world.scheduler.slice_ns());
            let received = world.all_received();
            for pair in &mut pairs {
                let of = |a: usize, b: usize| i128::from(received[a]) * i128::from(plans[b].weight);
                let difference = of(pair.one, pair.other) - of(pair.other, pair.one);
                pair.least = pair.least.min(difference);
                pair.most = pair.most.max(difference);
            }
        });
        let u = |client: usize| i128::from(slice + AHEAD_NS + world.clients[client].longest_ns);
        let greatest = (0..count).map(u).max().expect("tenants");
        for pair in &pairs {
            let part = |a: usize, b: usize| (u(a) + greatest) * i128::from(plans[b].weight);
            let bound = part(pair.one, pair.other) + part(pair.other, pair.one);
            let permille = (pair.most - pair.least) * 1000 / bound;
            worst = worst.max(permille);
            assert!(permille <= 1000, "seed {seed}, {} and {}: {permille} permille", pair.one, pair.other);
        }
    }
    println!("worst pairwise lag: {worst} permille of the bound");
}

#[test]
fn backlogged_tenants_keep_the_device_busy() {
    let mut worst = (10_000, 0);
    let mut sum = 0;
    for seed in 0..SCENARIOS {
        let mut world = world(seed, &scenario(seed));
        world.run_until(LASTS_NS);
        let busy = permyriad(world.device.meter().busy_ns, LASTS_NS);
        worst = worst.min((busy, seed));
        sum += busy;
        assert!(busy >= 9750, "seed {seed}: {busy}");
    }
    println!("busy: least {worst:?}, mean {}", sum / SCENARIOS as i64);
}

#[test]
fn charges_are_conserved_and_agree_with_the_meter() {
    let mut worst = 0;
    for seed in 0..SCENARIOS {
        let mut world = world(seed, &scenario(seed));
        world.run_until(LASTS_NS);
        let charged = |client: usize| world.scheduler.charged_ns(world.tenant(client)).expect("joined");
        let all: u64 = (0..world.clients.len()).map(charged).sum();
        assert_eq!(all, world.scheduler.total_charged_ns(), "seed {seed}");
        assert!(all <= LASTS_NS);
        for client in 0..world.clients.len() {
            let apart = charged(client).abs_diff(world.received(client));
            worst = worst.max(permyriad(apart, LASTS_NS));
        }
    }
    println!("charge and meter differ by at most {worst}/10000 of the time");
    assert!(worst <= 100, "{worst}");
}

#[test]
fn intermittent_tenants_leave_nothing_idle() {
    let mut worst = 10_000;
    for seed in 0..20 {
        let plans = scenario(seed);
        let mut world = world(seed, &plans);
        let mut random = Random::new(seed + 1000);
        for client in 1..plans.len() {
            let mut at = 0;
            while at < LASTS_NS {
                at += random.within(5 * MS, 200 * MS);
                world.demand(at, client, false);
                at += random.within(MS, 100 * MS);
                world.demand(at, client, true);
            }
        }
        world.run_until(LASTS_NS);
        let busy = permyriad(world.device.meter().busy_ns, LASTS_NS);
        worst = worst.min(busy);
        assert!(busy >= 9600, "seed {seed}: {busy}");
    }
    println!("busy with intermittent tenants: at least {worst}");
}
