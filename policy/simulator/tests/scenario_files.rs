//! What a scenario file may say, and how a wrong one is refused.

use gpool_policy::slice::{Class, Priority};
use gpool_policy_simulator::designs::Design;
use gpool_policy_simulator::random::Lengths;
use gpool_policy_simulator::run;
use gpool_policy_simulator::scenario::{Demand, SHIPPED, Scenario, shipped};

const GOOD: &str = r#"duration_ms = 1000
seeds = [1, 5]

[device]
time_slice_us = 2000
switch_cost_us = 50

[delays]
gate = { least_us = 50, most_us = 150, late_permille = 0, late_us = 0 }
ring = { least_us = 20, most_us = 60, late_permille = 0, late_us = 0 }
timer = { least_us = 5, most_us = 40, late_permille = 0, late_us = 0 }
wake = { least_us = 10, most_us = 30, late_permille = 0, late_us = 0 }

[[tenant]]
name = "a"
fraction = 0.25
limit = 0.5
class = "latency"
priority = "burst"
kernels = { median_us = 300, sigma = 0.3, least_us = 50, most_us = 2000 }
requests = { rate_per_second = 20, work_us = 3000 }
start_ms = 100
stop_ms = 900
"#;

const REQUESTS: &str = "requests = { rate_per_second = 20, work_us = 3000 }";

/// The refusal of the good file with one change.
fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    Scenario::parse("here/wrong.toml", &GOOD.replacen(from, to, 1)).expect_err(to).to_string()
}

#[test]
fn a_good_file_means_what_it_says() {
    let scenario = Scenario::parse("here/good.toml", GOOD).expect("it is good");
    assert_eq!((scenario.name.as_str(), scenario.duration_ns, scenario.seeds), ("good", 1_000_000_000, (1, 5)));
    let [tenant] = &scenario.tenants[..] else { panic!("{:?}", scenario.tenants) };
    assert_eq!((tenant.share.weight_permille, tenant.share.limit_permille), (250, Some(500)));
    assert_eq!((tenant.share.class, tenant.share.priority), (Class::Latency, Priority::Burst));
    assert_eq!(tenant.demand, Demand::Poisson { rate_per_second: 20.0, work_ns: 3_000_000 });
    let steps = GOOD.replace(REQUESTS, "steps = { work_us = 20000, rest_us = 5000 }");
    let steps = Scenario::parse("steps.toml", &steps).expect("it is good").tenants[0].demand;
    assert_eq!(steps, Demand::Steps { work_ns: 20_000_000, rest_ns: 5_000_000 });
    let lengths = Lengths::Lognormal { median_ns: 300_000, sigma: 0.3, least_ns: 50_000, most_ns: 2_000_000 };
    assert_eq!(tenant.lengths, lengths);
    assert_eq!((tenant.start_ns, tenant.stop_ns), (100_000_000, Some(900_000_000)));
}

#[test]
fn a_wrong_value_is_refused_with_its_line_and_field() {
    let cases = [
        ("duration_ms = 1000", "duration_ms = 0", 1, "duration_ms"),
        ("seeds = [1, 5]", "seeds = [5, 1]", 2, "seeds"),
        ("time_slice_us = 2000", "time_slice_us = 0", 5, "device.time_slice_us"),
        ("least_us = 50, most_us = 150", "least_us = 200, most_us = 150", 9, "delays.gate"),
        ("late_permille = 0", "late_permille = 1001", 9, "delays.gate.late_permille"),
        ("name = \"a\"", "name = \"\"", 15, "tenant.name"),
        ("fraction = 0.25", "fraction = 0", 16, "tenant.fraction"),
        ("fraction = 0.25", "fraction = 1.5", 16, "tenant.fraction"),
        ("fraction = 0.25", "fraction = -0.2", 16, "tenant.fraction"),
        ("fraction = 0.25", "fraction = 0.12345", 16, "tenant.fraction"),
        ("fraction = 0.25", "fraction = nan", 16, "tenant.fraction"),
        ("limit = 0.5", "limit = 0.2", 17, "tenant.limit"),
        ("\"latency\"", "\"fast\"", 18, "tenant.class"),
        ("\"burst\"", "\"first\"", 19, "tenant.priority"),
        ("median_us = 300", "fixed_us = 9, median_us = 300", 20, "tenant.kernels"),
        ("median_us = 300", "median_us = 3000", 20, "tenant.kernels"),
        ("sigma = 0.3", "sigma = -1.0", 20, "tenant.kernels"),
        ("least_us = 50, most_us = 2000 }\nrequests", "least_us = 0, most_us = 2000 }\nrequests", 20, "least_us"),
        ("rate_per_second = 20", "rate_per_second = 0", 21, "rate_per_second"),
        ("rate_per_second = 20", "rate_per_second = -3", 21, "rate_per_second"),
        ("work_us = 3000", "work_us = 0", 21, "work_us"),
        ("stop_ms = 900", "stop_ms = 50", 23, "stop_ms"),
        ("stop_ms = 900", "stop_ms = 900\non_off = { on_ms = 1, off_ms = 1 }", 24, "on_off"),
        ("stop_ms = 900", "stop_ms = 900\nsteps = { work_us = 1, rest_us = 1 }", 24, "steps"),
        (REQUESTS, "on_off = { on_ms = 1, off_ms = 1 }\nsteps = { work_us = 1, rest_us = 1 }", 22, "steps"),
        (REQUESTS, "steps = { work_us = 0, rest_us = 1 }", 21, "steps.work_us"),
        (REQUESTS, "steps = { work_us = 1, rest_us = 0 }", 21, "steps.rest_us"),
        ("seeds = [1, 5]", "seed = 3", 2, "seed"),
        ("class = \"latency\"", "class = \"latency\"\ncolour = \"red\"", 19, "colour"),
    ];
    for (from, to, line, field) in cases {
        let sentence = refusal(from, to);
        assert!(sentence.starts_with(&format!("here/wrong.toml:{line}: ")), "{to}: {sentence}");
        assert!(sentence.contains(field), "{to}: {sentence}");
    }
}

#[test]
fn what_no_single_line_says_is_refused_too() {
    let nobody = &GOOD[..GOOD.find("[[tenant]]").expect("tenants")];
    let sentence = Scenario::parse("empty.toml", nobody).expect_err("nobody").to_string();
    assert!(sentence.contains("[[tenant]]"), "{sentence}");
    let tenant = &GOOD[GOOD.find("[[tenant]]").expect("tenants")..];
    let twice = Scenario::parse("twice.toml", &format!("{GOOD}{tenant}")).expect_err("twice").to_string();
    assert!(twice.contains("\"a\" is there twice"), "{twice}");
    let guaranteed = GOOD.replace("\"burst\"", "\"guaranteed\"").replace("0.25", "0.5");
    let other = tenant.replace("\"burst\"", "\"guaranteed\"").replace("0.25", "0.501").replace("limit = 0.5\n", "");
    let sold = format!("{guaranteed}{}", other.replace("\"a\"", "\"b\""));
    let sentence = Scenario::parse("sold.toml", &sold).expect_err("more than all").to_string();
    assert!(sentence.contains("1001 permille from 100 ms on"), "{sentence}");
    let second = other.replace("\"a\"", "\"b\"").replace("start_ms = 100", "start_ms = 500");
    let after_it = format!("{}{second}", guaranteed.replace("stop_ms = 900", "stop_ms = 500"));
    let one_after_the_other = Scenario::parse("after.toml", &after_it).expect("they are never there together");
    let outcome = run(&one_after_the_other, 1, Design::Gpool);
    assert!(outcome.tenants.iter().all(|tenant| tenant.received_ns > 0), "{outcome:?}");
    let a_moment = after_it.replace("start_ms = 500", "start_ms = 499");
    let sentence = Scenario::parse("together.toml", &a_moment).expect_err("for a moment").to_string();
    assert!(sentence.contains("1001 permille from 499 ms on"), "{sentence}");
}

#[test]
fn every_shipped_scenario_can_be_read() {
    for (name, _) in SHIPPED {
        let scenario = shipped(name).expect("it is shipped").expect("it is good");
        assert_eq!((scenario.name.as_str(), scenario.seeds), (name, (1, 20)));
    }
    assert!(shipped("nonsense").is_none());
}
