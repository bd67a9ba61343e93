//! The loop itself, with a real region and its bell.

use super::*;
use crate::gatekeeper::tenant::Heard;
use crate::region::{ControlPage, Holder, RegionHost};
use gpool_policy::slice::Share;
use gpool_shared_region::{BELL_FILE, SLOT_BYTES};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const IDLE: u32 = 0;
const WAITING: u32 = 2;

/// Says what the process in slot 0 wants, and rings.
fn ring(region: &RegionHost, demand: u32) {
    let file = region.report_file();
    file.write_all_at(&region.gate().0.to_le_bytes(), 68).unwrap();
    file.write_all_at(&demand.to_le_bytes(), 64).unwrap();
    rustix::io::write(region.bell().unwrap(), &[0]).unwrap();
}

/// Until the gate is open. As a process does, it asks anew at each word: one that does not look is not waited for.
fn wait_until_open(region: &RegionHost) {
    let patience = Instant::now() + Duration::from_secs(30);
    let mut asked = region.gate();
    while !region.gate().is_open() {
        assert!(Instant::now() < patience, "the gate is not opened");
        if region.gate() != asked {
            asked = region.gate();
            ring(region, WAITING);
        }
        std::thread::yield_now();
    }
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
        wait_until_open(region);
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

/// A lease with one process in slot 0, which joins. Without a ceiling its gate would stay open while it is idle.
fn join(gatekeeper: &Gatekeeper, id: u64, dir: &Path) -> Arc<RegionHost> {
    let region = Arc::new(RegionHost::create_unmounted(dir, &ControlPage::of_half()));
    region.report_file().write_all_at(&77u64.to_le_bytes(), 0).unwrap();
    let share = Share { limit_permille: Some(1000), ..Share::of(300) };
    gatekeeper.order(Order::Join { tenant: TenantId(id), gpus: vec![0], region: region.clone(), share, debt_ns: 0 });
    region
}

/// Asks for the GPU and gives it back, so many times.
fn takes_turns(region: &RegionHost, turns: usize) {
    for _ in 0..turns {
        ring(region, WAITING);
        wait_until_open(region);
        ring(region, IDLE);
        wait_for_gate(region, false);
    }
}

#[test]
fn a_bell_that_cannot_be_read_keeps_nobody_but_its_own_lease_waiting() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (sender, notices) = channel();
    let (gatekeeper, _) = start(1, move |notice| sender.send(notice).unwrap_or_default()).unwrap();
    let neighbour = join(&gatekeeper, 2, dirs[1].path());
    let liar = join(&gatekeeper, 1, dirs[0].path());
    takes_turns(&neighbour, 1);
    let Some(holder) = Holder::of_pipe(&dirs[0].path().join(BELL_FILE)) else { return };
    // Longer than it takes until the bell is to be emptied, and until that is a breach.
    let mut is_told = false;
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_told {
        takes_turns(&neighbour, 1);
        std::thread::sleep(Duration::from_millis(5));
        is_told = notices.try_iter().any(|notice| matches!(notice, Notice::KeepsWaiting { tenant: TenantId(1) }));
        assert!(Instant::now() < patience, "nobody is told");
    }
    assert!(gatekeeper.answers_within(Duration::from_secs(5)));
    drop(holder);
    takes_turns(&liar, 10);
    assert_eq!(gatekeeper.leave(TenantId(1)).len(), 1);
}

/// After a restart: without a supervisor it would run unpaced.
#[test]
fn a_lease_whose_bell_cannot_be_opened_is_kept_and_heard_once_it_can() {
    let dir = tempfile::tempdir().unwrap();
    drop(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
    let Some(holder) = Holder::of_pipe(&dir.path().join(BELL_FILE)) else { return };
    let (gatekeeper, _) = start(1, |_| {}).unwrap();
    let region = Arc::new(RegionHost::open(dir.path(), 0).unwrap());
    region.report_file().write_all_at(&77u64.to_le_bytes(), 0).unwrap();
    let share = Share { limit_permille: Some(1000), ..Share::of(300) };
    gatekeeper.order(Order::Join { tenant: TenantId(1), gpus: vec![0], region: region.clone(), share, debt_ns: 0 });
    assert!(gatekeeper.answers_within(Duration::from_secs(5)) && region.bell().is_none());
    drop(holder);
    let patience = Instant::now() + Duration::from_secs(30);
    while region.bell().is_none() {
        assert!(Instant::now() < patience, "it is not opened");
        std::thread::yield_now();
    }
    takes_turns(&region, 10);
}

#[test]
fn what_a_full_bell_holds_is_taken_out_and_the_next_who_ring_are_heard() {
    let dir = tempfile::tempdir().unwrap();
    let (gatekeeper, _) = start(1, |_| {}).unwrap();
    let region = join(&gatekeeper, 1, dir.path());
    while rustix::io::write(region.bell().unwrap(), &[0; 4096]).is_ok() {}
    let patience = Instant::now() + Duration::from_secs(30);
    while rustix::io::write(region.bell().unwrap(), &[9]).is_err() {
        assert!(Instant::now() < patience, "it stays full");
        std::thread::yield_now();
    }
    takes_turns(&region, 100);
    wait_for_slots(&region, 10);
}

/// Until it is known by its bell that so many slots may be in use.
fn wait_for_slots(region: &RegionHost, slots: usize) {
    let patience = Instant::now() + Duration::from_secs(30);
    while region.slots_rung() != slots {
        assert!(Instant::now() < patience, "{} slots", region.slots_rung());
        std::thread::yield_now();
    }
}

/// As on a kernel that tells of a ring only when the bell was empty.
#[test]
fn a_bell_that_is_emptied_after_each_ring_is_heard_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (gatekeeper, mut state) = Loop::new(1, Box::new(|_| {})).unwrap();
    state.wakeup.tells_each_ring = false;
    std::thread::spawn(move || state.run());
    let region = join(&gatekeeper, 1, dir.path());
    takes_turns(&region, 300);
    rustix::io::write(region.bell().unwrap(), &[20]).unwrap();
    wait_for_slots(&region, 21);
}

/// A process that has just come is seen with its first ring, though nobody has read which slot that was from.
#[test]
fn who_rings_from_a_new_slot_is_found_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let region = Arc::new(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
    let mut tenant = Tenant::new(TenantId(1), vec![0], region.clone(), &mut Vec::new());
    let mut found = |taken: &[u64]| {
        for slot in taken {
            region.report_file().write_all_at(&7u64.to_le_bytes(), slot * SLOT_BYTES as u64).unwrap();
        }
        let mut notices = Vec::new();
        tenant.collect(&mut Report::new(), &mut Heard::default(), &mut notices);
        notices.len()
    };
    assert_eq!((found(&[]), found(&[0]), found(&[1, 2, 3]), found(&[3])), (0, 1, 3, 0));
    assert_eq!(found(&[6]), 0, "one that was there before it has died meanwhile: the bell says it soon");
    rustix::io::write(region.bell().unwrap(), &[6]).unwrap();
    region.hear();
    assert_eq!(found(&[]), 1);
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
