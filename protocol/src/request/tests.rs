//! Requests as they are read, checked and sent.

use super::*;

fn read(annotations: &[(&str, &str)], env: &[&str], name: Option<&str>) -> Result<Option<Request>, RequestError> {
    let annotations = annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let env: Vec<String> = env.iter().map(|s| s.to_string()).collect();
    let allow = ["fraction", "memory", "limit", "gpus", "class", "wait", "run-time"].map(String::from);
    Request::read(RequestSource {
        annotations: &annotations,
        env: &env,
        env_allow: &allow,
        container_name: name,
        annotations_from_image: false,
        defaults: &[],
    })
}

fn share(fraction_permille: u16) -> Request {
    Request {
        fraction_permille,
        mode: Mode::Slice,
        mig_profile: None,
        isolation: None,
        limit_permille: None,
        memory: None,
        gpus: 1,
        devices: Vec::new(),
        models: Vec::new(),
        min_memory_bytes: None,
        spill_bytes: None,
        class: Class::Batch,
        p99_ns: None,
        priority: Priority::Guaranteed,
        team: None,
        project: None,
        cost_center: None,
        wait_seconds: None,
        run_seconds: None,
        deadline: None,
        resource: None,
        seal: None,
    }
}

#[test]
fn no_key_is_no_request() {
    assert_eq!(read(&[("other.io/fraction", "1"), ("gpool.io/injected", "x")], &["PATH=/bin"], None), Ok(None));
}

#[test]
fn an_annotation_wins_over_env_and_the_containers_own_over_the_pods() {
    let env = ["GPOOL_FRACTION=0.3", "GPOOL_MEMORY=4GiB"];
    let got = read(&[("gpool.io/fraction", "0.5")], &env, None).unwrap().unwrap();
    assert_eq!(got, Request { memory: Some(MemoryCap::Bytes(4 << 30)), ..share(500) });
    let pod = [("gpool.io/fraction", "0.5"), ("gpool.io/fraction.web", "0.2"), ("gpool.io/fraction.db", "0.1")];
    assert_eq!(read(&pod, &[], Some("web")).unwrap().unwrap().fraction_permille, 200);
    assert_eq!(read(&pod, &[], Some("other")).unwrap().unwrap().fraction_permille, 500);
}

#[test]
fn a_container_whose_pod_asks_for_others_only_asks_for_nothing() {
    let pod = [("gpool.io/fraction.web", "0.3"), ("gpool.io/memory.web", "4GiB")];
    assert_eq!(read(&pod, &[], Some("log")), Ok(None));
    assert_eq!(read(&pod, &["GPOOL_FRACTION=0.2"], Some("log")).unwrap(), Some(share(200)));
    assert_eq!(read(&pod, &[], Some("web")).unwrap().unwrap().fraction_permille, 300);
    let has_request = |annotations: &[(&str, &str)], container_name| {
        let annotations = annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let nothing: &[String] = &[];
        let source = RequestSource {
            annotations: &annotations,
            env: nothing,
            env_allow: nothing,
            container_name,
            annotations_from_image: false,
            defaults: &[],
        };
        source.has_request()
    };
    assert!(!has_request(&pod, Some("log")) && has_request(&pod, Some("web")));
    let typo = [("gpool.io/fractoin.web", "0.3")];
    assert!(has_request(&typo, Some("log")), "what is nobody's has to be refused");
    assert_eq!(read(&typo, &[], Some("log")).unwrap_err().code, ErrorCode::RequestKeyUnknown);
    let nameless = read(&pod, &[], None).unwrap_err();
    assert!(has_request(&pod, None), "it cannot be told whether that is meant");
    assert_eq!(nameless.code, ErrorCode::RequestInvalid);
    assert!(nameless.to_string().contains("gpool.io/fraction.web is for one container"), "{nameless}");
}

#[test]
fn what_is_for_a_whole_pod_is_for_those_of_its_containers_that_have_a_share() {
    let more = [("gpool.io/memory", "4GiB"), ("gpool.io/class", "latency"), ("gpool.io/team", "vision")];
    let with = |own: &[(&'static str, &'static str)]| [&more[..], own].concat();
    let fraction = ("gpool.io/fraction.web", "0.3");
    assert_eq!(read(&with(&[fraction]), &[], Some("sidecar")), Ok(None), "as others add it");
    assert_eq!(read(&with(&[fraction]), &[], Some("web")).unwrap().unwrap().class, Class::Latency);
    let counted = read(&with(&[("gpool.io/resource", "percent=30")]), &[], Some("web")).unwrap().unwrap();
    assert_eq!((counted.fraction_permille, counted.memory), (300, Some(MemoryCap::Bytes(4 << 30))));
    assert_eq!(read(&with(&[]), &["GPOOL_FRACTION=0.2"], Some("log")).unwrap().unwrap().fraction_permille, 200);
    // What says for itself that it asks is refused where it does not say how much.
    for own in [("gpool.io/gpus", "2"), ("gpool.io/mode", "slice"), ("gpool.io/memory.log", "4GiB")] {
        let refusal = read(&with(&[own]), &[], Some("log")).unwrap_err();
        assert!(refusal.message.contains("no fraction") && refusal.remedy.contains("KEY.CONTAINER"), "{refusal}");
    }
    assert!(read(&more, &["GPOOL_WAIT=5m"], Some("log")).is_err(), "its own variable");
    assert!(read(&more, &[], None).is_err(), "nobody has added it to a pod");
    assert_eq!(read(&[("gpool.io/mem", "1GiB")], &[], Some("log")).unwrap_err().code, ErrorCode::RequestKeyUnknown);
}

#[test]
fn a_container_can_do_without_what_its_pod_asks_for() {
    let pod = |own: &[(&'static str, &'static str)]| {
        let all: Vec<_> =
            [("gpool.io/fraction", "0.3"), ("gpool.io/team", "vision")].iter().chain(own).copied().collect();
        (read(&all, &[], Some("web")), read(&all, &[], Some("log")))
    };
    let whole = Request { mode: Mode::Exclusive, team: Some("vision".into()), ..share(1000) };
    let sliced = Request { team: Some("vision".into()), ..share(300) };
    let replaced = [("gpool.io/mode.web", "exclusive"), ("gpool.io/fraction.web", "")];
    assert_eq!(pod(&replaced), (Ok(Some(whole)), Ok(Some(sliced.clone()))));
    assert_eq!(pod(&[("gpool.io/fraction.web", " "), ("gpool.io/team.web", "")]), (Ok(None), Ok(Some(sliced))));
    let contradiction = pod(&replaced[..1]).0.unwrap_err();
    assert!(contradiction.remedy.contains("an empty gpool.io/KEY.web"), "{contradiction}");
    let without_pod = read(&[("gpool.io/mode", "exclusive"), ("gpool.io/fraction", "0.3")], &[], Some("web"));
    assert!(!without_pod.unwrap_err().remedy.contains("KEY"));
    assert!(read(&[("gpool.io/fraction", "")], &[], Some("web")).is_err(), "for all of them it is no value");
}

#[test]
fn a_promise_of_time_is_read_and_goes_with_class_latency_and_slices() {
    let asked = |p99, more: &[(&str, &str)]| {
        let own = [("gpool.io/fraction", "0.3"), ("gpool.io/p99", p99)];
        read(&[&own[..], more].concat(), &[], None)
    };
    let latency = ("gpool.io/class", "latency");
    let got = asked("2.5ms", &[latency]).unwrap().unwrap();
    assert_eq!(got, Request { p99_ns: Some(2_500_000), class: Class::Latency, ..share(300) });
    for (p99, more, told) in [
        ("20", &[latency][..], "for example 20ms"),
        ("5s", &[latency], "between 1ms and 4s"),
        ("0.9ms", &[latency], "between 1ms and 4s"),
        ("20ms", &[], "p99 does not go with class=batch"),
        ("20ms", &[latency, ("gpool.io/mode", "timeslice")], "p99 does not go with mode=timeslice"),
    ] {
        let error = asked(p99, more).unwrap_err().to_string();
        assert!(error.contains(told), "{p99}: {error}");
    }
    let of_socket = |p99_ns| Request { p99_ns: Some(p99_ns), class: Class::Latency, ..share(300) }.check().is_ok();
    assert_eq!([999_999, 1_000_000, 4_000_000_000, 4_000_000_001].map(of_socket), [false, true, true, false]);
}

#[test]
fn annotations_that_an_image_may_carry_are_bounded_like_env() {
    let allow = ["fraction".to_owned()];
    let read = |pairs: &[(&str, &str)]| {
        let annotations = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let source = RequestSource {
            annotations: &annotations,
            env: &[],
            env_allow: &allow,
            container_name: Some("web"),
            annotations_from_image: true,
            defaults: &[],
        };
        Request::read(source)
    };
    assert_eq!(read(&[("gpool.io/fraction", "0.3")]).unwrap().unwrap(), share(300));
    for key in ["gpool.io/priority", "gpool.io/team", "gpool.io/project", "gpool.io/memory", "gpool.io/priority.web"] {
        let error = read(&[("gpool.io/fraction", "0.3"), (key, "burst")]).unwrap_err();
        assert_eq!(error.code, ErrorCode::RequestNotAllowedFromEnv, "{error}");
        assert!(error.message.contains(key), "{error}");
        let base = key.trim_start_matches("gpool.io/").trim_end_matches(".web");
        assert!(error.remedy.contains(&format!("add \"{base}\" to the list [policy.env] allow")), "{error}");
    }
}

#[test]
fn the_last_of_two_equal_env_names_counts() {
    assert_eq!(read(&[], &["GPOOL_FRACTION=1", "GPOOL_FRACTION=0.3"], None).unwrap().unwrap().fraction_permille, 300);
}

#[test]
fn a_service_of_the_same_name_asks_for_nothing() {
    let of_service =
        ["GPOOL_SERVICE_HOST=10.0.0.1", "GPOOL_PORT=tcp://10.0.0.1:80", "GPOOL_X_PORT_80_TCP_ADDR=10.0.0.1"];
    assert_eq!(read(&[], &of_service, None), Ok(None));
    let and_share = [&of_service[..], &["GPOOL_FRACTION=0.3"]].concat();
    assert_eq!(read(&[], &and_share, None), Ok(Some(share(300))));
    let and_typo = [&of_service[..], &["GPOOL_SERVICE=0.3"]].concat();
    assert_eq!(read(&[], &and_typo, None).unwrap_err().code, ErrorCode::RequestKeyUnknown);
}

#[test]
fn what_is_suggested_is_what_was_meant_or_the_whole_list() {
    let remedy = |name: &str| read(&[], &[&format!("GPOOL_{name}=1")], None).unwrap_err().remedy;
    let meant = [
        ("MEM", "memory"),
        ("FRAC", "fraction"),
        ("MIG", "mig-profile"),
        ("PROFILE", "mig-profile"),
        ("PRIO", "priority"),
        ("GPU", "gpus"),
        ("MEMROY", "memory"),
        ("LIMITS", "limit"),
        ("CLAS", "class"),
        ("MIN_MEM", "min-memory"),
        ("PROJ", "project"),
        ("COST", "cost-center"),
    ];
    for (name, key) in meant {
        assert_eq!(remedy(name), format!("did you mean {key}?"), "{name}");
    }
    for name in ["VRAM", "WEIGHT", "NAME", "CAP", "X"] {
        assert!(remedy(name).starts_with("the keys are fraction, limit, memory"), "{name}: {}", remedy(name));
    }
}

#[test]
fn refusals_name_the_key_and_the_remedy() {
    let typo = read(&[("gpool.io/fractoin", "0.3")], &[], None).unwrap_err();
    assert_eq!(typo.code, ErrorCode::RequestKeyUnknown);
    assert!(typo.to_string().contains("did you mean fraction?"), "{typo}");
    let value = read(&[], &["GPOOL_FRACTION=1.5"], None).unwrap_err();
    assert!(value.to_string().contains("GPOOL_FRACTION=\"1.5\""), "{value}");
    let env = read(&[], &["GPOOL_FRACTION=0.3", "GPOOL_PRIORITY=guaranteed"], None).unwrap_err();
    assert_eq!(env.code, ErrorCode::RequestNotAllowedFromEnv);
    assert!(env.remedy.starts_with("use the annotation gpool.io/priority, or add \"priority\" to the list"), "{env}");
    assert!(env.remedy.ends_with("which replaces the default"), "{env}");
    let memory_only = read(&[], &["GPOOL_MEMORY=4GiB"], None).unwrap_err();
    assert!(memory_only.to_string().contains("no fraction"), "{memory_only}");
}

#[test]
fn every_key_that_works_is_read() {
    let annotations = [
        ("gpool.io/priority", "burst"),
        ("gpool.io/team", "vision-2"),
        ("gpool.io/project", "mars"),
        ("gpool.io/cost-center", "4711.a"),
        ("gpool.io/mode", "slice"),
        ("gpool.io/model", "H100, A100-80GB"),
        ("gpool.io/min-memory", "40GiB"),
        ("gpool.io/device", "1, GPU-5131"),
    ];
    let env = [
        "GPOOL_FRACTION=0.25",
        "GPOOL_LIMIT=0.5",
        "GPOOL_GPUS=4",
        "GPOOL_CLASS=latency",
        "GPOOL_WAIT=1h30m",
        "GPOOL_RUN_TIME=2h",
    ];
    let want = Request {
        limit_permille: Some(500),
        gpus: 4,
        class: Class::Latency,
        priority: Priority::Burst,
        team: Some("vision-2".into()),
        project: Some("mars".into()),
        cost_center: Some("4711.a".into()),
        wait_seconds: Some(5400),
        run_seconds: Some(7200),
        devices: vec!["1".into(), "GPU-5131".into()],
        models: vec!["H100".into(), "A100-80GB".into()],
        min_memory_bytes: Some(40 << 30),
        ..share(250)
    };
    assert_eq!(read(&annotations, &env, None).unwrap(), Some(want));
    let at_once = read(&[("gpool.io/fraction", "0.3"), ("gpool.io/wait", "0")], &[], None).unwrap();
    assert_eq!(at_once, Some(share(300)), "to wait for no time is not to wait");
}

#[test]
fn values_out_of_range_are_refused_with_the_key_and_the_range() {
    for (key, value, want) in [
        ("limit", "0.2", "between the fraction and 1"),
        ("run-time", "0", "1s at least"),
        ("run-time", "5", "with its unit"),
        ("limit", "1.2", "between 0.01 and 1"),
        ("gpus", "0", "between 1 and 16"),
        ("gpus", "17", "between 1 and 16"),
        ("gpus", "+2", "between 1 and 16"),
        ("device", "", "nvidia-smi -L"),
        ("device", "0-3", "for gpus to say"),
        ("device", "all", "for gpus to say"),
        ("device", "GPU-", "UUID"),
        ("device", "MIG-5131", "mig-profile"),
        ("class", "fast", "latency, batch, notebook, train"),
        ("priority", "high", "guaranteed, burst, scavenger"),
        ("team", "", "a letter or digit first"),
        ("team", "../etc", "a letter or digit first"),
        ("team", "a b", "letters, digits"),
        ("project", "", "a project is"),
        ("cost-center", "47 11", "a cost center is"),
    ] {
        let key = format!("gpool.io/{key}");
        let error = read(&[("gpool.io/fraction", "0.3"), (&key, value)], &[], None).unwrap_err();
        assert_eq!(error.code, ErrorCode::RequestInvalid, "{error}");
        assert!(error.to_string().contains(want), "{error}");
    }
    assert!(parse_payer(&"a".repeat(63), "a team").is_ok() && parse_payer(&"a".repeat(64), "a team").is_err());
}

#[test]
fn older_peers_are_understood_and_understand() {
    let old = r#"{"fraction_permille":300,"memory":{"bytes":4294967296}}"#;
    let request: Request = serde_json::from_str(old).unwrap();
    assert_eq!(request, Request { memory: Some(MemoryCap::Bytes(4 << 30)), ..share(300) });
    assert_eq!(serde_json::to_string(&request).unwrap(), old, "what an older supervisor knows is all there is");
}

#[test]
fn what_came_over_the_socket_is_checked_again() {
    let wrong = [
        share(9),
        share(1001),
        Request { limit_permille: Some(299), ..share(300) },
        Request { gpus: 0, ..share(300) },
        Request { devices: vec!["-1".into()], ..share(300) },
        Request { devices: vec!["0".into(); 17], ..share(300) },
        Request { models: vec!["-".into()], ..share(300) },
        Request { models: vec!["a".into(); 9], ..share(300) },
        Request { wait_seconds: Some(366 * 86_400), ..share(300) },
        Request { run_seconds: Some(366 * 86_400), ..share(300) },
        Request { run_seconds: Some(0), ..share(300) },
        Request { team: Some("a/b".into()), ..share(300) },
        Request { project: Some("-".into()), ..share(300) },
        Request { cost_center: Some(String::new()), ..share(300) },
    ];
    assert!(share(300).check().is_ok());
    for request in wrong {
        assert_eq!(request.check().unwrap_err().code, ErrorCode::RequestInvalid, "{request:?}");
    }
}

#[test]
fn no_refusal_holds_a_phrase_that_engines_turn_into_something_else() {
    for error in
        [read(&[("gpool.io/x", "1")], &[], None), read(&[], &["GPOOL_FRACTION=no such file or directory"], None)]
    {
        let text = error.unwrap_err();
        assert!(!text.message.contains("permission denied"), "{text}");
    }
}

#[test]
fn a_mode_is_read_and_takes_nothing_that_it_has_not() {
    let asked = |pairs: &[(&str, &str)]| read(pairs, &[], None).map(Option::unwrap);
    let exclusive = asked(&[("gpool.io/mode", "exclusive")]).unwrap();
    assert_eq!((exclusive.mode, exclusive.fraction_permille), (Mode::Exclusive, 1000));
    assert!(asked(&[("gpool.io/mode", "exclusive"), ("gpool.io/fraction", "1"), ("gpool.io/gpus", "2")]).is_ok());
    assert_eq!(asked(&[("gpool.io/mode", "timeslice")]).unwrap().fraction_permille, 0);
    let weighted = [("gpool.io/mode", "timeslice"), ("gpool.io/fraction", "0.3"), ("gpool.io/gpus", "2")];
    assert_eq!(asked(&weighted[..2]).unwrap().fraction_permille, 300, "whether that is kept the host knows");
    let capped = [("gpool.io/mode", "timeslice"), ("gpool.io/memory", "4GiB")];
    assert_eq!(asked(&capped).unwrap().memory, Some(MemoryCap::Bytes(4 << 30)), "and this too");
    assert!(asked(&weighted).unwrap_err().message.contains("gpus with a fraction does not go with mode=timeslice"));
    let strict = asked(&[("gpool.io/fraction", "0.3"), ("gpool.io/isolation", "hardware")]).unwrap();
    assert_eq!((strict.mode, strict.isolation), (Mode::Auto, Some(Isolation::Hardware)));
    let sliced = asked(&[("gpool.io/fraction", "0.3"), ("gpool.io/isolation", "software"), ("gpool.io/mode", "slice")]);
    assert_eq!(sliced.unwrap().mode, Mode::Slice);
    for (mode, key, value) in [
        ("exclusive", "fraction", "0.3"),
        ("exclusive", "memory", "4GiB"),
        ("exclusive", "limit", "1"),
        ("exclusive", "priority", "burst"),
        ("timeslice", "limit", "1"),
        ("timeslice", "isolation", "software"),
    ] {
        let error = asked(&[("gpool.io/mode", mode), (&format!("gpool.io/{key}"), value)]).unwrap_err();
        assert!(error.message.contains(&format!("{key} does not go with mode={mode}")), "{error}");
    }
    let unknown = asked(&[("gpool.io/fraction", "0.3"), ("gpool.io/mode", "fast")]).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::RequestInvalid, "{unknown}");
    assert!(asked(&[("gpool.io/mode", "auto")]).unwrap_err().message.contains("no fraction"));
}

#[test]
fn a_part_of_an_mps_server_needs_a_team_and_a_fraction() {
    let asked = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(&str, &str)> = [("gpool.io/mode", "mps")].into_iter().chain(pairs.iter().copied()).collect();
        read(&pairs, &[], None).map(Option::unwrap)
    };
    let (fraction, team) = (("gpool.io/fraction", "0.3"), ("gpool.io/team", "vision"));
    let given = asked(&[fraction, team, ("gpool.io/memory", "4GiB"), ("gpool.io/gpus", "2")]).unwrap();
    assert_eq!((given.mode, given.fraction_permille, given.gpus), (Mode::Mps, 300, 2));
    for (pairs, part) in [
        (&[fraction][..], "no team"),
        (&[team], "no fraction"),
        (&[fraction, team, ("gpool.io/limit", "0.5")], "limit does not go with mode=mps"),
        (&[fraction, team, ("gpool.io/priority", "burst")], "priority does not go with mode=mps"),
        (&[fraction, team, ("gpool.io/isolation", "software")], "isolation does not go with mode=mps"),
    ] {
        let error = asked(pairs).unwrap_err();
        assert!(error.message.contains(part), "{pairs:?}: {error}");
    }
}

#[test]
fn a_mig_instance_is_asked_for_by_its_profile_or_its_size() {
    let asked = |pairs: &[(&str, &str)]| read(pairs, &[], None).map(Option::unwrap);
    let named = asked(&[("gpool.io/mig-profile", "1g.10gb+me")]).unwrap();
    let share = [("gpool.io/mig-profile", "3g.40gb"), ("gpool.io/mode", "slice"), ("gpool.io/fraction", "0.3")];
    let inside = asked(&share).unwrap();
    assert_eq!((inside.mode, inside.fraction_permille), (Mode::Slice, 300), "a share of an instance");
    assert_eq!((named.mode, named.fraction_permille), (Mode::Mig, 0));
    assert_eq!(named.mig_profile.as_deref(), Some("1g.10gb+me"));
    // As the RTX PRO 6000 Blackwell's driver has it: all but the media engines.
    let without = asked(&[("gpool.io/mig-profile", "1g.24gb-me")]).unwrap();
    assert_eq!(without.mig_profile.as_deref(), Some("1g.24gb-me"));
    let sized = asked(&[("gpool.io/mode", "mig"), ("gpool.io/memory", "8GiB")]).unwrap();
    assert_eq!((sized.mode, sized.memory), (Mode::Mig, Some(MemoryCap::Bytes(8 << 30))));
    assert!(asked(&[("gpool.io/mode", "mig"), ("gpool.io/fraction", "0.4")]).is_ok());
    for (pairs, part) in [
        (&[("gpool.io/mode", "mig")][..], "how large an instance"),
        (&[("gpool.io/mig-profile", "1g.10gb"), ("gpool.io/mode", "slice")], "no fraction"),
        (
            &[("gpool.io/mig-profile", "1g.10gb"), ("gpool.io/mode", "auto"), ("gpool.io/fraction", "0.1")],
            "mig-profile does not go with mode=auto",
        ),
        (&[("gpool.io/mig-profile", "1g;10gb")], "is not valid"),
        (&[("gpool.io/mig-profile", "-me")], "is not valid"),
        (&[("gpool.io/mig-profile", "1g.10gb"), ("gpool.io/gpus", "2")], "gpus does not go with mode=mig"),
        (&[("gpool.io/mig-profile", "1g.10gb"), ("gpool.io/limit", "0.5")], "limit does not go with mode=mig"),
        (&[("gpool.io/mode", "mig"), ("gpool.io/memory", "25%")], "per cent does not go with mode=mig"),
    ] {
        let error = asked(pairs).unwrap_err();
        assert!(error.message.contains(part), "{pairs:?}: {error}");
    }
}

#[test]
fn a_deadline_is_a_time_from_now_on_or_a_moment_and_has_a_run_time_before_it() {
    let asked = |deadline: &str, more: &[(&str, &str)]| {
        let own = [("gpool.io/fraction", "0.3"), ("gpool.io/deadline", deadline)];
        read(&[&own, more].concat(), &[], None).map(|request| request.unwrap())
    };
    let run = ("gpool.io/run-time", "2h");
    let got = asked(" 6h ", &[run]).unwrap();
    let want = Request { deadline: Some(Deadline::Within(6 * 3600)), run_seconds: Some(7200), ..share(300) };
    assert_eq!(got, want);
    let text = serde_json::to_value(&got).unwrap()["deadline"].to_string();
    assert_eq!(text, r#"{"within_seconds":21600}"#);
    for moment in ["2026-12-01T08:00:00Z", "2026-12-01T09:00:00+01:00", "2026-12-01 08:00Z"] {
        assert_eq!(asked(moment, &[run]).unwrap().deadline, Some(Deadline::At(1_796_112_000)), "{moment}");
    }
    assert_eq!(Deadline::At(1_796_112_000).text(), "2026-12-01T08:00:00Z");
    for (deadline, more, told) in [
        ("6", &[run][..], "with its unit, for example 6h"),
        ("0s", &[run], "with its unit, for example 6h"),
        ("2026-12-01T08:00:00", &[run], "with its offset from UTC"),
        ("1931-12-01T08:00:00Z", &[run], "with its offset from UTC"),
        ("6h", &[], "deadline given, but no run-time"),
        ("1h", &[run], "deadline=1h is shorter than run-time=2h"),
        ("6h", &[run, ("gpool.io/priority", "burst")], "does not go with priority=burst"),
        ("6h", &[run, ("gpool.io/mode", "mps"), ("gpool.io/team", "a")], "does not go with mode=mps"),
        ("6h", &[run, ("gpool.io/mig-profile", "1g.10gb"), ("gpool.io/mode", "slice")], "does not go with mig-profile"),
        ("6h", &[run, ("gpool.io/spill", "1GiB")], "does not go with spill"),
    ] {
        let error = asked(deadline, more).unwrap_err().to_string();
        assert!(error.contains(told), "{deadline}: {error}");
    }
    let of_socket = Request { deadline: Some(Deadline::Within(u64::MAX)), run_seconds: Some(1), ..share(300) };
    assert!(of_socket.check().is_err());
}

#[test]
fn who_has_a_deadline_waits_until_it_could_be_kept_to_no_more() {
    let of = |deadline, wait_seconds| {
        let asked = Request { deadline: Some(deadline), run_seconds: Some(7200), wait_seconds, ..share(300) };
        asked.waiting_for_its_deadline(1_000_000, 604_800).wait_seconds
    };
    assert_eq!(of(Deadline::Within(21_600), None), Some(14_400));
    assert_eq!(of(Deadline::At(1_007_201), None), Some(1));
    assert_eq!((of(Deadline::At(1_007_200), None), of(Deadline::At(5), None)), (None, None), "now or not at all");
    assert_eq!(of(Deadline::Within(21_600), Some(60)), Some(60), "it says so itself");
    assert_eq!(of(Deadline::Within(10_000_000), None), Some(604_800), "as long as may be");
    let at_once = Request { deadline: Some(Deadline::Within(60)), run_seconds: Some(1), ..share(300) };
    assert_eq!(at_once.clone().waiting_for_its_deadline(7, 0), at_once, "nobody waits here");
    assert_eq!(share(300).waiting_for_its_deadline(7, 604_800), share(300));
}
