//! Each row of the table.

use super::{answer, divided, host, model, why};
use gpool_policy::mechanism::{
    Ask, ComputeMode, Fact, Gpu, Isolation, Mechanism, Mode, Place, Pool, RowId, Suitable, TABLE, Trust, Workload,
    choose,
};

fn online(fraction_permille: u16) -> Ask {
    Ask { workload: Workload::InferOnline, ..Ask::of(fraction_permille) }
}

#[test]
fn a0_nothing_is_served_where_nothing_works() {
    let mut here = host(&["A100-80GB", "A100-80GB"]);
    here.gpus[0].is_healthy = false;
    assert_eq!(answer(&Ask::of(300), &here), "A8 slice", "one of two is enough");
    let Some(Place::Gpus(gpus)) = choose(&Ask::of(300), &here).choice.map(|choice| choice.place) else { panic!() };
    assert_eq!(gpus, ["g1"]);
    here.gpus[1].is_healthy = false;
    let nothing = "refused: every GPU is unhealthy, or the host is in maintenance";
    assert_eq!(answer(&Ask::of(300), &here), nothing);
    let mut closed = host(&["T4"]);
    closed.in_maintenance = true;
    assert_eq!(answer(&Ask { mode: Mode::Exclusive, ..Ask::of(1000) }, &closed), nothing);
}

#[test]
fn a1_virtual_gpus_are_sliced_or_taken_whole() {
    let mut guest = host(&["A100-80GB"]);
    guest.is_vgpu_guest = true;
    assert_eq!(answer(&Ask::of(300), &guest), "A1 slice");
    assert_eq!(answer(&Ask { isolation: Isolation::Hardware, ..Ask::of(300) }, &guest), "A1 exclusive");
    let mig = choose(&Ask { mode: Mode::Mig, ..Ask::of(300) }, &guest);
    assert!(mig.choice.is_none() && why(&mig, "asked").contains("virtual"), "{mig:?}");
}

#[test]
fn a2_what_fills_gpus_gets_whole_ones() {
    let two = host(&["A100-80GB", "A100-80GB"]);
    for ask in [
        Ask { gpus: 2, ..Ask::of(500) },
        Ask { workload: Workload::TrainLarge, ..Ask::of(300) },
        Ask::of(900),
        Ask { duty_permille: Some(800), ..Ask::of(300) },
    ] {
        assert_eq!(answer(&ask, &two), "A2 exclusive", "{ask:?}");
    }
    assert_eq!(answer(&Ask { duty_permille: Some(799), ..Ask::of(899) }, &two), "A8 slice");
    // It waits for whole ones instead of getting parts.
    let mut full = two.clone();
    full.gpus.iter_mut().for_each(|gpu| gpu.leases = 1);
    let text = answer(&Ask { gpus: 2, ..Ask::of(500) }, &full);
    assert!(text.contains("g0 has 1 lease") && text.contains("weaker than whole GPUs"), "{text}");
}

#[test]
fn a2_several_gpus_come_from_the_smallest_island_that_has_them_or_of_few() {
    let mut here = host(&["A100-80GB"; 6]);
    for (gpu, island) in here.gpus.iter_mut().zip([1, 1, 1, 1, 2, 2]) {
        gpu.island = Some(island);
    }
    let place = |gpus| choose(&Ask { gpus, ..Ask::of(1000) }, &here).choice.map(|choice| choice.place);
    assert_eq!(place(2), Some(Place::Gpus(vec!["g4".into(), "g5".into()])));
    assert_eq!(place(3), Some(Place::Gpus(vec!["g0".into(), "g1".into(), "g2".into()])));
    assert_eq!(place(1), Some(Place::Gpus(vec!["g4".into()])), "the large one stays whole");
    let five = ["g0", "g1", "g2", "g3", "g4"].map(String::from).to_vec();
    assert_eq!(place(5), Some(Place::Gpus(five)), "no island has five");
}

#[test]
fn a3_strict_neighbourhoods_get_an_instance_or_a_gpu_or_nothing() {
    let mut here = host(&["A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "1g.10gb"]);
    let strict = [
        Ask { trust: Trust::Regulated, ..Ask::of(100) },
        Ask { trust: Trust::DifferentDomain, ..Ask::of(100) },
        Ask { isolation: Isolation::Hardware, ..Ask::of(100) },
    ];
    for ask in &strict {
        let choice = choose(ask, &here).choice.unwrap();
        assert_eq!((choice.row, choice.mechanism), (RowId::A3, Mechanism::Mig));
        let Place::Instance { profile, .. } = choice.place else { panic!("{:?}", choice.place) };
        assert_eq!(profile.name, "1g.10gb", "the smallest that will do");
        assert_eq!(answer(ask, &host(&["T4"])), "A3 exclusive", "no MIG there");
        let mut busy = host(&["T4"]);
        busy.gpus[0].leases = 1;
        assert!(answer(ask, &busy).starts_with("refused"), "never in software");
    }
    let alone = Ask { isolation: Isolation::Exclusive, ..Ask::of(100) };
    assert!(answer(&alone, &here).contains("weaker than whole GPUs"), "{}", answer(&alone, &here));
    assert_eq!(answer(&alone, &host(&["T4"])), "A3 exclusive");
}

#[test]
fn a3_an_instance_is_made_in_a_window_alone_and_starts_as_high_as_it_can() {
    let strict = Ask { isolation: Isolation::Hardware, memory_bytes: Some(15 << 30), ..Ask::of(100) };
    let mut here = host(&["A100-80GB"]);
    assert_eq!(answer(&strict, &here), "A3 exclusive");
    here.gpus[0].mig.is_on = true;
    let closed = answer(&strict, &here);
    assert!(closed.contains("outside a maintenance window"), "{closed}");
    here.window_is_open = true;
    let Some(Place::NewInstance { profile, placement, .. }) = choose(&strict, &here).choice.map(|choice| choice.place)
    else {
        panic!("{}", answer(&strict, &here))
    };
    assert_eq!((profile.name, placement.start), ("1g.20gb", 6), "one compute slice with memory for 15 GiB");
    here.gpus[0].mig.owner = Some("gpu-operator".into());
    assert!(answer(&strict, &here).contains("gpu-operator divides it"));
}

#[test]
fn a3_the_smallest_instance_of_all_gpus_comes_first_and_of_two_alike_the_first_gpus() {
    let strict = Ask { isolation: Isolation::Hardware, ..Ask::of(100) };
    let place = |models: &[&str], profiles: &[&[&str]]| {
        let mut here = host(models);
        for ((gpu, model), its) in here.gpus.iter_mut().zip(models).zip(profiles) {
            gpu.mig = divided(model, its);
        }
        match choose(&strict, &here).choice.map(|choice| choice.place) {
            Some(Place::Instance { gpu, profile, .. }) => (gpu, profile.name),
            other => panic!("{other:?}"),
        }
    };
    let alike = ["A100-80GB"; 3];
    assert_eq!(place(&alike, &[&["7g.80gb"], &["1g.10gb"], &["1g.10gb"]]), ("g1".into(), "1g.10gb"));
    assert_eq!(place(&alike, &[&["3g.40gb", "2g.20gb"], &["3g.40gb"], &["2g.20gb"]]), ("g0".into(), "2g.20gb"));
    let unlike = ["H200-141GB", "A100-40GB"];
    assert_eq!(
        place(&unlike, &[&["1g.18gb"], &["1g.5gb"]]),
        ("g1".into(), "1g.5gb"),
        "as many slices, and less memory"
    );
}

#[test]
fn a3_memory_in_per_cent_is_a_part_of_the_whole_board() {
    let mut here = host(&["A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "2g.20gb", "1g.10gb"]);
    let given = |permille: u16| {
        let ask = Ask { isolation: Isolation::Hardware, memory_permille: Some(permille), ..Ask::of(100) };
        match choose(&ask, &here).choice.map(|choice| choice.place) {
            Some(Place::Instance { profile, .. }) => profile.name.to_owned(),
            _ => answer(&ask, &here),
        }
    };
    // Four of the eight memory slices are half of it, though the driver keeps some of each.
    assert_eq!([100, 250, 500].map(given), ["1g.10gb", "2g.20gb", "3g.40gb"]);
    let too_much = given(510);
    assert!(too_much.contains("no free instance of 7g.80gb"), "{too_much}");
}

#[test]
fn a_gpu_for_one_process_is_given_whole_or_under_an_mps_server_and_one_for_none_to_nobody() {
    let mut here = host(&["T4"]);
    let slices = Ask { mode: Mode::Slice, ..Ask::of(300) };
    let (whole, mps) = (Ask { mode: Mode::Exclusive, ..Ask::of(1000) }, small_kernels_of_one_team());
    here.gpus[0].compute_mode = ComputeMode::ExclusiveProcess;
    let refused = answer(&slices, &here);
    assert!(
        refused.contains("g0 is in the compute mode EXCLUSIVE_PROCESS, which nvidia-smi -c DEFAULT ends"),
        "{refused}"
    );
    assert_eq!([&whole, &mps].map(|ask| answer(ask, &here)), ["asked exclusive", "A6 mps"]);
    here.gpus[0].compute_mode = ComputeMode::Prohibited;
    for ask in [&slices, &whole, &mps] {
        assert!(answer(ask, &here).contains("PROHIBITED"), "{}", answer(ask, &here));
    }
    here.gpus.push(Gpu::idle("g1", model("T4")));
    let place = choose(&slices, &here).choice.map(|choice| choice.place);
    assert_eq!(place, Some(Place::Gpus(vec!["g1".into()])), "the other one serves");
}

#[test]
fn a4_what_escapes_the_shims_is_kept_by_hardware() {
    for fact in [Fact::Privileged, Fact::HostPid, Fact::WritablePreload, Fact::UnsupportedCuda] {
        let ask = Ask { facts: [fact].into(), ..Ask::of(300) };
        assert_eq!(answer(&ask, &host(&["L4"])), "A4 exclusive");
        let mut here = host(&["H100-80GB"]);
        here.gpus[0].mig = divided("H100-80GB", &["3g.40gb"]);
        assert_eq!(answer(&ask, &here), "A4 mig");
        here.gpus[0].mig.instances[0].leases = 1;
        assert!(answer(&ask, &here).starts_with("refused"), "not by A8");
    }
}

#[test]
fn a5_ten_milliseconds_in_production_are_kept_by_hardware() {
    let tight = Ask { p99_ms: Some(10), in_production: true, ..online(200) };
    let mut here = host(&["H200-141GB"]);
    here.gpus[0].mig = divided("H200-141GB", &["2g.35gb"]);
    assert_eq!(answer(&tight, &here), "A5 mig");
    assert_eq!(answer(&tight, &host(&["L4"])), "A5 exclusive");
    let mut busy = host(&["L4"]);
    busy.gpus[0].leases = 2;
    assert!(answer(&tight, &busy).starts_with("refused"), "not by A7");
    assert_eq!(answer(&Ask { in_production: false, ..tight.clone() }, &busy), "A7 slice");
    assert_eq!(answer(&Ask { p99_ms: Some(11), ..tight }, &busy), "A7 slice");
}

/// A request for which MPS is the lightest thing that will do.
fn small_kernels_of_one_team() -> Ask {
    Ask {
        trust: Trust::SameTeam,
        team: Some("vision".into()),
        burst_us: Some(400),
        replicas: 3,
        p99_ms: Some(50),
        ..online(200)
    }
}

#[test]
fn a6_small_kernels_of_one_team_share_an_mps_server() {
    let here = host(&["A30"]);
    let good = small_kernels_of_one_team();
    assert_eq!(answer(&good, &here), "A6 mps");
    for (ask, part) in [
        (Ask { trust: Trust::SameOrganisation, ..good.clone() }, "same team"),
        (Ask { burst_us: Some(1000), ..good.clone() }, "shorter than 1 ms"),
        (Ask { burst_us: None, ..good.clone() }, "not known"),
        (Ask { replicas: 2, ..good.clone() }, "2 replicas"),
        (Ask { isolation: Isolation::Software, ..good.clone() }, "isolation=software"),
        (Ask { p99_ms: Some(10), ..good.clone() }, "10 ms or less"),
        (Ask { facts: [Fact::Checkpoint].into(), ..good.clone() }, "checkpoint does not go with MPS"),
    ] {
        assert_eq!(answer(&ask, &here), "A7 slice", "{part}");
        assert!(why(&choose(&ask, &here), "A6").contains(part), "{}", why(&choose(&ask, &here), "A6"));
    }
    let mut without = here.clone();
    without.has_mps = false;
    assert_eq!(answer(&good, &without), "A7 slice");
    let mut others = here;
    others.gpus[0].teams = ["speech".to_owned()].into();
    assert_eq!(answer(&good, &others), "A7 slice", "another team is on that GPU");
}

#[test]
fn a7_answers_are_served_first_beside_short_kernels() {
    let mut here = host(&["L4"]);
    assert_eq!(answer(&online(300), &here), "A7 slice");
    here.gpus[0].longest_burst_us = Some(20_000);
    assert_eq!(answer(&Ask { p99_ms: Some(50), ..online(300) }, &here), "A7 slice");
    here.gpus[0].longest_burst_us = Some(20_001);
    assert!(answer(&Ask { p99_ms: Some(50), ..online(300) }, &here).contains("take 20 ms"));
    assert_eq!(answer(&Ask { p99_ms: Some(500), ..online(300) }, &here), "A7 slice");
}

#[test]
fn a8_is_what_everything_else_gets() {
    let here = host(&["V100-32GB"]);
    for workload in [Workload::Train, Workload::Finetune, Workload::BatchInfer, Workload::Notebook, Workload::Hpc] {
        assert_eq!(answer(&Ask { workload, ..Ask::of(899) }, &here), "A8 slice");
    }
    let mut two = host(&["V100-32GB", "V100-32GB"]);
    two.gpus[1].share_free_permille = 300;
    let place = choose(&Ask::of(300), &two).choice.map(|choice| choice.place);
    assert_eq!(place, Some(Place::Gpus(vec!["g1".into()])), "where the least is left");
    let mut full = here;
    full.gpus[0].share_free_permille = 200;
    assert!(answer(&Ask::of(300), &full).contains("g0 has 200 of the 300 thousandths free"));
    (full.gpus[0].share_free_permille, full.gpus[0].memory_free_bytes) = (1000, 1 << 30);
    assert!(
        answer(&Ask::of(300), &full).contains("g0 has 1024 of the 9830 MiB free"),
        "{}",
        answer(&Ask::of(300), &full)
    );
}

#[test]
fn a9_teams_have_an_instance_each_with_slices_inside() {
    let mut here = host(&["A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "3g.40gb"]);
    here.gpus[0].mig.instances[1].team = Some("speech".into());
    let ask = |team: &str, fraction| Ask { team: Some(team.into()), ..Ask::of(fraction) };
    let start = |ask: &Ask| match choose(ask, &here).choice.map(|choice| (choice.row, choice.mechanism, choice.place)) {
        Some((RowId::A9, Mechanism::SlicesInMig, Place::Instance { placement, .. })) => placement.start,
        other => panic!("{other:?}"),
    };
    assert_eq!((start(&ask("speech", 200)), start(&ask("vision", 400))), (4, 0), "three of seven compute slices");
    let text = answer(&ask("vision", 500), &here);
    assert!(text.starts_with("refused") && text.contains("no instance of the team vision"), "{text}");
    let nobody = choose(&Ask::of(200), &here);
    assert!(why(&nobody, "A9").contains("names no team"));
    let mut roomy = here.clone();
    roomy.gpus.push(Gpu::idle("whole", model("A100-80GB")));
    assert_eq!(answer(&ask("speech", 200), &roomy), "A8 slice", "it is alone, and a GPU is whole");
    assert_eq!(answer(&ask("vision", 200), &roomy), "A9 slice-in-mig");
}

#[test]
fn a10_memory_goes_to_the_host_where_both_sides_say_so() {
    let mut here = host(&["T4"]);
    here.gpus[0].memory_free_bytes = 1 << 30;
    let spilling = Ask { facts: [Fact::Spill].into(), memory_bytes: Some(8 << 30), ..Ask::of(300) };
    assert!(why(&choose(&spilling, &here), "A10").contains("does not spill"));
    here.has_spill = true;
    assert_eq!(answer(&spilling, &here), "A10 slice");
    assert!(answer(&Ask { facts: [].into(), ..spilling }, &here).starts_with("refused"));
}

#[test]
fn a11_a_pool_of_the_drivers_slices_gives_nothing_else() {
    let mut here = host(&["T4"]);
    here.pool = Pool::TimeSlice;
    here.gpus[0].share_free_permille = 0;
    assert_eq!(answer(&Ask::of(300), &here), "A11 timeslice", "shares are not counted there");
    let strict = answer(&Ask { isolation: Isolation::Software, ..Ask::of(300) }, &here);
    assert!(strict.contains("weaker than slices") && strict.contains("given over"), "{strict}");
    assert!(answer(&Ask { mode: Mode::TimeSlice, ..Ask::of(300) }, &host(&["T4"])).contains("not given over"));
}

#[test]
fn the_requests_own_mode_is_kept_or_refused_and_never_changed() {
    let here = host(&["A100-80GB"]);
    for (mode, want) in [(Mode::Slice, "asked slice"), (Mode::Exclusive, "asked exclusive")] {
        assert_eq!(answer(&Ask { mode, ..Ask::of(300) }, &here), want);
    }
    let mps = Ask { mode: Mode::Mps, ..small_kernels_of_one_team() };
    assert_eq!(answer(&mps, &here), "asked mps");
    let strict = Ask { mode: Mode::Slice, isolation: Isolation::Hardware, ..Ask::of(300) };
    assert!(answer(&strict, &here).contains("slices is weaker than a MIG instance"), "{}", answer(&strict, &here));
    let named = Ask { mode: Mode::Mig, profile: Some("2g.20gb".into()), ..Ask::of(100) };
    let mut here = here;
    here.gpus[0].mig = divided("A100-80GB", &["2g.20gb", "1g.10gb"]);
    let Some(Place::Instance { profile, .. }) = choose(&named, &here).choice.map(|choice| choice.place) else {
        panic!()
    };
    assert_eq!(profile.name, "2g.20gb");
}

#[test]
fn every_row_is_in_the_table_once_and_says_when() {
    let mut ids: Vec<RowId> = TABLE.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    let want: Vec<RowId> = RowId::ALL.iter().copied().filter(|id| !matches!(id, RowId::A12 | RowId::Asked)).collect();
    assert_eq!(ids, want);
    assert!(TABLE.iter().all(|row| !row.when.is_empty() && !row.note.is_empty()));
    assert_eq!(Gpu::idle("g", model("T4")).share_free_permille, 1000);
}

#[test]
fn only_gpus_that_will_do_are_looked_at() {
    let here = host(&["T4", "A100-80GB"]);
    let on = |model: &str, least_gib: u64, mode: Mode| {
        let suitable =
            Suitable { models: vec![model.to_owned()], least_memory_bytes: least_gib << 30, ..Suitable::default() };
        let decision = choose(&Ask { suitable, mode, ..Ask::of(300) }, &here);
        decision.choice.map(|choice| choice.place)
    };
    let key = |index: usize| Some(Place::Gpus(vec![here.gpus[index].key.clone()]));
    for mode in [Mode::Auto, Mode::Slice] {
        assert_eq!((on("T4", 0, mode), on("A100", 0, mode)), (key(0), key(1)));
        assert_eq!((on("T4", 40, mode), on("H100", 0, mode)), (None, None), "nothing else is given");
    }
    assert_eq!(on("A100", 0, Mode::Exclusive), key(1));
}
