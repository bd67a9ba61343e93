//! The loop itself, with a real region and its bell.

use super::*;
use crate::region::{ControlPage, RegionHost};
use gpool_policy::slice::Share;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

const IDLE: u32 = 0;
const WAITING: u32 = 2;

/// Says what the process in slot 0 wants, and rings.
fn ring(region: &RegionHost, demand: u32) {
    let file = region.report_file();
    file.write_all_at(&region.gate().0.to_le_bytes(), 68).unwrap();
    file.write_all_at(&demand.to_le_bytes(), 64).unwrap();
    rustix::io::write(region.bell(), &[0]).unwrap();
}

/// Until the gate is as it should be.
fn wait_for_gate(region: &RegionHost, open: bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while region.gate().is_open() != open {
        assert!(Instant::now() < patience, "the gate is not moved");
        std::thread::yield_now();
    }
}

/// Many processes that each work for a moment ring for each, without any malice.
#[test]
fn a_bell_that_rings_much_is_heard_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let region = Arc::new(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
    region.report_file().write_all_at(&77u64.to_le_bytes(), 0).unwrap();
    let (gatekeeper, _) = start(1, |_| {}).unwrap();
    // Without a ceiling its gate would stay open while it is idle.
    let share = Share { limit_permille: Some(1000), ..Share::of(500) };
    gatekeeper.order(Order::Join { tenant: TenantId(1), gpus: vec![0], region: region.clone(), share, debt_ns: 0 });
    // Whoever is deaf is so in each of these windows; a busy machine keeps both threads waiting in some.
    let mut windows = std::iter::repeat_with(|| unheard_in_a_window(&region)).take(10);
    let heard = windows.find(|(turns, unheard)| *turns > 100 && *unheard < 0.25);
    assert!(heard.is_some(), "in ten windows nobody listened for a quarter of the time, or it has not rung too much");
}

/// How often it rings in half a second, and in which part of that nobody listened.
fn unheard_in_a_window(region: &RegionHost) -> (u32, f64) {
    let (begin, mut unheard, mut turns) = (Instant::now(), Duration::ZERO, 0);
    while begin.elapsed() < Duration::from_millis(500) {
        let from = Instant::now();
        ring(region, WAITING);
        wait_for_gate(region, true);
        ring(region, IDLE);
        wait_for_gate(region, false);
        turns += 1;
        // A turn takes some dozen microseconds, and two waits of a millisecond where it rings too much.
        if from.elapsed() > 8 * Duration::from_nanos(DEAF_NS) {
            unheard += from.elapsed();
        }
    }
    (turns, unheard.as_secs_f64() / begin.elapsed().as_secs_f64())
}

/// Whoever may ask the socket has orders given, as many as he likes.
#[test]
fn between_two_looks_so_many_orders_are_carried_out_and_the_rest_with_the_next() {
    let (gatekeeper, mut state) = Loop::new(1, Box::new(|_| {})).unwrap();
    let (sender, answers) = channel();
    (0..2 * ORDERS + 1).for_each(|_| gatekeeper.order(Order::Statistics(sender.clone())));
    let mut rung = Vec::new();
    for expected in [ORDERS, ORDERS, 1] {
        // It would wait for ever if nothing had been said of those that are left.
        state.wakeup.wait(None, &mut rung);
        state.take_orders(&mut Vec::new());
        assert_eq!(answers.try_iter().count(), expected);
    }
}

#[test]
fn figures_of_a_moment_ago_are_not_asked_for_again() {
    let (gatekeeper, state) = Loop::new(1, Box::new(|_| {})).unwrap();
    let copy = Statistics { at_ns: clock::now_ns() + clock::ns(60), slice_ns: 7, ..Statistics::default() };
    *gatekeeper.recent.lock().unwrap() = copy.clone();
    // Nobody carries orders out here: one would wait for ever.
    assert_eq!(gatekeeper.recent_statistics(), copy);
    assert!(state.orders.try_recv().is_err());
    drop(state);
    *gatekeeper.recent.lock().unwrap() = Statistics { at_ns: clock::now_ns() - RECENT_NS, ..copy };
    assert_eq!(gatekeeper.recent_statistics(), Statistics::default(), "they are asked for anew");
}
