//! Placement never sells anything twice, and refuses with the numbers.

use gpool_policy::admission::{
    Demand, GpuCapacity, Held, MemoryDemand, Placement, Refusal, WHOLE_PERMILLE, check_update, place,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn gpu(key: &str, share: u16, memory_gib: u64) -> GpuCapacity {
    GpuCapacity {
        key: key.to_owned(),
        memory_total_bytes: 24 * GIB,
        memory_foreign_bytes: GIB,
        fraction_leased_permille: share,
        memory_leased_bytes: memory_gib * GIB,
    }
}

fn demand(fraction_permille: u16, memory: MemoryDemand) -> Demand {
    Demand { fraction_permille, memory }
}

#[test]
fn best_fit_keeps_whole_gpus_free() {
    let gpus = [gpu("a", 0, 0), gpu("b", 600, 4), gpu("c", 500, 4)];
    let small = demand(300, MemoryDemand::Bytes(4 * GIB));
    assert_eq!(place(&gpus, &small), Ok(Placement { index: 1, memory_bytes: 4 * GIB }));
    assert_eq!(place(&gpus, &demand(500, MemoryDemand::Bytes(GIB))).map(|placed| placed.index), Ok(2));
    assert_eq!(place(&gpus, &demand(1000, MemoryDemand::Bytes(GIB))).map(|placed| placed.index), Ok(0));
}

#[test]
fn ties_go_by_memory_and_then_by_key() {
    let gpus = [gpu("z", 500, 4), gpu("y", 500, 8), gpu("x", 500, 8)];
    assert_eq!(place(&gpus, &demand(100, MemoryDemand::Bytes(GIB))).map(|placed| placed.index), Ok(2));
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
    let held = Held { fraction_permille: 400, memory_bytes: 10 * GIB };
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

fn any_demand() -> impl Strategy<Value = Demand> {
    let memory = prop_oneof![
        (0..30 * GIB).prop_map(MemoryDemand::Bytes),
        (0..1200u16).prop_map(MemoryDemand::Permille),
        Just(MemoryDemand::Absent),
    ];
    (0..1100u16, memory).prop_map(|(fraction_permille, memory)| Demand { fraction_permille, memory })
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
        let mut leases: Vec<(usize, Held)> = Vec::new();
        for (demand, chosen, what) in steps {
            if what == 0 && !leases.is_empty() {
                let index = chosen.index(leases.len());
                let (on, held) = leases[index];
                if let Ok(memory_bytes) = check_update(&gpus[on], held, &demand) {
                    gpus[on].fraction_leased_permille += demand.fraction_permille;
                    gpus[on].fraction_leased_permille -= held.fraction_permille;
                    gpus[on].memory_leased_bytes = gpus[on].memory_leased_bytes + memory_bytes - held.memory_bytes;
                    leases[index].1 = Held { fraction_permille: demand.fraction_permille, memory_bytes };
                }
            } else if what == 1 && !leases.is_empty() {
                let (on, held) = leases.swap_remove(chosen.index(leases.len()));
                gpus[on].fraction_leased_permille -= held.fraction_permille;
                gpus[on].memory_leased_bytes -= held.memory_bytes;
            } else {
                match place(&gpus, &demand) {
                    Ok(placed) => {
                        let held =
                            Held { fraction_permille: demand.fraction_permille, memory_bytes: placed.memory_bytes };
                        gpus[placed.index].fraction_leased_permille += held.fraction_permille;
                        gpus[placed.index].memory_leased_bytes += held.memory_bytes;
                        leases.push((placed.index, held));
                    }
                    Err(refusal) => {
                        let fits = gpus.iter().any(|gpu| {
                            (1..=gpu.share_free_permille()).contains(&demand.fraction_permille)
                                && demand.memory_bytes(gpu.memory_total_bytes) <= gpu.memory_free_bytes()
                        });
                        prop_assert!(!fits, "refused without need: {refusal}");
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
