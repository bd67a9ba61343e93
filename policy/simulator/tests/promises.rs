//! What the slice scheduler promises in the shipped scenarios, each beside other designs in the same run.

use gpool_policy::slice::{Parameters, SliceScheduler};
use gpool_policy_simulator::designs::Design;
use gpool_policy_simulator::measure::ceiling::worst_excess_ns;
use gpool_policy_simulator::scenario::{Scenario, shipped};
use gpool_policy_simulator::{run, world_of};

const POINT_PPM: u64 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Enough for each change; the long variants take all seeds of the scenario.
const FEW_SEEDS: std::ops::RangeInclusive<u64> = 1..=5;
const ALL_SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

fn scenario(name: &str) -> Scenario {
    shipped(name).expect("it is shipped").expect("it is good")
}

fn p99_ns(scenario: &Scenario, seed: u64, design: Design) -> u64 {
    let latency = run(scenario, seed, design).latency.expect("requests");
    assert!(latency.served >= 1000, "a p99 of {} requests", latency.served);
    latency.p99_ns
}

/// Requests beside training jobs: at most 0.35 of plain EEVDF's p99 and 0.6 of the driver's own.
fn mix_serves_requests_soon(seed: u64) {
    let mix = scenario("mix");
    let p99 = [Design::Gpool, Design::Eevdf, Design::DriverSlicing].map(|design| p99_ns(&mix, seed, design));
    println!("mix, seed {seed}: p99 {p99:?} ns");
    assert!(p99[0] * 100 <= p99[1] * 35, "seed {seed}: {p99:?}");
    assert!(p99[0] * 100 <= p99[2] * 60, "seed {seed}: {p99:?}");
}

/// A latency tenant that demands three times its share: 20 % of what was delivered, within half a point, not more.
fn over_gives_the_greedy_its_share(seed: u64) {
    let outcome = run(&scenario("over"), seed, Design::Gpool);
    let delivered_ns: u64 = outcome.tenants.iter().map(|tenant| tenant.received_ns).sum();
    let greedy = outcome.tenants.iter().find(|tenant| tenant.name == "greedy").expect("it is there");
    let part_ppm = greedy.received_ns * 1_000_000 / delivered_ns;
    println!("over, seed {seed}: {part_ppm} ppm of what was delivered, {} of the time", greedy.received_ppm);
    assert!(part_ppm.abs_diff(20 * POINT_PPM) <= POINT_PPM / 2, "seed {seed}: {part_ppm}");
    assert!(greedy.received_ppm <= 20 * POINT_PPM, "seed {seed}: {}", greedy.received_ppm);
}

/// Over any window, at most the limit's part of it, a slice and the longest kernel. From the second second on: before a
/// client has measured a launch it issues guesses.
fn cap_holds_in_every_window(seed: u64) {
    let cap = scenario("cap");
    let mut world = world_of(&cap, seed, SliceScheduler::new(Parameters::default(), 0));
    let mut slice_ns = 0;
    world.run_with(cap.duration_ns, |world| slice_ns = slice_ns.max(world.scheduler.slice_ns()));
    let mut capped = 0;
    for (index, plan) in cap.tenants.iter().enumerate() {
        let Some(limit) = plan.share.limit_permille else { continue };
        let excess_ns = worst_excess_ns(&world.record.executions[index], limit, SECOND_NS);
        let bound_ns = (slice_ns + world.clients[index].longest_ns).cast_signed();
        println!("cap, seed {seed}: {} passes its limit by {excess_ns} ns, bound {bound_ns}", plan.name);
        assert!(excess_ns <= bound_ns, "seed {seed}, {}: {excess_ns} {bound_ns}", plan.name);
        assert!(excess_ns > 0, "seed {seed}, {}: it wanted more than its limit", plan.name);
        capped += 1;
    }
    assert_eq!(capped, 2);
}

#[test]
fn requests_beside_training_are_served_soon() {
    FEW_SEEDS.for_each(mix_serves_requests_soon);
}

#[test]
#[ignore = "long"]
fn requests_beside_training_are_served_soon_for_all_seeds() {
    ALL_SEEDS.for_each(mix_serves_requests_soon);
}

#[test]
fn being_served_first_is_not_having_more() {
    FEW_SEEDS.for_each(over_gives_the_greedy_its_share);
}

#[test]
#[ignore = "long"]
fn being_served_first_is_not_having_more_for_all_seeds() {
    ALL_SEEDS.for_each(over_gives_the_greedy_its_share);
}

#[test]
fn a_limit_holds_in_every_window() {
    FEW_SEEDS.for_each(cap_holds_in_every_window);
}

#[test]
#[ignore = "long"]
fn a_limit_holds_in_every_window_for_all_seeds() {
    ALL_SEEDS.for_each(cap_holds_in_every_window);
}

/// Shares of the training jobs over any ten seconds: within a quarter of a point.
fn mix_keeps_shares(seed: u64) {
    let error_ppm = run(&scenario("mix"), seed, Design::Gpool).share_error_10s_ppm.expect("windows");
    println!("mix, seed {seed}: share error over 10 s {error_ppm} ppm");
    assert!(error_ppm * 4 <= POINT_PPM, "seed {seed}: {error_ppm}");
}

/// Requests beside kernels of up to half a second: at most 0.75 of the driver's own p99.
fn heavy_serves_requests_soon(seed: u64) {
    let heavy = scenario("heavy");
    let p99 = [Design::Gpool, Design::DriverSlicing].map(|design| p99_ns(&heavy, seed, design));
    println!("heavy, seed {seed}: p99 {p99:?} ns");
    assert!(p99[0] * 100 <= p99[1] * 75, "seed {seed}: {p99:?}");
}

/// Requests of many tenants at random times: at most 0.85 of the p99 under stride, whose tenants say nothing before their work has
/// ended, and 0.95 of the driver's own.
fn services_are_served_soon(seed: u64) {
    let services = scenario("services");
    let p99 = [Design::Gpool, Design::Stride, Design::DriverSlicing].map(|design| p99_ns(&services, seed, design));
    println!("services, seed {seed}: p99 {p99:?} ns");
    assert!(p99[0] * 100 <= p99[1] * 85, "seed {seed}: {p99:?}");
    assert!(p99[0] * 100 <= p99[2] * 95, "seed {seed}: {p99:?}");
}

#[test]
fn services_answer_sooner_than_under_the_driver() {
    FEW_SEEDS.for_each(services_are_served_soon);
}

#[test]
#[ignore = "long"]
fn services_answer_sooner_than_under_the_driver_for_all_seeds() {
    ALL_SEEDS.for_each(services_are_served_soon);
}

/// Long requests that come in groups, of a service that asks for less than its share: at most 1.35 of the p99 that it has alone, and
/// 0.45 of what it has by the driver.
fn long_requests_are_served_soon(seed: u64) {
    let long = scenario("long");
    let alone = Scenario { tenants: long.tenants[..1].to_vec(), ..long.clone() };
    let [ours, drivers] = [Design::Gpool, Design::DriverSlicing].map(|design| p99_ns(&long, seed, design));
    let alone = p99_ns(&alone, seed, Design::Gpool);
    println!("long, seed {seed}: p99 {ours} ns, alone {alone}, by the driver {drivers}");
    assert!(ours * 100 <= alone * 135, "seed {seed}: {ours} of {alone}");
    assert!(ours * 100 <= drivers * 45, "seed {seed}: {ours} of {drivers}");
}

#[test]
fn long_requests_in_groups_wait_for_each_other_alone() {
    FEW_SEEDS.for_each(long_requests_are_served_soon);
}

#[test]
#[ignore = "long"]
fn long_requests_in_groups_wait_for_each_other_alone_for_all_seeds() {
    ALL_SEEDS.for_each(long_requests_are_served_soon);
}

/// A tenant whose kernels take half a millisecond.
fn tenant(name: &str, fraction: &str, class: &str, priority: &str, demand: &str) -> String {
    format!(
        "[[tenant]]\nname = \"{name}\"\nfraction = {fraction}\nclass = \"{class}\"\npriority = \"{priority}\"\n\
         kernels = {{ fixed_us = 500 }}\n{demand}\n"
    )
}

/// Twenty seconds of these tenants.
fn sharing(tenants: &[String]) -> Scenario {
    let delay = "{ least_us = 5, most_us = 40, late_permille = 0, late_us = 0 }";
    let text = format!(
        "duration_ms = 20000\nseeds = [1, 1]\n[device]\ntime_slice_us = 2000\nswitch_cost_us = 50\n[delays]\n\
         gate = {delay}\nring = {delay}\ntimer = {delay}\nwake = {delay}\n{}",
        tenants.concat()
    );
    Scenario::parse("resting.toml", &text).expect("it is good")
}

/// A batch tenant with this demand beside a latency tenant that wants nine tenths of the GPU, both with half of it.
fn beside_greedy(demand: &str) -> Scenario {
    let greedy = "on_off = { on_ms = 30, off_ms = 3 }";
    sharing(&[
        tenant("batch", "0.5", "batch", "guaranteed", demand),
        tenant("greedy", "0.5", "latency", "guaranteed", greedy),
    ])
}

/// What the batch tenant has.
fn batch_ns(scenario: &Scenario, seed: u64, parameters: Parameters) -> u64 {
    let mut world = world_of(scenario, seed, SliceScheduler::new(parameters, 0));
    world.run_until(scenario.duration_ns);
    world.record.executions[0].received_ns()
}

/// A latency tenant that wants more than its share and rests now and then, beside a batch tenant that rests, too: what they owe each
/// other is forgotten then. That it may run far ahead gains it nothing.
fn who_rests_gains_nothing_by_running_ahead(seed: u64) {
    for (on_ms, off_ms) in [(100, 5), (200, 5), (100, 20)] {
        let resting = beside_greedy(&format!("on_off = {{ on_ms = {on_ms}, off_ms = {off_ms} }}"));
        let slack_max_ns = Parameters::default().slack_usual_ns;
        let near_ns = batch_ns(&resting, seed, Parameters { slack_max_ns, ..Parameters::default() });
        let far_ns = batch_ns(&resting, seed, Parameters::default());
        println!("resting {on_ms} and {off_ms} ms, seed {seed}: {far_ns} ns, with the usual slack alone {near_ns}");
        assert!(far_ns * 100 >= near_ns * 93, "{on_ms}, {off_ms}, seed {seed}: {far_ns} of {near_ns}");
    }
}

/// The batch tenant, the first one, has what it is entitled to, less a tenth, and less what the other one may run ahead and have forgotten
/// once.
fn first_has(what: &str, sharing: &Scenario, entitled_ppm: u64, seed: u64) {
    let had_ppm = batch_ns(sharing, seed, Parameters::default()) * 1_000_000 / sharing.duration_ns;
    let once_ppm = Parameters::default().slack_max_ns * 1_000_000 / sharing.duration_ns;
    println!("{what}, seed {seed}: {had_ppm} ppm of {entitled_ppm}");
    assert!((had_ppm + once_ppm) * 10 >= entitled_ppm * 9, "{what}, seed {seed}: {had_ppm} of {entitled_ppm}");
}

/// Nor does the batch tenant lose anything by its rests: it has half of the GPU while it has work. By the clock, and of one whose next
/// work comes so long after the end of the last.
fn who_rests_loses_nothing(seed: u64) {
    for (on_ms, off_ms) in [(100, 5), (200, 5), (100, 20), (20, 5), (50, 50), (10, 200)] {
        let demand = format!("on_off = {{ on_ms = {on_ms}, off_ms = {off_ms} }}");
        first_has(&demand, &beside_greedy(&demand), 500_000 * on_ms / (on_ms + off_ms), seed);
    }
    for (work_ms, rest_ms) in [(20, 5), (5, 5), (100, 20)] {
        let demand = format!("steps = {{ work_us = {work_ms}000, rest_us = {rest_ms}000 }}");
        // Half of the GPU: a step takes twice its work.
        first_has(&demand, &beside_greedy(&demand), 1_000_000 * work_ms / (2 * work_ms + rest_ms), seed);
    }
}

/// Also where the other one rests just after it, so that nobody is beside that one then; and below a higher priority, whose time pays for
/// nothing.
fn who_rests_loses_nothing_by_when_the_other_one_rests(seed: u64) {
    for start_ms in [5, 10] {
        let greedy = format!("on_off = {{ on_ms = 20, off_ms = 40 }}\nstart_ms = {start_ms}");
        let both = sharing(&[
            tenant("batch", "0.8", "batch", "guaranteed", "on_off = { on_ms = 30, off_ms = 30 }"),
            tenant("greedy", "0.2", "latency", "guaranteed", &greedy),
        ]);
        // Of each 60 ms 10 alone and four fifths of 20, or more.
        first_has(&format!("both rest, from {start_ms} ms on"), &both, 433_333, seed);
    }
    // Of the time in which the other one is above its limit it is entitled to no more than its part.
    let limited = sharing(&[
        tenant("batch", "0.5", "batch", "guaranteed", "steps = { work_us = 20000, rest_us = 5000 }"),
        tenant("greedy", "0.5", "latency", "guaranteed", "limit = 0.65\non_off = { on_ms = 30, off_ms = 3 }"),
    ]);
    first_has("beside one with a limit", &limited, 1_000_000 * 20 / (40 + 5), seed);
    let below = sharing(&[
        tenant("batch", "0.3", "batch", "burst", "steps = { work_us = 20000, rest_us = 5000 }"),
        tenant("greedy", "0.3", "latency", "burst", "on_off = { on_ms = 30, off_ms = 3 }"),
        tenant("above", "0.3", "batch", "guaranteed", "limit = 0.4"),
    ]);
    // Half of three fifths: a step takes 67 ms.
    first_has("below a higher priority", &below, 1_000_000 * 20 / (67 + 5), seed);
}

/// A job that pauses for its data every few milliseconds, beside one that always has work: it has its share of the GPU while it has
/// work, less a tenth, and a quarter more than by the driver's own slices.
fn who_pauses_often_has_its_share(seed: u64) {
    // Beside one that never pauses, and one that does so seldom and shortly.
    let greedy = ["", "steps = { work_us = 50000, rest_us = 300 }"];
    for (work_ms, rest_ms, greedy) in
        greedy.into_iter().flat_map(|greedy| [(5, 1), (5, 2), (5, 3), (10, 5)].map(|(work, rest)| (work, rest, greedy)))
    {
        let both = sharing(&[
            tenant(
                "batch",
                "0.8",
                "train",
                "guaranteed",
                &format!("steps = {{ work_us = {work_ms}000, rest_us = {rest_ms}000 }}"),
            ),
            tenant("greedy", "0.2", "batch", "guaranteed", greedy),
        ]);
        // A step takes five fourths of its work.
        let entitled_ppm = 1_000_000 * work_ms * 4 / (work_ms * 5 + rest_ms * 4);
        first_has(&format!("pauses of {rest_ms} ms after {work_ms}"), &both, entitled_ppm, seed);
        let had_ns = |design: Design| {
            let mut world = world_of(&both, seed, design.gatekeeper(&both.tenants));
            world.run_until(both.duration_ns);
            world.record.executions[0].received_ns()
        };
        let [ours_ns, drivers_ns] = [Design::Gpool, Design::DriverSlicing].map(had_ns);
        println!("pauses of {rest_ms} ms after {work_ms}, seed {seed}: {ours_ns} ns, by the driver {drivers_ns}");
        assert!(ours_ns * 4 >= drivers_ns * 5, "{work_ms}, {rest_ms}, seed {seed}: {ours_ns} and {drivers_ns}");
    }
}

#[test]
fn who_pauses_often_has_its_share_beside_one_that_never_does() {
    FEW_SEEDS.for_each(who_pauses_often_has_its_share);
}

/// What a batch tenant leaves because of its limit is nobody's loss: who takes it is served as soon as ever.
fn what_a_limit_leaves_is_free(seed: u64) {
    let both = sharing(&[
        tenant("batch", "0.4", "batch", "guaranteed", "limit = 0.4"),
        tenant("service", "0.2", "latency", "guaranteed", "requests = { rate_per_second = 150, work_us = 3000 }"),
    ]);
    let latency = run(&both, seed, Design::Gpool).latency.expect("requests");
    println!("beside a limit, seed {seed}: {latency:?}");
    assert!(latency.served > 2500 && latency.p50_ns <= 6_000_000, "seed {seed}: {latency:?}");
}

#[test]
fn what_a_limit_leaves_is_not_held_against_who_takes_it() {
    FEW_SEEDS.for_each(what_a_limit_leaves_is_free);
}

/// A service that asks for four fifths of its share, beside a job that always has work: it is charged what it has had, and so has its
/// slack when requests come at once.
fn short_requests_within_the_share_are_served_soon(seed: u64) {
    let service =
        tenant("service", "0.5", "latency", "guaranteed", "requests = { rate_per_second = 800, work_us = 500 }");
    let alone = sharing(std::slice::from_ref(&service));
    let both = sharing(&[service, tenant("batch", "0.5", "batch", "guaranteed", "")]);
    let p99 = [(&both, Design::Gpool), (&both, Design::DriverSlicing), (&alone, Design::Gpool)]
        .map(|(scenario, design)| p99_ns(scenario, seed, design));
    let mut world = world_of(&both, seed, SliceScheduler::new(Parameters::default(), 0));
    world.run_until(both.duration_ns);
    let charges = [0, 1].map(|client| {
        let charged_ns = world.scheduler.charged_ns(world.tenant(client)).expect("it has joined");
        charged_ns * 1000 / world.received(client)
    });
    println!("short requests, seed {seed}: p99 {p99:?} ns, charged {charges:?} permille of what they had");
    assert!(p99[0] * 100 <= p99[1] * 30 && p99[0] <= p99[2] * 2, "seed {seed}: {p99:?}");
    // Exchanges are in what a job without pauses is charged.
    assert!((930..=1020).contains(&charges[0]) && (980..=1070).contains(&charges[1]), "seed {seed}: {charges:?}");
}

#[test]
fn short_requests_within_the_share_wait_for_no_slice() {
    FEW_SEEDS.for_each(short_requests_within_the_share_are_served_soon);
}

#[test]
#[ignore = "long"]
fn short_requests_within_the_share_wait_for_no_slice_for_all_seeds() {
    ALL_SEEDS.for_each(short_requests_within_the_share_are_served_soon);
}

/// Who rests, in the shipped scenario, beside the driver's own slicing.
fn stalls_keep_the_share(seed: u64) {
    let stalls = scenario("stalls");
    let had = [Design::Gpool, Design::DriverSlicing].map(|design| run(&stalls, seed, design).tenants[0].received_ns);
    println!("stalls, seed {seed}: {had:?} ns");
    assert!(had[0] * 100 >= had[1] * 96, "seed {seed}: {had:?}");
}

#[test]
fn a_latency_tenant_that_rests_gains_nothing_by_running_ahead() {
    FEW_SEEDS.for_each(who_rests_gains_nothing_by_running_ahead);
}

#[test]
fn a_batch_tenant_that_rests_keeps_its_share_beside_a_greedy_service() {
    FEW_SEEDS.for_each(who_rests_loses_nothing);
    FEW_SEEDS.for_each(who_rests_loses_nothing_by_when_the_other_one_rests);
    FEW_SEEDS.for_each(stalls_keep_the_share);
}

#[test]
#[ignore = "long"]
fn a_batch_tenant_that_rests_keeps_its_share_beside_a_greedy_service_for_all_seeds() {
    ALL_SEEDS.for_each(who_rests_loses_nothing);
    ALL_SEEDS.for_each(who_rests_loses_nothing_by_when_the_other_one_rests);
    ALL_SEEDS.for_each(stalls_keep_the_share);
}

#[test]
fn shares_beside_requests_are_kept() {
    FEW_SEEDS.for_each(mix_keeps_shares);
}

#[test]
#[ignore = "long"]
fn shares_beside_requests_are_kept_for_all_seeds() {
    ALL_SEEDS.for_each(mix_keeps_shares);
}

#[test]
fn requests_beside_long_kernels_are_served_soon() {
    FEW_SEEDS.for_each(heavy_serves_requests_soon);
}

#[test]
#[ignore = "long"]
fn requests_beside_long_kernels_are_served_soon_for_all_seeds() {
    ALL_SEEDS.for_each(heavy_serves_requests_soon);
}
