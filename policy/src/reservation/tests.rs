use super::*;
use crate::admission::{MemoryDemand, Site, Use, Users, place};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const TOTAL_GIB: u64 = 24;

fn gpu(index: usize, permille: u16, gib: u64) -> GpuCapacity {
    GpuCapacity {
        key: format!("GPU-{index}"),
        memory_total_bytes: TOTAL_GIB * GIB,
        memory_foreign_bytes: 0,
        fraction_leased_permille: permille,
        memory_leased_bytes: gib * GIB,
        users: Users { sliced: u32::from(permille > 0 || gib > 0), ..Users::default() },
        site: Site::default(),
    }
}

fn gpus(leased: &[(u16, u64)]) -> Vec<GpuCapacity> {
    leased.iter().enumerate().map(|(index, (permille, gib))| gpu(index, *permille, *gib)).collect()
}

fn part(permille: u16, gib: u64) -> Part {
    Part { permille, bytes: gib * GIB }
}

fn demand(permille: u16, gib: u64, count: usize) -> Demand {
    Demand { gpus: count, ..Demand::exactly(part(permille, gib)) }
}

/// GPU, permille and GiB kept, permille and GiB missing.
type Told = (usize, (u16, u64), (u16, u64));

fn told(seats: &[Seat]) -> Vec<Told> {
    let of = |part: Part| (part.permille, part.bytes / GIB);
    seats.iter().map(|seat| (seat.gpu, of(seat.kept), of(seat.missing))).collect()
}

/// One reservation on any of these GPUs.
fn ask(demand: Demand, gpus: usize) -> Ask {
    Ask { demand, among: (0..gpus).collect() }
}

/// Where it is beside what those have who may have it.
fn seats_of(leased: &[(u16, u64)], demand: Demand, held: &[(usize, Part)]) -> Vec<Told> {
    let having: Vec<Having> = held.iter().map(|(gpu, part)| Having { gpu: *gpu, part: *part, may: vec![0] }).collect();
    told(&keep(&gpus(leased), &[ask(demand, leased.len())], &having)[0])
}

#[test]
fn it_is_where_it_fits_and_least_is_broken() {
    assert_eq!(seats_of(&[(0, 0), (400, 4), (800, 4)], demand(500, 8, 1), &[]), [(1, (500, 8), (0, 0))]);
    assert_eq!(
        seats_of(&[(0, 0), (400, 4), (800, 4)], demand(500, 8, 2), &[]),
        [(0, (500, 8), (0, 0)), (1, (500, 8), (0, 0))]
    );
    let full = [(700, 4), (600, 20), (900, 1)];
    assert_eq!(seats_of(&full, demand(500, 4, 1), &[]), [(1, (500, 4), (100, 0))], "a tenth is missing there");
    assert_eq!(seats_of(&full, demand(0, 20, 1), &[]), [(2, (0, 20), (0, 0))], "memory alone");
    let whole = Demand { memory: MemoryDemand::Absent, ..demand(1000, 0, 1) };
    assert_eq!(seats_of(&[(0, 0), (0, 1)], whole, &[]), [(0, (1000, 24), (0, 0))]);
    assert_eq!(seats_of(&[(0, 0)], demand(500, 1, 2), &[]).len(), 1, "there is no other");
}

#[test]
fn beside_whom_nobody_has_a_share_all_of_it_is_missing() {
    let mut timesliced = gpus(&[(0, 0), (700, 4)]);
    timesliced[0].users.time_sliced = 1;
    let at =
        |among: &[usize]| told(&keep(&timesliced, &[Ask { demand: demand(500, 8, 1), among: among.to_vec() }], &[])[0]);
    assert_eq!(at(&[0, 1]), [(1, (500, 8), (200, 0))]);
    assert_eq!(at(&[0]), [(0, (500, 8), (500, 8))]);
}

#[test]
fn what_those_have_who_may_have_it_counts_wherever_it_is() {
    let has = [(0, part(300, 4))];
    assert_eq!(seats_of(&[(300, 4), (0, 0)], demand(500, 8, 1), &has), [(0, (200, 4), (0, 0))], "beside it");
    assert_eq!(seats_of(&[(900, 4), (0, 0)], demand(500, 8, 1), &has), [(1, (200, 4), (0, 0))], "where it is free");
    let more = [(0, part(600, 8)), (1, part(200, 1))];
    assert_eq!(seats_of(&[(600, 8), (200, 1)], demand(500, 4, 1), &more), [(0, (0, 0), (0, 0))], "all of it, and more");
    let three = [(0, part(500, 8)), (1, part(500, 8)), (2, part(200, 2))];
    let leased = [(500, 8), (500, 8), (200, 2)];
    assert_eq!(
        seats_of(&leased, demand(600, 8, 2), &three),
        [(0, (0, 0), (0, 0)), (1, (0, 0), (0, 0))],
        "a tenth on each"
    );
    assert_eq!(
        seats_of(&[(0, 0), (700, 0), (1000, 2)], demand(500, 8, 2), &[(2, part(200, 2))]),
        [(0, (500, 8), (0, 0)), (1, (300, 6), (0, 0))],
        "it counts where else something would be missing"
    );
}

#[test]
fn it_does_not_move_to_where_something_is_missing() {
    // 0.3 of a full GPU, and the rest on another one, on which then is as much free as is kept.
    let has = [(0, part(300, 4))];
    assert_eq!(seats_of(&[(900, 8), (800, 8)], demand(500, 8, 1), &has), [(1, (200, 4), (0, 0))]);
}

#[test]
fn none_lacks_what_another_could_have_elsewhere() {
    let gpus = [gpu(0, 0, 0), gpu(1, 350, 20)];
    let asks = [ask(demand(300, 2, 1), 2), ask(demand(800, 20, 1), 2)];
    assert_eq!(keep(&gpus, &asks, &[]).concat().iter().map(|seat| seat.gpu).collect::<Vec<_>>(), [1, 0]);
    // The first would be on the fuller one.
    let gpus = [gpu(0, 200, 0), gpu(1, 150, 20)];
    let kept = keep(&gpus, &asks, &[]);
    assert!(is_whole(&kept), "{kept:?}");
    let one_gpu = [Ask { among: vec![0], ..asks[1].clone() }];
    let kept = keep(&gpus, &[asks[0].clone(), one_gpu[0].clone()], &[]);
    assert_eq!((kept[0][0].gpu, kept[1][0].gpu), (1, 0));
}

#[test]
fn what_somebody_has_counts_for_one_of_those_that_he_may_have() {
    let asks = [ask(demand(400, 4, 1), 1), ask(demand(300, 8, 1), 1)];
    let having = [Having { gpu: 0, part: part(500, 6), may: vec![0, 1] }];
    let kept = keep(&gpus(&[(500, 6)]), &asks, &having);
    assert_eq!((told(&kept[0]), told(&kept[1])), (vec![(0, (0, 0), (0, 0))], vec![(0, (200, 6), (0, 0))]));
}

fn parts() -> impl Strategy<Value = Vec<(u16, u64)>> {
    proptest::collection::vec((0u16..=500, 0u64..=TOTAL_GIB / 2), 1..4)
}

proptest! {
    /// With two reservations, one of which some have a part of already: who may have it can have what is kept where nothing is
    /// missing, and who takes what makes neither lack more takes nothing of it, however they move.
    #[test]
    fn nobody_else_is_given_it_and_it_can_be_had(
        (others, members) in (parts(), parts()),
        first in (0u16..=1000, 0u64..=TOTAL_GIB, 1usize..4),
        second in (0u16..=1000, 0u64..=TOTAL_GIB, 1usize..3),
        wanted in proptest::collection::vec((1u16..=1000, 0u64..=TOTAL_GIB, any::<bool>()), 1..6),
    ) {
        let mut gpus = gpus(&others);
        let member = |(gpu, (permille, gib)): (usize, &(u16, u64))| Having { gpu, part: part(*permille, *gib), may: vec![0] };
        let having: Vec<Having> = members.iter().take(gpus.len()).enumerate().map(member).collect();
        let enter = |gpus: &mut Vec<GpuCapacity>, gpu: usize, demand: Demand| Taken { indices: vec![gpu], demand }.enter(gpus);
        having.iter().for_each(|its| enter(&mut gpus, its.gpu, Demand::exactly(its.part)));
        let asks = [first, second].map(|(permille, gib, count)| ask(demand(permille, gib, count), gpus.len()));
        let before = keep(&gpus, &asks, &having);
        let mut now = before.clone();
        for (permille, gib, is_whole) in wanted {
            let usage = if is_whole { Use::Whole } else { Use::Sliced };
            let other = Demand { usage, ..demand(permille, gib, 1) };
            let Ok(placed) = place(&gpus, &other) else { continue };
            let mut with_it = gpus.clone();
            enter(&mut with_it, placed.indices[0], other);
            let after = keep(&with_it, &asks, &having);
            if lacking_more(&now, &after).is_empty() {
                (gpus, now) = (with_it, after);
            }
        }
        // Whoever may have it comes for all that is kept, on each GPU, one reservation after the other.
        let mut full = gpus.clone();
        for seat in now.iter().flatten().filter(|_| is_whole(&before)) {
            let its = Demand::exactly(seat.kept);
            let is_free = seat.kept.permille == 0 || place(&full[seat.gpu..=seat.gpu], &its).is_ok();
            prop_assert!(is_free && seat.missing.is_none(), "{before:?} became {now:?}: {seat:?} is not free");
            seat.taken().into_iter().for_each(|taken| taken.enter(&mut full));
        }
    }
}
