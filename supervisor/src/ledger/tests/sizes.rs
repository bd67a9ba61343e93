//! What leases used of what they had asked for.

use super::*;
use crate::ledger::question::EnoughQuestion;
use crate::ledger::there::Memories;
use gpool_protocol::{ContainerId, Sizes, SizesRow};

/// The sample's GPU has as much.
const MEMORY: u64 = 16 << 30;

fn sizes(path: &Path, question: &str) -> Sizes {
    let question = format!("since={}&until={}&{question}", BEGUN_S - 20, BEGUN_S + 10_000_000);
    let question = EnoughQuestion::of_requests(&question, BEGUN_S).unwrap();
    let known: Memories = [(gpu().0, MEMORY)].into_iter().collect();
    Reader::open(path, &Rates::default()).unwrap().sizes(&question, &known).unwrap()
}

/// From the beginning of a minute on, for ten minutes, leases of 30 % and 4 GiB, which hold 1 GiB: of one container two, one after the
/// other, which work a tenth of the time and in one minute all of their share; and of another container one that does nothing.
fn two_containers(path: &Path) -> Life {
    let mut life = Life::begin(path, "a", 40);
    life.enter(40, &[]);
    let begun = |id: &str, container: &str, at_s: u64, team: &str| {
        let mut record = record(id, team);
        record.created_unix_ms = (BEGUN_S + at_s) * 1000;
        record.container_id = ContainerId(container.into());
        let mut statement = Statement::of_stranded(&record, (100 + at_s) * S);
        (statement.is_taken_over, statement.gpus[0].used_bytes, statement.peak_bytes) = (false, 1 << 30, 1 << 30);
        statement
    };
    let (first, second) = (begun("01", "a", 40, "red"), begun("02", "a", 360, "red"));
    let other = begun("03", "b", 40, "blue");
    let charged = |now: u64, since: u64| {
        // In the fourth minute of all the whole share, 18 s of 60.
        let (tenths_s, busy_s) = ((now - since) / 10, now.saturating_sub(220).min(60));
        let more = if since == 40 { busy_s * 3 / 10 - busy_s / 10 } else { 0 };
        (tenths_s + more) * S
    };
    for now in (50..=640).step_by(10) {
        let worked = |statement: &Statement, since: u64| {
            let mut its = run(statement, now);
            its.gpus[0].charged_ns = charged(now, since);
            its
        };
        let mut all = vec![run(&other, now)];
        match now {
            ..360 => all.push(worked(&first, 40)),
            360 => all.push(ended(now, worked(&first, 40))),
            _ => all.push(worked(&second, 360)),
        }
        life.enter(now, &all);
    }
    life
}

fn figures(row: &SizesRow) -> [u64; 5] {
    [row.held_gpu_ns, row.reserved_gpu_ns, row.used_gpu_ns, row.enough_gpu_ns, row.full_gpu_ns].map(|ns| ns / S)
}

#[test]
fn a_container_with_all_of_its_leases_is_laid_beside_what_would_have_been_enough() {
    let (_folder, path) = in_folder();
    let _life = two_containers(&path);
    let all = sizes(&path, "percent=100");
    let [idle, busy] = all.rows.as_slice() else { panic!("{all:#?}") };
    assert_eq!((idle.key.as_str(), idle.leases, figures(idle)), ("b", 1, [600, 180, 0, 0, 0]));
    let none = idle.enough.unwrap();
    assert_eq!((none.fraction_permille, none.memory_bytes, none.is_whole), (None, 1280 << 20, false));
    // Most of the minutes a tenth, one all of the share.
    assert_eq!((busy.key.as_str(), busy.leases), ("a", 2));
    assert_eq!(figures(busy), [600, 180, 72, 180, 60]);
    assert_eq!(busy.enough.unwrap().fraction_permille, Some(300));
    // Memory of 4 GiB, of which 1 GiB and a tenth in steps are enough.
    assert_eq!((busy.memory_cap_mib_s, busy.memory_enough_mib_s), (600 * 4096, 600 * 1280));
    assert_eq!(figures(&all.total), [1200, 360, 72, 180, 60]);
    // One lease followed the other in a minute, on the same GPU.
    assert_eq!(busy.enough.unwrap().gpus, 1);
    let had = usage(&path, &format!("since={}&until={}&by=team", BEGUN_S - 20, BEGUN_S + 10_000_000)).total;
    let of = [all.total.reserved_gpu_ns, all.total.used_gpu_ns, all.total.memory_cap_mib_s];
    assert_eq!(of, [had.reserved_gpu_ns, had.used_gpu_ns, had.memory_cap_mib_s]);
    let mostly = sizes(&path, "percent=89");
    let busy = &mostly.rows[1];
    assert_eq!((busy.key.as_str(), busy.enough.unwrap().fraction_permille), ("a", Some(100)));
    assert_eq!(figures(busy)[3], 60);
}

#[test]
fn a_lease_of_which_the_end_is_not_seen_is_held_until_the_ledger_was_written() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 40);
    life.enter(40, &[]);
    let mut record = record("01", "red");
    record.created_unix_ms = (BEGUN_S + 50) * 1000;
    let mut statement = Statement::of_stranded(&record, 150 * S);
    statement.is_taken_over = false;
    life.enter(60, &[run(&statement, 60)]);
    assert_eq!(figures(&sizes(&path, "").rows[0])[..2], [10, 3], "ten seconds of a share of 30 %");
}

#[test]
fn who_works_on_one_of_several_gpus_needs_one() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 40);
    let uuids = [gpu(), GpuUuid("GPU-other".into())];
    let mut record = record("01", "red");
    record.created_unix_ms = (BEGUN_S + 40) * 1000;
    record.gpu_uuids = uuids.to_vec();
    let statement = Statement { is_taken_over: false, ..Statement::of_stranded(&record, 140 * S) };
    let facts = uuids.clone().map(|uuid| GpuFacts { uuid, name: "a GPU".into(), profile: None, slices: (7, 7) });
    for now in (40..=640).step_by(10) {
        let mut its = run(&statement, now);
        its.gpus[0].charged_ns = (now - 40) * S / 5;
        let all = [&its];
        let (batch, next) = life.balance.next(at(now), (&uuids, &drawn(0)), if now > 40 { &all } else { &[] });
        life.store.write((&batch, &Unwritten::default()), (&facts, ""), at(now), "a").unwrap();
        life.balance = next;
    }
    let row = &sizes(&path, "").rows[0];
    assert_eq!(figures(row), [1200, 360, 120, 120, 0], "a fifth of one of them");
    let enough = row.enough.unwrap();
    assert_eq!((enough.gpus, enough.fraction_permille), (1, Some(200)));
    assert_eq!(row.memory_enough_mib_s, 600 * 256, "of one");
}

#[test]
fn by_team_the_same_sums_are_kept_apart_and_no_request_is_told() {
    let (_folder, path) = in_folder();
    let _life = two_containers(&path);
    let (by_container, by_team) = (sizes(&path, "percent=89"), sizes(&path, "percent=89&by=team"));
    assert_eq!(by_team.total, by_container.total);
    let keys: Vec<(&str, u64)> = by_team.rows.iter().map(|row| (row.key.as_str(), row.leases)).collect();
    assert_eq!(keys, [("blue", 1), ("red", 2)]);
    assert!(by_team.rows.iter().all(|row| row.enough.is_none()));
    assert_eq!(sizes(&path, "team=red").rows.len(), 1);
    for query in ["by=gpu", "by=lease", "percent=0"] {
        let error = EnoughQuestion::of_requests(query, BEGUN_S).unwrap_err().to_string();
        assert!(error.contains("container, team") || error.contains("1 to 100"), "{query}: {error}");
    }
}
