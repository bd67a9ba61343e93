//! Runs repeat, and the designs that stand beside the scheduler behave as they are known to.

use gpool_policy_simulator::designs::Design;
use gpool_policy_simulator::scenario::{Demand, Scenario, TenantPlan, shipped};
use gpool_policy_simulator::{Outcome, run};

const POINT_PPM: u64 = 10_000;

fn scenario(name: &str, seconds: u64) -> Scenario {
    let scenario = shipped(name).expect("it is shipped").expect("it is good");
    Scenario { duration_ns: seconds * 1_000_000_000, ..scenario }
}

/// `mix` without its requests: two tenants at 5 to 3 that always have work.
fn backlogged(seconds: u64) -> Scenario {
    let mut scenario = scenario("mix", seconds);
    scenario.tenants.truncate(2);
    scenario
}

fn received_ppm(outcome: &Outcome) -> Vec<u64> {
    outcome.tenants.iter().map(|tenant| tenant.received_ppm).collect()
}

/// The first tenant's part of what both received.
fn part_ppm(outcome: &Outcome) -> u64 {
    let received: Vec<u64> = outcome.tenants.iter().map(|tenant| tenant.received_ns).collect();
    received[0] * 1_000_000 / (received[0] + received[1])
}

#[test]
fn a_seed_decides_everything() {
    let scenario = scenario("mix", 3);
    for design in Design::ALL {
        let once = run(&scenario, 4, design);
        assert_eq!(once, run(&scenario, 4, design), "{}", design.name());
        let other = run(&scenario, 5, design);
        assert_ne!(received_ppm(&once), received_ppm(&other), "{}", design.name());
        if design == Design::Gpool {
            assert_ne!(once.trace_hash, other.trace_hash);
        }
    }
}

#[test]
fn all_designs_get_the_same_requests() {
    let scenario = scenario("mix", 5);
    let asked = |design| {
        let latency = run(&scenario, 2, design).latency.expect("requests");
        latency.served + latency.unserved
    };
    let counts: Vec<u64> = Design::ALL.into_iter().map(asked).collect();
    assert!(counts.iter().all(|&count| count == counts[0] && count > 50), "{counts:?}");
}

#[test]
fn the_driver_knows_no_weights() {
    for seed in 1..=3 {
        let outcome = run(&backlogged(10), seed, Design::DriverSlicing);
        assert!(part_ppm(&outcome).abs_diff(500_000) <= POINT_PPM, "{:?}", received_ppm(&outcome));
        assert_eq!(outcome.tenants.iter().map(|tenant| tenant.share.weight_permille).sum::<u16>(), 800);
    }
}

#[test]
fn what_is_charged_after_use_meets_the_weights() {
    for design in [Design::Gpool, Design::Eevdf, Design::Stride, Design::Sfq] {
        let outcome = run(&backlogged(20), 1, design);
        assert!(part_ppm(&outcome).abs_diff(625_000) <= POINT_PPM, "{}: {:?}", design.name(), received_ppm(&outcome));
        assert!(outcome.busy_ppm >= 960_000, "{}: {}", design.name(), outcome.busy_ppm);
    }
}

#[test]
fn wall_time_is_not_gpu_time() {
    // The tenant with the long kernels keeps the device beyond its slices, and nobody charges it.
    let overrun = run(&backlogged(20), 1, Design::WallSlices);
    let charged = run(&backlogged(20), 1, Design::Stride);
    assert!(part_ppm(&overrun) + 3 * POINT_PPM < part_ppm(&charged), "{:?}", received_ppm(&overrun));
}

#[test]
fn feedback_tokens_leave_idle_time_idle() {
    let mut alone = scenario("mix", 20);
    alone.tenants.truncate(1);
    let outcome = run(&alone, 1, Design::FeedbackTokens);
    let received = outcome.tenants[0].received_ppm;
    assert!((350_000..=650_000).contains(&received), "it has a share of one half and nobody beside it: {received}");
    assert!(run(&alone, 1, Design::Gpool).tenants[0].received_ppm >= 970_000);
}

#[test]
fn a_long_quota_is_a_long_wait() {
    let scenario = scenario("mix", 20);
    let p99_ns = |design| run(&scenario, 1, design).latency.expect("requests").p99_ns;
    assert!(p99_ns(Design::ExclusiveToken) > 3 * p99_ns(Design::DriverSlicing));
}

#[test]
fn a_tenant_comes_and_goes() {
    let mut scenario = backlogged(9);
    let second = 1_000_000_000;
    let late = &scenario.tenants[1];
    scenario.tenants[1] = TenantPlan { start_ns: 3 * second, stop_ns: Some(6 * second), ..late.clone() };
    for design in Design::ALL {
        let outcome = run(&scenario, 1, design);
        let shares = &outcome.tenants[1].shares_ppm;
        let name = design.name();
        assert!(shares[..3].iter().chain(&shares[6..]).all(|&ppm| ppm == 0), "{name}: {shares:?}");
        assert!(shares[5] >= 200_000, "{name}: {shares:?}");
        if design != Design::FeedbackTokens {
            let first = &outcome.tenants[0].shares_ppm;
            assert!(first[1] >= 950_000 && first[7] >= 950_000, "{name}: {first:?}");
        }
    }
}

#[test]
fn what_was_asked_of_a_process_that_has_ended_is_over() {
    let mut scenario = scenario("mix", 16);
    let second = 1_000_000_000;
    let service = &mut scenario.tenants[2];
    // Three times as much as there is, so that much of it is never done.
    service.demand = Demand::Poisson { rate_per_second: 100.0, work_ns: 30_000_000 };
    service.stop_ns = Some(6 * second);
    let outcome = run(&scenario, 1, Design::Gpool);
    let requests = outcome.tenants[2].latency.expect("requests");
    assert!((500..700).contains(&(requests.served + requests.unserved)) && requests.unserved > 300, "{requests:?}");
    assert!((5 * second..6 * second).contains(&requests.max_ns), "none is older than its process: {requests:?}");
    let error_ppm = outcome.share_error_1s_ppm.expect("windows");
    assert!(error_ppm <= 3 * POINT_PPM, "the others have their shares: {error_ppm}");
    assert!(outcome.busy_ppm >= 960_000, "{}", outcome.busy_ppm);
}

#[test]
fn figures_come_from_the_meter_and_add_up() {
    let scenario = scenario("cap", 10);
    for design in Design::ALL {
        let outcome = run(&scenario, 1, design);
        let received_ns: u64 = outcome.tenants.iter().map(|tenant| tenant.received_ns).sum();
        assert!(received_ns <= outcome.duration_ns, "{}", design.name());
        let by_seconds: u64 = outcome.tenants.iter().flat_map(|tenant| &tenant.shares_ppm).sum();
        let apart = by_seconds.abs_diff(received_ns / 1000);
        assert!(apart <= 100, "{}: {by_seconds} and {received_ns}", design.name());
    }
}
