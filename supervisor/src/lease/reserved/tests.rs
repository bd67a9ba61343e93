//! Reservations: who may have them, what counts, and what is kept from whom.

use super::super::book::Held;
use super::super::capacity::capacities;
use super::super::plans::Times;
use super::super::quota::Tally;
use super::super::record::sample;
use super::*;
use gpool_policy::deadline::{Job, Plan};
use gpool_protocol::{ContainerId, GpuUuid};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

const GIB: u64 = 1 << 30;

fn configuration(text: &str) -> Configuration {
    gpool_configuration::parse(Path::new("config.toml"), text).unwrap()
}

fn whom(team: Option<&str>, uid: u32, priority: Priority) -> Whom {
    Whom { team: team.map(str::to_owned), uid, priority }
}

fn place(id: &str, team: Option<&str>, (gpu, permille, gib): (u32, u16, u64)) -> Held {
    let record = Record {
        lease_id: LeaseId(id.into()),
        team: team.map(str::to_owned),
        gpu_uuid: GpuUuid(format!("GPU-{gpu}")),
        fraction_permille: permille,
        memory_cap_bytes: gib * GIB,
        ..sample()
    };
    Held { record, gpus: vec![gpu as usize], until: Instant::now() }
}

/// GPU, permille and GiB kept, permille missing.
type Told = (usize, u16, u64, u16);

/// What is kept beside these places on two GPUs of 24 GiB, of each reservation.
fn kept(text: &str, places: &[Held]) -> Vec<(String, Vec<Told>)> {
    with_scene(text, places, |scene| {
        let of = |kept: Kept<'_>| {
            let seat = |its: &Seat| (its.gpu, its.kept.permille, its.kept.bytes / GIB, its.missing.permille);
            (kept.name.to_owned(), kept.seats.iter().map(seat).collect())
        };
        scene.kept().into_iter().map(of).collect()
    })
}

fn with_scene<T>(text: &str, places: &[Held], look: impl FnOnce(&mut Scene<'_>) -> T) -> T {
    let mut gpus = [Gpu::sample(0), Gpu::sample(1)];
    gpus[1].name = "another GPU".into();
    let book = Book { held: places.to_vec(), ..Book::default() };
    let capacities = capacities(&gpus, &[], &[], &book, None);
    let reserved = Reserved::of(&configuration(text), (&book, &gpus), None);
    let (is_imagined, is_unheard, is_emptied) = (true, false, false);
    look(&mut Scene {
        book: &book,
        own: None,
        gpus: &gpus,
        capacities,
        standing: None,
        reserved,
        gone: Default::default(),
        is_imagined,
        is_unheard,
        is_emptied,
        may_enter_closed: false,
        plans: Default::default(),
    })
}

#[test]
fn teams_users_and_priorities_may_have_it_as_it_says() {
    let may = |keys: &str, team: Option<&str>, uid: u32, priority: Priority| {
        let configuration = configuration(&format!("[reservation.r]\n{keys}\n"));
        whom(team, uid, priority).may_have(&configuration.reservation["r"])
    };
    let both = "teams = [\"vision\", \"speech\"]\nusers = [1000]";
    assert!(may(both, Some("speech"), 0, Priority::Scavenger) && may(both, None, 1000, Priority::Burst));
    assert!(!may(both, Some("visions"), 0, Priority::Guaranteed) && !may(both, None, 0, Priority::Guaranteed));
    let high = "priority = \"burst\"";
    assert!(may(high, None, 0, Priority::Burst) && !may(high, None, 0, Priority::Scavenger));
    let high_of_team = "teams = [\"vision\"]\npriority = \"guaranteed\"";
    assert!(may(high_of_team, Some("vision"), 0, Priority::Guaranteed));
    assert!(
        !may(high_of_team, Some("vision"), 0, Priority::Burst) && !may(high_of_team, None, 0, Priority::Guaranteed)
    );
}

#[test]
fn what_those_have_counts_once_also_of_two_reservations() {
    let text = "[reservation.a]\nteams = [\"vision\"]\nfraction = \"0.4\"\nmemory = \"4GiB\"\n\
        [reservation.b]\nteams = [\"vision\", \"speech\"]\nfraction = \"0.3\"\nmemory = \"8GiB\"\n";
    let one = |seats: &[Told]| seats.to_vec();
    assert_eq!(kept(text, &[]), [("a".into(), one(&[(0, 400, 4, 0)])), ("b".into(), one(&[(0, 300, 8, 0)]))]);
    let has = [place("01", Some("vision"), (0, 500, 6))];
    let beside = kept(text, &has);
    assert_eq!(beside[0].1, [(0, 0, 0, 0)]);
    assert_eq!(beside[1].1, [(0, 200, 6, 0)], "a tenth and 2 GiB are beyond the first");
    let others = [place("01", None, (0, 500, 6)), place("02", None, (1, 850, 6))];
    assert_eq!(kept(text, &others)[0].1, [(0, 400, 4, 0)], "others' count for nothing");
    assert_eq!(kept(text, &others)[1].1, [(1, 300, 8, 150)], "where less is missing, beside the first");
    let model = "[reservation.a]\nusers = [0]\nmodel = \"another\"\n[reservation.b]\nusers = [1]\nmodel = \"H100\"\n";
    let on = kept(model, &[]);
    assert_eq!((on[0].1.as_slice(), on[1].1.len()), (&[(1, 1000, 24, 0)][..], 0), "there is no such GPU");
}

#[test]
fn times_and_leads_say_when_it_is_kept() {
    let names = |text: &str| with_scene(text, &[], |scene| scene.kept().len());
    let in_an_hour = clock::local_now().saturating_add(jiff::Span::new().hours(1)).strftime("%F %T").to_string();
    let table =
        |ahead: u64| format!("[reservation.a]\nusers = [0]\nfrom = \"{in_an_hour}\"\nahead_seconds = {ahead}\n");
    assert_eq!((names(&table(0)), names(&table(3400)), names(&table(3700))), (0, 0, 1));
    let grace = |enabled: bool| format!("[preemption]\nenabled = {enabled}\ngrace_seconds = 3700\n");
    assert_eq!((names(&(table(0) + &grace(true))), names(&(table(0) + &grace(false)))), (1, 0));
    assert_eq!(names(&format!("[reservation.a]\nusers = [0]\nuntil = \"{in_an_hour}\"\n")), 1);
    assert_eq!(names("[reservation.a]\nusers = [0]\nuntil = \"2026-01-01\"\n"), 0);
}

#[test]
fn it_is_kept_from_others_alone_and_who_goes_is_forgotten() {
    let text = "[reservation.a]\nteams = [\"vision\"]\nfraction = \"0.4\"\n";
    let places = [place("01", Some("vision"), (0, 100, 1)), place("02", None, (0, 300, 1))];
    with_scene(text, &places, |scene| {
        let (vision, other) = (whom(Some("vision"), 0, Priority::Burst), whom(None, 0, Priority::Guaranteed));
        let taken = scene.beside(&other, (&[], &[]));
        assert_eq!((taken.len(), taken[0].demand.fraction_permille), (1, 300));
        let wants = |permille| Taken { indices: vec![0], demand: Demand::exactly(Part { permille, bytes: GIB }) };
        let broken = |whom: &Whom, more: &Taken| scene.tables_broken_by(whom, more, (&[], &[]));
        assert!(broken(&other, &wants(600)).is_empty(), "there is another GPU for it");
        let both = Taken { indices: vec![0, 1], ..wants(900) };
        assert_eq!(broken(&other, &both), ["[reservation.a]"]);
        assert!(broken(&vision, &both).is_empty());
        assert!(scene.beside(&vision, (&[], &[])).is_empty());
        scene.reserved.forget(|id| id.0 == "01");
        assert_eq!(scene.beside(&other, (&[], &[]))[0].demand.fraction_permille, 400);
        let without_end = Scene { reserved: scene.reserved.for_good(), ..scene.clone() };
        assert_eq!(without_end.kept().len(), 1);
    });
    let ends = format!("{text}until = \"2999-01-01\"\n");
    with_scene(&ends, &[], |scene| assert!(scene.reserved.for_good().tables.is_empty() && scene.kept().len() == 1));
}

#[test]
fn what_a_budget_has_taken_and_other_models_count_as_they_are_meant() {
    let mut beyond = place("01", Some("vision"), (0, 300, 4));
    (beyond.record.priority, beyond.record.has_no_hours) = (Priority::Burst, true);
    let text =
        "[reservation.a]\nteams = [\"vision\"]\npriority = \"guaranteed\"\nfraction = \"0.5\"\nmemory = \"8GiB\"\n";
    assert_eq!(kept(text, &[beyond])[0].1, [(0, 500, 4, 0)], "it is promised no share, and has its memory");
    let on_another = place("01", Some("vision"), (0, 500, 8));
    let model = format!("{text}model = \"another\"\n");
    assert_eq!(kept(&model, &[on_another])[0].1, [(1, 500, 8, 0)], "what is on other models counts for nothing");
}

#[test]
fn who_waits_and_may_have_it_counts_as_if_it_were_there() {
    let text = "[reservation.a]\nteams = [\"vision\"]\nfraction = \"0.5\"\nmemory = \"8GiB\"\n";
    with_scene(text, &[place("01", None, (1, 900, 8))], |scene| {
        let (vision, other) = (whom(Some("vision"), 0, Priority::Guaranteed), whom(None, 0, Priority::Guaranteed));
        let waits = [Taken { indices: vec![0], demand: Demand::exactly(Part { permille: 400, bytes: 8 * GIB }) }];
        let kept_beside = |whose: &Option<Whom>| {
            let all = scene.beside(&other, (&waits, std::slice::from_ref(whose)));
            all.iter().map(|taken| taken.demand.fraction_permille).collect::<Vec<_>>()
        };
        let (its, others) = (Some(vision.clone()), Some(other.clone()));
        assert_eq!((kept_beside(&its), kept_beside(&others)), (vec![400, 100], vec![400, 500]));
        assert_eq!(kept_beside(&None), [400, 500], "what is not there yet counts for nothing");
        let kept = scene.kept_for(&vision, (&waits, std::slice::from_ref(&its)));
        assert_eq!(kept.get(&0), Some(&Part { permille: 100, bytes: 0 }));
    });
}

#[test]
fn while_room_is_made_for_it_it_stays_there() {
    let text = "[reservation.a]\nteams = [\"vision\"]\nfraction = \"0.5\"\n";
    let places = [place("01", None, (0, 600, 4)), place("02", None, (1, 900, 4))];
    with_scene(text, &places, |scene| {
        let on = |scene: &Scene<'_>| scene.seats_of("a");
        assert_eq!(on(scene), [Gpu::sample(0).uuid], "where least is missing");
        scene.book.making_on.borrow_mut().insert("a".to_owned(), vec![Gpu::sample(1).uuid]);
        assert_eq!(on(scene), [Gpu::sample(1).uuid]);
    });
}

#[test]
fn a_newcomer_that_has_a_reservation_be_elsewhere_is_in_the_way_of_who_has_a_plan_there() {
    // A whole GPU for others, which two of them would do for.
    let text = "[reservation.all]\nteams = [\"vision\"]\n";
    with_scene(text, &[], |scene| {
        let (whom, other) = (whom(None, 0, Priority::Guaranteed), whom(Some("vision"), 0, Priority::Guaranteed));
        let on = |gpu, permille| Taken { indices: vec![gpu], demand: Demand::exactly(Part { permille, bytes: GIB }) };
        let seat = scene.kept()[0].seats[0].gpu;
        let times = Rc::new(Times::of(vec![(0, scene.clone())]));
        let plan = Plan { begins_ns: 100, ends_ns: 200, taken: on(1 - seat, 600) };
        let frames = times.frames(&whom, &[]);
        let job = Job { demand: plan.taken.demand, among: vec![0, 1], frames, length_ns: 100, begins_by_ns: 100 };
        assert!(plan.holds(&job, &[], 0));
        assert!(!Plan { taken: on(seat, 600), ..plan.clone() }.holds(&job, &[], 0), "it is reserved there");
        let (container_id, tally) = (ContainerId("planned".into()), Tally::of(&sample(), &[]));
        let one = Admitted { container_id, uid: 0, whom: whom.clone(), job, plan, tally, is_made: false };
        let plans = Plans::new(vec![one], (Rc::clone(&times), times), 0);
        let broken = |whom: &Whom, more: Taken, ends_ns| {
            let (new, nobody) = (ContainerId("new".into()), Ahead::default());
            plans.broken_by((&new, 0), (&more, whom), (&nobody, ends_ns), |_| true).len()
        };
        assert_eq!(broken(&whom, on(seat, 500), None), 1, "the reservation would have to be where it was planned");
        assert_eq!(broken(&other, on(seat, 500), None), 0, "what those have counts towards it");
        assert_eq!(broken(&whom, on(seat, 500), Some(1)), 1, "for as long as that takes to be free");
        assert_eq!((broken(&whom, on(1 - seat, 400), None), broken(&whom, on(1 - seat, 401), None)), (0, 1));
    });
}
