//! Command lines, read or refused.

use super::*;
use gpool_protocol::{Class, MemoryCap, Priority};
use std::time::Duration;

fn parsed(line: &str) -> Result<Arguments, Failure> {
    parse(line.split(' ').map(OsString::from))
}

#[test]
fn the_definition_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn the_help_of_run_and_exec_names_no_socket_which_they_refuse() {
    let help = |line| match parsed(line) {
        Err(Failure::Clap(error)) => error.to_string(),
        _ => panic!("{line} is no help"),
    };
    assert!(help("gpool ps --help").contains("--socket"));
    assert!(!help("gpool run --help").contains("--socket") && !help("gpool exec --help").contains("--socket"));
    for line in ["gpool run --fraction 0.3 --socket /s -- true", "gpool --socket /s run --fraction 0.3 -- true"] {
        let Verb::Run(options) = parsed(line).unwrap().verb else { panic!("no run") };
        assert_eq!(options.socket.as_deref(), Some(Path::new("/s")), "{line}");
    }
    let Verb::Run(options) = parsed("gpool run --fraction 0.3 -- a --socket /s").unwrap().verb else {
        panic!("no run");
    };
    assert_eq!((options.socket, options.command.len()), (None, 3));
    for (line, socket) in [("gpool exec --socket /s job -- a", true), ("gpool exec job -- a --socket /s", false)] {
        let Verb::Exec(options) = parsed(line).unwrap().verb else { panic!("no exec") };
        assert_eq!((options.id.as_str(), options.socket.is_some()), ("job", socket), "{line}");
    }
}

#[test]
fn an_update_carries_exact_integers() {
    let Verb::Update(change) = parsed("gpool update abc --fraction 0.2 --memory 4GiB").unwrap().verb else {
        panic!("no update");
    };
    assert_eq!((change.fraction, change.memory), (Some(200), Some(MemoryCap::Bytes(4 << 30))));
    assert!(matches!(parsed("gpool update abc"), Err(Failure::Clap(_))), "an update of nothing is a mistake");
    assert!(matches!(parsed("gpool update abc --fraction 1.5"), Err(Failure::Clap(_))));
    let Err(Failure::Clap(error)) = parsed("gpool update abc --memory 1") else { panic!("a cap of one byte") };
    assert!(error.to_string().contains("--memory") && error.to_string().contains("a bare number is bytes"));
    assert!(parsed("gpool update abc --memory 1GiB --socket /tmp/s").is_ok());
}

#[test]
fn an_update_changes_one_thing_or_several() {
    let line = "gpool update abc --limit 0.5 --class latency --priority burst";
    let Verb::Update(change) = parsed(line).unwrap().verb else { panic!("no update") };
    assert_eq!(
        (change.fraction, change.limit, change.no_limit, change.class, change.priority),
        (None, Some(500), false, Some(Class::Latency), Some(Priority::Burst))
    );
    for line in ["gpool update abc --no-limit", "gpool update abc --class train"] {
        assert!(matches!(parsed(line).unwrap().verb, Verb::Update(_)), "{line}");
    }
    for line in [
        "gpool update abc --limit 0.5 --no-limit",
        "gpool update abc --class fast",
        "gpool update abc --priority high",
        "gpool pause",
        "gpool evict",
        "gpool explain",
        "gpool explain a --request fraction=0.3",
        "gpool explain a --host h.toml",
        "gpool mig plan --model A100-80GB",
        "gpool mig apply --drain",
        "gpool mig apply --file a.yaml --drain -1",
        "gpool mig plan --model A100 7g.80gb",
        "gpool mig plan --model A30 --config x 4g.24gb",
    ] {
        assert!(matches!(parsed(line), Err(Failure::Clap(_))), "{line}");
    }
    assert!(
        matches!(parsed("gpool suspend a --no-wait").unwrap().verb, Verb::Suspend { ids, no_wait: true } if ids == ["a"])
    );
    assert!(matches!(parsed("gpool pause a b").unwrap().verb, Verb::Pause { ids } if ids.len() == 2));
}

#[test]
fn a_value_below_zero_is_judged_by_its_option() {
    for (line, part) in [
        ("gpool update abc --fraction -0.3", "a share lies between 0.01 and 1"),
        ("gpool update abc --limit -1", "a share lies between 0.01 and 1"),
        ("gpool update abc --memory -4GiB", "a size is a whole number"),
        ("gpool top -i -1", "write seconds, 0.05 or more, or a time with its unit"),
    ] {
        let Err(Failure::Clap(error)) = parsed(line) else { panic!("{line}") };
        assert!(error.to_string().contains(part), "{line}: {error}");
    }
    // What a command asks for is judged where a container's request is.
    let Verb::Run(options) = parsed("gpool run --fraction -0.3 --class fast -- true").unwrap().verb else {
        panic!("no run")
    };
    assert_eq!((options.fraction.as_deref(), options.class.as_deref()), (Some("-0.3"), Some("fast")));
}

#[test]
fn completions_know_the_words_of_classes_and_priorities() {
    let mut script = Vec::new();
    clap_complete::generate(clap_complete::Shell::Bash, &mut Arguments::command(), "gpool", &mut script);
    let script = String::from_utf8(script).unwrap();
    for words in ["latency batch notebook train", "guaranteed burst scavenger"] {
        assert_eq!(
            script.matches(&format!("compgen -W \"{words}\"")).count(),
            2,
            "gpool run and gpool update: {words}"
        );
    }
}

#[test]
fn every_shipped_scenario_is_named_where_one_looks_for_it() {
    let help = Arguments::command().find_subcommand_mut("simulate").unwrap().render_help().to_string();
    let page = include_str!("../../../docs/simulation.md");
    let listed = page.lines().find(|line| line.starts_with("Shipped:")).unwrap();
    for (name, _) in gpool_policy_simulator::scenario::SHIPPED {
        assert!(help.contains(name) && listed.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn statistics_are_of_all_of_some_or_of_a_team() {
    let Verb::Stats(options) = parsed("gpool stats").unwrap().verb else { panic!("no stats") };
    assert_eq!((options.interval, options.no_stream, options.ids.len()), (Duration::from_secs(1), false, 0));
    let Verb::Stats(options) = parsed("gpool stats --no-stream -i 0.5 --format json a b").unwrap().verb else {
        panic!("no stats")
    };
    assert_eq!((options.interval.as_millis(), options.no_stream, options.ids.len()), (500, true, 2));
    assert!(parsed("gpool stats --team red").is_ok());
    for line in ["gpool stats --team red a", "gpool stats -i 0", "gpool stats -i -1", "gpool stats --format yaml"] {
        assert!(matches!(parsed(line), Err(Failure::Clap(_))), "{line}");
    }
}

#[test]
fn a_wait_is_for_the_end_unless_it_is_for_a_grant() {
    let Verb::Wait(options) = parsed("gpool wait a").unwrap().verb else { panic!("no wait") };
    assert_eq!((options.awaited, options.timeout), (Awaited::End, None));
    let Verb::Wait(options) = parsed("gpool wait --for grant --timeout 1m30s a b").unwrap().verb else {
        panic!("no wait")
    };
    assert_eq!((options.awaited, options.timeout, options.ids.len()), (Awaited::Grant, Some(90), 2));
    for line in ["gpool wait", "gpool wait --for idle a", "gpool wait --timeout 5 a", "gpool wait --timeout -5s a"] {
        assert!(matches!(parsed(line), Err(Failure::Clap(_))), "{line}");
    }
    assert!(matches!(parsed("gpool qouta"), Err(Failure::Clap(_))));
}

#[test]
fn a_command_is_what_stands_behind_the_options() {
    for dashes in ["-- ", ""] {
        let line = format!("gpool run --fraction 0.3 --key mode=slice {dashes}a --fraction b -- -L");
        let Verb::Run(options) = parsed(&line).unwrap().verb else { panic!("no run") };
        assert_eq!((options.fraction.as_deref(), options.user), (Some("0.3"), None));
        assert_eq!(options.keys, [("mode".to_owned(), "slice".to_owned())]);
        assert_eq!(options.command, ["a", "--fraction", "b", "--", "-L"], "{line}");
    }
    for line in
        ["gpool run", "gpool run --fraction 0.3 --", "gpool run --fracton 0.3 true", "gpool run --key a -- true"]
    {
        assert!(matches!(parsed(line), Err(Failure::Clap(_))), "{line}");
    }
}

#[test]
fn seeds_are_a_range_with_both_ends() {
    let Verb::Simulate(simulation) = parsed("gpool simulate mix --seeds 1..20").unwrap().verb else {
        panic!("no simulation");
    };
    assert_eq!((simulation.seeds, simulation.scheduler.as_str()), (Some((1, 20)), "all"));
    assert!(parsed("gpool simulate --from-host --gpu GPU-1 --print").is_ok());
    assert!(matches!(parsed("gpool simulate"), Err(Failure::Clap(_))));
    for line in [
        "mix --from-host",
        "mix --gpu GPU-1",
        "--gpu GPU-1",
        "mix --print --seed 3",
        "--from-host --print --duration 9",
    ] {
        assert!(matches!(parsed(&format!("gpool simulate {line}")), Err(Failure::Clap(_))), "{line}");
    }
    for line in ["--seeds 5..4", "--seeds 3", "--seed 1 --seeds 1..2", "--duration 0", "--seeds 0..99999"] {
        assert!(matches!(parsed(&format!("gpool simulate mix {line}")), Err(Failure::Clap(_))), "{line}");
    }
}

#[test]
fn an_interval_is_not_so_short_that_it_loads_the_host() {
    assert!(matches!(parsed("gpool top -i 0.5").unwrap().verb, Verb::Top(its) if its.interval.as_millis() == 500));
    assert!(matches!(parsed("gpool top -i 1m").unwrap().verb, Verb::Top(its) if its.interval.as_secs() == 60));
    assert!(parsed("gpool top --sort memory --team red --gpu 3 --user root -n 5").is_ok());
    let of_three = parsed("gpool ps -q --gpu GPU-3 --user 7").unwrap().verb;
    assert!(
        matches!(of_three, Verb::Ps { whose, .. } if whose.user == Some(7) && whose.gpu.as_deref() == Some("GPU-3"))
    );
    for line in ["gpool ps --processes --gpu 3", "gpool ps --processes --user 7", "gpool top --gpu a&b"] {
        assert!(parsed(line).is_err(), "{line}");
    }
    assert!(parsed("gpool top -n 0").is_err());
    assert!(parsed("gpool top -i 0").is_err());
    assert!(parsed("gpool top -i -1").is_err());
}

#[test]
fn processes_have_an_order_of_their_own() {
    let Verb::Ps { processes, sort, .. } = parsed("gpool ps --processes --sort container").unwrap().verb else {
        panic!("no ps");
    };
    assert_eq!((processes, sort), (true, Some(ProcessSort::Container)));
    assert!(parsed("gpool ps --sort memory").is_err(), "leases have none");
}

#[test]
fn the_queue_is_looked_at_and_waited_in() {
    assert!(matches!(parsed("gpool queue ls").unwrap().verb, Verb::Queue { verb: QueueVerb::Ls { .. } }));
    let Verb::Queue { verb: QueueVerb::Cancel { ids } } = parsed("gpool queue cancel a b").unwrap().verb else {
        panic!("no cancel");
    };
    assert_eq!(ids, ["a", "b"]);
    for (line, is_its) in [
        ("gpool queue hold a", (|verb| matches!(verb, QueueVerb::Hold { .. })) as fn(&QueueVerb) -> bool),
        ("gpool queue release a", |verb| matches!(verb, QueueVerb::Release { .. })),
        ("gpool queue first a", |verb| matches!(verb, QueueVerb::First { .. })),
    ] {
        assert!(matches!(parsed(line).unwrap().verb, Verb::Queue { verb } if is_its(&verb)), "{line}");
    }
    assert!(matches!(parsed("gpool queue cancel"), Err(Failure::Clap(_))));
    let Verb::Run(options) = parsed("gpool run --fraction 0.3 --wait 5m -- true").unwrap().verb else {
        panic!("no run")
    };
    assert_eq!(options.wait.as_deref(), Some("5m"));
}
