//! How many GPUs sharing saves, by what the ledger has.

use super::*;
use crate::ledger::question::EnoughQuestion;
use crate::ledger::there::Memories;
use gpool_protocol::{OwnerDemand, Savings};

/// The sample's GPU has as much.
const MEMORY: u64 = 16 << 30;

fn savings(path: &Path, question: &str) -> Savings {
    let question = format!("since={}&until={}&{question}", BEGUN_S - 20, BEGUN_S + 10_000_000);
    let question = EnoughQuestion::of_gpus(&question, BEGUN_S).unwrap();
    let known: Memories = [(gpu().0, MEMORY)].into_iter().collect();
    Reader::open(path, &Rates::default()).unwrap().savings(&question, &known).unwrap()
}

/// Ten minutes and twenty seconds from the beginning of a minute: in six of the minutes a team has one lease with 30 % and 4 GiB, in
/// two of them a second one, and in one of those others have one, too.
fn by_turns(path: &Path) -> Life {
    let mut life = Life::begin(path, "a", 0);
    life.enter(0, &[]);
    let begun = |id: &str, team: &str, at_s: u64| {
        let mut record = record(id, team);
        record.created_unix_ms = (BEGUN_S + at_s) * 1000;
        let statement = Statement::of_stranded(&record, (100 + at_s) * S);
        Statement { is_taken_over: false, ..statement }
    };
    let (first, second, other) = (begun("01", "red", 40), begun("02", "red", 160), begun("03", "", 220));
    for now in (10..=620).step_by(10) {
        let of = |statement: &Statement, ends: u64| {
            (statement.begun_ns <= (100 + now) * S && now <= ends).then(|| match now == ends {
                true => ended(now, run(statement, now)),
                false => run(statement, now),
            })
        };
        let there = [of(&first, 400), of(&second, 280), of(&other, 280)];
        life.enter(now, &there.into_iter().flatten().collect::<Vec<_>>());
    }
    life
}

#[test]
fn a_gpu_for_each_container_is_more_than_one_for_all() {
    let (_folder, path) = in_folder();
    let _life = by_turns(&path);
    let at_most = savings(&path, "percent=100");
    let [nobody, red] = at_most.owners.as_slice() else { panic!("{at_most:?}") };
    let figures = |its: &OwnerDemand| [its.places_permille, its.share_permille, its.memory_permille, its.gpus];
    assert_eq!((nobody.key.as_str(), nobody.leases, figures(nobody)), ("", 1, [1000, 300, 250, 1]));
    assert_eq!((red.key.as_str(), red.leases, figures(red)), ("red", 2, [2000, 600, 500, 1]));
    assert_eq!((at_most.together.leases, figures(&at_most.together)), (3, [3000, 900, 750, 1]));
    let ways = |its: &Savings| [its.gpus_for_each_container, its.gpus_for_each_owner, its.gpus_shared];
    assert_eq!((ways(&at_most), at_most.there_permille, at_most.unknown_gpus), ([3, 2, 1], 1000, 0));
    assert_eq!(at_most.known_ns, 620 * S);
    // For 85 % of the time two were enough: the third was there for one minute of ten; for 60 % one.
    assert_eq!(ways(&savings(&path, "percent=85")), [2, 2, 1]);
    let mostly = savings(&path, "percent=60");
    assert_eq!((ways(&mostly), figures(&mostly.together)), ([1, 2, 1], [1000, 300, 250, 1]));
    assert_eq!(figures(&savings(&path, "percent=30").together), [0, 0, 0, 1], "who has a lease at all needs one");
    // Of one team, and by something else.
    assert_eq!(ways(&savings(&path, "percent=100&team=red")), [2, 1, 1]);
    assert_eq!(savings(&path, "percent=100&by=user").owners.len(), 1);
}

#[test]
fn what_a_lease_held_for_a_part_of_a_minute_counts_for_that_part() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // Twenty of the forty seconds of its first minute, in which it has twice its share.
    life.enter(10, &[lease("01", "red", 10, 6 * S)]);
    life.enter(20, &[ended(20, lease("01", "red", 20, 12 * S))]);
    life.enter(40, &[]);
    let all = savings(&path, "percent=100");
    assert_eq!((all.together.places_permille, all.together.share_permille), (500, 300));
    assert_eq!(all.together.memory_permille, 125);
}

/// The answer to that question where so much is known of memory.
fn with_memories(path: &Path, known: &[(&str, u64)]) -> Savings {
    let question = format!("since={}&until={}&percent=100", BEGUN_S - 20, BEGUN_S + 10_000_000);
    let question = EnoughQuestion::of_gpus(&question, BEGUN_S).unwrap();
    let known: Memories = known.iter().map(|(uuid, bytes)| ((*uuid).to_owned(), *bytes)).collect();
    let rates = Rates::default();
    Reader::open(path, &rates).unwrap().savings(&question, &known).unwrap()
}

#[test]
fn memory_of_a_gpu_that_is_gone_is_that_of_its_model_or_not_known() {
    let (_folder, path) = in_folder();
    let _life = by_turns(&path);
    let gone = with_memories(&path, &[]);
    assert_eq!((gone.together.memory_permille, gone.unknown_gpus, gone.gpus_for_each_container), (0, 1, 3));
    let other = "INSERT INTO gpu (uuid, name, slices, of_slices) VALUES ('GPU-other', 'a GPU', 7, 7), ('GPU-third', 'one', 7, 7)";
    rusqlite::Connection::open(&path).unwrap().execute_batch(other).unwrap();
    let known = with_memories(&path, &[("GPU-other", 2 * MEMORY), ("GPU-third", MEMORY)]);
    assert_eq!((known.together.memory_permille, known.unknown_gpus), (375, 0));
    // An instance with three sevenths of the time may have half of the memory.
    let instance = "UPDATE gpu SET profile = '3g.8gb', slices = 3 WHERE uuid NOT LIKE 'GPU-%r%'";
    assert_eq!(rusqlite::Connection::open(&path).unwrap().execute(instance, []).unwrap(), 1);
    let all = with_memories(&path, &[(&gpu().0, MEMORY)]);
    assert_eq!((all.together.memory_permille, all.together.share_permille, all.there_permille), (750, 386, 429));
}

#[test]
fn an_hour_that_begins_with_a_minute_is_not_that_minute() {
    let (_folder, path) = in_folder();
    // From the beginning of an hour for two minutes, and after a pause of twenty for three more.
    let hour_s = 3600 - BEGUN_S % 3600;
    let mut life = Life::begin(&path, "a", hour_s);
    life.enter(hour_s, &[]);
    let begun = |now| {
        let mut record = record("01", "red");
        record.created_unix_ms = (BEGUN_S + hour_s) * 1000;
        let statement = Statement::of_stranded(&record, (100 + hour_s) * S);
        run(&Statement { is_taken_over: false, ..statement }, now)
    };
    for second in [60, 120, 1320, 1380, 1440, 1500] {
        life.enter(hour_s + second, &[begun(hour_s + second)]);
    }
    let slots = "SELECT count(*) FROM pool WHERE slot = ?1";
    let connection = rusqlite::Connection::open(&path).unwrap();
    let begins = i64::try_from(BEGUN_S + hour_s).unwrap();
    assert_eq!(connection.query_row(slots, [begins], |row| row.get::<_, i64>(0)).unwrap(), 2, "a minute and an hour");
    let all = savings(&path, "percent=100");
    assert_eq!((all.known_ns, all.there_permille), (1500 * S, 1000));
    assert_eq!((all.together.places_permille, all.together.share_permille), (1000, 300));
    assert_eq!(savings(&path, "percent=1").together.places_permille, 1000, "it was there all the time");
}

#[test]
fn nobody_has_more_of_a_gpu_than_all_of_it() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // Three minutes of work are charged when it ends.
    for (second, charged_ns) in [(40, 0), (100, 0), (160, 180 * S)] {
        life.enter(second, &[lease("01", "red", second, charged_ns)]);
    }
    let all = savings(&path, "percent=100");
    assert_eq!((all.together.share_permille, all.gpus_shared), (1000, 1));
}

#[test]
fn an_empty_ledger_needs_nothing_and_a_wrong_word_is_named() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(70, &[]);
    let none = savings(&path, "");
    assert_eq!((none.gpus_for_each_container, none.gpus_shared, none.percent), (0, 0, 95));
    assert_eq!((none.owners, none.known_ns, none.there_permille), (Vec::new(), 70 * S, 1000));
    for (query, part) in [
        ("percent=0", "from 1 to 100"),
        ("percent=half", "from 1 to 100"),
        ("by=hour", "team, project, cost-center"),
        ("x=1", "and by, and percent"),
    ] {
        let error = EnoughQuestion::of_gpus(query, BEGUN_S).unwrap_err().to_string();
        assert!(error.contains(part), "{query}: {error}");
    }
}
