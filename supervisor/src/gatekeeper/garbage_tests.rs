//! Reports of which nothing is true, over real regions: nothing breaks, and a neighbour has its turn.

use super::tests::{Stage, stand_at_the_gate};
use super::*;
use crate::region::RegionHost;
use gpool_policy::slice::Share;
use gpool_shared_region::{REPORT_BYTES, SLOT_BYTES, SLOTS};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pseudo-random words. Source: Marsaglia, Xorshift RNGs, 2003.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A word that a tenant might write: small, extreme, near now, or anything.
    fn word(&mut self) -> u64 {
        let now_ns = clock::now_ns();
        match self.next() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => self.next() % 4,
            3 => now_ns,
            4 => now_ns.wrapping_add(self.next() % 10_000_000_000),
            5 => now_ns.wrapping_sub(self.next() % 10_000_000_000),
            6 => 1 << (self.next() % 64),
            _ => self.next(),
        }
    }
}

/// Writes garbage into some words of a report, or into all of them, or cuts it short.
fn write_garbage(region: &RegionHost, random: &mut Random) {
    let file = region.report_file();
    match random.next() % 8 {
        0 => drop(file.set_len(random.next() % (REPORT_BYTES as u64 + 1))),
        1 => {
            let bytes: Vec<u8> = (0..REPORT_BYTES / 8).flat_map(|_| random.word().to_le_bytes()).collect();
            file.write_all_at(&bytes, 0).unwrap();
        }
        _ => {
            for _ in 0..64 {
                // The head of a slot holds most of what is read.
                let slot = random.next() % SLOTS as u64 * SLOT_BYTES as u64;
                let offset = slot + random.next() % (if random.next().is_multiple_of(2) { 18 } else { 240 }) * 8;
                file.write_all_at(&random.word().to_le_bytes(), offset).unwrap();
            }
        }
    }
}

fn clear(region: &RegionHost) {
    region.report_file().set_len(0).unwrap();
    region.report_file().set_len(REPORT_BYTES as u64).unwrap();
}

/// Lets the liar stop lying; the neighbour must be served soon.
fn neighbour_is_served(stage: &mut Stage, liar: &RegionHost, neighbour: &RegionHost) {
    clear(liar);
    stage.look(1);
    stand_at_the_gate(neighbour);
    let patience = Instant::now() + Duration::from_secs(5);
    while !neighbour.gate().is_open() {
        assert!(Instant::now() < patience, "the neighbour is not served");
        stand_at_the_gate(neighbour);
        stage.look(2);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(stage.charged_ns(2), [(0, 0)], "nothing that another says is charged to the neighbour");
}

#[test]
fn whatever_a_tenant_writes_breaks_nothing_and_is_charged_to_nobody_else() {
    let mut random = Random(0x5eed);
    let mut stage = Stage::new(1);
    let (liar, neighbour) = (stage.join(1, &[0], Share::of(300)), stage.join(2, &[0], Share::of(300)));
    // Slots are read up to the highest that has rung.
    rustix::io::write(liar.bell().unwrap(), &[u8::MAX]).unwrap();
    liar.hear();
    for _ in 0..400 {
        write_garbage(&liar, &mut random);
        stage.look(1);
    }
    // One period of the gatekeeper: however many registrations were made up.
    assert!(stage.notices.len() <= 4 * SLOTS, "{} notices", stage.notices.len());
    neighbour_is_served(&mut stage, &liar, &neighbour);
}

#[test]
fn a_report_that_is_written_while_it_is_read_breaks_nothing() {
    let mut stage = Stage::new(1);
    let (liar, neighbour) = (stage.join(1, &[0], Share::of(300)), stage.join(2, &[0], Share::of(300)));
    rustix::io::write(liar.bell().unwrap(), &[u8::MAX]).unwrap();
    liar.hear();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0xfeed);
            while !is_over.load(Ordering::Relaxed) {
                write_garbage(&liar, &mut random);
            }
        });
        (0..400).for_each(|_| stage.look(1));
        is_over.store(true, Ordering::Relaxed);
    });
    neighbour_is_served(&mut stage, &liar, &neighbour);
}
