//! The properties that a single run shows, over many random scenarios.

use std::sync::OnceLock;

use gpool_policy_simulator::scenario::Scenario;

use crate::generate::{Mix, scenario};
use crate::observe::Run;
use crate::{busy, ceiling, charges, fluid, lag, waits};

/// A property: how close a run came to its bound, in thousandths, if it says anything about that run.
type Property = fn(&Run) -> Option<u64>;

const PROPERTIES: [(&str, Property); 6] = [
    ("pairwise lag", lag::worst_permille),
    ("lag behind the fluid", fluid::worst_permille),
    ("ceilings", ceiling::worst_permille),
    ("idle beside work", busy::worst_permille),
    ("idle beside work, all backlogged", busy::backlogged_permille),
    ("waits", waits::worst_permille),
];

/// What a search has found for one property.
struct Found {
    /// How close each scenario came that said something about it, and its seed.
    judged: Vec<(u64, u64)>,
}

/// Runs scenarios one by one, mixed ones and, as every fifth, one in which everybody always has work. Conservation is
/// exact and asserted on the spot.
fn search(scenarios: u64) -> [Found; PROPERTIES.len()] {
    let mut found = PROPERTIES.map(|_| Found { judged: Vec::new() });
    for seed in 0..scenarios {
        let run = Run::finished(scenario_of(seed), seed);
        charges::assert_conserved(&run);
        for (found, (_, property)) in found.iter_mut().zip(PROPERTIES) {
            if let Some(permille) = property(&run) {
                found.judged.push((permille, seed));
            }
        }
    }
    found
}

fn scenario_of(seed: u64) -> Scenario {
    scenario(seed, if seed % 5 == 4 { Mix::Backlogged } else { Mix::Any })
}

impl Found {
    fn assert_within(&self, name: &str, least_judged: usize) {
        let mut judged = self.judged.clone();
        judged.sort_unstable();
        assert!(judged.len() >= least_judged, "{name}: only {} scenarios say anything about it", judged.len());
        let (permille, seed) = judged[judged.len() - 1];
        let (half, _) = judged[judged.len() / 2];
        println!("{name}: {permille} permille of the bound with seed {seed}, {half} in half of {}", judged.len());
        let above: Vec<_> = judged.iter().filter(|(permille, _)| *permille > 1000).collect();
        assert!(
            above.is_empty(),
            "{name}: permille of the bound and seeds {above:?}, the worst: {:#?}",
            scenario_of(seed)
        );
    }
}

/// The search that all tests of every change share.
fn short() -> &'static [Found] {
    static SHORT: OnceLock<[Found; PROPERTIES.len()]> = OnceLock::new();
    SHORT.get_or_init(|| search(500))
}

fn assert_short(property: usize, least_judged: usize) {
    short()[property].assert_within(PROPERTIES[property].0, least_judged);
}

#[test]
fn two_tenants_with_endless_work_stay_close() {
    assert_short(0, 300);
}

#[test]
fn nobody_is_far_from_a_gpu_that_could_be_divided_without_end() {
    assert_short(1, 150);
}

#[test]
fn a_limit_holds_in_every_window_of_random_scenarios() {
    assert_short(2, 80);
}

#[test]
fn the_device_is_busy_while_somebody_has_work() {
    assert_short(3, 450);
    assert_short(4, 100);
}

#[test]
fn nobody_starves() {
    assert_short(5, 400);
}

#[test]
fn charges_and_idle_time_are_the_whole_time() {
    // Asserted for every scenario of the search.
    assert_eq!(short().len(), PROPERTIES.len());
}

#[test]
#[ignore = "long"]
fn five_thousand_scenarios_keep_all_bounds() {
    let found = search(5000);
    // All are told before one of them fails.
    let failed = found
        .iter()
        .zip(PROPERTIES)
        .filter(|(found, (name, _))| std::panic::catch_unwind(|| found.assert_within(name, 800)).is_err());
    assert_eq!(failed.count(), 0);
}
