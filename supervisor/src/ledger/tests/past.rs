//! What ran.

use super::super::question::{EnoughQuestion, Scope};
use super::*;
use gpool_protocol::{History, PastLease};
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
