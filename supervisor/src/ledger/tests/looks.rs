//! Charges are looked at once a second, and the ledger is written whenever it is.

use super::*;
use crate::lease::{Book, ReadAhead, lease_in, statements};

/// Looks are a little further apart than a second, so that of ten seconds some have nine and some ten.
const LOOKS_NS: u64 = 1_070_000_000;

fn now(at_ns: u64) -> Moment {
    Moment { now_ns: at_ns, unix_ms: BEGUN_S * 1000 + at_ns / 1_000_000 }
}

#[test]
fn who_has_just_its_share_left_nothing_of_it_and_had_no_more() {
    let (folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let lease = lease_in(folder.path(), "01");
    let mut book = Book { leases: [(lease.record.lease_id.clone(), lease)].into(), ..Book::default() };
    let (mut look_ns, mut spans) = (0, Vec::new());
    // Somebody asks each half second, of which none is that of a look.
    for at_ns in (1..=400).map(|step| step * S / 2) {
        while look_ns + LOOKS_NS <= at_ns {
            look_ns += LOOKS_NS;
            let its = book.leases.values_mut().next().unwrap();
            its.note_charges(0, look_ns, look_ns * 3 / 10, 0);
            book.charged_until_ns = look_ns;
        }
        let moment = now(at_ns).of_charges(book.charged_until_ns);
        let (running, _) = statements(&mut book, moment.now_ns, &ReadAhead::default());
        let all: Vec<&Statement> = running.iter().collect();
        let (batch, next) = life.balance.next(moment, (&[gpu()], &drawn(0)), &all);
        life.store.write((&batch, &Unwritten::default()), (&facts(7), ""), moment, "a").unwrap();
        if next.closes_ns() != life.balance.closes_ns() {
            spans.push(moment.now_ns);
        }
        life.balance = next;
    }
    let had = life.usage(UsageBy::Lease).total;
    // Until the first look nothing is known; a nanosecond is cut off of each part.
    let first_ns = LOOKS_NS * 3 / 10;
    assert!(had.burst_gpu_ns <= first_ns && had.idle_gpu_ns <= first_ns, "{had:#?}");
    assert_eq!(had.used_gpu_ns, look_ns * 3 / 10);
    assert!(had.reserved_gpu_ns.abs_diff(had.used_gpu_ns) <= first_ns, "{had:#?}");
    assert!(spans.windows(2).all(|pair| (10 * S..11 * S + LOOKS_NS).contains(&(pair[1] - pair[0]))), "{spans:?}");
}

#[test]
fn a_look_that_does_not_come_is_not_waited_for() {
    let until = |at_s: u64, charged_s: u64| now(at_s * S).of_charges(charged_s * S);
    assert_eq!(until(50, 0), now(50 * S), "there was none yet");
    assert_eq!(until(50, 49), now(49 * S));
    assert_eq!(until(50, 20), now(40 * S));
    assert_eq!(until(50, 51), now(50 * S));
}
