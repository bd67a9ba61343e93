//! The page against Prometheus' own rules, and against what it was made of.

use super::families::{FAMILIES, Kind};
use super::*;
use gpool_protocol::{
    Class, ContainerId, GpuTestOutcome, GpuUuid, LeaseGpuView, LeaseId, Priority, PromiseState, QuotaAllowed,
    QuotaBudget, QuotaHeld, QuotaOf, QuotaPeriod, RequestFigures,
};
use std::collections::BTreeSet;

/// A figure that was read back: name, labels, value.
type Figure = (String, BTreeMap<String, String>, f64);

const HOSTILE: &str = "a\\b\"} 1\n# TYPE evil gauge\nevil 1";

fn lease(container: &str, state: LeaseState, mechanism: Mechanism) -> LeaseView {
    let gpu = |uuid: &str, received_permille| LeaseGpuView {
        gpu_uuid: GpuUuid(uuid.into()),
        received_permille,
        charged_gpu_ns: 1_500_000_000,
        lag_ns: -250_000_000,
        memory_used_bytes: 5,
        memory_limit_bytes: (uuid == "GPU-1").then_some(9),
        energy_millijoules: 1_500,
    };
    LeaseView {
        lease_id: LeaseId("01".into()),
        container_id: ContainerId(container.into()),
        pod: None,
        state,
        gpu_uuid: GpuUuid("GPU-1".into()),
        gpus: vec![gpu("GPU-1", 200), gpu("GPU-2", 450)],
        fraction_permille: 300,
        mechanism,
        fault: None,
        mig_profile: None,
        limit_permille: Some(500),
        class: Class::Batch,
        p99_ns: Some(20_000_000),
        requests: Some(RequestFigures {
            all: 900,
            all_late: 30,
            count: 640,
            p50_ns: Some(4_500_000),
            p99_ns: Some(24_000_000),
            p99_alone_ns: Some(9_000_000),
            late: 12,
            promise: Some(PromiseState::MissedOthers),
        }),
        held_for: Some(ContainerId("c9".into())),
        priority: Priority::Guaranteed,
        beyond_budget: false,
        team: Some(HOSTILE.into()),
        project: Some(HOSTILE.into()),
        cost_center: Some(HOSTILE.into()),
        resource: None,
        paused: true,
        suspension: None,
        received_permille: 325,
        charged_gpu_ns: 3_000_000_000,
        charged_at_ns: 0,
        memory_cap_bytes: 7,
        spill_bytes: 9,
        spilled_bytes: 8,
        allocations_spilled: 2,
        program_faults: 1,
        memory_used_bytes: 5,
        memory_peak_bytes: 7,
        allocations_refused: 2,
        unknown_versions: 3,
        gate_wait_ns: 500_000_000,
        launches: 11,
        kernel_ns: 180_000_000,
        idle_seconds: Some(3),
        run_left_seconds: None,
        leaves_unix_ms: None,
        processes: 1,
        read_at_ns: 0,
        init_pid: None,
        cgroup: None,
        enforcement: "co-operative".into(),
        uncounted_calls: 0,
        owner_uid: 0,
        created_unix_ms: 0,
    }
}

fn quota(of: QuotaOf, team: Option<&str>, uid: Option<u32>) -> QuotaView {
    QuotaView {
        of,
        team: team.map(str::to_owned),
        uid,
        table: None,
        held: QuotaHeld { share_permille: 1250, memory_bytes: 3, leases: 2 },
        allowed: match of {
            QuotaOf::Team => QuotaAllowed {
                share_permille: Some(2500),
                memory_bytes: Some(9),
                leases: Some(4),
                ..QuotaAllowed::default()
            },
            QuotaOf::NoTeam | QuotaOf::User => QuotaAllowed::default(),
        },
        budget: (of == QuotaOf::Team).then_some(QuotaBudget {
            period: QuotaPeriod::Week,
            allowed_gpu_ns: 7_200_000_000_000,
            spent_gpu_ns: Some(3_600_500_000_000),
            began_unix_s: 0,
            ends_unix_s: 604_800,
            lasts_until_unix_s: None,
        }),
        waiting: 1,
        held_up: u32::from(of == QuotaOf::Team),
        lifted_until_unix_s: None,
    }
}

fn reservation() -> ReservationView {
    let text = r#"{"name":"serving","teams":["vision"],"gpus":2,"share_permille":500,"state":"open","seats":[
        {"gpu_uuid":"GPU-1","share_permille":500,"memory_bytes":40,"kept_share_permille":200,"kept_memory_bytes":10,
         "missing_share_permille":100,"missing_memory_bytes":0}]}"#;
    serde_json::from_str(text).unwrap()
}

fn charges(permille: i64) -> Charges {
    let mut charges = Charges::default();
    charges.add(0, 0);
    charges.add(1_000_000_000, permille * 1_000_000);
    charges
}

fn moment() -> Moment {
    let gpu = |uuid: &str| GpuView {
        time_slices: None,
        memory_limits: None,
        compute_mode: None,
        nvlink_island: None,
        processor: None,
        drained: None,
        silent: false,
        closed_for: None,
        health: None,
        kernel_ns: 0,
        index: 0,
        uuid: GpuUuid(uuid.into()),
        name: HOSTILE.into(),
        driver_version: "1".into(),
        memory_total_bytes: 24 << 30,
        memory_headroom_bytes: 64 << 20,
        memory_used_bytes: 1,
        memory_outside_bytes: 3 << 20,
        memory_leased_bytes: 2,
        fraction_leased_permille: 300,
        divided: false,
        mechanism: None,
        leases: 1,
    };
    Moment {
        started_unix_ms: 1_795_193_703_351,
        leases: vec![
            lease("c1", LeaseState::Active, Mechanism::Slice),
            LeaseView { fraction_permille: 0, ..lease("c2", LeaseState::Active, Mechanism::TimeSlice) },
            lease("c3", LeaseState::Held, Mechanism::Slice),
        ],
        gpus: vec![(gpu("GPU-1"), charges(200), Some(7_250)), (gpu("GPU-2"), charges(950), None)],
        instances: [(GpuUuid("GPU-2".into()), (GpuUuid("GPU-9".into()), "1g.10gb".to_owned()))].into(),
        xids: vec![(GpuUuid("GPU-1".into()), 31, 5), (GpuUuid("GPU-1".into()), 79, 1)],
        healths: vec![health::Count {
            uuid: GpuUuid("GPU-1".into()),
            kind: "thermal",
            is_found: true,
            is_accepted: true,
            count: 3,
        }],
        gpu_tests: vec![gpu_tests::Count {
            uuid: GpuUuid("GPU-1".into()),
            ended_unix_ms: Some(1_795_193_703_500),
            by_outcome: [(GpuTestOutcome::Passed, 2), (GpuTestOutcome::Failed, 1), (GpuTestOutcome::NotRun, 0)],
        }],
        handoff_s: [Some(0.0001), Some(0.0003)],
        slice_s: 0.01,
        gates: [("open", 5), ("close", 4)],
        events: with_zeroes(vec![(EventKind::LeaseGranted, 3), (EventKind::OverCap, 1)]),
        refusals: vec![("GPOOL-E201", 2)],
        queue: (2, 1.5),
        overflow: (true, [1500, 3 << 30]),
        boards: [("served", 2), ("left-out", 1)],
        overrides: 1,
        waits: vec![("granted", Waits { count: 3, total_ns: 2_500_000_000 })],
        quotas: vec![
            quota(QuotaOf::Team, Some(HOSTILE), None),
            quota(QuotaOf::NoTeam, None, None),
            quota(QuotaOf::User, None, Some(7)),
        ],
        reservations: vec![reservation()],
        guard_actions: vec![("frozen", 1)],
        idle_actions: vec![("told", 3)],
        preemptions: vec![("left", 2)],
        suspensions: vec![("woken", 5)],
        run_times: vec![("revoked", 4)],
        deadlines: vec![("planned", 2)],
        lent: 3,
        rounds: [("sampler", 9), ("attendant", 8)],
        complaints: 0,
        log_lines_lost: 0,
        is_driver_replaced: true,
        is_configuration_usable: true,
        own: OwnUse::now(),
        kept: Kept {
            ledger_written_unix_s: Some(1_700_000_000),
            teams: vec![(String::new(), [3_000_000_000, 0]), ("red".into(), [9_000_000_000, 4_500_000_000])],
            audit: Some(([17, 2, 3], 1_700_000_000)),
        },
    }
}

/// Reads a page as strictly as the format is written down: each family once, its meaning and kind first, all its figures
/// together, no figure twice.
fn read(text: &str) -> Vec<Figure> {
    let (mut figures, mut families, mut seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut open = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            let (name, help) = described.split_once(' ').expect("a meaning");
            assert!(families.insert(name.to_owned()) && !help.is_empty(), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} "))).expect("a kind");
            assert!(["gauge", "counter"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            open = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        assert!(seen.insert(series.to_owned()), "{series} is there twice");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert_eq!(name, open, "a figure of another family");
        figures.push((name.to_owned(), read_labels(labels), value.parse().expect("a number")));
    }
    figures
}

fn read_labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let name = name.trim_start_matches(',');
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        let (mut value, mut characters) = (String::new(), after.char_indices());
        let end = loop {
            match characters.next().expect("a closing mark") {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().expect("what is escaped").1 {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    other => panic!("\\{other} is no escape"),
                }),
                (_, character) => value.push(character),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        rest = &after[end + 1..];
    }
    assert_eq!(rest, "}");
    labels
}

fn value(figures: &[Figure], name: &str, label: (&str, &str)) -> Option<f64> {
    let found =
        figures.iter().find(|(its, labels, _)| its == name && labels.get(label.0).is_some_and(|it| it == label.1));
    found.map(|(.., value)| *value)
}

#[test]
fn the_page_is_what_prometheus_reads_and_has_every_family() {
    let figures = read(&render(&moment()));
    let shown: BTreeSet<&str> = figures.iter().map(|(name, ..)| name.as_str()).collect();
    let known: BTreeSet<&str> = FAMILIES.iter().map(|(_, family)| family.name).collect();
    assert_eq!(shown, known);
    for (index, (family, described)) in FAMILIES.iter().enumerate() {
        assert_eq!(*family as usize, index, "{}", described.name);
        assert!(described.name.starts_with("gpool_") && !described.help.ends_with('.'), "{}", described.name);
        assert_eq!(described.kind == Kind::Counter, described.name.ends_with("_total"), "{}", described.name);
        let labels = figures.iter().filter(|(name, ..)| name == described.name).map(|(_, labels, _)| labels);
        for labels in labels {
            assert!(labels.keys().map(String::as_str).eq(sorted(described.labels)), "{}: {labels:?}", described.name);
        }
    }
}

/// Prometheus puts its own labels of what it has asked over those of the page, in a cluster these.
#[test]
fn no_label_is_one_that_prometheus_puts_its_own_over() {
    for (_, family) in FAMILIES {
        for label in ["job", "instance", "namespace", "pod", "container", "node", "service", "endpoint"] {
            assert!(!family.labels.contains(&label), "{} has {label}", family.name);
        }
    }
}

fn sorted<'a>(labels: &[&'a str]) -> BTreeSet<&'a str> {
    labels.iter().copied().collect()
}

#[test]
fn figures_are_in_prometheus_units() {
    let figures = read(&render(&moment()));
    let of = |name: &str, container: &str| value(&figures, name, ("container_id", container));
    assert_eq!(of("gpool_lease_used_seconds_total", "c1"), Some(1.5));
    assert_eq!(of("gpool_lease_gate_wait_seconds_total", "c1"), Some(0.5));
    assert_eq!(of("gpool_lease_energy_joules_total", "c1"), Some(1.5));
    assert_eq!(of("gpool_lease_request_p99_seconds", "c1"), Some(0.024));
    assert_eq!(of("gpool_lease_requests_late_total", "c1"), Some(30.0));
    let missed = |cause: &str| value(&figures, "gpool_lease_p99_missed", ("cause", cause));
    assert_eq!(["itself", "share", "others"].map(missed), [Some(0.0), Some(0.0), Some(1.0)]);
    let drawn = |uuid: &str| value(&figures, "gpool_gpu_energy_joules_total", ("gpu_uuid", uuid));
    assert_eq!(
        (drawn("GPU-1"), drawn("GPU-2")),
        (Some(7.25), None),
        "of a board that does not count it nothing is said"
    );
    assert_eq!(of("gpool_lease_share_entitled_ratio", "c1"), Some(0.3));
    assert_eq!(of("gpool_lease_share_limit_ratio", "c1"), Some(0.5));
    let mut moment = moment();
    let lent = |moment: &Moment| -> Vec<f64> {
        let of_first =
            |(name, labels, _): &&Figure| name == "gpool_lease_share_lent_ratio" && labels["container_id"] == "c1";
        read(&render(moment)).iter().filter(of_first).map(|(.., value)| *value).collect()
    };
    assert_eq!(lent(&moment), [0.0, 0.0], "what it left of one GPU nobody had, of the other it had more");
    // The second has 750 on the first GPU, of which 700 were promised to nobody; one that is over by now had 20 more.
    moment.leases[1].gpus[0].received_permille = 750;
    moment.gpus[0].1 = charges(970);
    assert_eq!(lent(&moment), [0.07, 0.0]);
    assert_eq!(of("gpool_lease_share_entitled_ratio", "c2"), Some(0.0), "the driver's time slices promise nothing");
    assert_eq!((of("gpool_lease_launches_total", "c3"), of("gpool_lease_info", "c3")), (None, Some(1.0)));
    assert_eq!(
        value(&figures, "gpool_gpu_charged_ratio", ("gpu_uuid", "GPU-2")),
        Some(0.95),
        "of its own time, not a sum of leases' parts of theirs"
    );
    for (state, count) in [("active", 2.0), ("held", 1.0), ("pending", 0.0), ("ending", 0.0)] {
        assert_eq!(value(&figures, "gpool_leases", ("state", state)), Some(count), "{state}");
    }
    assert_eq!(value(&figures, "gpool_events_total", ("kind", "over-cap")), Some(1.0));
    assert_eq!(
        value(&figures, "gpool_events_total", ("kind", "bypass")),
        Some(0.0),
        "a first time is seen beside zero"
    );
    let of = |name: &str, team: &str| value(&figures, &format!("gpool_team_{name}_seconds_total"), ("team", team));
    assert_eq!((of("reserved", ""), of("reserved", "red"), of("used", "red")), (Some(3.0), Some(9.0), Some(4.5)));
    let of_team = |name: &str| value(&figures, &format!("gpool_quota_{name}"), ("of", "team"));
    assert_eq!(
        (of_team("allowed_gpus"), of_team("held_bytes"), of_team("allowed_leases")),
        (Some(2.5), Some(3.0), Some(4.0))
    );
    assert_eq!((of_team("waiting"), of_team("held_up")), (Some(1.0), Some(1.0)));
    assert_eq!(value(&figures, "gpool_quota_held_leases", ("name", "7")), Some(2.0));
    assert_eq!(value(&figures, "gpool_quota_allowed_gpus", ("of", "user")), None, "what is not bounded is absent");
    assert_eq!((of_team("budget_gpu_seconds"), of_team("spent_gpu_seconds")), (Some(7200.0), Some(3600.5)));
    assert_eq!(value(&figures, "gpool_quota_spent_gpu_seconds", ("period", "week")), Some(3600.5));
    assert_eq!(value(&figures, "gpool_quota_spent_gpu_seconds", ("of", "user")), None);
    let of_it = |name: &str| value(&figures, &format!("gpool_reservation_{name}"), ("reservation", "serving"));
    let gpus = [of_it("open"), of_it("gpus"), of_it("used_gpus"), of_it("missing_gpus")];
    assert_eq!(gpus, [Some(1.0), Some(0.5), Some(0.3), Some(0.6)], "a GPU that is not there is missing");
    assert_eq!([of_it("bytes"), of_it("used_bytes"), of_it("missing_bytes")], [Some(40.0), Some(30.0), Some(0.0)]);
    let of_health = |name: &str| value(&figures, name, ("kind", "thermal"));
    assert_eq!(of_health("gpool_gpu_health_accepted"), Some(1.0));
    assert_eq!((of_health("gpool_gpu_health"), of_health("gpool_gpu_health_events_total")), (Some(1.0), Some(3.0)));
    let told = FAMILIES.iter().find(|(family, _)| *family == Family::GuardActions).map(|(_, family)| family.help);
    let idle = FAMILIES.iter().find(|(family, _)| *family == Family::IdleActions).map(|(_, family)| family.help);
    assert!(counters::IDLE_ACTIONS.iter().all(|action| idle.is_some_and(|help| help.contains(action))));
    let preemptions = FAMILIES.iter().find(|(family, _)| *family == Family::Preemptions).map(|(_, family)| family.help);
    assert!(counters::PREEMPTIONS.iter().all(|outcome| preemptions.is_some_and(|help| help.contains(outcome))));
    let suspensions = FAMILIES.iter().find(|(family, _)| *family == Family::Suspensions).map(|(_, family)| family.help);
    assert!(counters::SUSPENSIONS.iter().all(|outcome| suspensions.is_some_and(|help| help.contains(outcome))));
    let run_times = FAMILIES.iter().find(|(family, _)| *family == Family::RunTimes).map(|(_, family)| family.help);
    let deadlines = FAMILIES.iter().find(|(family, _)| *family == Family::Deadlines).map(|(_, family)| family.help);
    assert!(counters::DEADLINES.iter().all(|outcome| deadlines.is_some_and(|help| help.contains(outcome))));
    assert!(counters::RUN_TIMES.iter().all(|outcome| run_times.is_some_and(|help| help.contains(outcome))));
    assert!(counters::GUARD_ACTIONS.iter().all(|action| told.is_some_and(|help| help.contains(action))));
    assert_eq!(value(&figures, "gpool_requests_refused_total", ("code", "GPOOL-E201")), Some(2.0));
}

#[test]
fn what_nobody_knows_is_absent_and_not_0() {
    let kinds = [
        ("slice", Mechanism::Slice),
        ("time-slice", Mechanism::TimeSlice),
        ("mps", Mechanism::Mps),
        ("whole", Mechanism::Exclusive),
        ("instance", Mechanism::Mig),
    ];
    let leases = kinds.map(|(container, mechanism)| lease(container, LeaseState::Active, mechanism)).to_vec();
    let [(whole, ..), (other, ..)] = moment().gpus.try_into().unwrap();
    let board = GpuView { divided: true, uuid: GpuUuid("board".into()), ..whole.clone() };
    let taken = GpuView { mechanism: Some(Mechanism::Mig), uuid: GpuUuid("MIG-1".into()), ..whole };
    let shared = GpuView { mechanism: Some(Mechanism::Slice), uuid: GpuUuid("MIG-2".into()), ..other };
    let gpus = [board, taken, shared].map(|gpu| (gpu, Charges::default(), None)).to_vec();
    let figures = read(&render(&Moment { leases, gpus, ..moment() }));
    for family in ["processes", "launches_total", "gate_wait_seconds_total", "allocations_refused_total"]
        .into_iter()
        .chain(["program_faults_total", "unknown_versions_total"])
    {
        for (container, _) in kinds {
            let its = value(&figures, &format!("gpool_lease_{family}"), ("container_id", container));
            assert_eq!(its.is_some(), container == "slice", "{family} of {container}");
        }
    }
    for name in ["gpool_gpu_charged_ratio", "gpool_gpu_used_seconds_total"] {
        let of = |uuid: &str| value(&figures, name, ("gpu_uuid", uuid)).is_some();
        assert_eq!((of("board"), of("MIG-1"), of("MIG-2")), (false, false, true), "{name}");
    }
}

/// Of each kind of lease on GPUs whose time was used to 20 %, the first one's share promised, used and lent.
#[test]
fn only_what_was_promised_is_a_promise_and_only_what_others_may_have_is_lent() {
    let slice = lease("slice", LeaseState::Active, Mechanism::Slice);
    let with = |container: &str, mechanism| LeaseView {
        mechanism,
        container_id: ContainerId(container.into()),
        ..slice.clone()
    };
    let leases = vec![
        slice.clone(),
        with("time-slice", Mechanism::TimeSlice),
        with("mps", Mechanism::Mps),
        with("whole", Mechanism::Exclusive),
        with("instance", Mechanism::Mig),
        LeaseView { priority: Priority::Burst, ..with("burst", Mechanism::Slice) },
        LeaseView { priority: Priority::Scavenger, ..with("scavenger", Mechanism::Mps) },
        LeaseView { priority: Priority::Burst, ..with("whole-burst", Mechanism::Exclusive) },
        LeaseView { state: LeaseState::Revoked, ..with("revoked", Mechanism::Slice) },
    ];
    let figures = read(&render(&Moment { leases, ..moment() }));
    let of = |container: &str| {
        let [entitled, used, lent] = ["entitled", "used", "lent"]
            .map(|what| value(&figures, &format!("gpool_lease_share_{what}_ratio"), ("container_id", container)));
        (entitled, used, lent.is_some())
    };
    for (container, shares) in [
        ("slice", (Some(0.3), Some(0.2), true)),
        ("time-slice", (Some(0.3), Some(0.2), true)),
        ("mps", (Some(0.3), Some(0.2), false)),
        ("whole", (Some(1.0), Some(0.2), false)),
        ("instance", (Some(1.0), None, false)),
        ("burst", (Some(0.0), Some(0.2), false)),
        ("scavenger", (Some(0.0), Some(0.2), false)),
        ("whole-burst", (Some(1.0), Some(0.2), false)),
        ("revoked", (Some(0.0), Some(0.2), false)),
    ] {
        assert_eq!(of(container), shares, "{container}");
        let used = value(&figures, "gpool_lease_used_seconds_total", ("container_id", container));
        assert_eq!(used.is_some(), container != "instance", "{container}");
    }
}

#[test]
fn what_people_write_stays_within_its_label() {
    let figures = read(&render(&moment()));
    let of_gpu = |uuid: &str| {
        let its = figures.iter().find(|(name, labels, _)| name == "gpool_gpu_info" && labels["gpu_uuid"] == uuid);
        ["index", "board_uuid", "mig_profile"].map(|label| its.unwrap().1[label].clone())
    };
    assert_eq!(
        (of_gpu("GPU-1"), of_gpu("GPU-2")),
        (["0", "", ""].map(str::to_owned), ["0", "GPU-9", "1g.10gb"].map(str::to_owned))
    );
    let info = figures.iter().find(|(name, ..)| name == "gpool_lease_info").unwrap();
    assert!(["team", "project", "cost_center"].iter().all(|name| info.1[*name] == HOSTILE));
    assert_eq!(value(&figures, "gpool_quota_held_gpus", ("name", HOSTILE)), Some(1.25));
    assert!(figures.iter().all(|(name, ..)| name != "evil"));
}

#[test]
fn the_manual_has_every_family() {
    let page = reference();
    assert!(FAMILIES.iter().all(|(_, family)| page.contains(&format!(
        "| `{}` | {} |",
        family.name,
        family.kind.word()
    ))));
}
