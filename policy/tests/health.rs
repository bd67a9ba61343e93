//! What is found of a GPU by its own figures, in virtual time.

use gpool_policy::health::{HARDWARE_THERMAL, Health, Kind, News, POWER_BRAKE, Reading, Rows, SOFTWARE_THERMAL};

const S: u64 = 1_000_000_000;
/// Clocks are held down after so long.
const THERMAL: u64 = 60 * S;

fn rows(correctable: u32, uncorrectable: u32, is_pending: bool, has_failed: bool) -> Reading {
    Reading { rows: Some(Rows { correctable, uncorrectable, is_pending, has_failed }), ..Reading::default() }
}

fn errors(count: u64) -> Reading {
    Reading { uncorrected_errors: Some(count), ..Reading::default() }
}

fn clocks(reasons: u64) -> Reading {
    Reading { clock_reasons: Some(reasons), ..Reading::default() }
}

fn found(health: &Health) -> Vec<Kind> {
    health.standings().filter(|its| its.since_ns.is_some()).map(|its| its.kind).collect()
}

fn open(health: &Health) -> Vec<Kind> {
    health.open().collect()
}

/// Reads once each ten seconds, and gives when what was told.
fn told(health: &mut Health, seconds: std::ops::Range<u64>, by: impl Fn(u64) -> Reading) -> Vec<(u64, News)> {
    let look = |second: u64| health.look(second * S, &by(second), THERMAL).into_iter().map(move |news| (second, news));
    seconds.step_by(10).flat_map(look).collect()
}

#[test]
fn each_is_called_as_it_is_named() {
    assert!(Kind::ALL.into_iter().all(|kind| Kind::named(kind.word()) == Some(kind)));
    assert!(Kind::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(Kind::named("remap"), None);
}

#[test]
fn a_healthy_gpu_and_one_that_tells_nothing_have_no_finding() {
    let mut health = Health::default();
    let all = Reading {
        uncorrected_errors: Some(0),
        clock_reasons: Some(0x1 | 0x4),
        pcie_replays: Some(3),
        pcie_lanes: Some((16, 16)),
        ..rows(2, 0, false, false)
    };
    assert!(told(&mut health, 0..1000, |_| all).is_empty() && found(&health).is_empty());
    assert_eq!(health.standings().count(), 6, "all are known");
    let mut old = Health::default();
    assert!(told(&mut old, 0..1000, |_| Reading::default()).is_empty());
    assert_eq!(old.standings().count(), 0, "nothing is known");
}

#[test]
fn a_bus_that_sends_again_too_often_is_found_until_it_does_no_more() {
    let mut health = Health::default();
    let replays = |count: u64| Reading { pcie_replays: Some(count as u32), ..Reading::default() };
    // Eight a minute are allowed; there are six, and twelve from 300 to 600 s.
    let by = |second: u64| replays(second / 10 + second.clamp(300, 600).saturating_sub(300) / 10);
    let news = told(&mut health, 0..1000, by);
    let replay = Kind::PcieReplay;
    assert!(
        matches!(news[..], [(330..=360, News::Found(its, 1)), (630..=660, News::Over(_))] if its == replay),
        "{news:?}"
    );
    let mut slow = Health::default();
    let mut look = |minute: u64, count| slow.look(minute * 60 * S, &replays(count), THERMAL);
    assert!(look(0, 1000).is_empty(), "what was there before the first look says nothing");
    assert!(look(10, 1080).is_empty());
    assert_eq!(look(20, 1161), [News::Found(replay, 1)], "read each ten minutes");
    assert_eq!(look(21, 2), [News::Over(replay)], "a driver that was loaded anew");
}

#[test]
fn a_bus_with_fewer_lanes_than_it_could_have_is_found() {
    let mut health = Health::default();
    let lanes = |lanes, most| Reading { pcie_lanes: Some((lanes, most)), ..Reading::default() };
    assert!(health.look(0, &lanes(16, 16), THERMAL).is_empty());
    let narrow = lanes(8, 16);
    assert_eq!(health.look(S, &narrow, THERMAL), [News::Found(Kind::PcieWidth, 1)]);
    assert_eq!(narrow.figures(Kind::PcieWidth), "8 of 16");
    assert!(health.look(2 * S, &Reading::default(), THERMAL).is_empty() && found(&health) == [Kind::PcieWidth]);
    assert_eq!(health.look(3 * S, &lanes(16, 16), THERMAL), [News::Over(Kind::PcieWidth)]);
}

#[test]
fn a_test_that_failed_is_found_until_one_passes_whatever_is_read() {
    let mut health = Health::default();
    let failed = Kind::TestFailed;
    assert!(health.accept().is_empty(), "somebody opens it before anything is known");
    assert_eq!(health.look_at_tests(S, None), None);
    assert_eq!(
        health.look_at_tests(2 * S, Some(100)),
        Some(News::Found(failed, 1)),
        "news, although it was opened before"
    );
    assert_eq!((found(&health), open(&health)), (vec![failed], vec![failed]));
    assert!(told(&mut health, 3..100, |_| rows(0, 0, false, false)).is_empty() && open(&health) == [failed]);
    assert_eq!(health.accept(), [failed]);
    assert_eq!((health.look_at_tests(100 * S, Some(100)), open(&health)), (None, vec![]));
    health.forget();
    assert_eq!(found(&health), [failed], "no reading says so");
    assert_eq!(health.look_at_tests(101 * S, Some(200)), Some(News::Found(failed, 1)));
    assert_eq!(open(&health), [failed], "it has failed again");
    assert_eq!(health.look_at_tests(102 * S, None), Some(News::Over(failed)));
    assert!(found(&health).is_empty() && open(&health).is_empty());
    // What was accepted of a test of which nothing is known any more is not a later one.
    let mut again = Health::with_accepted([(failed, 100)]);
    again.look_at_tests(0, Some(100));
    assert!(open(&again).is_empty());
    again.look_at_tests(S, Some(300));
    assert_eq!(open(&again), [failed]);
}

#[test]
fn a_pending_and_a_failed_remapping_are_told_once_each_and_when_they_are_over() {
    let mut health = Health::default();
    let by = |second: u64| rows(0, 1, (100..300).contains(&second), second >= 200);
    let news = told(&mut health, 0..1000, by);
    let (pending, failure) = (Kind::RemapPending, Kind::RemapFailure);
    assert_eq!(news, [(100, News::Found(pending, 1)), (200, News::Found(failure, 1)), (300, News::Over(pending))]);
    assert_eq!((found(&health), open(&health)), (vec![failure], vec![failure]));
}

#[test]
fn what_could_not_be_read_leaves_what_was_found() {
    let mut health = Health::default();
    health.look(S, &rows(0, 1, true, false), THERMAL);
    assert!(told(&mut health, 10..500, |_| Reading::default()).is_empty());
    assert_eq!(found(&health), [Kind::RemapPending]);
    health.forget();
    assert_eq!((found(&health), health.standings().count()), (vec![], 0), "nobody reads it any more");
}

#[test]
fn errors_are_told_as_they_rise_and_a_counter_that_goes_back_begins_anew() {
    let mut health = Health::default();
    let ecc = Kind::EccUncorrected;
    assert_eq!(health.look(0, &errors(3), THERMAL), [News::Found(ecc, 1)], "those before the first look as well");
    assert!(health.look(10 * S, &errors(3), THERMAL).is_empty());
    assert_eq!(health.look(20 * S, &errors(5), THERMAL), [News::Found(ecc, 1)]);
    assert_eq!(health.look(30 * S, &errors(1), THERMAL), [News::Found(ecc, 1)], "after a reset");
    assert_eq!(health.look(40 * S, &errors(0), THERMAL), [News::Over(ecc)]);
    assert_eq!(health.standings().find(|its| its.kind == ecc).map(|its| its.count), Some(3));
}

#[test]
fn clocks_are_held_down_when_all_readings_of_a_while_say_so_and_free_again_likewise() {
    for reason in [SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE] {
        let mut health = Health::default();
        let by = |second: u64| clocks(if (100..400).contains(&second) { reason | 0x4 } else { 0x1 });
        let thermal = Kind::Thermal;
        assert_eq!(told(&mut health, 0..1000, by), [(160, News::Found(thermal, 1)), (460, News::Over(thermal))]);
    }
    // A power cap is the rule on a GPU that works, and no fault.
    assert!(told(&mut Health::default(), 0..1000, |_| clocks(0x4 | 0x8)).is_empty());
}

#[test]
fn clocks_that_are_held_down_now_and_then_are_not_told_nor_those_of_which_nothing_was_read_between() {
    let mut health = Health::default();
    let by = |second: u64| clocks(if second % 60 < 50 { SOFTWARE_THERMAL } else { 0 });
    assert!(told(&mut health, 0..5000, by).is_empty());
    let unread = |second: u64| if second % 60 == 50 { Reading::default() } else { clocks(SOFTWARE_THERMAL) };
    assert!(told(&mut health, 5000..9000, unread).is_empty(), "nobody knows of the time between");
}

#[test]
fn what_comes_and_goes_is_told_ever_more_rarely_and_counted_in_full() {
    let mut health = Health::default();
    let by = |second: u64| rows(0, 1, second.is_multiple_of(20), false);
    let news = told(&mut health, 0..7200, by);
    let begun: Vec<(u64, u64)> = news
        .iter()
        .filter_map(|(second, news)| if let News::Found(_, times) = news { Some((*second, *times)) } else { None })
        .collect();
    assert!(begun.len() < 24, "{begun:?}");
    assert_eq!(begun[0], (0, 1));
    assert!(begun.last().is_some_and(|(_, times)| *times >= 20), "those that were kept back: {begun:?}");
    let over = news.iter().filter(|(_, news)| matches!(news, News::Over(_))).count();
    assert!(over <= begun.len(), "what was not told is not told to be over");
    assert_eq!(health.standings().find(|its| its.kind == Kind::RemapPending).map(|its| its.count), Some(360));
}

#[test]
fn what_somebody_has_accepted_is_open_again_when_it_becomes_more_or_comes_back() {
    let mut health = Health::default();
    let pending = Kind::RemapPending;
    health.look(0, &rows(0, 1, true, false), THERMAL);
    assert_eq!((open(&health), health.accept()), (vec![pending], vec![pending]));
    health.look(10 * S, &rows(0, 1, true, false), THERMAL);
    assert!(open(&health).is_empty() && found(&health) == [pending]);
    assert!(health.standings().any(|its| its.kind == pending && its.is_accepted));
    health.look(20 * S, &rows(0, 2, true, false), THERMAL);
    assert_eq!(open(&health), [pending], "it is another row");
    health.accept();
    health.look(30 * S, &rows(0, 2, false, false), THERMAL);
    health.look(40 * S, &rows(0, 2, true, false), THERMAL);
    assert_eq!(open(&health), [pending], "it was over meanwhile");
}

#[test]
fn what_was_accepted_is_so_after_a_restart_also_before_the_first_reading() {
    let mut health = Health::default();
    health.look(0, &rows(0, 1, true, false), THERMAL);
    health.accept();
    let mut again = Health::with_accepted(health.accepted());
    again.look(0, &rows(0, 1, true, false), THERMAL);
    assert!(open(&again).is_empty());
    let mut anew = Health::default();
    assert!(anew.accept().is_empty(), "nothing is known yet");
    anew.look(0, &rows(0, 1, true, false), THERMAL);
    assert!(open(&anew).is_empty());
    anew.look(S, &rows(0, 1, true, true), THERMAL);
    assert_eq!(open(&anew), [Kind::RemapFailure], "of what was read no more is accepted");
    let mut divided = Health::default();
    divided.accept();
    divided.look(0, &errors(0), THERMAL);
    divided.look(S, &rows(0, 1, true, false), THERMAL);
    assert_eq!(open(&divided), [Kind::RemapPending], "the first reading had nothing of it");
    let mut healed = Health::with_accepted([(Kind::RemapPending, 1)]);
    healed.look(0, &rows(0, 1, false, false), THERMAL);
    assert_eq!(healed.accepted().count(), 0);
}

#[test]
fn errors_after_a_reset_are_others_than_those_that_were_accepted() {
    let mut health = Health::default();
    health.look(0, &errors(5), THERMAL);
    health.accept();
    assert!(open(&health).is_empty());
    let mut booted = Health::with_accepted(health.accepted());
    health.look(S, &errors(2), THERMAL);
    assert_eq!(open(&health), [Kind::EccUncorrected]);
    booted.look(0, &errors(2), THERMAL);
    assert_eq!(open(&booted), [Kind::EccUncorrected]);
}

#[test]
fn a_finding_has_the_figures_that_were_read() {
    let reading = Reading {
        uncorrected_errors: Some(7),
        clock_reasons: Some(HARDWARE_THERMAL | POWER_BRAKE),
        temperature_celsius: Some(93),
        ..rows(2, 1, true, false)
    };
    let figures = Kind::ALL.map(|kind| reading.figures(kind));
    assert_eq!(figures[1], "rows replaced so far: 2 for correctable errors, 1 for others");
    assert_eq!(figures[2], "7 since its driver was loaded or it was reset");
    assert_eq!(figures[3], "hardware slowdown by heat, power brake, 93 C");
    assert!(Kind::ALL.into_iter().all(|kind| Reading::default().figures(kind).is_empty()));
}
