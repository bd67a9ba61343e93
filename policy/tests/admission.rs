//! Placement never sells anything twice, and refuses with the numbers.

use gpool_policy::admission::{
    Demand, GpuCapacity, Held, MemoryDemand, Placement, Refusal, Site, Use, Users, WHOLE_PERMILLE, check_update, place,
};
use gpool_policy::slice::Priority;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn gpu(key: &str, share: u16, memory_gib: u64) -> GpuCapacity {
    GpuCapacity {
        key: key.to_owned(),
        memory_total_bytes: 24 * GIB,
        memory_foreign_bytes: GIB,
        fraction_leased_permille: share,
        memory_leased_bytes: memory_gib * GIB,
        users: Users::default(),
        site: Site::default(),
    }
}

fn demand(fraction_permille: u16, memory: MemoryDemand) -> Demand {
    Demand { fraction_permille, memory, priority: Priority::Guaranteed, gpus: 1, usage: Use::Sliced }
}

fn index(placed: Result<Placement, Refusal>) -> Result<usize, Refusal> {
    placed.map(|placed| placed.indices[0])
}

#[test]
fn best_fit_keeps_whole_gpus_free() {
    let gpus = [gpu("a", 0, 0), gpu("b", 600, 4), gpu("c", 500, 4)];
    let small = demand(300, MemoryDemand::Bytes(4 * GIB));
    assert_eq!(place(&gpus, &small), Ok(Placement { indices: vec![1], memory_bytes: 4 * GIB }));
    assert_eq!(index(place(&gpus, &demand(500, MemoryDemand::Bytes(GIB)))), Ok(2));
    assert_eq!(index(place(&gpus, &demand(1000, MemoryDemand::Bytes(GIB)))), Ok(0));
}

/// GPUs with so much of their share leased on islands of NVLink.
fn linked(gpus: &[(u16, Option<u16>)]) -> Vec<GpuCapacity> {
    let one = |(index, (leased, island)): (usize, &(u16, Option<u16>))| GpuCapacity {
        site: Site { island: *island, ..Site::default() },
        ..gpu(&index.to_string(), *leased, 0)
    };
    gpus.iter().enumerate().map(one).collect()
}

#[test]
fn several_gpus_are_linked_where_enough_have_room() {
    let gpus = linked(&[(0, None), (0, Some(0)), (0, Some(0)), (0, Some(0)), (500, Some(1)), (500, Some(1))]);
    let placed = |usage, fraction_permille, count| {
        let demand = Demand { gpus: count, usage, ..demand(fraction_permille, MemoryDemand::Bytes(GIB)) };
        place(&gpus, &demand).map(|placed| placed.indices).unwrap_or_default()
    };
    assert_eq!(placed(Use::Sliced, 300, 2), [4, 5], "where the least is left");
    assert_eq!(placed(Use::Sliced, 600, 2), [1, 2], "those have no room, and the first is linked with none");
    assert_eq!(placed(Use::Sliced, 300, 3), [1, 2, 3]);
    assert_eq!(placed(Use::Sliced, 300, 6), [0, 1, 2, 3, 4, 5], "more than any island has");
    assert_eq!(placed(Use::Mps, 600, 2), [1, 2]);
    assert_eq!(placed(Use::TimeSliced, 0, 2), [1, 2]);
    assert_eq!(placed(Use::Whole, 1000, 1), [0], "no island is broken");
    assert_eq!(placed(Use::Whole, 1000, 2), [4, 5], "nobody is on them, and the larger island stays whole");
    assert_eq!(placed(Use::Sliced, 300, 1), [4], "a share of one goes where the least is left");
}

#[test]
fn ties_go_by_memory_and_then_by_key() {
    let gpus = [gpu("z", 500, 4), gpu("y", 500, 8), gpu("x", 500, 8)];
    assert_eq!(index(place(&gpus, &demand(100, MemoryDemand::Bytes(GIB)))), Ok(2));
}

#[test]
fn memory_defaults_to_the_fraction() {
    let gpus = [gpu("a", 0, 0)];
    let bytes = |memory| place(&gpus, &demand(250, memory)).map(|placed| placed.memory_bytes);
    assert_eq!(bytes(MemoryDemand::Absent), Ok(6 * GIB));
    assert_eq!(bytes(MemoryDemand::Permille(500)), Ok(12 * GIB));
    assert_eq!(bytes(MemoryDemand::Bytes(7)), Ok(7));
}

#[test]
fn refusals_say_what_is_free() {
    assert_eq!(place(&[], &demand(100, MemoryDemand::Absent)), Err(Refusal::NoGpu));
    let zero = place(&[gpu("a", 0, 0)], &demand(0, MemoryDemand::Absent));
    assert_eq!(zero, Err(Refusal::Fraction { asked_permille: 0 }));
    let gpus = [gpu("a", 800, 4), gpu("b", 650, 20)];
    let share = place(&gpus, &demand(400, MemoryDemand::Absent)).expect_err("full");
    assert_eq!(
        share.to_string(),
        "fraction 0.4 asked, at most 0.35 free on one gpu, ask for at most 0.35, wait, or end a lease"
    );
    let memory = place(&gpus, &demand(300, MemoryDemand::Bytes(4 * GIB))).expect_err("full");
    assert_eq!(
        memory.to_string(),
        "4294967296 bytes of memory asked, at most 3221225472 free on b, ask for less memory, wait, or end a lease"
    );
    assert_eq!(memory.offers().len(), 2);
}

#[test]
fn an_update_counts_its_own_part_as_free() {
    let full = gpu("a", 1000, 23);
    let held = Held { guaranteed_permille: 400, memory_bytes: 10 * GIB, memory_excess_bytes: 0 };
    assert_eq!(check_update(&full, held, &demand(400, MemoryDemand::Bytes(10 * GIB))), Ok(10 * GIB));
    assert_eq!(check_update(&full, held, &demand(300, MemoryDemand::Bytes(GIB))), Ok(GIB));
    let more = check_update(&full, held, &demand(401, MemoryDemand::Bytes(GIB)));
    assert!(matches!(more, Err(Refusal::Share { asked_permille: 401, .. })), "{more:?}");
    let bigger = check_update(&full, held, &demand(400, MemoryDemand::Bytes(10 * GIB + 1)));
    assert!(matches!(bigger, Err(Refusal::Memory { .. })), "{bigger:?}");
    // Processes outside any lease have taken the memory meanwhile: giving some back is still allowed.
    let crowded = GpuCapacity { memory_foreign_bytes: 20 * GIB, ..full };
    assert_eq!(check_update(&crowded, held, &demand(400, MemoryDemand::Bytes(9 * GIB))), Ok(9 * GIB));
}

#[test]
fn a_cap_that_was_lowered_may_be_raised_again_to_what_the_lease_still_holds() {
    // All of 24 GiB was promised and 4 GiB of it is in use; the cap of who uses them was lowered to 2.
    let gpu = GpuCapacity { memory_foreign_bytes: 2 * GIB, ..gpu("a", 1000, 22) };
    let held = Held { guaranteed_permille: 400, memory_bytes: 2 * GIB, memory_excess_bytes: 2 * GIB };
    let raise = |gpu: &GpuCapacity, gib| check_update(gpu, held, &demand(400, MemoryDemand::Bytes(gib * GIB)));
    assert_eq!(raise(&gpu, 4), Ok(4 * GIB));
    assert!(matches!(raise(&gpu, 5), Err(Refusal::Memory { .. })), "the rest is promised to others");
    let crowded = GpuCapacity { memory_foreign_bytes: 3 * GIB, ..gpu.clone() };
    assert!(matches!(raise(&crowded, 4), Err(Refusal::Memory { .. })), "what others hold stays foreign");
    let sold = GpuCapacity { memory_leased_bytes: 24 * GIB, ..gpu };
    assert!(matches!(raise(&sold, 3), Err(Refusal::Memory { .. })), "what was given up has been promised meanwhile");
}

fn take(gpu: &mut GpuCapacity, held: Held) {
    gpu.fraction_leased_permille += held.guaranteed_permille;
    gpu.memory_leased_bytes += held.memory_bytes;
}

fn give_back(gpu: &mut GpuCapacity, held: Held) {
    gpu.fraction_leased_permille -= held.guaranteed_permille;
    gpu.memory_leased_bytes -= held.memory_bytes;
}

#[test]
fn several_gpus_are_given_together_or_not_at_all() {
    let gpus = [gpu("a", 700, 4), gpu("b", 0, 0), gpu("c", 500, 4), gpu("d", 600, 4)];
    let asked = |gpus, fraction| Demand { gpus, ..demand(fraction, MemoryDemand::Bytes(GIB)) };
    assert_eq!(place(&gpus, &asked(2, 300)).map(|placed| placed.indices), Ok(vec![0, 3]), "the fullest that fit");
    assert_eq!(place(&gpus, &asked(3, 400)).map(|placed| placed.indices), Ok(vec![1, 2, 3]));
    let share = place(&gpus, &asked(3, 450)).expect_err("only two have it");
    assert_eq!(share.best_share_permille(), 400, "what three have");
    assert_eq!(
        share.to_string(),
        "fraction 0.45 asked, at most 0.4 free on 3 gpus, ask for at most 0.4, wait, or end a lease"
    );
    let memory = Demand { gpus: 4, ..demand(300, MemoryDemand::Bytes(20 * GIB)) };
    let memory = place(&gpus, &memory).expect_err("three hold 4 GiB");
    assert!(matches!(memory, Refusal::Memory { gpus: 4, .. }), "{memory:?}");
    assert_eq!(memory.best_memory().map(|offer| offer.memory_free_bytes), Some(19 * GIB));
    assert_eq!(place(&gpus, &asked(5, 10)), Err(Refusal::TooFewGpus { asked: 5, present: 4 }));
    let unlike = [gpu("a", 0, 0), GpuCapacity { memory_total_bytes: 12 * GIB, ..gpu("b", 0, 0) }];
    let quarter = Demand { gpus: 2, ..demand(250, MemoryDemand::Absent) };
    assert_eq!(place(&unlike, &quarter).map(|placed| placed.memory_bytes), Ok(3 * GIB), "one cap for both");
}

#[test]
fn lower_priorities_take_memory_and_no_guarantee() {
    let full = [gpu("a", 1000, 4)];
    for priority in [Priority::Burst, Priority::Scavenger] {
        let asked = Demand { priority, ..demand(500, MemoryDemand::Bytes(GIB)) };
        assert_eq!(index(place(&full, &asked)), Ok(0));
        let too_much = Demand { memory: MemoryDemand::Bytes(20 * GIB), ..asked };
        assert!(matches!(place(&full, &too_much), Err(Refusal::Memory { .. })));
        let held = Held { guaranteed_permille: 0, memory_bytes: GIB, memory_excess_bytes: 0 };
        assert_eq!(check_update(&full[0], held, &asked), Ok(GIB));
        let raised = Demand { priority: Priority::Guaranteed, ..asked };
        assert!(matches!(check_update(&full[0], held, &raised), Err(Refusal::Share { .. })), "a promise must be free");
    }
}

#[test]
fn who_is_promised_nothing_is_beside_nobody_either_whom_such_a_lease_cannot_be_beside() {
    let taken = GpuCapacity { users: Users { time_sliced: 1, ..Users::default() }, ..gpu("a", 0, 0) };
    let asked = Demand { priority: Priority::Burst, ..demand(500, MemoryDemand::Bytes(GIB)) };
    let refused = place(std::slice::from_ref(&taken), &asked);
    assert!(matches!(refused, Err(Refusal::Taken { gpus: 1, free: 0, .. })), "{refused:?}");
    assert_eq!(index(place(&[taken, gpu("b", 1000, 4)], &asked)), Ok(1));
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let memory = prop_oneof![
        (0..30 * GIB).prop_map(MemoryDemand::Bytes),
        (0..1200u16).prop_map(MemoryDemand::Permille),
        Just(MemoryDemand::Absent),
    ];
    (0..1100u16, memory, 0..4u8, 0..4usize).prop_map(|(fraction_permille, memory, burst, gpus)| {
        let priority = if burst == 0 { Priority::Burst } else { Priority::Guaranteed };
        Demand { fraction_permille, memory, priority, gpus, usage: Use::Sliced }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_sold_twice(
        foreign in prop::collection::vec(0..30 * GIB, 1..4),
        steps in prop::collection::vec((any_demand(), any::<prop::sample::Index>(), 0..4u8), 1..60),
    ) {
        let mut gpus: Vec<GpuCapacity> = foreign.iter().enumerate().map(|(index, &bytes)| GpuCapacity {
            memory_foreign_bytes: bytes,
            ..gpu(&index.to_string(), 0, 0)
        }).collect();
        let mut leases: Vec<(Vec<usize>, Held)> = Vec::new();
        for (demand, chosen, what) in steps {
            if what == 0 && !leases.is_empty() {
                let index = chosen.index(leases.len());
                let (on, held) = leases[index].clone();
                let checked: Result<Vec<u64>, Refusal> =
                    on.iter().map(|&gpu| check_update(&gpus[gpu], held, &demand)).collect();
                if let Ok(bytes) = checked {
                    let memory_bytes = bytes.into_iter().min().expect("it has a gpu");
                    let new = Held { guaranteed_permille: demand.guaranteed_permille(), memory_bytes, memory_excess_bytes: 0 };
                    on.iter().for_each(|&gpu| give_back(&mut gpus[gpu], held));
                    on.iter().for_each(|&gpu| take(&mut gpus[gpu], new));
                    leases[index].1 = new;
                }
            } else if what == 1 && !leases.is_empty() {
                let (on, held) = leases.swap_remove(chosen.index(leases.len()));
                on.iter().for_each(|&gpu| give_back(&mut gpus[gpu], held));
            } else {
                match place(&gpus, &demand) {
                    Ok(placed) => {
                        prop_assert_eq!(placed.indices.len(), demand.gpus.max(1), "all or none");
                        let held = Held {
                            guaranteed_permille: demand.guaranteed_permille(),
                            memory_bytes: placed.memory_bytes,
                            memory_excess_bytes: 0,
                        };
                        placed.indices.iter().for_each(|&gpu| take(&mut gpus[gpu], held));
                        leases.push((placed.indices, held));
                    }
                    Err(refusal) => {
                        let fits = |gpu: &&GpuCapacity| {
                            (1..=WHOLE_PERMILLE).contains(&demand.fraction_permille)
                                && demand.guaranteed_permille() <= gpu.share_free_permille()
                                && demand.memory_bytes(gpu.memory_total_bytes) <= gpu.memory_free_bytes()
                        };
                        let fitting = gpus.iter().filter(fits).count();
                        prop_assert!(fitting < demand.gpus.max(1), "refused without need: {refusal}");
                    }
                }
            }
            for gpu in &gpus {
                prop_assert!(gpu.fraction_leased_permille <= WHOLE_PERMILLE);
                let held = gpu.memory_leased_bytes;
                prop_assert!(held == 0 || held + gpu.memory_foreign_bytes <= gpu.memory_total_bytes);
            }
        }
    }
}

/// Who is there decides, not how much of the share or the memory is left.
#[test]
fn whole_gpus_and_time_slices_keep_away_from_whom_they_cannot_be_beside() {
    let with = |key: &str, users| GpuCapacity { users, ..gpu(key, 0, 0) };
    let asked = |usage, gpus| Demand { usage, gpus, ..demand(1000, MemoryDemand::Absent) };
    let none = Users::default();
    let gpus = [
        with("sliced", Users { sliced: 1, ..none }),
        with("whole", Users { whole: 1, ..none }),
        with("time", Users { time_sliced: 2, ..none }),
        with("outside", Users { outside: 1, ..none }),
        with("nobody", none),
        with("mps", Users { mps: 1, ..none }),
    ];
    let indices = |usage, count| place(&gpus, &asked(usage, count)).map(|placed| placed.indices);
    assert_eq!(indices(Use::Whole, 1), Ok(vec![4]));
    assert_eq!(indices(Use::TimeSliced, 1), Ok(vec![2]), "beside others of its kind, so that a whole one stays whole");
    assert_eq!(indices(Use::TimeSliced, 2), Ok(vec![2, 4]));
    let Err(Refusal::Taken { free: 1, taken, .. }) = place(&gpus, &asked(Use::Whole, 2)) else {
        panic!("two are not free")
    };
    assert_eq!(taken.len(), 5, "{taken:?}");
    assert_eq!(taken[3], ("outside".to_owned(), "processes without a lease"));
    let shares: Vec<u16> = gpus.iter().map(GpuCapacity::share_free_permille).collect();
    assert_eq!(shares, [1000, 0, 0, 1000, 1000, 0], "no share is sold of a GPU that is not sliced");
    let under_mps = Demand { memory: MemoryDemand::Bytes(GIB), ..asked(Use::Mps, 3) };
    let indices_under_mps = place(&gpus, &under_mps).map(|placed| placed.indices);
    assert_eq!(indices_under_mps, Ok(vec![3, 4, 5]), "those that nobody shares otherwise");
    let placed = place(&gpus, &asked(Use::Whole, 1)).map(|placed| placed.memory_bytes);
    assert_eq!(placed, Ok(24 * GIB), "all of it");
}

/// In time slices a fraction is asked for only where the hardware keeps it: then it is a promise as any.
#[test]
fn fractions_of_time_slices_are_sold_once_and_bind_nobody_who_wants_none() {
    let with = |fraction| Demand { usage: Use::TimeSliced, ..demand(fraction, MemoryDemand::Absent) };
    let mut gpus = [gpu("a", 0, 0), gpu("b", 0, 0)];
    gpus[0].users.time_sliced = 1;
    gpus[0].fraction_leased_permille = 600;
    assert_eq!(place(&gpus, &with(400)), Ok(Placement { indices: vec![0], memory_bytes: 24 * GIB }));
    assert_eq!(index(place(&gpus, &with(401))), Ok(1), "where there is room");
    let refused = place(&gpus[..1], &with(401)).expect_err("of the whole GPU 400 are left");
    assert!(
        matches!(&refused, Refusal::Share { asked_permille: 401, offers, .. }
        if offers[0].share_free_permille == 400),
        "{refused:?}"
    );
    assert_eq!(index(place(&gpus[..1], &with(0))), Ok(0));
    let held = Held { guaranteed_permille: 600, memory_bytes: 24 * GIB, memory_excess_bytes: 0 };
    let to =
        |fraction| check_update(&gpus[0], held, &Demand { memory: MemoryDemand::Bytes(24 * GIB), ..with(fraction) });
    assert!(to(1000).is_ok() && to(300).is_ok());
}

/// Time slices go where there are some, but not where others were promised next to all of that GPU's time.
#[test]
fn who_wants_no_fraction_goes_where_some_time_is_left_for_it() {
    let beside = |leased: &[(u16, u32)]| -> Result<usize, Refusal> {
        let one = |(index, (leased, time_sliced)): (usize, &(u16, u32))| GpuCapacity {
            users: Users { time_sliced: *time_sliced, ..Users::default() },
            ..gpu(&index.to_string(), *leased, 0)
        };
        let gpus: Vec<GpuCapacity> = leased.iter().enumerate().map(one).collect();
        index(place(&gpus, &Demand { usage: Use::TimeSliced, ..demand(0, MemoryDemand::Absent) }))
    };
    assert_eq!(beside(&[(1000, 2), (0, 0)]), Ok(1), "nothing is left on the first");
    assert_eq!(beside(&[(900, 4), (500, 1)]), Ok(1), "a fiftieth is left there");
    assert_eq!(beside(&[(900, 1), (0, 0)]), Ok(0), "a part of a tenth, and the other one stays whole");
    assert_eq!(beside(&[(0, 30), (0, 1)]), Ok(0), "where nobody was promised anything all have the same");
    assert_eq!(beside(&[(1000, 2), (980, 1)]), Ok(0), "nothing anywhere: as ever");
}

/// And memory only where the driver keeps it.
#[test]
fn memory_of_time_slices_is_sold_once_and_binds_nobody_who_wants_none() {
    let with = |memory, gpus| Demand { usage: Use::TimeSliced, gpus, ..demand(0, memory) };
    let mut gpus = [gpu("a", 0, 20), gpu("b", 0, 0)];
    gpus[0].users.time_sliced = 1;
    // Of 24 GiB one is others', and 20 are leased.
    let placed = place(&gpus, &with(MemoryDemand::Bytes(3 * GIB), 1));
    assert_eq!(placed, Ok(Placement { indices: vec![0], memory_bytes: 3 * GIB }));
    assert_eq!(index(place(&gpus, &with(MemoryDemand::Bytes(3 * GIB + 1), 1))), Ok(1), "where there is room");
    let placed = place(&gpus, &with(MemoryDemand::Permille(125), 2));
    assert_eq!(placed, Ok(Placement { indices: vec![0, 1], memory_bytes: 3 * GIB }));
    let refused = place(&gpus[..1], &with(MemoryDemand::Bytes(4 * GIB), 1)).expect_err("3 GiB are left");
    assert!(
        matches!(&refused, Refusal::Memory { offers, .. } if offers[0].memory_free_bytes == 3 * GIB
            && offers[0].memory_asked_bytes == 4 * GIB),
        "{refused:?}"
    );
    let placed = place(&gpus[..1], &with(MemoryDemand::Absent, 1));
    assert_eq!(placed, Ok(Placement { indices: vec![0], memory_bytes: 24 * GIB }));
}

#[test]
fn an_mps_server_is_shared_within_one_trust_domain_and_never_sold_beyond_the_gpu() {
    let with = |key: &str, users, leased| GpuCapacity { users, fraction_leased_permille: leased, ..gpu(key, 0, 0) };
    let own = Users { mps: 1, mps_set: Some(2), ..Users::default() };
    let in_a_fault = Users { mps_faulted: 1, ..own };
    assert_eq!(own.in_the_way_of(Use::Mps), None);
    assert_eq!(in_a_fault.in_the_way_of(Use::Mps), Some("an MPS server that takes nobody in after a fault"));
    let full = Users { mps: 48, mps_full: 1, ..own };
    let whole = with("full", full, 480);
    assert_eq!(full.number_in_the_way_of(Use::Mps), 1);
    assert_eq!(full.in_the_way_of(Use::Mps), Some("an MPS server with as many containers as it can have clients (48)"));
    let others = Users { mps: 1, mps_of_others: 1, ..Users::default() };
    let asked = |fraction, gpus| Demand { usage: Use::Mps, gpus, ..demand(fraction, MemoryDemand::Bytes(GIB)) };
    let gpus = [with("free", Users::default(), 0), with("others", others, 300), with("own", own, 600)];
    let indices = |demand| place(&gpus, &demand).map(|placed| placed.indices);
    assert_eq!(indices(asked(400, 1)), Ok(vec![2]), "to its own, where the least is left");
    assert_eq!(indices(asked(500, 1)), Ok(vec![0]));
    assert!(matches!(place(&[whole], &asked(10, 1)), Err(Refusal::Taken { free: 0, .. })), "a client too many");
    assert_eq!(
        indices(asked(500, 2)).unwrap_err().best_share_permille(),
        400,
        "the first and the last, by their share"
    );
    let Err(Refusal::Taken { taken, .. }) = indices(asked(100, 3)) else { panic!("another team's server was shared") };
    assert_eq!(
        taken,
        [(
            "others".to_owned(),
            "an MPS server of another team or user, or namespace of pods, or of another number of GPUs"
        )]
    );
    assert!(matches!(place(&gpus[2..], &asked(500, 1)), Err(Refusal::Share { .. })));
    assert!(place(&gpus[2..], &Demand { usage: Use::Sliced, ..asked(100, 1) }).is_err());
}

/// GPUs by their set and what is leased of them, and what `wanted` of them under MPS get.
fn under_mps(gpus: &[(Option<usize>, u16)], wanted: usize, fraction: u16) -> Result<Vec<usize>, Refusal> {
    let with = |(index, (mps_set, leased)): (usize, &(Option<usize>, u16))| GpuCapacity {
        users: Users { mps: mps_set.is_some().into(), mps_set: *mps_set, ..Users::default() },
        ..gpu(&index.to_string(), *leased, 0)
    };
    let gpus: Vec<GpuCapacity> = gpus.iter().enumerate().map(with).collect();
    let asked = demand(fraction, MemoryDemand::Bytes(GIB));
    place(&gpus, &Demand { usage: Use::Mps, gpus: wanted, ..asked }).map(|placed| placed.indices)
}

#[test]
fn a_lease_under_mps_is_on_a_daemons_gpus_or_on_none_of_them() {
    let (pair, none) = (Some(0), None);
    let fuller = [(pair, 300), (pair, 300), (none, 0), (none, 0)];
    assert_eq!(under_mps(&fuller, 2, 300), Ok(vec![0, 1]), "to its own, where the least is left");
    assert_eq!(under_mps(&fuller, 2, 800), Ok(vec![2, 3]), "beside it, and on neither of its GPUs");
    // By share alone the second and the third would be taken.
    let uneven = [(pair, 900), (pair, 300), (none, 0)];
    let refused = under_mps(&uneven, 2, 300).expect_err("a GPU was given to two daemons");
    let Refusal::Taken { gpus: 2, free: 1, taken } = refused else { panic!("{refused}") };
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert!(taken[0].0 == "1" && taken[0].1.contains("on other GPUs as well"), "{taken:?}");
    let pairs = [(pair, 300), (pair, 500), (Some(2), 300), (Some(2), 600)];
    assert_eq!(under_mps(&pairs, 2, 300), Ok(vec![2, 3]), "the fuller of two sets");
    assert_eq!(under_mps(&pairs, 2, 450), Ok(vec![0, 1]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two daemons never have a GPU together, whatever comes and goes.
    #[test]
    fn a_gpu_belongs_to_one_daemon(steps in prop::collection::vec((1..=700u16, 0..3u8, any::<prop::sample::Index>()), 1..60)) {
        let wanted = 2;
        let mut leases: Vec<(Vec<usize>, u16)> = Vec::new();
        for (fraction, what, chosen) in steps {
            if what == 0 && !leases.is_empty() {
                leases.swap_remove(chosen.index(leases.len()));
            }
            let on = |gpu: usize| leases.iter().filter(move |(set, _)| set.contains(&gpu));
            let gpus: Vec<(Option<usize>, u16)> =
                (0..5).map(|gpu| (on(gpu).next().map(|(set, _)| set[0]), on(gpu).map(|(_, part)| part).sum())).collect();
            if let Ok(placed) = under_mps(&gpus, wanted, fraction) {
                for (set, _) in &leases {
                    let is_apart = placed.iter().all(|gpu| !set.contains(gpu));
                    prop_assert!(*set == placed || is_apart, "{placed:?} beside {set:?}");
                }
                leases.push((placed, fraction));
            }
        }
    }
}
