//! A process that dies, whenever.

use gpool_policy::slice::Parameters;
use gpool_policy_simulator::random::Random;
use gpool_policy_simulator::scenario::Scenario;

use crate::generate::{MS, Mix, SECOND, scenario};
use crate::observe::{Run, common_ns};

/// Lets `victim` die with its lease at the `event`th thing that happens after `from_ns`. How long nothing of the others
/// ran after that. Everybody always has work.
fn pause_after_death_ns(scenario: Scenario, seed: u64, from_ns: u64, event: u64, victim: usize) -> u64 {
    let mut run = Run::new(scenario, seed);
    run.world.run_until(from_ns);
    let (mut happened, mut died_ns) = (0, None);
    let after_ns = SECOND;
    run.world.run_with(from_ns + after_ns / 2, |world| {
        if happened == event {
            world.end_at(world.now, victim);
            died_ns = Some(world.now);
        }
        happened += 1;
    });
    let died_ns = died_ns.expect("so much happens in half a second");
    run.world.run_until(from_ns + after_ns);

    let others = || (0..run.count()).filter(|&tenant| tenant != victim);
    let stretches = others().flat_map(|tenant| run.execution(tenant).stretches());
    let next = stretches.filter(|ran| ran.end_ns > died_ns).map(|ran| ran.start_ns.max(died_ns)).min();
    let next_ns = next.unwrap_or_else(|| panic!("nobody ran after tenant {victim}'s death, {}", run.story()));
    let since = run.execution(victim).stretches().iter().map(|ran| ran.end_ns).max();
    assert!(since.is_none_or(|end_ns| end_ns <= died_ns), "the dead do not run");

    // From then on the device is the others'.
    let rest = [(died_ns + Parameters::default().drain_limit_ns, from_ns + after_ns)];
    let busy_ns = common_ns(&rest, &run.device_busy());
    let rest_ns = rest[0].1 - rest[0].0;
    assert!(busy_ns * 100 >= rest_ns * 97, "{busy_ns} of {rest_ns} after tenant {victim}'s death, {}", run.story());
    next_ns - died_ns
}

fn assert_short(pause_ns: u64, what: &str) {
    let limit_ns = Parameters::default().drain_limit_ns;
    assert!(pause_ns <= limit_ns, "{what}: nothing ran for {pause_ns} ns");
}

#[test]
fn the_others_go_on_whoever_dies_whenever() {
    let mut longest_ns = 0;
    for seed in 0..150 {
        let mut random = Random::stream(seed, 0xdead);
        let scenario = scenario(seed, Mix::Backlogged);
        let victim = random.within(0, scenario.tenants.len() as u64 - 1) as usize;
        let (from_ns, event) = (random.within(100, 900) * MS, random.within(0, 150));
        let pause_ns = pause_after_death_ns(scenario, seed, from_ns, event, victim);
        longest_ns = longest_ns.max(pause_ns);
        assert_short(pause_ns, &format!("seed {seed}, event {event} after {from_ns} ns, tenant {victim}"));
    }
    println!("after a death the others paused for {longest_ns} ns at most");
}

#[test]
fn the_others_go_on_after_a_death_at_each_single_event() {
    let mut longest_ns = 0;
    let mut scenario = scenario(4, Mix::Backlogged);
    scenario.tenants.truncate(3);
    for victim in 0..scenario.tenants.len() {
        for event in 0..60 {
            let pause_ns = pause_after_death_ns(scenario.clone(), 4, 300 * MS, event, victim);
            longest_ns = longest_ns.max(pause_ns);
            assert_short(pause_ns, &format!("event {event}, tenant {victim}"));
        }
    }
    println!("after a death at any of 60 events the others paused for {longest_ns} ns at most");
}
