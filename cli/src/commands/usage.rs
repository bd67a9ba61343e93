//! `gpool usage`

use super::days;
use crate::arguments::{Format, UsageOptions};
use crate::exit::{ExitStatus, Failure};
use crate::money::{exact, rounded};
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use gpool_protocol::{Client, Usage, UsageBy, UsagePool, UsageRow, format_bytes};
use jiff::Timestamp;
use serde_json::Value;

/// Prints who was promised what and had it.
pub fn run(client: &Client, options: &UsageOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let by = keys(&options.by)?;
    let span = options.month.map_or_else(|| options.scope.time.unix_s(now_s), |month| month.unix_s(now_s));
    let parts = days::usage(client, by, &(options.scope.filters() + &options.of.filter()), span, now_s)?;
    let (usage, days) = match by.1 {
        true => each_day(parts),
        false => (days::sum(parts), Vec::new()),
    };
    match options.format {
        Format::Table => output::print(&render(&usage, &days, by.0, false)),
        Format::Wide => output::print(&render(&usage, &days, by.0, true)),
        Format::Json => output::print_json_of([("by", by_of(&options.by)), ("usage", json_of(&usage, &days))]),
        Format::Csv => output::print(&render_csv(&usage, &days, by.0)),
    }
}

/// By what, and whether each day is for itself.
///
/// # Errors
/// Two of them that are not kept apart together.
fn keys(by: &[UsageBy]) -> Result<(UsageBy, bool), Failure> {
    match by {
        [one] => Ok((*one, false)),
        [one, UsageBy::Day] if !matches!(one, UsageBy::Hour | UsageBy::Day) => Ok((*one, true)),
        _ => {
            let sentence = "gpool: --by takes one word, or one and day behind it, as in --by team,day";
            Err(Failure::Refused(ExitStatus::Usage, sentence.to_owned()))
        }
    }
}

/// The sum of days with the rows of each, in the order of their keys, and the day of each row.
fn each_day(parts: Vec<Usage>) -> (Usage, Vec<String>) {
    let day_of = |part: &Usage| moment(part.since_unix_s).get(..10).unwrap_or_default().to_owned();
    let rows_of = |part: &Usage| part.rows.iter().cloned().map(|row| (row, day_of(part))).collect::<Vec<_>>();
    let mut rows: Vec<(UsageRow, String)> = parts.iter().flat_map(rows_of).collect();
    // Those of a key are in the order of their days already.
    rows.sort_by(|one, other| one.0.key.cmp(&other.0.key));
    let (mut usage, mut days) = (days::sum(parts), Vec::new());
    usage.rows.clear();
    for (row, day) in rows {
        usage.rows.push(UsageRow { leases_before: 0, ..row });
        days.push(day);
    }
    (usage, days)
}

fn by_of(by: &[UsageBy]) -> Value {
    match by {
        [one] => to_value(one),
        several => to_value(&several),
    }
}

fn json_of(usage: &Usage, days: &[String]) -> Value {
    let mut all = to_value(usage);
    let rows = all.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten();
    for (row, day) in rows.zip(days) {
        row["day"] = day.as_str().into();
    }
    all
}

/// Hours of GPU time.
pub fn hours<N: Into<i128>>(ns: N) -> String {
    let ns = ns.into();
    let thousandths = (ns.unsigned_abs() * 1000 + 1_800_000_000_000) / 3_600_000_000_000;
    let sign = if ns < 0 && thousandths > 0 { "-" } else { "" };
    format!("{sign}{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// Energy: a kilowatt hour is 3.6 million joules.
pub fn kilowatt_hours(millijoules: i128) -> String {
    hours(millijoules * 1000)
}

/// GiB hours.
pub fn gib_hours(mib_s: u64) -> String {
    hours(i128::from(mib_s) * 1_000_000_000 / 1024)
}

/// A table in hours. Where it is about all leases, what nobody had stands below them, and all there was.
fn render(usage: &Usage, days: &[String], by: UsageBy, is_wide: bool) -> String {
    let name = match by {
        UsageBy::Team => "TEAM",
        UsageBy::Project => "PROJECT",
        UsageBy::CostCenter => "COST CENTER",
        UsageBy::User => "USER",
        UsageBy::Class => "CLASS",
        UsageBy::Priority => "PRIORITY",
        UsageBy::Mechanism => "MECHANISM",
        UsageBy::Gpu => "GPU",
        UsageBy::Container => "CONTAINER",
        UsageBy::Namespace => "NAMESPACE",
        UsageBy::Pod => "POD",
        UsageBy::Lease => "LEASE",
        UsageBy::Hour => "HOUR",
        UsageBy::Day => "DAY",
    };
    let mut columns: Vec<Column> = vec![text(name)];
    columns.extend((!days.is_empty()).then(|| text("DAY")));
    columns.extend([figure("LEASES"), figure("RESERVED h"), figure("USED h")]);
    columns.extend([figure("BURST h"), figure("LENT h"), figure("IDLE h"), figure("CAP GiB h")]);
    let has_costs = usage.currency.is_some();
    if has_costs {
        columns.push(figure("COST"));
    }
    let has_unmetered = is_wide || usage.total.unmetered_gpu_ns > 0;
    if has_unmetered {
        columns.push(figure("UNMETERED h"));
    }
    if is_wide {
        let memory = [figure("MEMORY GiB h"), figure("NEEDED GiB h"), figure("PEAK")];
        columns.extend(memory.into_iter().chain([figure("UNWATCHED h"), figure("ENERGY kWh")]));
    }
    let named = |key: &str, day: &str| {
        let day = (!days.is_empty()).then(|| day.to_owned());
        std::iter::once(key.to_owned()).chain(day).collect::<Vec<_>>()
    };
    let cells = |key: &str, day: &str, row: &UsageRow| {
        let mut cells = named(key, day);
        cells.push(row.leases.to_string());
        let times = [row.reserved_gpu_ns, row.used_gpu_ns, row.burst_gpu_ns, row.lent_gpu_ns, row.idle_gpu_ns];
        cells.extend(times.map(hours));
        cells.push(gib_hours(row.memory_cap_mib_s));
        if has_costs {
            cells.push(rounded(row.cost_nanos));
        }
        if has_unmetered {
            cells.push(hours(row.unmetered_gpu_ns));
        }
        if is_wide {
            cells.extend([row.memory_used_mib_s, row.memory_needed_mib_s].map(gib_hours));
            cells.push(match row.memory_peak_bytes {
                0 => "-".to_owned(),
                bytes => format_bytes(bytes),
            });
            cells.push(hours(row.unwatched_gpu_ns));
            cells.push(kilowatt_hours(row.energy_millijoules.into()));
        }
        cells
    };
    let dashes = |cells: Vec<String>| {
        let left = columns.len() - cells.len();
        cells.into_iter().chain(std::iter::repeat_n("-".to_owned(), left)).collect::<Vec<_>>()
    };
    let called = |row: &UsageRow| if row.key.is_empty() { "-".to_owned() } else { row.key.clone() };
    let of_days = days.iter().map(String::as_str).chain(std::iter::repeat(""));
    let mut rows: Vec<Vec<String>> =
        usage.rows.iter().zip(of_days).map(|(row, day)| cells(&called(row), day, row)).collect();
    rows.push(cells("(all leases)", "-", &usage.total));
    if let Some(pool) = &usage.pool {
        let UsagePool { gpu_ns, unreserved_gpu_ns, unused_gpu_ns, cost_nanos, unpaid_cost_nanos, .. } = pool;
        let line = |name: &str, times: [i128; 2], nanos: i128, millijoules: i128| {
            let mut cells = named(name, "-");
            cells.extend(["-".to_owned(), hours(times[0]), hours(times[1])]);
            if has_costs {
                cells.extend(std::iter::repeat_n("-".to_owned(), 4).chain([rounded(nanos)]));
            }
            let mut cells = dashes(cells);
            // The last column.
            if let Some(last) = cells.last_mut().filter(|_| is_wide) {
                *last = kilowatt_hours(millijoules);
            }
            cells
        };
        let left = [(*unreserved_gpu_ns).into(), (*unused_gpu_ns).into()];
        rows.push(line("(nobody)", left, (*unpaid_cost_nanos).into(), pool.nobodys_energy_millijoules.into()));
        let all = [(*gpu_ns).into(), (*gpu_ns).into()];
        rows.push(line("(all GPUs)", all, (*cost_nanos).into(), pool.energy_millijoules.into()));
    }
    borderless(&columns, rows) + &note(usage)
}

/// What costs are in, what has none, and what is not known.
fn note(usage: &Usage) -> String {
    let of_gpus = usage.pool.as_ref().map_or(0, |pool| pool.unpriced_gpu_ns);
    let costs = usage.currency.as_ref().map(|currency| match (usage.total.unpriced_gpu_ns, of_gpus) {
        (0, 0) => format!("Costs are in {currency}.\n"),
        (leases, gpus) => format!(
            "Costs are in {currency}. [rates] of the configuration has no price for {} h of leases and none without a team for {} h \
             of GPUs.\n",
            hours(leases),
            hours(gpus)
        ),
    });
    costs.unwrap_or_default() + &begins_later("The ledger begins", usage.begins_unix_s, usage.since_unix_s)
}

/// That what was asked for begins before anything is known.
pub fn begins_later(what: &str, begins_unix_s: Option<u64>, since_unix_s: u64) -> String {
    match begins_unix_s.filter(|begins| *begins > since_unix_s) {
        Some(begins_s) => format!("{what} {}.\n", moment(begins_s)),
        None => String::new(),
    }
}

/// In RFC 3339, as UTC.
pub fn moment(unix_s: u64) -> String {
    at(unix_s).to_string()
}

/// A moment of Unix time.
pub fn at(unix_s: u64) -> Timestamp {
    i64::try_from(unix_s).ok().and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(Timestamp::MAX)
}

fn render_csv(usage: &Usage, days: &[String], by: UsageBy) -> String {
    const FIGURES: [&str; 13] = [
        "leases",
        "reserved_gpu_ns",
        "used_gpu_ns",
        "burst_gpu_ns",
        "lent_gpu_ns",
        "idle_gpu_ns",
        "unmetered_gpu_ns",
        "unwatched_gpu_ns",
        "memory_cap_mib_s",
        "memory_used_mib_s",
        "memory_needed_mib_s",
        "memory_peak_bytes",
        "energy_millijoules",
    ];
    const COSTS: [&str; 3] = ["currency", "cost", "unpriced_gpu_ns"];
    let day = (!days.is_empty()).then_some("day");
    let header: Vec<&str> = ["since", "until", by.word()].into_iter().chain(day).chain(FIGURES).chain(COSTS).collect();
    let row = |(place, row): (usize, &UsageRow)| {
        let figures = [
            row.leases,
            row.reserved_gpu_ns,
            row.used_gpu_ns,
            row.burst_gpu_ns,
            row.lent_gpu_ns,
            row.idle_gpu_ns,
            row.unmetered_gpu_ns,
            row.unwatched_gpu_ns,
            row.memory_cap_mib_s,
            row.memory_used_mib_s,
            row.memory_needed_mib_s,
            row.memory_peak_bytes,
            row.energy_millijoules,
        ];
        let first = [moment(usage.since_unix_s), moment(usage.until_unix_s), row.key.clone()];
        let costs =
            [usage.currency.clone().unwrap_or_default(), exact(row.cost_nanos), row.unpriced_gpu_ns.to_string()];
        first
            .into_iter()
            .chain(days.get(place).cloned())
            .chain(figures.map(|figure| figure.to_string()))
            .chain(costs)
            .collect()
    };
    csv(&header, usage.rows.iter().enumerate().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: u64 = 3_600_000_000_000;

    fn sample() -> Usage {
        let red = UsageRow {
            key: "red".into(),
            leases: 2,
            reserved_gpu_ns: 3 * H,
            used_gpu_ns: 4 * H,
            burst_gpu_ns: H,
            memory_cap_mib_s: 3600 * 4096,
            ..UsageRow::default()
        };
        let other = UsageRow { leases: 1, reserved_gpu_ns: H / 2, idle_gpu_ns: H / 2, ..UsageRow::default() };
        let total = UsageRow { leases: 3, reserved_gpu_ns: 7 * H / 2, used_gpu_ns: 4 * H, ..UsageRow::default() };
        let pool = UsagePool {
            gpu_ns: 10 * H,
            unreserved_gpu_ns: 13 * (H / 2) as i64,
            unused_gpu_ns: 6 * H as i64,
            ..UsagePool::default()
        };
        Usage {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_527_200,
            begins_unix_s: Some(1_793_494_800),
            currency: None,
            rows: vec![other, red],
            total,
            pool: Some(pool),
        }
    }

    #[test]
    fn a_table_ties_out_to_the_eye() {
        let drawn = render(&sample(), &[], UsageBy::Team, false);
        let lines: Vec<Vec<&str>> = drawn.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["-", "1", "0.500", "0.000", "0.000", "0.000", "0.500", "0.000"]);
        assert_eq!(lines[2], ["red", "2", "3.000", "4.000", "1.000", "0.000", "0.000", "4.000"]);
        assert_eq!(lines[3][..5], ["(all", "leases)", "3", "3.500", "4.000"]);
        assert_eq!(lines[4], ["(nobody)", "-", "6.500", "6.000", "-", "-", "-", "-"]);
        assert_eq!(lines[5][..4], ["(all", "GPUs)", "-", "10.000"]);
        assert!(!drawn.contains("UNMETERED"));
        let mut mig = sample();
        mig.total.unmetered_gpu_ns = H;
        assert!(
            render(&mig, &[], UsageBy::Team, false).contains("UNMETERED h"),
            "where it is part of the sum it is shown"
        );
        assert!(drawn.ends_with("The ledger begins 2026-11-01T01:00:00Z.\n"), "{drawn}");
        assert_eq!((hours(-5i64 * 3_600_000_000), hours(1u64)), ("-0.005".to_owned(), "0.000".to_owned()));
        assert_eq!((hours(-1i64), hours(-1_800_000_000i64)), ("0.000".to_owned(), "-0.001".to_owned()));
    }

    #[test]
    fn where_there_are_prices_costs_tie_out_too() {
        let mut usage = sample();
        usage.currency = Some("EUR".into());
        (usage.rows[1].cost_nanos, usage.total.cost_nanos) = (10_000_000_000, 11_250_000_000);
        let pool = usage.pool.as_mut().unwrap();
        (pool.cost_nanos, pool.unpaid_cost_nanos) = (25_000_000_000, 13_750_000_000);
        let drawn = render(&usage, &[], UsageBy::Team, false);
        let last = |line: usize| drawn.lines().nth(line).unwrap().split_whitespace().last().unwrap().to_owned();
        assert_eq!([0, 2, 3, 4, 5].map(last), ["COST", "10.00", "11.25", "13.75", "25.00"]);
        assert!(drawn.contains("Costs are in EUR.\n"), "{drawn}");
        usage.total.unpriced_gpu_ns = H;
        assert!(render(&usage, &[], UsageBy::Team, true).contains("no price for 1.000 h of leases"));
        assert!(render_csv(&usage, &[], UsageBy::Team).lines().nth(2).unwrap().ends_with(",EUR,10,0"));
    }

    #[test]
    fn csv_has_whole_nanoseconds_and_the_time_in_each_row() {
        let drawn = render_csv(&sample(), &[], UsageBy::Team);
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines[0].starts_with("since,until,team,leases,reserved_gpu_ns,used_gpu_ns"));
        assert!(lines[2].starts_with("2026-11-01T00:00:00Z,2026-11-01T10:00:00Z,red,2,10800000000000,14400000000000,"));
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn with_day_behind_it_each_day_is_for_itself_and_the_sum_is_of_all() {
        assert!(matches!(keys(&[UsageBy::Team, UsageBy::Day]), Ok((UsageBy::Team, true))));
        assert!(matches!(keys(&[UsageBy::Day]), Ok((UsageBy::Day, false))));
        for wrong in [&[UsageBy::Team, UsageBy::User][..], &[UsageBy::Hour, UsageBy::Day], &[]] {
            assert!(matches!(keys(wrong), Err(Failure::Refused(ExitStatus::Usage, _))), "{wrong:?}");
        }
        let (first, mut second) = (sample(), sample());
        second.since_unix_s += 86_400;
        (second.rows[1].leases_before, second.total.leases_before) = (2, 3);
        let (usage, days) = each_day(vec![first, second]);
        assert_eq!(days, ["2026-11-01", "2026-11-02", "2026-11-01", "2026-11-02"]);
        let drawn = render(&usage, &days, UsageBy::Team, false);
        let lines: Vec<Vec<&str>> = drawn.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..3], ["TEAM", "DAY", "LEASES"]);
        assert_eq!(lines[4][..4], ["red", "2026-11-02", "2", "3.000"]);
        assert_eq!(lines[5][..5], ["(all", "leases)", "-", "3", "7.000"], "a lease of both days is one");
        assert_eq!(lines[7][..5], ["(all", "GPUs)", "-", "-", "20.000"]);
        let csv = render_csv(&usage, &days, UsageBy::Team);
        assert!(csv.starts_with("since,until,team,day,leases,") && csv.contains(",red,2026-11-02,2,"), "{csv}");
        assert_eq!(json_of(&usage, &days)["rows"][3]["day"], "2026-11-02");
        assert_eq!(by_of(&[UsageBy::Team, UsageBy::Day]), serde_json::json!(["team", "day"]));
    }
}
