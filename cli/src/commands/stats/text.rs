//! How a sample is written: as a table, as lines of JSON, as lines of CSV.

use super::interval::Figures;
use crate::output::{self, Column, borderless, csv, figure, text};
use crate::table::{LeaseRow, UNKNOWN, all_gpus, format_tenths, or_none, state_cell, state_name};
use gpool_protocol::{format_bytes, format_permille};
use serde::Serialize;

const COLUMNS: [Column; 9] = [
    text("CONTAINER"),
    figure("SHARE"),
    figure("RECEIVED"),
    figure("MEMORY USED / CAP"),
    figure("MEMORY %"),
    figure("GATE WAIT"),
    figure("LAUNCHES/S"),
    figure("REFUSED"),
    figure("PROCS"),
];

const WIDE_COLUMNS: [Column; 8] = [
    text("GPUS"),
    text("MECHANISM"),
    figure("LIMIT"),
    text("CLASS"),
    text("TEAM"),
    text("USER"),
    text("STATE"),
    text("LEASE"),
];

/// A table of one sample.
pub fn render(figures: &[Figures]) -> String {
    borderless(&COLUMNS, figures.iter().map(cells))
}

/// The same with every column.
pub fn render_wide(figures: &[Figures]) -> String {
    let columns: Vec<Column> = COLUMNS.into_iter().chain(WIDE_COLUMNS).collect();
    borderless(&columns, figures.iter().map(|one| [cells(one), wide_cells(one)].concat()))
}

fn cells(one: &Figures) -> Vec<String> {
    let lease = &one.lease;
    let tenths = |permille: Option<u64>| permille.map_or_else(unknown, format_tenths);
    let count = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
    let used = one.memory_used_bytes.map_or_else(unknown, format_bytes);
    vec![
        lease.container_id.short().to_owned(),
        or_none(lease.fraction_permille.into(), format_permille),
        tenths(one.received_permille),
        format!("{used} / {}", or_none(lease.memory_cap_bytes, format_bytes)),
        tenths(one.memory_permille()),
        tenths(one.gate_wait_permille),
        count(one.launches_per_second()),
        count(one.allocations_refused),
        count(one.processes.map(u64::from)),
    ]
}

fn wide_cells(one: &Figures) -> Vec<String> {
    let row = LeaseRow::from(&one.lease);
    vec![
        row.gpus.join(","),
        one.lease.mechanism.to_string(),
        row.limit_permille.map_or_else(|| "-".to_owned(), format_permille),
        row.class.to_string(),
        row.team.clone().unwrap_or_else(|| "-".to_owned()),
        row.owner_uid.to_string(),
        state_cell(&row).to_owned(),
        row.lease,
    ]
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// One lease of a sample for programs. What nobody knows is null.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    time: &'a str,
    container_id: &'a str,
    lease_id: &'a str,
    gpu_uuids: Vec<&'a str>,
    mechanism: String,
    state: &'a str,
    team: Option<&'a str>,
    owner_uid: u32,
    interval_ns: Option<u64>,
    fraction_permille: u16,
    limit_permille: Option<u16>,
    received_permille: Option<u64>,
    memory_used_bytes: Option<u64>,
    memory_cap_bytes: u64,
    memory_permille: Option<u64>,
    gate_wait_permille: Option<u64>,
    launches: Option<u64>,
    launches_per_second: Option<u64>,
    allocations_refused: Option<u64>,
    processes: Option<u32>,
}

fn line<'a>(time: &'a str, one: &'a Figures) -> Line<'a> {
    let lease = &one.lease;
    Line {
        schema_version: output::SCHEMA_VERSION,
        time,
        container_id: &lease.container_id.0,
        lease_id: &lease.lease_id.0,
        gpu_uuids: all_gpus(lease).collect(),
        mechanism: lease.mechanism.to_string(),
        state: state_name(lease.state),
        team: lease.team.as_deref(),
        owner_uid: lease.owner_uid,
        interval_ns: one.interval_ns,
        fraction_permille: lease.fraction_permille,
        limit_permille: lease.limit_permille,
        received_permille: one.received_permille,
        memory_used_bytes: one.memory_used_bytes,
        memory_cap_bytes: lease.memory_cap_bytes,
        memory_permille: one.memory_permille(),
        gate_wait_permille: one.gate_wait_permille,
        launches: one.launches,
        launches_per_second: one.launches_per_second(),
        allocations_refused: one.allocations_refused,
        processes: one.processes,
    }
}

/// A sample of the moment `time`, one JSON object a line.
pub fn json_lines(time: &str, figures: &[Figures]) -> String {
    // As with all that is written here this cannot fail.
    figures.iter().map(|one| serde_json::to_string(&line(time, one)).unwrap_or_default() + "\n").collect()
}

/// The line above all samples as CSV.
pub fn csv_header() -> String {
    const HEADER: [&str; 20] = [
        "time",
        "container_id",
        "lease_id",
        "gpu_uuids",
        "mechanism",
        "state",
        "team",
        "owner_uid",
        "interval_ns",
        "fraction_permille",
        "limit_permille",
        "received_permille",
        "memory_used_bytes",
        "memory_cap_bytes",
        "memory_permille",
        "gate_wait_permille",
        "launches",
        "launches_per_second",
        "allocations_refused",
        "processes",
    ];
    csv(&HEADER, [])
}

/// A sample of the moment `time` as CSV, without the header.
pub fn csv_lines(time: &str, figures: &[Figures]) -> String {
    let rows = figures.iter().map(|one| {
        let line = line(time, one);
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        vec![
            line.time.to_owned(),
            line.container_id.to_owned(),
            line.lease_id.to_owned(),
            line.gpu_uuids.join(" "),
            line.mechanism,
            line.state.to_owned(),
            line.team.unwrap_or_default().to_owned(),
            line.owner_uid.to_string(),
            number(line.interval_ns),
            line.fraction_permille.to_string(),
            number(line.limit_permille.map(u64::from)),
            number(line.received_permille),
            number(line.memory_used_bytes),
            line.memory_cap_bytes.to_string(),
            number(line.memory_permille),
            number(line.gate_wait_permille),
            number(line.launches),
            number(line.launches_per_second),
            number(line.allocations_refused),
            number(line.processes.map(u64::from)),
        ]
    });
    output::csv_rows(rows)
}

#[cfg(test)]
mod tests {
    use super::super::interval::{Looks, sample};
    use super::*;
    use gpool_protocol::{LeaseView, Mechanism};

    const S: u64 = 1_000_000_000;
    const TIME: &str = "2026-11-27T08:00:00.000Z";

    /// A slice, and an instance, of which next to nothing is known, over two seconds.
    fn figures() -> Vec<Figures> {
        let instance = |one: LeaseView| LeaseView { mechanism: Mechanism::Mig, ..one };
        let mut looks = Looks::default();
        looks.figures(vec![sample("a", S), instance(sample("b", S))], 0);
        let worked = LeaseView {
            charged_gpu_ns: 2 * S * 312 / 1000,
            gate_wait_ns: S / 4,
            launches: 2345,
            allocations_refused: 3,
            ..sample("a", 3 * S)
        };
        looks.figures(vec![worked, instance(sample("b", 3 * S))], 0)
    }

    #[test]
    fn a_sample_reads_like_dockers_and_says_what_is_not_known() {
        let want = "\
CONTAINER       SHARE  RECEIVED  MEMORY USED / CAP  MEMORY %  GATE WAIT  LAUNCHES/S  REFUSED  PROCS
container-of-a   30 %    31.2 %        1GiB / 4GiB    25.0 %     12.5 %        1172        3      2
container-of-b   30 %        --        1GiB / 4GiB    25.0 %         --          --       --     --
";
        assert_eq!(render(&figures()), want);
        let turns = LeaseView { fraction_permille: 0, memory_cap_bytes: 0, ..sample("c", S) };
        let drawn = render(&Looks::default().figures(vec![turns], 0));
        let cells: Vec<&str> = drawn.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            ["container-of-c", "-", "--", "1GiB", "/", "-", "--", "--", "--", "--", "2"],
            "nothing was promised"
        );
        let wide = render_wide(&figures());
        assert!(
            wide.lines().next().unwrap().ends_with("PROCS  GPUS   MECHANISM  LIMIT  CLASS  TEAM  USER  STATE   LEASE")
        );
        assert!(
            wide.lines().nth(2).unwrap().ends_with("GPU-1  mig            -  batch  -     0     active  b"),
            "{wide}"
        );
    }

    #[test]
    fn each_lease_is_a_line_of_json_with_its_time() {
        let lines = json_lines(TIME, &figures());
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        let of = |name: &str| [&lines[0][name], &lines[1][name]].map(|value| value.as_u64());
        assert!(lines.iter().all(|line| line["time"] == TIME && line["schemaVersion"] == 1));
        assert_eq!((of("received_permille"), of("interval_ns")), ([Some(312), None], [Some(2 * S), Some(2 * S)]));
        assert_eq!((of("launches"), of("memory_permille")), ([Some(2345), None], [Some(250), Some(250)]));
        assert!(lines[1]["received_permille"].is_null() && lines[0]["gpu_uuids"][0] == "GPU-1");
    }

    #[test]
    fn csv_has_the_columns_of_the_lines_of_json() {
        let header = csv_header();
        let columns: Vec<&str> = header.trim_end().split(',').collect();
        let rows = csv_lines(TIME, &figures());
        let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
        assert!(rows.len() == 2 && rows.iter().all(|row| row.len() == columns.len()), "{rows:?}");
        let line: serde_json::Value =
            serde_json::from_str(json_lines(TIME, &figures()).lines().next().unwrap()).unwrap();
        assert_eq!(line.as_object().unwrap().len(), columns.len() + 1, "and the schema's version");
        for (column, cell) in columns.iter().zip(&rows[0]) {
            if let Some(number) = line[column].as_u64() {
                assert_eq!(number.to_string(), *cell, "{column}");
            }
        }
        let received = columns.iter().position(|column| *column == "received_permille").unwrap();
        assert_eq!((rows[0][received], rows[1][received], rows[0][0]), ("312", "", TIME));
    }
}
