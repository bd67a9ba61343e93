//! A time that is asked for in parts, and of some.

use super::*;
use crate::ledger::DAY_S;

/// Three leases over three days on one GPU: one all the time, one until the second day, one from the third on.
fn three_days(path: &Path) {
    let mut life = Life::begin(path, "a", 0);
    let day = |number: u64| number * DAY_S;
    let red = |second: u64| Statement { peak_bytes: 1 << 30, ..lease("01", "red", second, second / 5 * S) };
    let other = |second: u64| lease("02", "", second, second / 10 * S);
    life.enter(0, &[]);
    life.enter(10, &[red(10), other(10)]);
    life.enter(day(1), &[red(day(1)), other(day(1))]);
    life.enter(day(1) + 600, &[red(day(1) + 600), ended(day(1) + 600, other(day(1) + 600))]);
    life.enter(day(2), &[red(day(2))]);
    let new = |second: u64| {
        let begun = Statement { begun_ns: (100 + day(2)) * S, ..lease("03", "red", second, 0) };
        run(&begun, second)
    };
    life.enter(day(2) + 50, &[red(day(2) + 50), new(day(2) + 50)]);
    life.enter(day(2) + 3600, &[red(day(2) + 3600), new(day(2) + 3600)]);
}

#[test]
fn days_that_are_added_up_are_the_whole() {
    let (_folder, path) = in_folder();
    three_days(&path);
    let first = BEGUN_S - BEGUN_S % 60;
    let ends =
        [first + 60, BEGUN_S - BEGUN_S % DAY_S + DAY_S, BEGUN_S - BEGUN_S % DAY_S + 2 * DAY_S, first + 4 * DAY_S];
    for filter in ["", "&team=red", "&gpu=GPU", "&user=0", "&team=none", "&gpu=none"] {
        for by in UsageBy::ALL {
            let ask = |since: u64, until: u64, more: &str| {
                usage(&path, &format!("by={}&since={since}&until={until}{filter}{more}", by.word()))
            };
            let whole = ask(first, ends[3], "");
            let mut all = ask(first, ends[0], "");
            for pair in ends.windows(2) {
                all.add_later(ask(pair[0], pair[1], &format!("&counted_since={first}")));
            }
            assert_eq!(all, whole, "{by:?}{filter}");
        }
    }
    let whole = usage(&path, &format!("since={first}&until={}", ends[3]));
    assert_eq!(whole.rows.iter().map(|row| row.leases).collect::<Vec<_>>(), [1, 2]);
    let last = usage(&path, &format!("since={}&until={}&counted_since={first}", ends[2], ends[3]));
    assert_eq!((last.total.leases, last.total.leases_before), (2, 1), "one of them was there before");
}

#[test]
fn what_of_a_lease_is_asked_for_is_found_among_all_lines() {
    let (_folder, path) = in_folder();
    three_days(&path);
    let ask = |filter: &str| usage(&path, &format!("since=0&until={}{filter}", BEGUN_S + 4 * DAY_S));
    let all = ask("");
    let of = |key: &str| all.rows.iter().find(|row| row.key == key).unwrap().clone();
    assert_eq!((ask("&team=red").rows, ask("&team=").rows), (vec![of("red")], vec![of("")]));
    assert_eq!((ask("&team=red&project=x").rows, ask("&gpu=GPU-no").rows), (vec![], vec![]));
    assert_eq!(ask("&project=&cost-center=&user=0").total.leases, all.total.leases);
}

#[test]
fn the_pod_that_people_know_is_on_the_bill() {
    use gpool_protocol::{PodName, PodPlace};
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let name = |namespace: &str| PodName { namespace: namespace.into(), pod: "a".into(), container: "main".into() };
    let place = PodPlace { sandbox_id: "0".repeat(64), container_name: "main".into() };
    let of = |id: &str, pod: Option<PodName>| {
        let record = Record { pod, in_pod: Some(place.clone()), ..record(id, "red") };
        run(&Statement { is_taken_over: false, ..Statement::of_stranded(&record, 100 * S) }, 10)
    };
    life.enter(0, &[]);
    life.enter(10, &[of("01", Some(name("ml"))), of("02", Some(name("web"))), of("03", None), lease("04", "", 10, 0)]);
    let keys = |by: UsageBy| life.usage(by).rows.into_iter().map(|row| (row.key, row.leases)).collect::<Vec<_>>();
    let unnamed = format!("{}/main", place.sandbox_id);
    assert_eq!(keys(UsageBy::Pod), [("".into(), 1), (unnamed, 1), ("ml/a".into(), 1), ("web/a".into(), 1)]);
    assert_eq!(keys(UsageBy::Namespace), [("".into(), 2), ("ml".into(), 1), ("web".into(), 1)]);
}

#[test]
fn what_teams_had_is_counted_and_never_falls() {
    use crate::ledger::teams::Teams;
    let (_folder, path) = in_folder();
    let (mut life, mut teams) = (Life::begin(&path, "a", 0), Teams::default());
    let mut enter = |second: u64, all: &[Statement]| {
        let all: Vec<&Statement> = all.iter().collect();
        let (batch, next) = life.balance.next(at(second), (&[gpu()], &drawn(0)), &all);
        teams.note(&batch, (&facts(7), ""));
        life.balance = next;
        teams.figures()
    };
    let of = |team: &str, reserved_ns: u64, used_ns: u64| (team.to_owned(), [reserved_ns, used_ns]);
    enter(0, &[]);
    let two = [lease("01", "red", 10, 6 * S), lease("02", "", 10, S)];
    assert_eq!(enter(10, &two), [of("", 3 * S, S), of("red", 3 * S, 6 * S)]);
    let others: Vec<Statement> =
        (0..300).map(|number| lease(&format!("t{number}"), &format!("t{number:03}"), 20, 0)).collect();
    let all = enter(20, &[&[ended(20, lease("01", "red", 20, 6 * S))], others.as_slice()].concat());
    assert_eq!((all.len(), all[0].0.as_str(), all[1].0.as_str()), (257, "", "(others)"));
    assert_eq!(enter(30, &[]).into_iter().find(|(team, _)| team == "red"), Some(of("red", 6 * S, 6 * S)), "it stays");
}

#[test]
fn what_is_written_is_on_the_disk() {
    let (_folder, path) = in_folder();
    let life = Life::begin(&path, "a", 0);
    let pragma = |name: &str| life.store.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    // FULL, see https://sqlite.org/pragma.html#pragma_synchronous.
    assert_eq!(pragma("synchronous").unwrap(), 2);
}
