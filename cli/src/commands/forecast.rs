//! `gpool forecast`

use super::days;
use super::usage::{at, begins_later, moment};
use crate::arguments::{ForecastOptions, Format};
use crate::exit::{ExitStatus, Failure};
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use crate::table::is_mig_instance;
use gpool_policy::forecast::{Forecast, LEAST_WEEKS, Method, WEEK_HOURS, forecast};
use gpool_protocol::{Client, GpuView, Usage, UsageBy, UsageRow, format_gpus, format_permille};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HOUR_S: u64 = 3600;
const WEEK_S: u64 = WEEK_HOURS as u64 * HOUR_S;
/// What was charged in another hour than it was had in makes no GPU more.
const TOLERANCE_PERMILLE: u64 = 5;
/// GPU time of an hour of a thousandth of a GPU.
const PERMILLE_HOUR_NS: u64 = 3_600_000_000;

const COLUMNS: [Column; 7] =
    [text("WEEK FROM"), figure("GPUS"), figure("BUSIEST"), text("AT"), figure("OVER"), text("BY"), figure("OFF BY")];
const HEADER: [&str; 9] = [
    "begins_unix_s",
    "gpus_permille",
    "busiest_permille",
    "busiest_unix_s",
    "hours_over",
    "by",
    "trend_off_permille",
    "last_week_off_permille",
    "weeks_tried",
];

/// What is known of the hours that were, in thousandths of a GPU.
struct Known {
    /// From when on, Unix seconds.
    begins_s: u64,
    hours: Vec<u64>,
}

/// One week that is to come.
struct Week {
    begins_s: u64,
    told: Forecast,
    /// GPUs that there are now, in thousandths; none where only some of what is asked for is looked at.
    there_permille: Option<u64>,
}

impl Week {
    fn mean_permille(&self) -> u64 {
        self.told.hours.iter().sum::<u64>() / WEEK_HOURS as u64
    }

    /// The hour in which most is expected, the first of those, and how much.
    fn busiest(&self) -> (u64, u64) {
        let hours = self.told.hours.iter().enumerate();
        let first = hours.max_by_key(|(hour, permille)| (**permille, std::cmp::Reverse(*hour)));
        let (hour, permille) = first.map_or((0, 0), |(hour, permille)| (hour as u64, *permille));
        (self.begins_s + hour * HOUR_S, permille)
    }

    /// In how many hours more is expected than there is.
    fn hours_over(&self) -> Option<usize> {
        self.there_permille?;
        Some(self.told.hours.iter().filter(|hour| self.is_over(**hour)).count())
    }

    fn is_over(&self, permille: u64) -> bool {
        self.there_permille.is_some_and(|there| permille > there + TOLERANCE_PERMILLE)
    }
}

/// Shows how much of the GPUs will be asked for, if it goes on as it went.
pub fn run(client: &Client, options: &ForecastOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let (since_s, until_s) = options.scope.time.unix_s(now_s);
    let since_s = since_s / HOUR_S * HOUR_S;
    // What is not over is no measure.
    let until_s = until_s.unwrap_or(now_s).min(now_s) / HOUR_S * HOUR_S;
    let filters = options.scope.filters();
    let usage = days::sum(days::usage(client, (UsageBy::Hour, false), &filters, (since_s, Some(until_s)), now_s)?);
    let known = known(&usage, since_s, until_s);
    if known.hours.len() < LEAST_WEEKS * WEEK_HOURS {
        return Err(too_few(&known));
    }
    let gpus: Vec<GpuView> = if filters.is_empty() { client.get("/v1/gpus")? } else { Vec::new() };
    let boards = gpus.iter().filter(|gpu| !is_mig_instance(gpu) && !gpu.silent).count() as u64;
    let there_permille = filters.is_empty().then_some(boards * 1000);
    let week = |ahead: usize| {
        let told = forecast(&known.hours, ahead)?;
        Some(Week { begins_s: until_s + (ahead as u64 - 1) * WEEK_S, told, there_permille })
    };
    let weeks: Vec<Week> = (1..=usize::from(options.weeks)).filter_map(week).collect();
    match options.format {
        Format::Table | Format::Wide => {
            let begins = begins_later("The ledger begins", usage.begins_unix_s, since_s);
            output::print(&(borderless(&COLUMNS, weeks.iter().map(cells)) + &note(&weeks, &known) + &begins))
        }
        Format::Json => output::print_json_of([
            ("known_since_unix_s", to_value(&known.begins_s)),
            ("known_hours", to_value(&known.hours.len())),
            ("weeks", Value::Array(weeks.iter().map(json_of).collect())),
        ]),
        Format::Csv => output::print(&csv(&HEADER, weeks.iter().map(csv_cells))),
    }
}

/// What was asked for in each whole hour from when on anything is written down: what was promised, or had where that is more. Of
/// an hour that is in no row nothing was.
fn known(usage: &Usage, since_s: u64, until_s: u64) -> Known {
    let begins_s = usage.begins_unix_s.unwrap_or(until_s).max(since_s).div_ceil(HOUR_S) * HOUR_S;
    let asked = |row: &UsageRow| {
        let hour: Timestamp = row.key.replace("00Z", "00:00Z").parse().ok()?;
        // Of what was promised in instances nobody knows whether it was had.
        let ns = row.reserved_gpu_ns.max(row.used_gpu_ns.saturating_add(row.unmetered_gpu_ns));
        Some((u64::try_from(hour.as_second()).ok()?, (ns + PERMILLE_HOUR_NS / 2) / PERMILLE_HOUR_NS))
    };
    let asked: BTreeMap<u64, u64> = usage.rows.iter().filter_map(asked).collect();
    let count = until_s.saturating_sub(begins_s) / HOUR_S;
    let of_hour = |hour: u64| asked.get(&(begins_s + hour * HOUR_S)).copied().unwrap_or(0);
    Known { begins_s, hours: (0..count).map(of_hour).collect() }
}

fn too_few(known: &Known) -> Failure {
    let sentence = format!(
        "gpool: nobody can say yet: a forecast takes {LEAST_WEEKS} weeks, and {} whole hours of it are written down since {}; ask again \
         later, or with an earlier --since",
        known.hours.len(),
        moment(known.begins_s)
    );
    Failure::Refused(ExitStatus::NoCapacity, sentence)
}

fn cells(week: &Week) -> Vec<String> {
    let (busiest_s, busiest) = week.busiest();
    let dash = || "-".to_owned();
    vec![
        at(week.begins_s).strftime("%Y-%m-%d %H:%M").to_string(),
        hundredths(week.mean_permille()),
        hundredths(busiest),
        at(busiest_s).strftime("%a %H:%M").to_string(),
        week.hours_over().map_or_else(dash, |hours| format!("{hours} h")),
        by(week.told.method).to_owned(),
        off_permille(week).map_or_else(dash, format_permille),
    ]
}

/// Thousandths of a GPU as GPUs, so that the figures of a column stand under one another.
fn hundredths(permille: u64) -> String {
    let hundredths = permille.saturating_add(5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn by(method: Method) -> &'static str {
    match method {
        Method::Trend => "trend",
        Method::LastWeek => "last-week",
    }
}

/// How far such a forecast would have been off.
fn off_permille(week: &Week) -> Option<u64> {
    let tried = week.told.tried?;
    Some(match week.told.method {
        Method::Trend => tried.trend_permille,
        Method::LastWeek => tried.last_week_permille,
    })
}

fn note(weeks: &[Week], known: &Known) -> String {
    let over = weeks.iter().find(|week| week.hours_over().is_some_and(|hours| hours > 0));
    let gpus = |permille| match permille {
        1000 => "There is 1 GPU".to_owned(),
        several => format!("There are {} GPUs", format_gpus(several)),
    };
    let there = weeks.iter().find_map(|week| week.there_permille).map(|permille| match over {
        Some(week) => {
            let from = moment(first_over_s(week).unwrap_or(week.begins_s));
            format!("{}. More is expected from {from} on.\n", gpus(permille))
        }
        None => format!("{}, and no hour in which more is expected.\n", gpus(permille)),
    });
    format!(
        "\n{}By {} whole weeks; what was refused or waited in them was not asked for by what is written down. Times are UTC.\n",
        there.unwrap_or_default(),
        known.hours.len() / WEEK_HOURS
    )
}

fn first_over_s(week: &Week) -> Option<u64> {
    let hour = week.told.hours.iter().position(|hour| week.is_over(*hour))?;
    Some(week.begins_s + hour as u64 * HOUR_S)
}

fn csv_cells(week: &Week) -> Vec<String> {
    let (busiest_s, busiest) = week.busiest();
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let tried = week.told.tried;
    vec![
        week.begins_s.to_string(),
        week.mean_permille().to_string(),
        busiest.to_string(),
        busiest_s.to_string(),
        number(week.hours_over().map(|hours| hours as u64)),
        by(week.told.method).to_owned(),
        number(tried.map(|its| its.trend_permille)),
        number(tried.map(|its| its.last_week_permille)),
        number(tried.map(|its| its.weeks as u64)),
    ]
}

fn json_of(week: &Week) -> Value {
    let (busiest_unix_s, busiest_permille) = week.busiest();
    let tried = week.told.tried;
    json!({
        "begins_unix_s": week.begins_s,
        "gpus_permille": week.mean_permille(),
        "busiest_permille": busiest_permille,
        "busiest_unix_s": busiest_unix_s,
        "hours_over": week.hours_over(),
        "by": by(week.told.method),
        "trend_off_permille": tried.map(|its| its.trend_permille),
        "last_week_off_permille": tried.map(|its| its.last_week_permille),
        "weeks_tried": tried.map(|its| its.weeks),
        "hours_permille": week.told.hours,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-02, a Monday.
    const BEGIN_S: u64 = 1_793_577_600;

    fn usage(weeks: u64, used: impl Fn(u64) -> u64) -> Usage {
        let row = |hour: u64| UsageRow {
            key: at(BEGIN_S + hour * HOUR_S).strftime("%Y-%m-%dT%H:00Z").to_string(),
            reserved_gpu_ns: 500 * PERMILLE_HOUR_NS,
            used_gpu_ns: used(hour) * PERMILLE_HOUR_NS,
            ..UsageRow::default()
        };
        let rows = (0..weeks * WEEK_HOURS as u64).map(row).collect();
        Usage { begins_unix_s: Some(BEGIN_S - 1), rows, ..Usage::default() }
    }

    /// A tenth of what there was in the first week more in each, most of it on Tuesdays from 14 to 15.
    fn grows(hour: u64) -> u64 {
        (10 + hour / 168) * if hour % 168 == 38 { 200 } else { 60 }
    }

    fn weeks(usage: &Usage, count: u64, there_permille: Option<u64>) -> (Known, Vec<Week>) {
        let until_s = BEGIN_S + count * WEEK_S;
        let known = known(usage, 0, until_s);
        let week = |ahead: usize| Week {
            begins_s: until_s + (ahead as u64 - 1) * WEEK_S,
            told: forecast(&known.hours, ahead).unwrap(),
            there_permille,
        };
        let all = (1..=2).map(week).collect();
        (known, all)
    }

    #[test]
    fn a_line_says_when_most_is_expected_and_how_far_that_was_off() {
        let (known, weeks) = weeks(&usage(6, grows), 6, Some(4000));
        assert_eq!((known.begins_s, known.hours.len(), known.hours[38], known.hours[0]), (BEGIN_S, 1008, 2000, 600));
        let want = "\
WEEK FROM         GPUS  BUSIEST  AT         OVER  BY     OFF BY
2026-12-14 00:00  0.97     3.20  Tue 14:00   0 h  trend     0 %
2026-12-21 00:00  1.03     3.40  Tue 14:00   0 h  trend     0 %

There are 4 GPUs, and no hour in which more is expected.
By 6 whole weeks; what was refused or waited in them was not asked for by what is written down. Times are UTC.
";
        let shown = borderless(&COLUMNS, weeks.iter().map(cells)) + &note(&weeks, &known);
        assert_eq!(shown, want);
        let line = csv(&HEADER, weeks.iter().map(csv_cells)).lines().nth(1).unwrap().to_owned();
        assert_eq!(line.split(',').count(), HEADER.len(), "{line}");
        assert_eq!(json_of(&weeks[0])["hours_permille"].as_array().map(Vec::len), Some(WEEK_HOURS));
    }

    #[test]
    fn it_is_told_when_more_is_expected_than_there_is() {
        let (known, weeks) = weeks(&usage(4, grows), 4, Some(2000));
        assert!(note(&weeks, &known).contains("There are 2 GPUs. More is expected from 2026-12-01T14:00:00Z on."));
        let unknown = Week { there_permille: None, begins_s: 0, told: weeks[0].told.clone() };
        assert_eq!((unknown.hours_over(), cells(&unknown)[4].as_str()), (None, "-"));
    }

    #[test]
    fn hours_without_a_row_are_nothing_and_too_few_weeks_no_forecast() {
        let few = Usage { begins_unix_s: Some(BEGIN_S + 5), ..usage(1, grows) };
        let its = known(&few, 0, BEGIN_S + 2 * WEEK_S);
        assert_eq!((its.begins_s, its.hours.len(), its.hours[300]), (BEGIN_S + HOUR_S, 335, 0));
        let Failure::Refused(status, sentence) = too_few(&its) else { panic!() };
        assert_eq!(status, ExitStatus::NoCapacity);
        assert!(sentence.contains("335 whole hours of it are written down since 2026-11-02T01:00:00Z"), "{sentence}");
        assert_eq!(known(&Usage::default(), 0, BEGIN_S).hours.len(), 0, "nothing is written down");
    }
}
