//! The table as people and programs see it.

use super::*;
use gpool_protocol::{ContainerId, GpuUuid, LeaseGpuView, LeaseId};

/// A lease that runs.
pub fn lease(id: &str, fraction_permille: u16) -> LeaseView {
    LeaseView {
        lease_id: LeaseId(format!("01J{id}")),
        container_id: ContainerId(id.repeat(16)),
        pod: None,
        state: LeaseState::Active,
        gpu_uuid: GpuUuid("GPU-5ca1ab1e-0000-4000-8000-000000000000".into()),
        gpus: Vec::new(),
        fraction_permille,
        mechanism: Default::default(),
        fault: None,
        mig_profile: None,
        limit_permille: None,
        class: Class::Batch,
        p99_ns: None,
        requests: None,
        held_for: None,
        priority: Priority::Guaranteed,
        beyond_budget: false,
        team: None,
        project: None,
        cost_center: None,
        resource: None,
        paused: false,
        suspension: None,
        received_permille: 299,
        charged_gpu_ns: 3_000_000_000,
        charged_at_ns: 0,
        memory_cap_bytes: 4 << 30,
        spill_bytes: 0,
        spilled_bytes: 0,
        allocations_spilled: 0,
        program_faults: 0,
        memory_used_bytes: (4 << 30) - (100 << 20),
        memory_peak_bytes: 4 << 30,
        allocations_refused: 1,
        unknown_versions: 0,
        gate_wait_ns: 12_345_678_901,
        launches: 10_000,
        kernel_ns: 0,
        idle_seconds: None,
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

#[test]
fn the_table_reads_like_dockers() {
    let mut rows: Vec<LeaseRow> = [lease("3f9a", 300), lease("b7c1", 125)].iter().map(LeaseRow::from).collect();
    rows[1].received_permille = 1000;
    rows[1].gate_wait = GateWait::Permille(35);
    rows[1].state = LeaseState::Held;
    rows[1].uncounted_calls = 3;
    let want = "\
CONTAINER     GPU            SHARE  RECEIVED  MEMORY USED / CAP  REFUSED  GATE WAIT  PROCS  STATE   ENFORCED
3f9a3f9a3f9a  GPU-5ca1ab1e    30 %    29.9 %      3.9GiB / 4GiB        1      12.3s      1  active  co-operative
b7c1b7c1b7c1  GPU-5ca1ab1e  12.5 %   100.0 %      3.9GiB / 4GiB        1      3.5 %      1  held    co-operative (3 uncounted)
";
    assert_eq!(render(&rows), want);
    rows[0].is_beyond_budget = true;
    assert!(render(&rows).contains("  over-budget  "));
    let out = SuspensionView { stage: SuspensionStage::Suspended, since_unix_ms: 0, host_bytes: 1, is_wanted: false };
    rows[0].suspension = Some(out.clone());
    assert!(render(&rows).contains("  suspended  "));
    rows[0].suspension = Some(SuspensionView { is_wanted: true, ..out });
    assert!(render(&rows).contains("  waking  "), "it waits for room");
    rows[0].is_leaving = true;
    assert!(render(&rows).contains("  leaving  "));
    rows[0].fault = Some(LeaseFault::MpsServerDied);
    assert!(render(&rows).contains("  mps-server-died  "));
}

#[test]
fn what_nobody_knows_is_no_zero() {
    let of = |mechanism, fraction_permille: u16, state| {
        let its = LeaseView {
            mechanism,
            state,
            memory_cap_bytes: u64::from(fraction_permille) << 24,
            ..lease("3f9a", fraction_permille)
        };
        let table = render(&[LeaseRow::from(&its)]);
        let line = table.lines().nth(1).unwrap().to_owned();
        line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let turns = of(Mechanism::TimeSlice, 0, LeaseState::Active);
    assert_eq!(turns, "- 29.9 % 3.9GiB / - -- -- -- active co-operative");
    let instance = of(Mechanism::Mig, 250, LeaseState::Active);
    assert_eq!(instance, "25 % -- 3.9GiB / 3.9GiB -- -- -- active co-operative");
    assert!(of(Mechanism::Slice, 250, LeaseState::Stranded).contains("-- -- / 3.9GiB -- -- -- stranded"));
}

fn on_three_gpus(id: &str) -> LeaseView {
    let gpu = |digit: char| LeaseGpuView {
        gpu_uuid: GpuUuid(format!("GPU-{}-0000-4000-8000-000000000000", digit.to_string().repeat(8))),
        received_permille: 0,
        charged_gpu_ns: 0,
        lag_ns: 0,
        memory_used_bytes: 0,
        memory_limit_bytes: (digit > '1').then_some(4 << 30),
        energy_millijoules: 0,
    };
    LeaseView {
        gpus: ['1', '2', '3'].map(gpu).to_vec(),
        spill_bytes: 8 << 30,
        spilled_bytes: 1 << 30,
        limit_permille: Some(500),
        class: Class::Latency,
        p99_ns: Some(20_000_000),
        priority: Priority::Burst,
        pod: Some(gpool_protocol::PodName { namespace: "ml".into(), pod: "train-0".into(), container: "main".into() }),
        team: Some("vision".into()),
        project: Some("mars".into()),
        cost_center: None,
        resource: None,
        paused: true,
        ..lease(id, 300)
    }
}

#[test]
fn several_gpus_fit_into_one_line_and_wide_has_the_rest() {
    let rows = [LeaseRow::from(&on_three_gpus("3f9a")), LeaseRow::from(&lease("b7c1", 125))];
    let table = render(&rows);
    assert!(table.lines().nth(1).unwrap().contains("3f9a3f9a3f9a  GPU-11111111 +2    30 %"), "{table}");
    assert!(table.contains("  paused  "), "{table}");
    let wide = render_wide(&[
        LeaseRow { idle_seconds: Some(7260), run_left_seconds: Some(90), ..rows[0].clone() },
        rows[1].clone(),
    ]);
    let ends: Vec<&str> = wide.lines().map(|line| line.split("co-operative").last().unwrap().trim()).collect();
    assert!(ends[0].ends_with(
        "ENFORCED      CAP BY  GPUS                                    LIMIT  PEAK      SPILLED  IDLE  ENDS IN       P99  CLASS    PRIORITY    TEAM    PROJECT  COST CENTER  USER  POD              LEASE"
    ));
    assert_eq!(
        ends[1],
        "shims   GPU-11111111,GPU-22222222,GPU-33333333   50 %  4GiB  1GiB / 8GiB  2h1m    1m30s  - / 20ms  latency  burst       vision  mars     -            0     ml/train-0/main  01J3f9a"
    );
    assert_eq!(
        ends[2],
        "shims   GPU-5ca1ab1e                                -  4GiB            -     -        -         -  batch    guaranteed  -       -        -            0     -                01Jb7c1"
    );
}

#[test]
fn a_cap_is_kept_by_the_driver_where_it_is_on_every_gpu() {
    let mut lease = on_three_gpus("3f9a");
    assert_eq!((driver_limit_bytes(&lease), cap_kept_by(&lease)), (None, "shims"), "not on the first one");
    lease.gpus.iter_mut().for_each(|gpu| gpu.memory_limit_bytes = Some(4 << 30));
    assert_eq!((driver_limit_bytes(&lease), cap_kept_by(&lease)), (Some(4 << 30), "driver"));
    lease.gpus[0].memory_limit_bytes = Some(5 << 30);
    assert_eq!(cap_kept_by(&lease), "shims", "more is held than a cap that was lowered");
    lease.mechanism = Mechanism::Exclusive;
    assert_eq!(cap_kept_by(&lease), "hardware");
}

#[test]
fn no_lease_is_a_header() {
    assert_eq!(render(&[]).lines().count(), 1);
}

#[test]
fn csv_keeps_ids_whole_and_figures_exact() {
    let text = render_csv(&[lease("3f9a", 300)]);
    let fields: Vec<&str> = text.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(text.lines().next().unwrap().split(',').count(), fields.len());
    assert_eq!((fields[0].len(), fields[6], fields[8]), (64, "4294967296", "12345678901"));
}

#[test]
fn durations_are_short() {
    let cases = [
        (0, "0s"),
        (1, "1us"),
        (870_000, "870us"),
        (12_449_999, "12.4ms"),
        (3_100_000_000, "3.1s"),
        (125_000_000_000, "2m05s"),
    ];
    for (ns, want) in cases {
        assert_eq!(format_duration(ns), want);
    }
}
