//! Ledgers of older versions are brought to this one, or stay what they were.

use super::*;
use crate::ledger::question::Scope;
use crate::ledger::tables::prepare;
use rusqlite::Connection;

const LEASES: usize = 300;

/// A ledger with as many leases as fill more than a page with what they had in all.
fn filled(path: &Path) {
    let mut life = Life::begin(path, "a", 0);
    life.enter(0, &[]);
    let all: Vec<Statement> = (0..LEASES).map(|number| lease(&format!("{number:03}"), "red", 10, S)).collect();
    life.enter(10, &all);
}

/// What each lease had in all.
fn had(path: &Path) -> Vec<u64> {
    let scope = Scope::read(&format!("since=0&until={}", BEGUN_S + 10_000_000), BEGUN_S).unwrap();
    let all = Reader::open(path, &Rates::default()).unwrap().history(&scope).unwrap().leases;
    all.iter().map(|lease| lease.used_gpu_ns).collect()
}

/// What the file says of its version, and whether it has the newest table.
fn mark(path: &Path) -> (i32, bool) {
    let connection = Connection::open(path).unwrap();
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    (version, connection.table_exists(None, "life").unwrap())
}

/// For a read error stands an interruption, for which SQLite undoes the whole transaction as well.
#[test]
fn steps_that_are_broken_off_are_undone_as_a_whole_and_made_again() {
    let (_folder, path) = in_folder();
    filled(&path);
    make_older(&path, 3);
    let mut broken_off = 0;
    for at in 1.. {
        let mut connection = Connection::open(&path).unwrap();
        let mut looks = 0;
        let breaks_off = move || {
            looks += 1;
            looks == at
        };
        connection.progress_handler(1000, Some(breaks_off)).unwrap();
        if prepare(&mut connection).is_ok() {
            break;
        }
        broken_off += 1;
        drop(connection);
        assert_eq!(mark(&path), (3, false), "broken off at look {at}");
    }
    assert!(broken_off > 3, "the sums take longer than that");
    assert_eq!((mark(&path), had(&path)), ((7, true), vec![S; LEASES]));
}

#[test]
fn a_disk_without_room_costs_no_sums() {
    let (_folder, path) = in_folder();
    filled(&path);
    make_older(&path, 6);
    Connection::open(&path).unwrap().execute_batch("VACUUM").unwrap();
    let mut refused = 0;
    for more in 0.. {
        let mut connection = Connection::open(&path).unwrap();
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let most: i64 =
            connection.query_row(&format!("PRAGMA max_page_count = {}", pages + more), [], |row| row.get(0)).unwrap();
        assert_eq!(most, pages + more);
        if prepare(&mut connection).is_ok() {
            break;
        }
        refused += 1;
        drop(connection);
        assert_eq!(mark(&path), (6, false), "with {more} pages more");
    }
    assert!(refused > 1, "the table fits before the sums do");
    assert_eq!((mark(&path), had(&path)), ((7, true), vec![S; LEASES]));
}

#[test]
fn a_file_that_was_marked_without_its_steps_is_given_them() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, S)]);
    drop(life);
    for version in 1..=6 {
        make_older(&path, version);
        Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
        let mut life = Life::begin(&path, "a", 10);
        life.enter(10, &[lease(&format!("1{version}"), "red", 10, S)]);
        assert_eq!((mark(&path), had(&path)), ((7, true), vec![S; 1 + version as usize]), "as of version {version}");
    }
}

#[test]
fn what_names_a_gpu_that_was_never_there_costs_the_sums_of_its_lease_alone() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, S), lease("02", "", 10, S)]);
    drop(life);
    make_older(&path, 6);
    let damaged = "PRAGMA foreign_keys = 0;
        UPDATE line SET gpu = 77 WHERE lease = (SELECT id FROM lease WHERE lease_id = '02')";
    Connection::open(&path).unwrap().execute_batch(damaged).unwrap();
    drop(Life::begin(&path, "a", 10));
    assert_eq!((mark(&path), had(&path)), ((7, true), vec![S, 0]));
}
