mod baseline;
mod bill;
mod energy;
mod looks;
mod names;
mod older;
mod parts;
mod past;
mod savings;
mod sizes;
mod spent;

use super::balance::{Balance, Batch, Before, Energies, Moment};
use super::question::Question;
use super::reader::Reader;
use super::store::{GpuFacts, LedgerError, Store};
use super::unleased::Unwritten;
use crate::lease::{End, Ending, GpuStanding, Record, StandingRecord, Statement, sample};
use gpool_configuration::{Ledger as Configured, Rates};
use gpool_protocol::{GpuUuid, LeaseId, Mechanism, Usage, UsageBy, UsageRow};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const S: u64 = 1_000_000_000;
/// A Tuesday, twenty seconds past the minute.
const BEGUN_S: u64 = 1_795_550_420;

fn gpu() -> GpuUuid {
    sample().gpu_uuid
}

/// The GPU, which has drawn so much.
fn drawn(millijoules: u64) -> Energies {
    [(gpu(), millijoules)].into_iter().collect()
}

fn facts(slices: u8) -> [GpuFacts; 1] {
    [GpuFacts { uuid: gpu(), name: "a GPU".into(), profile: None, slices: (slices, 7) }]
}

/// Seconds after the beginning, by both clocks; the monotonic one has run for 100 s then.
fn at(second: u64) -> Moment {
    Moment { now_ns: (100 + second) * S, unix_ms: (BEGUN_S + second) * 1000 }
}

fn record(id: &str, team: &str) -> Record {
    let team = (!team.is_empty()).then(|| team.to_owned());
    Record { lease_id: LeaseId(id.into()), team, created_unix_ms: BEGUN_S * 1000, ..sample() }
}

/// A lease of a team with 30 % and 4 GiB from second 0 to `second`, which holds 1 GiB.
fn lease(id: &str, team: &str, second: u64, charged_ns: u64) -> Statement {
    let mut statement = Statement::of_stranded(&record(id, team), 100 * S);
    statement.is_taken_over = false;
    statement.gpus[0].charged_ns = charged_ns;
    statement.gpus[0].used_bytes = 1 << 30;
    run(&statement, second)
}

/// The same lease at that second.
fn run(statement: &Statement, second: u64) -> Statement {
    let until_ns = (100 + second) * S;
    let elapsed_ns = until_ns - statement.begun_ns;
    let (reserved_ns, cap_kib_s) = (statement.facts.reserved_for(elapsed_ns), statement.facts.cap_for(elapsed_ns));
    Statement { until_ns, reserved_ns, cap_kib_s, ..statement.clone() }
}

/// The same under a supervisor that has taken it over at `since`.
fn taken_over(since: u64, now: u64, statement: Statement) -> Statement {
    run(&Statement { begun_ns: (100 + since) * S, is_taken_over: true, ..statement }, now)
}

/// The same, over since then.
fn ended(second: u64, statement: Statement) -> Statement {
    Statement { end: Some(End { unix_ms: at(second).unix_ms, how: Ending::Ended }), ..statement }
}

struct Life {
    store: Store,
    balance: Balance,
    boot: &'static str,
    path: PathBuf,
    /// What the GPU has drawn in it.
    drawn_millijoules: u64,
}

impl Life {
    fn begin(path: &Path, boot: &'static str, second: u64) -> Self {
        let (store, before) = Store::open(path, boot).unwrap();
        Self {
            store,
            balance: Balance::new(before, at(second).now_ns),
            boot,
            path: path.to_owned(),
            drawn_millijoules: 0,
        }
    }

    fn enter(&mut self, second: u64, all: &[Statement]) {
        let all: Vec<&Statement> = all.iter().collect();
        let (batch, next) = self.balance.next(at(second), (&[gpu()], &drawn(self.drawn_millijoules)), &all);
        self.store.write((&batch, &Unwritten::default()), (&facts(7), ""), at(second), self.boot).unwrap();
        self.balance = next;
    }

    fn usage(&self, by: UsageBy) -> Usage {
        usage(&self.path, &format!("since=0&until={}&by={}", BEGUN_S + 10_000_000, by.word()))
    }
}

fn usage(path: &Path, question: &str) -> Usage {
    Reader::open(path, &Rates::default()).unwrap().usage(&Question::read(question, BEGUN_S).unwrap()).unwrap()
}

/// Makes the tables those of an older version, without what came after it.
fn make_older(path: &Path, version: i32) {
    let later = [
        (7, "DROP TABLE life;"),
        (
            6,
            "ALTER TABLE lease DROP COLUMN fraction_permille; ALTER TABLE lease DROP COLUMN waited_ms;
             ALTER TABLE lease DROP COLUMN ending;",
        ),
        (5, "DROP TABLE unleased_line; DROP TABLE unleased; DROP TABLE watched;"),
        (4, "ALTER TABLE line DROP COLUMN energy_millijoules; ALTER TABLE pool DROP COLUMN energy_millijoules;"),
        (
            3,
            "ALTER TABLE lease DROP COLUMN project; ALTER TABLE lease DROP COLUMN cost_center;
             ALTER TABLE line DROP COLUMN low_ns;",
        ),
        (2, "ALTER TABLE lease DROP COLUMN cap_bytes; ALTER TABLE lease DROP COLUMN peak_bytes;"),
    ];
    let steps: String = later.into_iter().filter(|(since, _)| *since > version).map(|(_, step)| step).collect();
    let older = format!("{steps} PRAGMA user_version = {version}");
    rusqlite::Connection::open(path).unwrap().execute_batch(&older).unwrap();
}

fn in_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lib/ledger.db");
    (folder, path)
}

#[test]
fn what_leases_had_and_what_nobody_had_is_all_there_was() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // The first has 6 s of 10, which is 3 more than its share; the second has 1.
    life.enter(10, &[lease("01", "red", 10, 6 * S), lease("02", "", 10, S)]);
    life.enter(20, &[lease("01", "red", 20, 6 * S), lease("02", "", 20, 2 * S)]);
    let all = life.usage(UsageBy::Team);
    let [nobody, red] = all.rows.as_slice() else { panic!("{all:?}") };
    assert_eq!((nobody.key.as_str(), red.key.as_str(), red.leases), ("", "red", 1));
    assert_eq!((red.reserved_gpu_ns, red.used_gpu_ns, red.burst_gpu_ns, red.idle_gpu_ns), (6 * S, 6 * S, 3 * S, 3 * S));
    assert_eq!((nobody.used_gpu_ns, nobody.burst_gpu_ns, nobody.lent_gpu_ns), (2 * S, 0, 0));
    assert_eq!(nobody.idle_gpu_ns, 4 * S, "four seconds were promised to nobody, and are had first");
    let pool = all.pool.unwrap();
    assert_eq!((pool.gpu_ns, pool.unreserved_gpu_ns, pool.unused_gpu_ns), (20 * S, 8 * S as i64, 12 * S as i64));
    assert_eq!((red.memory_cap_mib_s, red.memory_used_mib_s), (20 * 4096, 20 * 1024));
    assert_eq!(all.begins_unix_s, Some(BEGUN_S));
    // By whatever it is kept apart, it is the same in sum.
    for by in UsageBy::ALL {
        assert_eq!(life.usage(by).total, all.total, "{by:?}");
    }
    let some = usage(&path, &format!("team=red&by=lease&since=0&until={}", BEGUN_S + 60));
    assert_eq!((some.rows.len(), some.rows[0].key.as_str(), some.pool), (1, "01", None));
}

#[test]
fn minutes_and_hours_add_up_and_what_is_asked_for_begins_and_ends_with_a_minute() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // From 20 to 80 s past a minute: forty seconds of it are in the first one.
    let first = lease("01", "red", 60, 30 * S);
    life.enter(60, std::slice::from_ref(&first));
    let within =
        |since_s: u64, until_s: u64| usage(&path, &format!("since={since_s}&until={until_s}")).total.used_gpu_ns;
    let minute_s = BEGUN_S - 20;
    assert_eq!((within(minute_s, minute_s + 60), within(minute_s + 60, minute_s + 120)), (20 * S, 10 * S));
    assert_eq!((within(0, minute_s + 79), within(minute_s + 79, minute_s + 999)), (20 * S, 10 * S), "whole minutes");
    assert_eq!(within(0, minute_s), 0);
    // A day later there is more of it, and the first day is old: in steps of a day.
    const DAY_S: u64 = 86_400;
    life.enter(DAY_S, &[run(&first, DAY_S)]);
    life.enter(DAY_S + 10, &[ended(DAY_S + 10, run(&first, DAY_S + 10))]);
    let before = life.usage(UsageBy::Day);
    assert_eq!(before.rows.len(), 2);
    let configured = Configured { minute_days: 1, hour_days: 3, ..Configured::default() };
    let minutes = |life: &Life| -> i64 {
        life.store.connection.query_row("SELECT count(*) FROM line WHERE seconds = 60", [], |row| row.get(0)).unwrap()
    };
    let all = minutes(&life);
    life.store.forget(&configured, BEGUN_S + DAY_S + 9000).unwrap();
    assert!(minutes(&life) < all && life.usage(UsageBy::Day) == before, "merged");
    // Hours to which more minutes are added.
    life.store.forget(&configured, BEGUN_S + 9 * DAY_S / 4).unwrap();
    let pages =
        |pragma: &str| life.store.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((life.usage(UsageBy::Day).total, pages("freelist_count")), (before.total, 0));
    for _ in 0..3 {
        life.store.forget(&configured, BEGUN_S + 9 * DAY_S).unwrap();
    }
    assert!(life.usage(UsageBy::Day).rows.is_empty());
    let left = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        life.store.connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(["line", "pool", "lease", "charged", "life"].map(left), [0; 5]);
}

#[test]
fn who_asks_in_between_changes_nothing() {
    let sums = |moments: &[u64]| {
        let (_folder, path) = in_folder();
        let mut life = Life::begin(&path, "a", 0);
        life.enter(0, &[]);
        for second in moments {
            // Three seconds of work at the beginning of each ten, with a share of 30 %; and one that ends after four.
            let worked_s = second / 10 * 3 + (second % 10).min(3);
            let short = lease("02", "blue", (*second).min(4), S);
            let short = if *second >= 4 { ended(4, short) } else { short };
            let others = if *second <= 10 { vec![short] } else { Vec::new() };
            life.enter(*second, &[vec![lease("01", "red", *second, worked_s * S)], others].concat());
        }
        life.usage(UsageBy::Team)
    };
    let (once, often) = (sums(&[4, 10, 20]), sums(&[1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 14, 19, 20]));
    let times = |usage: &Usage| {
        let times = |row: &UsageRow| (row.used_gpu_ns, row.burst_gpu_ns, row.lent_gpu_ns, row.idle_gpu_ns);
        (usage.rows.iter().map(times).collect::<Vec<_>>(), usage.pool.clone())
    };
    assert_eq!(times(&once), times(&often));
    assert_eq!((once.rows[1].burst_gpu_ns, once.rows[1].idle_gpu_ns), (0, 0), "over ten seconds it has its share");
    assert_eq!((once.rows[0].reserved_gpu_ns, once.rows[0].used_gpu_ns), (12 * S / 10, S));
}

#[test]
fn a_supervisor_that_is_killed_takes_nothing_along_and_counts_nothing_twice() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    let leases = [("01", 4 * S), ("02", 0), ("03", S), ("05", 4 * S)];
    life.enter(10, &leases.map(|(id, charged_ns)| lease(id, "red", 10, charged_ns)));
    drop(life);
    // It is back after half a minute. The first lease went on; the second ended meanwhile, and its record says that it had
    // two seconds until second 14; the third is gone without a trace, and a fourth was granted after the last entry. A fifth
    // cannot be taken over yet.
    let mut life = Life::begin(&path, "a", 40);
    let standing = |charged_ns, second: u64| {
        let gpus = vec![GpuStanding { charged_ns, debt_ns: 0, seen_until_us: 0 }];
        Some(StandingRecord { at_ns: (100 + second) * S, gpus, counted: None, used_ns: None })
    };
    let first = taken_over(40, 40, lease("01", "red", 0, 12 * S));
    let second = Record { standing: standing(2 * S, 14), ..record("02", "red") };
    let second = Statement::of_lost(&second, at(14).unix_ms);
    let mut fourth = taken_over(40, 40, lease("04", "blue", 0, 3 * S));
    fourth.facts.created_unix_ms = (BEGUN_S + 15) * 1000;
    let fifth = Record { standing: standing(4 * S, 9), ..record("05", "") };
    let stranded = |second: u64| Statement::of_stranded(&fifth, (100 + second) * S);
    life.enter(40, &[first, second, fourth.clone(), stranded(40)]);
    let first = taken_over(40, 50, lease("01", "red", 0, 13 * S));
    life.enter(50, &[first, run(&fourth, 50), stranded(50)]);
    // Taken over at last.
    let fifth = taken_over(55, 60, lease("05", "", 0, 5 * S));
    life.enter(60, &[taken_over(40, 60, lease("01", "red", 0, 13 * S)), run(&fourth, 60), fifth]);
    let all = life.usage(UsageBy::Lease);
    let row = |id: &str| all.rows.iter().find(|row| row.key == id).unwrap();
    assert_eq!((row("01").used_gpu_ns, row("01").reserved_gpu_ns, row("01").unwatched_gpu_ns), (13 * S, 18 * S, 9 * S));
    assert_eq!((row("02").used_gpu_ns, row("02").reserved_gpu_ns), (2 * S, 42 * S / 10));
    assert_eq!((row("03").used_gpu_ns, row("03").reserved_gpu_ns), (S, 3 * S));
    assert_eq!((row("04").used_gpu_ns, row("04").reserved_gpu_ns), (3 * S, 45 * S * 3 / 10));
    assert_eq!((row("05").used_gpu_ns, row("05").reserved_gpu_ns), (5 * S, 18 * S));
    assert_eq!(all.pool.unwrap().gpu_ns, 60 * S, "the GPU was there all the time");
    drop(life);
    // Another boot: what it was not there for is no time of its, and all that had not ended has.
    let mut life = Life::begin(&path, "b", 1000);
    life.enter(1000, &[]);
    life.enter(1010, &[]);
    assert_eq!(life.usage(UsageBy::Lease).pool.unwrap().gpu_ns, 70 * S);
    let (_, before) = Store::open(&path, "b").unwrap();
    assert!(before.open.is_empty());
}

#[test]
fn what_cannot_be_written_is_written_later() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    // Somebody else has the file.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    life.store.connection.busy_timeout(std::time::Duration::ZERO).unwrap();
    let over = ended(8, lease("01", "red", 8, 5 * S));
    let (batch, _) = life.balance.next(at(10), (&[gpu()], &drawn(0)), &[&over]);
    assert!(matches!(
        life.store.write((&batch, &Unwritten::default()), (&facts(7), ""), at(10), "a"),
        Err(LedgerError::Database { .. })
    ));
    assert_eq!(life.usage(UsageBy::Team).total.used_gpu_ns, 0);
    other.execute_batch("ROLLBACK").unwrap();
    // Two days later: in hours, since there are too many minutes.
    let (two_days_s, hour_s) = (2 * 86_400, 3600);
    life.enter(two_days_s, &[over]);
    let all = life.usage(UsageBy::Team);
    assert_eq!((all.total.used_gpu_ns, all.total.reserved_gpu_ns), (5 * S, 24 * S / 10));
    assert_eq!(all.pool.unwrap().gpu_ns, two_days_s * S);
    let rows = life.usage(UsageBy::Hour).rows.len() as u64;
    assert!((two_days_s / hour_s..=two_days_s / hour_s + 1).contains(&rows), "{rows}");
}

#[test]
fn another_file_begins_with_the_span_that_is_not_over() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(4, &[lease("01", "red", 4, 2 * S)]);
    assert!(life.store.is_in_place());
    std::fs::remove_file(&path).unwrap();
    assert!(!life.store.is_in_place());
    life.store = Store::open(&path, "a").unwrap().0;
    life.balance.is_in_another_file();
    life.enter(8, &[lease("01", "red", 8, 3 * S)]);
    assert_eq!(life.usage(UsageBy::Team).total.used_gpu_ns, 3 * S);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "who had what is for root to read");
}

#[test]
fn an_older_lease_than_the_ledger_counts_from_now_on() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 500);
    life.enter(500, &[taken_over(500, 500, lease("01", "red", 0, 400 * S))]);
    life.enter(510, &[taken_over(500, 510, lease("01", "red", 0, 402 * S))]);
    let total = life.usage(UsageBy::Team).total;
    assert_eq!((total.used_gpu_ns, total.reserved_gpu_ns, total.unwatched_gpu_ns), (2 * S, 3 * S, 0));
}

#[test]
fn a_part_of_a_gpu_counts_as_that_and_nobody_says_that_it_was_idle() {
    let (_folder, path) = in_folder();
    let (mut store, before) = Store::open(&path, "a").unwrap();
    let balance = Balance::new(before, at(0).now_ns);
    let mut of_mig = lease("01", "red", 70, 0);
    of_mig.facts.mechanism = Mechanism::Mig;
    let (batch, _) = balance.next(at(70), (&[gpu()], &drawn(0)), &[&of_mig]);
    store.write((&batch, &Unwritten::default()), (&facts(2), ""), at(70), "a").unwrap();
    let all = usage(&path, &format!("since=0&until={}", BEGUN_S + 100));
    let (total, pool) = (all.total, all.pool.unwrap());
    assert_eq!((total.used_gpu_ns, total.unmetered_gpu_ns, total.idle_gpu_ns), (0, 6 * S, 0));
    assert_eq!((pool.gpu_ns, pool.unused_gpu_ns), (20 * S, 14 * S as i64));
    let parts = |product, profile| super::parts(product, Some(profile));
    let h100 = "NVIDIA H100 80GB HBM3";
    assert_eq!([parts(h100, "1g.10gb"), parts(h100, "3g.40gb"), parts(h100, "1c.3g.40gb")], [(1, 7), (3, 7), (1, 7)]);
    assert_eq!(parts("NVIDIA A30 MIG 4g.24gb", "4g.24gb"), (4, 4));
    assert_eq!((super::parts("Tesla T4", None), parts("another", "odd")), ((7, 7), (7, 7)));
}

#[test]
fn an_instance_that_came_and_went_is_known_by_its_lease() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    let mut short = ended(6, lease("01", "red", 6, 0));
    (short.gpus[0].uuid, short.facts.mechanism) = (GpuUuid("MIG-1".into()), Mechanism::Mig);
    short.facts.mig_profile = Some("1g.10gb".into());
    life.enter(10, &[short]);
    let all = life.usage(UsageBy::Gpu);
    assert_eq!((all.rows[0].key.as_str(), all.rows[0].unmetered_gpu_ns), ("MIG-1", 18 * S / 70));
}

#[test]
fn a_file_of_something_else_is_left_as_it_is() {
    let (_folder, path) = in_folder();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, [b'x'; 4096]).unwrap();
    assert!(matches!(Store::open(&path, "a"), Err(LedgerError::NotOurs(_))));
    assert_eq!(std::fs::read(&path).unwrap(), [b'x'; 4096]);
    std::fs::remove_file(&path).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (a)").unwrap();
    assert!(Store::open(&path, "a").unwrap_err().to_string().contains("[ledger] path"));
    std::fs::remove_file(&path).unwrap();
    drop(Store::open(&path, "a").unwrap());
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 9").unwrap();
    assert!(Store::open(&path, "a").unwrap_err().to_string().contains("a newer gpool"));
}

#[test]
fn a_question_names_what_is_wrong_with_it() {
    let read = |query: &str| Question::read(query, 10 * 86_400 + 30);
    let asked = read("").unwrap();
    assert_eq!(
        (asked.by, asked.scope.since_unix_s, asked.scope.until_unix_s),
        (UsageBy::Team, 9 * 86_400 + 60, 10 * 86_400 + 60)
    );
    assert_eq!(read("user=1000&gpu=GPU-1&by=day").unwrap().scope.uid, Some(1000));
    for (query, part) in [
        ("by=year", "team, project, cost-center, user, class"),
        ("since=yesterday", "seconds since 1970"),
        ("until=99999999999999", "seconds since 1970"),
        ("user=alice", "number of a user"),
        ("colour=red", "since, until, team, project, cost-center, container, user or gpu"),
        ("since=61&until=70", "1970-01-01T00:01:00Z"),
    ] {
        assert!(read(query).unwrap_err().to_string().contains(part), "{query}: {}", read(query).unwrap_err());
    }
}

#[test]
fn nothing_new_is_nothing_written() {
    let balance = Balance::new(Before::default(), at(0).now_ns);
    let (Batch { lines, pool, .. }, next) = balance.next(at(0), (&[gpu()], &drawn(0)), &[]);
    assert!(lines.is_empty() && pool.is_empty());
    let (batch, _) = next.next(at(10), (&[], &drawn(0)), &[]);
    assert_eq!(
        batch.pool.iter().map(|(_, _, amounts)| amounts.ns).sum::<i64>(),
        10 * S as i64,
        "a GPU that is gone was there until now"
    );
}

#[test]
fn memory_that_was_asked_for_in_vain_is_told() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let with_peak = |statement: Statement, mib: u64| Statement { peak_bytes: mib << 20, ..statement };
    life.enter(0, &[]);
    life.enter(10, &[with_peak(lease("01", "red", 10, 0), 1024), with_peak(lease("02", "red", 10, 0), 4096)]);
    // What a supervisor has forgotten the ledger has not.
    life.enter(20, &[with_peak(lease("01", "red", 20, 0), 512), with_peak(lease("02", "red", 20, 0), 4096)]);
    let all = life.usage(UsageBy::Lease);
    let figures = |row: &UsageRow| (row.memory_cap_mib_s, row.memory_needed_mib_s, row.memory_peak_bytes >> 20);
    assert_eq!(all.rows.iter().map(figures).collect::<Vec<_>>(), [(81_920, 20_480, 1024), (81_920, 81_920, 4096)]);
    assert_eq!(figures(&all.total), (163_840, 102_400, 4096), "times add up, and of peaks there is the highest");
    // Whose GPUs were taken from it has no cap any more.
    let mut taken = with_peak(lease("01", "red", 20, 0), 1024);
    taken.facts.cap_bytes = 0;
    life.enter(21, &[taken, with_peak(lease("02", "red", 20, 0), 4096)]);
    assert_eq!(figures(&life.usage(UsageBy::Lease).rows[0]), (81_920, 20_480, 1024));
}

#[test]
fn a_ledger_of_the_first_version_goes_on_and_what_it_does_not_say_counts_as_needed() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, S)]);
    drop(life);
    make_older(&path, 1);
    let life = Life::begin(&path, "b", 20);
    let row = &life.usage(UsageBy::Lease).rows[0];
    assert_eq!((row.used_gpu_ns, row.memory_cap_mib_s), (S, 40_960));
    assert_eq!((row.memory_needed_mib_s, row.memory_peak_bytes), (40_960, 0));
    drop(life);
    Life::begin(&path, "b", 30);
}
