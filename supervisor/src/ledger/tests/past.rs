//! What ran.

use super::super::question::{EnoughQuestion, Scope};
use super::*;
use gpool_protocol::{History, PastLease, is_too_much};
use std::collections::HashMap;

fn history(path: &Path, question: &str) -> Vec<PastLease> {
    let question = format!("since={BEGUN_S}&until={}&{question}", BEGUN_S + 600);
    let question = Scope::read(&question, BEGUN_S).unwrap();
    let history: History = Reader::open(path, &Rates::default()).unwrap().history(&question).unwrap();
    history.leases
}

fn ids(leases: &[PastLease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.lease_id.0.as_str()).collect()
}

#[test]
fn each_lease_has_what_it_had_in_all_its_life_and_how_it_ended() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let waited = |mut statement: Statement| {
        statement.facts.waited_ms = Some(4000);
        statement.facts.fraction_permille = 250;
        statement.peak_bytes = 1 << 30;
        statement
    };
    life.enter(0, &[]);
    life.enter(20, &[waited(lease("01", "red", 20, 3 * S)), lease("02", "", 20, 0)]);
    let over = ended(90, waited(lease("01", "red", 90, 30 * S)));
    life.enter(100, &[over, lease("02", "", 100, 0)]);
    drop(life);
    // The second is gone when a supervisor comes again.
    Life::begin(&path, "b", 110).enter(120, &[]);
    let all = history(&path, "");
    assert_eq!(ids(&all), ["01", "02"]);
    let first = &all[0];
    assert_eq!(
        (first.waited_ms, first.fraction_permille, first.ending.as_deref()),
        (Some(4000), Some(250), Some("ended"))
    );
    assert_eq!((first.used_gpu_ns, first.reserved_gpu_ns, first.gpus.len()), (30 * S, 27 * S, 1));
    assert_eq!((first.memory_cap_bytes, first.memory_peak_bytes), (Some(4 << 30), Some(1 << 30)));
    assert_eq!(first.ended_unix_ms, Some((BEGUN_S + 90) * 1000));
    assert_eq!((all[1].ending.as_deref(), all[1].waited_ms), (Some("unseen"), None));
    assert_eq!(ids(&history(&path, "team=red")), ["01"]);
    assert_eq!(ids(&history(&path, "team=")), ["02"]);
    assert_eq!(ids(&history(&path, "container=02")), ["02"], "a lease by its id");
    assert_eq!(history(&path, "container=c").len(), 2, "a container by the beginning of its");
    assert!(history(&path, "gpu=GPU-9").is_empty() && history(&path, "gpu=GPU-1").len() == 2);
    let later = Scope::read(&format!("since={}&until={}", BEGUN_S + 700, BEGUN_S + 900), 0).unwrap();
    assert!(Reader::open(&path, &Rates::default()).unwrap().history(&later).unwrap().leases.is_empty());
    assert!(Scope::read("container=", 0).unwrap_err().remedy.contains("id of a container"));
}

#[test]
fn what_a_lease_had_is_known_without_its_lines_also_of_a_ledger_that_had_only_those() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // What is written within a span is taken back as far as it was wrong.
    for second in [4, 10, 77, 100] {
        life.enter(second, &[lease("01", "red", second, second * S / 2)]);
    }
    let figures = |all: &[PastLease]| (all[0].used_gpu_ns, all[0].reserved_gpu_ns, all[0].burst_gpu_ns);
    let had = (50 * S, 30 * S, 20 * S);
    assert_eq!(figures(&history(&path, "")), had);
    drop(life);
    make_older(&path, 6);
    assert_eq!(figures(&history(&path, "")), had, "one that cannot be written is read as it is");
    drop(Life::begin(&path, "a", 100));
    let lines = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    lines("DELETE FROM line");
    assert_eq!(figures(&history(&path, "")), had);
}

#[test]
fn a_share_that_was_taken_is_shown_as_it_was() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, S)]);
    let mut taken = lease("01", "red", 20, S);
    (taken.facts.fraction_permille, taken.facts.cap_bytes) = (0, 0);
    life.enter(20, &[ended(20, taken)]);
    let first = &history(&path, "")[0];
    assert_eq!((first.fraction_permille, first.memory_cap_bytes), (Some(300), Some(4 << 30)));
}

#[test]
fn an_end_that_nobody_has_seen_is_no_earlier_than_when_the_lease_was_there_last() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(20, &["01", "02", "03"].map(|id| lease(id, "red", 20, 0)));
    drop(life);
    let mut life = Life::begin(&path, "a", 90);
    // By its record the first one was there later than that, the second earlier; the third has none.
    let lost = [("01", 24), ("02", 3)].map(|(id, seen)| Statement::of_lost(&record(id, "red"), at(seen).unix_ms));
    for second in [90, 93, 97] {
        life.enter(second, &lost);
    }
    let ends: Vec<Option<u64>> = history(&path, "").iter().map(|lease| lease.ended_unix_ms).collect();
    assert_eq!(ends, [24, 20, 20].map(|second| Some(at(second).unix_ms)));
}

/// More leases than one answer has rows, each in a minute of its own.
const MANY: &str = "
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 10001)
    INSERT INTO lease (id, lease_id, container_id, uid, class, priority, mechanism, created_unix_ms, ended_unix_ms, is_end_seen)
    SELECT 100 + n, 'many' || n, 'c' || n, 0, 'batch', 'guaranteed', 'slice', 60000 * n, 60000 * (n + 1), 1 FROM number;
    INSERT INTO line SELECT 60 * (lease.id - 100), 60, lease.id, gpu.id, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM lease, gpu
    WHERE lease.id > 100;
";

#[test]
fn what_is_too_much_for_one_answer_is_told_so_that_halves_of_it_are_asked_for() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    drop(life);
    rusqlite::Connection::open(&path).unwrap().execute_batch(MANY).unwrap();
    let rates = Rates::default();
    let mut reader = Reader::open(&path, &rates).unwrap();
    let (all, half) = ("since=0&until=700000", "since=0&until=300000");
    let scope = |query: &str| Scope::read(query, BEGUN_S).unwrap();
    let by_lease = |query: &str| Question::read(&format!("{query}&by=lease"), BEGUN_S).unwrap();
    let refusals = [
        reader.charges(&scope(all)).unwrap_err(),
        reader.history(&scope(all)).unwrap_err(),
        reader.usage(&by_lease(all)).unwrap_err(),
    ];
    assert!(refusals.iter().all(is_too_much), "{refusals:?}");
    assert_eq!(reader.charges(&scope(half)).unwrap().rows.len(), 4999);
    assert_eq!(reader.usage(&by_lease(half)).unwrap().rows.len(), 4999);
    assert!(reader.history(&scope(half)).unwrap().leases.len() >= 4999);
}

#[test]
fn one_container_is_asked_for_in_every_sum() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    let mut second = lease("02", "red", 20, 4 * S);
    second.facts.container_id = "d0d1".into();
    life.enter(20, &[lease("01", "red", 20, 3 * S), second]);
    let all = usage(&path, &format!("since={BEGUN_S}&until={}&by=hour", BEGUN_S + 600));
    let rates = Rates::default();
    for id in ["02", "d0d1", "d0"] {
        let question = format!("since={BEGUN_S}&until={}&container={id}", BEGUN_S + 600);
        let its = usage(&path, &format!("{question}&by=hour"));
        let used = |usage: &Usage| (usage.rows.len(), usage.rows[0].used_gpu_ns, usage.total.leases);
        assert_eq!((used(&its), used(&all)), ((1, 4 * S, 1), (1, 7 * S, 2)), "{id}");
        assert!(its.pool.is_none() && all.pool.is_some(), "the rest is not what nobody had");
        let mut reader = Reader::open(&path, &rates).unwrap();
        let charges = reader.charges(&Scope::read(&question, BEGUN_S).unwrap()).unwrap();
        let of: Vec<&str> = charges.rows.iter().map(|row| row.lease_id.0.as_str()).collect();
        assert_eq!(of, ["02"], "{id}");
        let sizes = reader.sizes(&EnoughQuestion::of_requests(&question, BEGUN_S).unwrap(), &HashMap::new()).unwrap();
        assert_eq!(sizes.rows.len(), 1, "{id}");
    }
}

#[test]
fn a_ledger_that_did_not_know_how_leases_end_goes_on() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(20, &[ended(15, lease("01", "red", 15, S))]);
    drop(life);
    make_older(&path, 5);
    Life::begin(&path, "b", 30).enter(40, &[]);
    let all = history(&path, "");
    assert_eq!((all[0].ending.as_ref(), all[0].waited_ms, all[0].used_gpu_ns), (None, None, S));
}

/// As somebody leaves it who takes a lease out by hand, or a damaged page: the sums are of whom they can be had.
#[test]
fn a_file_of_before_with_lines_of_nobody_is_brought_to_this_version() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, 6 * S), lease("02", "", 10, S)]);
    drop(life);
    make_older(&path, 6);
    let by_hand = "PRAGMA foreign_keys = 0; DELETE FROM lease WHERE lease_id = '02'";
    rusqlite::Connection::open(&path).unwrap().execute_batch(by_hand).unwrap();
    let mut life = Life::begin(&path, "a", 10);
    life.enter(20, &[lease("01", "red", 20, 9 * S)]);
    let found = history(&path, "");
    // What a supervisor charges counts from its start.
    assert_eq!((ids(&found), found[0].used_gpu_ns), (vec!["01"], 15 * S));
}
