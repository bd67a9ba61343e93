//! `gpool savings`

use super::usage::{begins_later, hours};
use crate::arguments::{Format, SavingsOptions};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use gpool_protocol::{Client, OwnerDemand, Savings, UsageBy};
use jiff::Timestamp;

/// Prints how many GPUs would have been enough without sharing, and with it.
pub fn run(client: &Client, options: &SavingsOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let savings: Savings = client.get(&path(options, now_s))?;
    match options.format {
        Format::Table => output::print(&render(&savings, options.by, false)),
        Format::Wide => output::print(&render(&savings, options.by, true)),
        Format::Json => output::print_json_of([("by", to_value(&options.by)), ("savings", to_value(&savings))]),
        Format::Csv => output::print(&render_csv(&savings, options.by)),
    }
}

fn path(options: &SavingsOptions, now_s: u64) -> String {
    let (since, until) = options.scope.time.unix_s(now_s);
    let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
    let (by, percent) = (options.by.word(), options.percent);
    format!("/v1/savings?by={by}&percent={percent}&since={since}{until}{}", options.scope.filters())
}

/// Thousandths as GPUs.
pub fn gpus(permille: u64) -> String {
    let hundredths = permille.saturating_add(5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn render(savings: &Savings, by: UsageBy, is_wide: bool) -> String {
    let (name, owner) = match by {
        UsageBy::Project => ("PROJECT", "project"),
        UsageBy::CostCenter => ("COST CENTER", "cost center"),
        UsageBy::User => ("USER", "user"),
        _ => ("TEAM", "team"),
    };
    let mut columns: Vec<Column> = vec![text(name), figure("LEASES"), figure("PLACES"), figure("SHARE")];
    columns.push(figure("MEMORY"));
    if is_wide {
        columns.push(figure("NEEDED"));
    }
    columns.push(figure("OWN GPUS"));
    let cells = |name: &str, row: &OwnerDemand, own: String| {
        let mut cells = vec![name.to_owned(), row.leases.to_string()];
        cells.extend([row.places_permille, row.share_permille, row.memory_permille].map(gpus));
        if is_wide {
            cells.push(gpus(row.needed_permille));
        }
        cells.push(own);
        cells
    };
    let called = |row: &OwnerDemand| if row.key.is_empty() { "-".to_owned() } else { row.key.clone() };
    let mut rows: Vec<Vec<String>> =
        savings.owners.iter().map(|row| cells(&called(row), row, row.gpus.to_string())).collect();
    rows.push(cells("(together)", &savings.together, savings.gpus_for_each_owner.to_string()));
    borderless(&columns, rows) + &summary(savings, owner) + &note(savings)
}

/// How many GPUs would have been enough, and what sharing saves of them.
fn summary(savings: &Savings, owner: &str) -> String {
    if savings.together.leases == 0 {
        return "There were no leases.\n".to_owned();
    }
    let [each, own, shared] = [savings.gpus_for_each_container, savings.gpus_for_each_owner, savings.gpus_shared];
    let width = [each, own, shared].map(|count| count.to_string().len()).into_iter().max().unwrap_or(1);
    let saved = saved(each, shared);
    format!(
        "\nFor {} % of {} h that are written down so many GPUs would have been enough:\n\
         {each:>width$}  a whole one for each container\n\
         {own:>width$}  own ones for each {owner}, shared by its containers\n\
         {shared:>width$}  shared by all: {saved}\n\
         There were {}.\n",
        savings.percent,
        hours(savings.known_ns),
        gpus(savings.there_permille),
    )
}

/// What sharing saves of so many GPUs.
pub fn saved(each: u64, shared: u64) -> String {
    match each.saturating_sub(shared) {
        0 => "saves none".to_owned(),
        saved => format!("saves {saved} of {each}, {} %", (saved * 100 + each / 2) / each),
    }
}

/// What is not known.
fn note(savings: &Savings) -> String {
    unknown(savings.unknown_gpus) + &begins_later("The ledger begins", savings.begins_unix_s, savings.since_unix_s)
}

/// That the memory of so many GPUs is not known.
pub fn unknown(gpus: u64) -> String {
    match gpus {
        0 => String::new(),
        1 => "The memory of a GPU that is gone is not known, and what was held of it not counted.\n".to_owned(),
        count => {
            format!("The memory of {count} GPUs that are gone is not known, and what was held of it not counted.\n")
        }
    }
}

fn render_csv(savings: &Savings, by: UsageBy) -> String {
    const FIGURES: [&str; 6] =
        ["leases", "places_permille", "share_permille", "memory_permille", "needed_permille", "gpus"];
    let header: Vec<&str> = ["since", "until", "percent", by.word()].into_iter().chain(FIGURES).collect();
    let row = |row: &OwnerDemand| {
        let [since, until] = [savings.since_unix_s, savings.until_unix_s].map(super::usage::moment);
        let figures =
            [row.leases, row.places_permille, row.share_permille, row.memory_permille, row.needed_permille, row.gpus];
        let first = [since, until, savings.percent.to_string(), row.key.clone()];
        first.into_iter().chain(figures.map(|figure| figure.to_string())).collect()
    };
    csv(&header, savings.owners.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Savings {
        let demand =
            |key: &str, leases, [places_permille, share_permille, memory_permille]: [u64; 3], gpus| OwnerDemand {
                key: key.into(),
                leases,
                places_permille,
                share_permille,
                memory_permille,
                needed_permille: share_permille.max(memory_permille),
                gpus,
            };
        Savings {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_527_200,
            begins_unix_s: Some(1_793_494_800),
            percent: 95,
            known_ns: 9 * 3_600_000_000_000,
            owners: vec![demand("", 3, [1000, 300, 170], 1), demand("red", 12, [6000, 2396, 1904], 3)],
            together: demand("", 15, [6204, 2550, 2020], 3),
            gpus_for_each_container: 7,
            gpus_for_each_owner: 4,
            gpus_shared: 3,
            there_permille: 8000,
            unknown_gpus: 0,
        }
    }

    #[test]
    fn three_ways_stand_below_each_other_and_what_the_last_saves() {
        let want = "\
TEAM        LEASES  PLACES  SHARE  MEMORY  OWN GPUS
-                3    1.00   0.30    0.17         1
red             12    6.00   2.40    1.90         3
(together)      15    6.20   2.55    2.02         4

For 95 % of 9.000 h that are written down so many GPUs would have been enough:
7  a whole one for each container
4  own ones for each team, shared by its containers
3  shared by all: saves 4 of 7, 57 %
There were 8.00.
The ledger begins 2026-11-01T01:00:00Z.
";
        assert_eq!(render(&sample(), UsageBy::Team, false), want);
        let mut none = sample();
        none.gpus_for_each_container = 3;
        assert!(render(&none, UsageBy::User, true).contains("shared by all: saves none\n"));
        assert!(render(&Savings::default(), UsageBy::Team, false).ends_with("There were no leases.\n"));
    }

    #[test]
    fn csv_has_the_time_and_the_part_of_it_in_each_row() {
        let drawn = render_csv(&sample(), UsageBy::CostCenter);
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines[0].starts_with("since,until,percent,cost-center,leases,places_permille"));
        assert_eq!(lines[2], "2026-11-01T00:00:00Z,2026-11-01T10:00:00Z,95,red,12,6000,2396,1904,2396,3");
    }
}
