//! A device that loses 0.2 ms with each exchange of contexts, as an H100 does: what sharing costs there, and how soon
//! who comes back is served.

use crate::plans::{MS, Plan, SECOND, World, on_device, permyriad, plan};
use gpool_device_model::DeviceParameters;
use gpool_policy::slice::Parameters;
use gpool_policy_simulator::measure::latency::{Latency, latency};
use gpool_policy_simulator::random::Random;

const REQUEST: u64 = 400_000;

fn device(seed: u64, plans: &[Plan]) -> World {
    let ids: Vec<u64> = (1..=plans.len() as u64).collect();
    on_device(DeviceParameters { switch_cost_ns: 200_000, ..DeviceParameters::standard(0) }, seed, plans, &ids)
}

/// In 1/10000: how much of ten seconds the device is busy and how much goes to exchanges when all have work.
fn all_busy(mut world: World) -> (i64, i64) {
    (0..world.clients.len()).for_each(|client| world.demand(0, client, true));
    world.run_until(10 * SECOND);
    let meter = world.device.meter();
    (permyriad(meter.busy_ns, meter.elapsed_ns()), permyriad(meter.switch_ns, meter.elapsed_ns()))
}

#[test]
fn exchanges_cost_two_in_a_hundred_at_most() {
    let kernels = 360_000;
    for plans in [
        vec![plan(300, kernels), plan(600, kernels), plan(100, kernels)],
        vec![plan(500, kernels), plan(500, kernels)],
        vec![plan(100, kernels); 10],
        vec![plan(50, kernels); 20],
    ] {
        for seed in 1..=3 {
            let (busy, switching) = all_busy(device(seed, &plans));
            println!("{} tenants, seed {seed}: busy {busy}, exchanging {switching}", plans.len());
            assert!(busy >= 9800, "{} tenants, seed {seed}: {busy}", plans.len());
        }
    }
}

/// The first of these tenants has a short request now and then, about `every` apart; the others always have work.
fn requests(plans: &[Plan], every: u64) -> (World, Latency) {
    let mut world = device(7, plans);
    (1..plans.len()).for_each(|client| world.demand(0, client, true));
    let mut pauses = Random::stream(99, 5);
    let mut at = SECOND;
    for _ in 0..1000 {
        world.request(at, 0, REQUEST);
        at += every + pauses.within(0, every / 4);
    }
    world.run_until(at + SECOND);
    let latency = latency(world.clients.iter().take(1), world.now).expect("requests");
    (world, latency)
}

#[test]
fn who_comes_back_waits_for_what_is_launched_and_not_for_a_slice() {
    let launched = Parameters::default().depth_ns;
    for others in [vec![plan(500, 360_000)], vec![plan(250, 360_000); 2], vec![plan(100, 360_000); 5]] {
        let plans: Vec<Plan> = std::iter::once(plan(500, REQUEST)).chain(others).collect();
        let (_, latency) = requests(&plans, 40 * MS);
        println!("beside {}: {latency:?}", plans.len() - 1);
        assert_eq!((latency.served, latency.unserved), (1000, 0));
        assert!(latency.p99_ns <= launched + REQUEST + 2 * MS, "beside {}: {latency:?}", plans.len() - 1);
    }
}

/// One with a small share that comes back every few milliseconds, and says so once, has each time to wait until the other
/// one has had a slice since it gave way last, so that the device changes hands as often as between two that always have
/// work.
#[test]
fn coming_back_often_costs_no_more_exchanges_than_slices_do() {
    for every_ms in [1, 3, 5, 8, 12, 20] {
        let (world, latency) = requests(&[plan(100, REQUEST), plan(900, 360_000)], every_ms * MS);
        let meter = world.device.meter();
        let switching = permyriad(meter.switch_ns, meter.elapsed_ns());
        println!(
            "every {every_ms} ms: exchanging {switching}, busy {}, {latency:?}",
            permyriad(meter.busy_ns, meter.elapsed_ns())
        );
        // Two for each slice of 12 ms.
        assert!(switching <= 340, "every {every_ms} ms: {switching}");
    }
}

/// A program that comes back a moment after each wait keeps the device over its pauses, in which nobody else has it: they
/// are its own time, or it would have a slice for each fortieth of one.
#[test]
fn pauses_in_which_the_device_is_kept_are_paid_for() {
    for (work, pause) in [(5_000, 200_000), (20_000, 25_000), (20_000, 100_000), (300_000, 400_000)] {
        let mut world = device(3, &[plan(500, work), plan(500, 360_000)]);
        world.demand(0, 1, true);
        world.request(MS, 0, work);
        let mut served = 0;
        while world.now < 10 * SECOND {
            world.run_until(world.now + 5_000);
            if world.clients[0].served.len() > served {
                served = world.clients[0].served.len();
                world.request(world.clients[0].served[served - 1].ended_ns.max(world.now) + pause, 0, work);
            }
        }
        let meter = world.device.meter();
        let had = |client: usize| permyriad(world.received(client), meter.elapsed_ns());
        println!("{work} of {}: it had {}, the other {}", work + pause, had(0), had(1));
        assert!(had(1) >= 4500, "{work} of {}: {}", work + pause, had(1));
    }
}
