//! What the ledger's lines cost, and on whose bill.

use super::*;
use crate::ledger::question::Scope;
use gpool_protocol::{Charge, Charges};

/// Of a second at 3.60 for an hour, in billionths.
const SECOND: u64 = 1_000_000;

fn rates(text: &str) -> Rates {
    let text = format!("[rates]\ncurrency = \"EUR\"\n{text}");
    gpool_configuration::parse(Path::new("/etc/gpool/config.toml"), &text).unwrap().rates
}

fn priced(path: &Path, rates: &Rates, question: &str) -> Usage {
    let question = Question::read(&format!("since=0&until={}&{question}", BEGUN_S + 10_000_000), BEGUN_S).unwrap();
    Reader::open(path, rates).unwrap().usage(&question).unwrap()
}

fn bill(path: &Path, rates: &Rates, question: &str) -> Charges {
    let question = format!("since={}&until={}&{question}", BEGUN_S - 20, BEGUN_S + 10_000_000);
    let scope = Scope::read(&question, BEGUN_S).unwrap();
    Reader::open(path, rates).unwrap().charges(&scope).unwrap()
}

/// Of three leases with 30 %: one of the team red that has twice its share, one of nobody, and one of a low priority.
fn three(path: &Path) -> Life {
    let mut life = Life::begin(path, "a", 0);
    life.enter(0, &[]);
    let paid = |mut statement: Statement| {
        (statement.facts.project, statement.facts.cost_center) = (Some("mars".into()), Some("4711".into()));
        statement
    };
    let low = |second: u64, ns: u64| {
        let mut record = record("03", "blue");
        (record.priority, record.fraction_permille) = (gpool_protocol::Priority::Burst, 300);
        let mut statement = Statement::of_stranded(&record, 100 * S);
        statement.is_taken_over = false;
        statement.gpus[0].charged_ns = ns;
        run(&statement, second)
    };
    for (second, ns) in [(10, 6 * S), (20, 12 * S)] {
        let leases = [paid(lease("01", "red", second, ns)), lease("02", "", second, ns / 6), low(second, ns / 3)];
        life.enter(second, &leases);
    }
    life
}

#[test]
fn a_bill_is_the_same_sum_by_whatever_it_is_kept_apart() {
    let (_folder, path) = in_folder();
    let life = three(&path);
    let euro = rates("[[rates.price]]\nper_gpu_hour = \"3.60\"\n");
    let all = priced(&path, &euro, "by=team");
    let costs: Vec<(&str, u64)> = all.rows.iter().map(|row| (row.key.as_str(), row.cost_nanos / SECOND)).collect();
    // Six seconds promised and six beyond; six promised, four of them left; none promised, four had at 0.4.
    assert_eq!(costs, [("", 6), ("blue", 1), ("red", 12)]);
    assert_eq!((all.total.cost_nanos, all.currency.as_deref()), (196 * SECOND / 10, Some("EUR")));
    let pool = all.pool.as_ref().unwrap();
    assert_eq!((pool.cost_nanos, pool.unpaid_cost_nanos), (20 * SECOND, 4 * SECOND as i64 / 10));
    for by in UsageBy::ALL {
        let total = priced(&path, &euro, &format!("by={}", by.word())).total;
        assert_eq!((total.cost_nanos, total.unpriced_gpu_ns), (all.total.cost_nanos, 0), "{by:?}");
    }
    let bill = bill(&path, &euro, "");
    assert_eq!(bill.rows.iter().map(|row| row.cost_nanos).sum::<u64>(), all.total.cost_nanos);
    assert_eq!((bill.total_cost_nanos, bill.currency.as_deref()), (all.total.cost_nanos, Some("EUR")));
    for row in &bill.rows {
        let by_the_hour = u128::from(row.billed_gpu_ns) * u128::from(row.price_micros.unwrap()) / 3_600_000_000;
        assert!(by_the_hour.abs_diff(row.cost_nanos.into()) <= 2, "{row:?}");
    }
    // Without prices nothing costs anything.
    let none = life.usage(UsageBy::Team);
    assert_eq!((none.total.cost_nanos, none.total.unpriced_gpu_ns, none.currency), (0, 0, None));
    assert_eq!(none.pool.unwrap().unpaid_cost_nanos, 0);
}

#[test]
fn what_was_had_is_priced_by_the_priority_of_that_time() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    life.enter(10, &[lease("01", "red", 10, 10 * S)]);
    let euro = rates("[[rates.price]]\nper_gpu_hour = \"3.60\"\n");
    let cost = || priced(&path, &euro, "by=team").total.cost_nanos / SECOND;
    assert_eq!(cost(), 10, "three seconds promised and seven beyond");
    let mut changed = lease("01", "red", 20, 20 * S);
    changed.facts.priority = gpool_protocol::Priority::Burst.text();
    life.enter(20, &[changed]);
    assert_eq!(
        cost(),
        10 + 3 + 2,
        "three more promised, as the test has it, and seven beyond at 0.4, not those before"
    );
}

#[test]
fn a_row_of_a_bill_says_who_and_what_and_by_which_price() {
    let (_folder, path) = in_folder();
    let mut life = three(&path);
    // On the next day another price holds, and the team has one of its own.
    let day_s = BEGUN_S - BEGUN_S % 86_400 + 86_400;
    let later = day_s - BEGUN_S;
    life.enter(later + 10, &[run(&lease("02", "", 20, 2 * S), later + 10)]);
    let euro = rates(
        "[[rates.price]]\nper_gpu_hour = \"3.60\"\n[[rates.price]]\nper_gpu_hour = \"7.20\"\nfrom = \"2026-11-25\"\n\
         [[rates.price]]\nper_gpu_hour = \"1.80\"\nteam = \"red\"\nmodel = \"gpu\"\n",
    );
    let bill_of = |question: &str| bill(&path, &euro, question);
    let rows = bill_of("team=red").rows;
    let [Charge { team, project, cost_center, billed_gpu_ns, price_micros, list_price_micros, .. }] = rows.as_slice()
    else {
        panic!("{rows:?}")
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    assert_eq!([text(team), text(project), text(cost_center)], ["red", "mars", "4711"]);
    assert_eq!((*billed_gpu_ns, *price_micros, *list_price_micros), (12 * S, Some(1_800_000), Some(3_600_000)));
    assert_eq!((rows[0].cost_nanos, rows[0].list_cost_nanos), (6 * SECOND, 12 * SECOND));
    assert_eq!(
        (rows[0].begins_unix_s, rows[0].ends_unix_s),
        (BEGUN_S - 20, day_s),
        "as much of the day as is asked for"
    );
    assert_eq!((rows[0].reserved_gpu_ns, rows[0].used_gpu_ns, rows[0].burst_gpu_ns), (6 * S, 12 * S, 6 * S));
    assert!(!rows[0].is_estimated && rows[0].ended_unix_ms.is_none());
    let nobody = bill_of("team=").rows;
    let prices: Vec<_> = nobody.iter().map(|row| (row.begins_unix_s >= day_s, row.price_micros.unwrap())).collect();
    assert_eq!(prices, [(false, 3_600_000), (true, 7_200_000)]);
    assert_eq!(bill_of("project=mars"), bill_of("cost-center=4711"));
    assert_eq!(bill_of("project=mars").rows, rows);
    assert_eq!(bill_of("project=").rows.len() + 1, bill_of("").rows.len());
    assert_eq!(bill_of("cost-center=1").rows, []);
    let by = |by: &str| priced(&path, &euro, by).rows.into_iter().map(|row| row.key).collect::<Vec<_>>();
    assert_eq!(
        (by("by=project"), by("by=cost-center&team=red")),
        (vec![String::new(), "mars".into()], vec!["4711".into()])
    );
    assert!(priced(&path, &euro, "project=mars").pool.is_none(), "beside some, the rest is not what nobody had");
}

#[test]
fn what_has_no_price_is_told() {
    let (_folder, path) = in_folder();
    let _life = three(&path);
    let other = rates("[[rates.price]]\nper_gpu_hour = \"1\"\nmodel = \"H100\"\n");
    let all = priced(&path, &other, "by=team");
    assert_eq!((all.total.cost_nanos, all.total.unpriced_gpu_ns), (0, 6 * S + 6 * S + 6 * S + 4 * S));
    assert_eq!(bill(&path, &other, "team=red").rows[0].price_micros, None);
}

#[test]
fn a_ledger_that_knows_no_projects_goes_on() {
    let (_folder, path) = in_folder();
    drop(three(&path));
    make_older(&path, 2);
    let life = Life::begin(&path, "b", 20);
    let row = &life.usage(UsageBy::CostCenter).rows[0];
    assert_eq!((row.key.as_str(), row.leases), ("", 3));
    let euro = rates("[[rates.price]]\nper_gpu_hour = \"3.60\"\n");
    let costs = priced(&path, &euro, "by=team").rows.into_iter().map(|row| row.cost_nanos / SECOND);
    assert_eq!(costs.collect::<Vec<_>>(), [6, 1, 12], "what it does not say is taken to have been so all the time");
}
