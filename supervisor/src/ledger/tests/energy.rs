//! What the GPUs drew, and whose that was.

use super::*;

/// The same lease, whose part of what the GPU drew is so much by now.
fn with_energy(energy_millijoules: u64, mut statement: Statement) -> Statement {
    statement.gpus[0].energy_millijoules = energy_millijoules;
    statement
}

#[test]
fn what_leases_and_nobody_drew_is_all_that_was_drawn() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    for (second, drawn, [of_red, of_none]) in [(5, 1000, [400, 0]), (10, 2000, [900, 300]), (45, 7001, [3001, 1500])] {
        life.drawn_millijoules = drawn;
        let (red, none) = (lease("01", "red", second, 0), lease("02", "", second, 0));
        life.enter(second, &[with_energy(of_red, red), with_energy(of_none, none)]);
        let all = life.usage(UsageBy::Team);
        let [nobody, red] = all.rows.as_slice() else { panic!("{all:?}") };
        assert_eq!((red.energy_millijoules, nobody.energy_millijoules), (of_red, of_none));
        let pool = all.pool.as_ref().unwrap();
        let left = (drawn - of_red - of_none) as i64;
        assert_eq!((pool.energy_millijoules, pool.nobodys_energy_millijoules), (drawn, left));
        for by in UsageBy::ALL {
            assert_eq!(life.usage(by).total, all.total, "{by:?}");
        }
    }
    // Within its minute: what lies in two of them is divided by time, without a rest.
    let of_minute = |begins: u64| usage(&path, &format!("since={}&until={}", BEGUN_S + begins, BEGUN_S + begins + 60));
    let (first, second) = (of_minute(0).total.energy_millijoules, of_minute(40).total.energy_millijoules);
    assert_eq!((first > second, second > 0, first + second), (true, true, 4501));
}

#[test]
fn what_a_board_drew_until_it_was_divided_is_entered() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.drawn_millijoules = 1000;
    life.enter(5, &[with_energy(400, lease("01", "red", 5, 0))]);
    // It is none of those that are there any more, in the middle of a span, and back in the next one.
    let over = ended(8, with_energy(900, lease("01", "red", 8, 0)));
    for (second, millijoules, is_there, all) in [
        (8, 1500, false, vec![&over]),
        (12, 1500, false, vec![&over]),
        (30, 1500, false, vec![]),
        (50, 1700, true, vec![]),
    ] {
        let present = if is_there { vec![gpu()] } else { Vec::new() };
        let (batch, next) = life.balance.next(at(second), (&present, &drawn(millijoules)), &all);
        life.store.write((&batch, &Unwritten::default()), (&facts(7), ""), at(second), "a").unwrap();
        life.balance = next;
        let pool = life.usage(UsageBy::Team).pool.unwrap();
        let left = millijoules as i64 - 900;
        assert_eq!((pool.energy_millijoules, pool.nobodys_energy_millijoules), (millijoules, left), "at {second}");
    }
}

#[test]
fn a_supervisor_that_begins_anew_counts_anew_and_nothing_twice() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.drawn_millijoules = 5000;
    life.enter(10, &[with_energy(2000, lease("01", "red", 10, 0))]);
    drop(life);
    let mut life = Life::begin(&path, "a", 30);
    life.drawn_millijoules = 70;
    life.enter(31, &[with_energy(20, taken_over(30, 31, lease("01", "red", 10, 0)))]);
    life.drawn_millijoules = 300;
    life.enter(45, &[ended(45, with_energy(100, taken_over(30, 45, lease("01", "red", 10, 0))))]);
    let all = life.usage(UsageBy::Team);
    assert_eq!((all.total.energy_millijoules, all.pool.unwrap().energy_millijoules), (2100, 5300));
}

#[test]
fn a_ledger_that_knows_no_energy_goes_on() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, S)]);
    drop(life);
    make_older(&path, 3);
    let mut life = Life::begin(&path, "b", 20);
    life.drawn_millijoules = 900;
    life.enter(30, &[with_energy(600, taken_over(20, 30, lease("01", "red", 10, S)))]);
    let all = life.usage(UsageBy::Team);
    assert_eq!((all.total.energy_millijoules, all.pool.unwrap().nobodys_energy_millijoules), (600, 300));
    assert_eq!(all.total.used_gpu_ns, S, "what was known of it stays");
}
