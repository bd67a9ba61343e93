//! Clients of the simulation stand for the shim: where both have a rule of their own for one thing, it is the same.

use gpool_interposer_logic::pause::Pause as OfTheShim;
use gpool_policy_simulator::pause::Pause as OfTheSimulation;

/// Pauses of a microsecond to a second, in no order: a linear congruential generator's, by Knuth.
fn pauses_ns(seed: u64) -> impl Iterator<Item = u64> {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(seed), next).skip(1).map(|state| {
        let magnitude = 1000 * 10u64.pow((state >> 40) as u32 % 7);
        magnitude * (1 + (state >> 50) % 9)
    })
}

#[test]
fn clients_of_the_simulation_pause_as_the_shim_does() {
    let (mut kept, mut expected) = (0, 0);
    for seed in 1..=50 {
        let (mut shim, mut simulation) = (OfTheShim::new(), OfTheSimulation::default());
        for (round, pause_ns) in pauses_ns(seed).take(200).enumerate() {
            assert_eq!(shim.keep_ns(), simulation.keep_ns(), "seed {seed}, round {round}");
            assert_eq!(shim.is_expected(), simulation.is_expected(), "seed {seed}, round {round}");
            kept += u32::from(shim.keep_ns() > 0);
            expected += u32::from(shim.is_expected());
            if pause_ns.is_multiple_of(7) {
                shim.did_not_come();
                simulation.did_not_come();
            }
            // Some come in a row, as a program's do.
            let times = if pause_ns < 250_000 { 20 } else { 1 };
            for _ in 0..times {
                shim.learn(pause_ns);
                simulation.learn(pause_ns);
            }
        }
    }
    assert!(kept > 500 && expected > 500, "{kept} and {expected} of 10000: too few to tell them apart");
}
