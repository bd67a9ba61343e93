//! `gpool sizes`

use super::baseline::{hours_alone, is_often, request};
use super::savings::gpus;
use super::usage::{begins_later, gib_hours, hours};
use crate::arguments::{Format, SizesOptions};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use gpool_protocol::{Client, ContainerId, Sizes, SizesRow, UsageBy, format_bytes};
use jiff::Timestamp;

/// Prints what was asked for beside what would have been enough.
pub fn run(client: &Client, options: &SizesOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let sizes: Sizes = client.get(&path(options, now_s))?;
    match options.format {
        Format::Table => output::print(&render(&sizes, options.by, false)),
        Format::Wide => output::print(&render(&sizes, options.by, true)),
        Format::Json => output::print_json_of([("by", to_value(&options.by)), ("sizes", to_value(&sizes))]),
        Format::Csv => output::print(&render_csv(&sizes, options.by)),
    }
}

fn path(options: &SizesOptions, now_s: u64) -> String {
    let (since, until) = options.scope.time.unix_s(now_s);
    let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
    let (by, percent) = (options.by.word(), options.percent);
    format!(
        "/v1/sizes?by={by}&percent={percent}&since={since}{until}{}",
        options.scope.filters() + &options.of.filter()
    )
}

/// A mean over the time for which it was had, in thousandths of a GPU.
fn mean_permille(ns: u64, of_ns: u64) -> u64 {
    u64::try_from((u128::from(ns) * 1000).checked_div(u128::from(of_ns)).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The part of what was promised that nobody needed; nothing where nothing was promised.
fn spare(row: &SizesRow) -> String {
    if row.reserved_gpu_ns == 0 {
        return "-".to_owned();
    }
    let more = i128::from(row.reserved_gpu_ns) - i128::from(row.enough_gpu_ns);
    format!("{} %", more * 100 / i128::from(row.reserved_gpu_ns))
}

fn render(sizes: &Sizes, by: UsageBy, is_wide: bool) -> String {
    let drawn = match by {
        UsageBy::Container => of_containers(sizes, is_wide),
        _ => of_owners(sizes, by, is_wide),
    };
    drawn + &summary(sizes) + &note(sizes)
}

fn of_containers(sizes: &Sizes, is_wide: bool) -> String {
    let mut columns: Vec<Column> = vec![text("CONTAINER"), figure("HERE h"), figure("USED h"), figure("ASKED")];
    columns.extend([figure("ENOUGH"), figure("PEAK"), text("WOULD BE ENOUGH")]);
    if is_wide {
        columns.extend([figure("LEASES"), figure("ALL USED h"), figure("CAP GiB h"), figure("ENOUGH GiB h")]);
    }
    let rows = sizes.rows.iter().map(|row| {
        let asked = match row.reserved_gpu_ns {
            0 => "-".to_owned(),
            reserved_ns => gpus(mean_permille(reserved_ns, row.held_gpu_ns)),
        };
        let mark = if is_often(row.full_gpu_ns, row.held_gpu_ns) { "+" } else { "" };
        let of = row.enough.as_ref();
        let share = of.and_then(|enough| enough.fraction_permille);
        let share = share.map_or_else(|| "-".to_owned(), |permille| gpus(permille) + mark);
        let mut cells = vec![ContainerId(row.key.clone()).short().to_owned()];
        cells.extend([row.held_gpu_ns, row.used_gpu_ns].map(hours));
        cells.extend([asked, share, format_bytes(row.memory_peak_bytes)]);
        cells.push(of.map_or_else(|| "-".to_owned(), request));
        if is_wide {
            cells.extend([row.leases.to_string(), hours(row.full_gpu_ns)]);
            cells.extend([row.memory_cap_mib_s, row.memory_enough_mib_s].map(gib_hours));
        }
        cells
    });
    borderless(&columns, rows)
}

fn of_owners(sizes: &Sizes, by: UsageBy, is_wide: bool) -> String {
    let name = match by {
        UsageBy::Project => "PROJECT",
        UsageBy::CostCenter => "COST CENTER",
        UsageBy::User => "USER",
        _ => "TEAM",
    };
    let mut columns: Vec<Column> = vec![text(name), figure("LEASES"), figure("RESERVED h"), figure("USED h")];
    columns.extend([figure("ENOUGH h"), figure("SPARE"), figure("CAP GiB h"), figure("ENOUGH GiB h")]);
    if is_wide {
        columns.push(figure("ALL USED h"));
    }
    let cells = |name: String, row: &SizesRow| {
        let mut cells = vec![name, row.leases.to_string()];
        cells.extend([row.reserved_gpu_ns, row.used_gpu_ns, row.enough_gpu_ns].map(hours));
        cells.push(spare(row));
        cells.extend([row.memory_cap_mib_s, row.memory_enough_mib_s].map(gib_hours));
        if is_wide {
            cells.push(hours(row.full_gpu_ns));
        }
        cells
    };
    let called = |row: &SizesRow| if row.key.is_empty() { "-".to_owned() } else { row.key.clone() };
    let rows = sizes.rows.iter().map(|row| cells(called(row), row));
    borderless(&columns, rows.chain([cells("(together)".to_owned(), &sizes.total)]))
}

/// What all of them asked for, and what would have been enough.
fn summary(sizes: &Sizes) -> String {
    let total = &sizes.total;
    if total.leases == 0 {
        return "There were no leases.\n".to_owned();
    }
    format!(
        "\nOf {} GPU h that were promised {} would have been enough, and of {} GiB h of memory {}.\n",
        hours(total.reserved_gpu_ns),
        hours(total.enough_gpu_ns),
        gib_hours(total.memory_cap_mib_s),
        gib_hours(total.memory_enough_mib_s),
    )
}

/// What the figures do not say.
fn note(sizes: &Sizes) -> String {
    let is_full = sizes.rows.iter().any(|row| row.enough.is_some() && is_often(row.full_gpu_ns, row.held_gpu_ns));
    let full = if is_full { "+ It used all of its share at times: with more it may use more.\n" } else { "" };
    full.to_owned()
        + &hours_alone(sizes.hours_until_unix_s)
        + &begins_later("The ledger begins", sizes.begins_unix_s, sizes.since_unix_s)
}

fn render_csv(sizes: &Sizes, by: UsageBy) -> String {
    const FIGURES: [&str; 13] = [
        "leases",
        "held_gpu_ns",
        "reserved_gpu_ns",
        "used_gpu_ns",
        "full_gpu_ns",
        "enough_gpu_ns",
        "memory_cap_mib_s",
        "memory_enough_mib_s",
        "memory_peak_bytes",
        "enough_gpus",
        "enough_fraction_permille",
        "enough_memory_bytes",
        "is_whole",
    ];
    let header: Vec<&str> = ["since", "until", "percent", by.word()].into_iter().chain(FIGURES).collect();
    let row = |row: &SizesRow| {
        let [since, until] = [sizes.since_unix_s, sizes.until_unix_s].map(super::usage::moment);
        let figures = [
            row.leases,
            row.held_gpu_ns,
            row.reserved_gpu_ns,
            row.used_gpu_ns,
            row.full_gpu_ns,
            row.enough_gpu_ns,
            row.memory_cap_mib_s,
            row.memory_enough_mib_s,
            row.memory_peak_bytes,
        ];
        let first = [since, until, sizes.percent.to_string(), row.key.clone()];
        let last = super::baseline::enough_fields(row.enough.as_ref());
        first.into_iter().chain(figures.map(|figure| figure.to_string())).chain(last).collect()
    };
    csv(&header, sizes.rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::EnoughRequest;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn sample(by: UsageBy) -> Sizes {
        let enough = EnoughRequest { gpus: 1, fraction_permille: Some(120), memory_bytes: 4 << 30, is_whole: false };
        let row = |key: &str, reserved: u64, full: u64, enough: Option<EnoughRequest>| SizesRow {
            key: key.into(),
            leases: 2,
            held_gpu_ns: 10 * HOUR_NS,
            reserved_gpu_ns: reserved * HOUR_NS,
            used_gpu_ns: HOUR_NS,
            full_gpu_ns: full * HOUR_NS,
            enough_gpu_ns: if reserved > 0 { 12 * HOUR_NS / 10 } else { 0 },
            memory_cap_mib_s: 200 * 1024 * 3600,
            memory_enough_mib_s: 40 * 1024 * 3600,
            memory_peak_bytes: 3 << 30,
            enough,
        };
        let of_one = |key: &str, reserved, full| match by {
            UsageBy::Container => row(key, reserved, full, Some(enough)),
            _ => row(key, reserved, full, None),
        };
        let id = "3f9a2117a1dc85".repeat(5)[..64].to_owned();
        let mut total = row("", 5, 2, None);
        total.leases = 4;
        Sizes {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_527_200,
            begins_unix_s: Some(1_793_494_800),
            hours_until_unix_s: None,
            percent: 95,
            rows: vec![
                of_one(if by == UsageBy::Container { &id } else { "red" }, 5, 0),
                of_one(if by == UsageBy::Container { "run-7" } else { "" }, 2, 2),
            ],
            total,
        }
    }

    #[test]
    fn each_container_has_what_it_asked_for_beside_what_would_have_been_enough() {
        let want = "\
CONTAINER     HERE h  USED h  ASKED  ENOUGH  PEAK  WOULD BE ENOUGH
3f9a2117a1dc  10.000   1.000   0.50    0.12  3GiB  GPOOL_FRACTION=0.12 GPOOL_MEMORY=4GiB
run-7         10.000   1.000   0.20   0.12+  3GiB  GPOOL_FRACTION=0.12 GPOOL_MEMORY=4GiB

Of 5.000 GPU h that were promised 1.200 would have been enough, and of 200.000 GiB h of memory 40.000.
+ It used all of its share at times: with more it may use more.
The ledger begins 2026-11-01T01:00:00Z.
";
        assert_eq!(render(&sample(UsageBy::Container), UsageBy::Container, false), want);
        let mut burst = sample(UsageBy::Container);
        (burst.rows[1].reserved_gpu_ns, burst.rows[1].full_gpu_ns) = (0, 0);
        assert!(
            render(&burst, UsageBy::Container, false).contains("\nrun-7         10.000   1.000      -    0.12  3GiB")
        );
        assert!(render(&Sizes::default(), UsageBy::Container, true).ends_with("There were no leases.\n"));
    }

    #[test]
    fn owners_have_hours_and_the_part_that_nobody_needed() {
        let want = "\
TEAM        LEASES  RESERVED h  USED h  ENOUGH h  SPARE  CAP GiB h  ENOUGH GiB h
red              2       5.000   1.000     1.200   76 %    200.000        40.000
-                2       2.000   1.000     1.200   40 %    200.000        40.000
(together)       4       5.000   1.000     1.200   76 %    200.000        40.000

Of 5.000 GPU h that were promised 1.200 would have been enough, and of 200.000 GiB h of memory 40.000.
The ledger begins 2026-11-01T01:00:00Z.
";
        assert_eq!(render(&sample(UsageBy::Team), UsageBy::Team, false), want);
    }

    #[test]
    fn csv_has_all_figures_of_each() {
        let drawn = render_csv(&sample(UsageBy::Container), UsageBy::Container);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert!(lines[0].starts_with("since,until,percent,container,leases,") && lines[2].contains(",95,run-7,2,"));
        assert!(lines[1].ends_with(",1,120,4294967296,false"));
    }
}
