//! What budgets count is what the ledger says was promised, added up as it is written as much as read from the file.

use super::*;
use crate::lease::Holder;
use crate::ledger::spent::{Snapshot, Spent};
use gpool_protocol::Priority;

const DAY_S: u64 = 86_400;
const TODAY: (u64, u64) = (BEGUN_S - BEGUN_S % DAY_S, BEGUN_S - BEGUN_S % DAY_S + DAY_S);

fn team(name: &str) -> Holder {
    Holder::Team(name.into())
}

/// Enters the leases, and what that adds.
fn enter(life: &mut Life, spent: &mut Spent, (second, slices): (u64, u8), all: &[Statement]) {
    let all: Vec<&Statement> = all.iter().collect();
    let (batch, next) = life.balance.next(at(second), (&[gpu()], &drawn(0)), &all);
    life.store.write((&batch, &Unwritten::default()), (&facts(slices), ""), at(second), life.boot).unwrap();
    spent.note(&batch, (&facts(slices), ""));
    life.balance = next;
}

fn read_of(path: &Path, unix_s: u64) -> rusqlite::Result<Spent> {
    Snapshot::of(path)?.read(unix_s)
}

/// What the file says that everybody in it was promised.
fn read(life: &Life, second: u64) -> Spent {
    read_of(&life.path, BEGUN_S + second).unwrap()
}

#[test]
fn what_is_added_up_is_what_the_file_says_also_of_a_span_that_is_not_over() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let mut spent = read(&life, 0);
    enter(&mut life, &mut spent, (0, 7), &[]);
    let of_user = |mut statement: Statement| {
        statement.facts.uid = 1000;
        statement
    };
    let low = |second| {
        let mut statement = lease("04", "red", second, 0);
        statement.facts.priority = Priority::Burst.text();
        statement.reserved_ns = 0;
        statement
    };
    let whose = [team("red"), team("blue"), Holder::NoTeam, Holder::User(0), Holder::User(1000)];
    let figures = |spent: &Spent| whose.each_ref().map(|holder| spent.between(holder, TODAY));
    for second in [3, 7, 10, 14, 21, 22] {
        // It uses nothing, little, and more than its share: that makes no difference to what it was promised.
        let busy = lease("01", "red", second, second * S);
        let leases = [busy, lease("02", "blue", second, S), of_user(lease("03", "", second, 0)), low(second)];
        enter(&mut life, &mut spent, (second, 7), &leases);
        assert_eq!(figures(&spent), figures(&read(&life, second)), "at second {second}");
    }
    assert_eq!(figures(&spent), [66 * S / 10, 66 * S / 10, 66 * S / 10, 132 * S / 10, 66 * S / 10]);
    // The next life reads what is written and goes on from there.
    let mut life = Life::begin(&path, "a", 23);
    let mut spent = read(&life, 23);
    assert_eq!(figures(&spent)[0], 66 * S / 10);
    let again = taken_over(23, 33, lease("01", "red", 33, 40 * S));
    enter(&mut life, &mut spent, (33, 7), &[again]);
    assert_eq!(figures(&spent), figures(&read(&life, 33)));
    assert_eq!(figures(&spent)[0], 99 * S / 10, "the time without a supervisor too: it was promised");
}

#[test]
fn an_instance_counts_by_its_part_and_what_is_over_is_forgotten() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let mut spent = read(&life, 0);
    let mut of_mig = lease("01", "red", 70, 0);
    of_mig.facts.mechanism = Mechanism::Mig;
    enter(&mut life, &mut spent, (70, 2), &[of_mig]);
    // What is cut off of parts of a nanosecond comes to one for each line.
    let is_all = |ns: u64| ns <= 6 * S && 6 * S - ns < 10;
    let of_red = |spent: &Spent, span| spent.between(&team("red"), span);
    assert!(is_all(of_red(&spent, TODAY)) && is_all(of_red(&read(&life, 70), TODAY)));
    for (from, to) in [(0, TODAY.0), (TODAY.1, TODAY.1 + 365 * DAY_S)] {
        assert_eq!(of_red(&spent, (from, to)), 0, "a clock that is wrong by days counts other days");
    }
    // Of a long month nothing is forgotten before it is over.
    assert!(is_all(of_red(&read(&life, 31 * DAY_S), TODAY)));
    assert_eq!(of_red(&read(&life, 33 * DAY_S), TODAY), 0);
    let day = |number: u64| lease("02", "blue", number * DAY_S, 0);
    for number in 1..100 {
        enter(&mut life, &mut spent, (number * DAY_S, 7), &[day(number)]);
    }
    let of_blue = |from: u64, to: u64| spent.between(&team("blue"), (TODAY.0 + from * DAY_S, TODAY.0 + to * DAY_S));
    assert_eq!(of_blue(50, 60), 10 * DAY_S * S * 3 / 10);
    assert_eq!(of_blue(0, 30), 0, "no more is kept than that takes");
}

/// Whoever else has the file stands for a disk that takes nothing.
#[test]
fn what_is_spent_is_known_also_where_nothing_can_be_written() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let mut spent = read(&life, 0);
    enter(&mut life, &mut spent, (10, 7), &[lease("01", "red", 10, 0)]);
    drop(life);
    let of_red = |spent: &Spent| spent.between(&team("red"), TODAY);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (store, _) = Store::open(&path, "a").unwrap();
    assert_eq!(of_red(&read_of(&path, BEGUN_S).unwrap()), of_red(&spent));
    drop(store);
    // And where it cannot even be opened for that.
    other.execute_batch("ROLLBACK; PRAGMA user_version = 99").unwrap();
    let opened = Store::open(&path, "a").ok();
    assert!(opened.is_none() && of_red(&spent) > 0);
    assert_eq!(of_red(&read_of(&path, BEGUN_S).unwrap()), of_red(&spent));
    assert!(Snapshot::of(&path.with_extension("absent")).is_err());
}

/// A supervisor that is new on a host reads what is spent before it gives the file its new tables, which takes minutes.
#[test]
fn what_is_spent_is_read_of_a_file_that_has_not_the_newest_tables() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let mut spent = read(&life, 0);
    let slice = lease("01", "red", 10, S);
    enter(&mut life, &mut spent, (10, 7), &[slice, lease("02", "", 10, 0)]);
    drop(life);
    for version in (1..7).rev() {
        make_older(&path, version);
        let snapshot = Snapshot::of(&path).unwrap();
        assert_eq!(snapshot.read(BEGUN_S).unwrap(), spent, "of version {version}");
        let entered = ["a", "another boot"].map(|boot_id| snapshot.entered_ns(boot_id).unwrap());
        assert_eq!(entered, [at(10).now_ns, 0]);
        drop(snapshot);
        drop(Life::begin(&path, "a", 10));
    }
}

#[test]
fn what_is_written_while_it_is_read_counts_once() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let all = |second| [lease("01", "red", second, 0), lease("02", "", second, S)];
    enter(&mut life, &mut Spent::default(), (0, 7), &[]);
    enter(&mut life, &mut Spent::default(), (10, 7), &all(10));
    let (snapshot, mut meanwhile) = (Snapshot::of(&path).unwrap(), Spent::default());
    for second in [13, 20, 24, DAY_S] {
        enter(&mut life, &mut meanwhile, (second, 7), &all(second));
    }
    let mut spent = snapshot.read(BEGUN_S + 30).unwrap();
    let of_both = |spent: &Spent| [team("red"), Holder::User(0)].map(|its| spent.between(&its, (0, 10 * TODAY.1)));
    assert_eq!(of_both(&spent), [3 * S, 6 * S]);
    spent.add_all(meanwhile);
    assert_eq!(spent, read(&life, 30));
    assert_eq!(of_both(&spent), [DAY_S * S * 3 / 10, 2 * DAY_S * S * 3 / 10]);
}
