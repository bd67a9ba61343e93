//! `gpool history`: what ran.

use super::halves::in_halves;
use super::usage::{begins_later, hours, kilowatt_hours, moment};
use crate::arguments::{Format, HistoryOptions};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use crate::table::short_gpu;
use gpool_protocol::{
    Client, ErrorBody, ErrorCode, History, LeaseId, PastLease, format_bytes, format_permille, format_seconds,
};
use jiff::Timestamp;
use std::collections::HashMap;

/// Prints the leases of a time, one line each.
pub fn run(client: &Client, options: &HistoryOptions) -> Result<(), Failure> {
    let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let history = ask(client, options, now_ms / 1000)?;
    if let Some(id) = options.id.as_ref().filter(|_| history.leases.is_empty()) {
        let message = format!("the ledger has nothing of {id} in that time");
        let remedy = "gpool history without a name shows whom it knows; what an engine has removed has its id alone";
        return Err(ErrorBody::new(ErrorCode::LeaseUnknown, message, remedy).into());
    }
    match options.format {
        Format::Table => output::print(&render(&history, now_ms, false)),
        Format::Wide => output::print(&render(&history, now_ms, true)),
        Format::Json => output::print_json_of([("history", to_value(&history))]),
        Format::Csv => output::print(&render_csv(&history)),
    }
}

/// Where more ran than is told at once, half of the time after the other.
fn ask(client: &Client, options: &HistoryOptions, now_s: u64) -> Result<History, ErrorBody> {
    let (since, until) = options.month.map_or_else(|| options.scope.time.unix_s(now_s), |month| month.unix_s(now_s));
    let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
    let container = options.id.as_ref().map(|id| format!("&container={id}")).unwrap_or_default();
    let filters = options.scope.filters();
    let mut once = |query: &str| client.get::<History>(&format!("/v1/history?{query}{container}{filters}"));
    in_halves(&format!("since={since}{until}"), now_s, &mut once).map(joined)
}

/// Of times that follow one another: who ran in both is told of in both, as it stood when that was asked.
fn joined(parts: Vec<History>) -> History {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    let places = all.leases.iter().enumerate().map(|(place, lease)| (lease.lease_id.clone(), place));
    let mut places: HashMap<LeaseId, usize> = places.collect();
    for part in parts {
        all.until_unix_s = part.until_unix_s;
        for lease in part.leases {
            match places.get(&lease.lease_id) {
                Some(place) => all.leases[*place] = lease,
                None => {
                    places.insert(lease.lease_id.clone(), all.leases.len());
                    all.leases.push(lease);
                }
            }
        }
    }
    all
}

fn or_dash<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

/// Times in whole seconds; what took less took some of one.
fn seconds(ms: u64) -> String {
    if (1..1000).contains(&ms) { "<1s".to_owned() } else { format_seconds(ms / 1000) }
}

/// How it ended; of one whose end was not written down, that it did.
fn end(lease: &PastLease) -> String {
    match (lease.ended_unix_ms, &lease.ending) {
        (None, _) => "runs".to_owned(),
        (Some(_), ending) => ending.clone().unwrap_or_else(|| "ended".to_owned()),
    }
}

/// What it used on its GPUs, in hours; nothing where nobody knows, as of MIG instances.
fn used(lease: &PastLease) -> Option<String> {
    (lease.unmetered_gpu_ns == 0 || lease.used_gpu_ns > 0).then(|| hours(lease.used_gpu_ns))
}

/// What that is of what it was promised, which may be more than all of it; nothing where nothing was promised.
fn of_share(lease: &PastLease) -> Option<String> {
    used(lease)?;
    let percent = (u128::from(lease.used_gpu_ns) * 100).checked_div(u128::from(lease.reserved_gpu_ns))?;
    Some(format!("{percent} %"))
}

fn render(history: &History, now_ms: u64, is_wide: bool) -> String {
    let mut columns: Vec<Column> = ["CONTAINER", "TEAM"].map(text).to_vec();
    columns.push(figure("USER"));
    columns.push(text("BEGAN"));
    columns.extend(["WAITED", "RAN", "GPUS", "SHARE", "MEMORY", "PEAK", "USED h", "OF SHARE"].map(figure));
    columns.push(text("END"));
    if is_wide {
        columns.extend(["BURST h", "LENT h", "IDLE h", "ENERGY kWh"].map(figure));
        let more = ["POD", "PROJECT", "COST CENTER", "CLASS", "PRIORITY", "MECHANISM", "LEASE", "ON"];
        columns.extend(more.map(text));
    }
    let cells = |lease: &PastLease| {
        let name = |name: &Option<String>| or_dash(name.clone(), |name| name);
        let ran_ms = lease.ended_unix_ms.unwrap_or(now_ms).saturating_sub(lease.created_unix_ms);
        let mut cells = vec![lease.container_id.short().to_owned(), name(&lease.team), lease.uid.to_string()];
        cells.extend([moment(lease.created_unix_ms / 1000), or_dash(lease.waited_ms, seconds), seconds(ran_ms)]);
        cells.push(if lease.gpus.is_empty() { "-".to_owned() } else { lease.gpus.len().to_string() });
        cells.push(or_dash(lease.fraction_permille.map(u64::from), format_permille));
        cells.push(or_dash(lease.memory_cap_bytes, format_bytes));
        cells.push(or_dash(lease.memory_peak_bytes, format_bytes));
        cells.extend([used(lease), of_share(lease)].map(|text| or_dash(text, |text| text)));
        cells.push(end(lease));
        if is_wide {
            cells.extend([lease.burst_gpu_ns, lease.lent_gpu_ns, lease.idle_gpu_ns].map(hours));
            cells.push(kilowatt_hours(lease.energy_millijoules.into()));
            cells.extend([&lease.pod, &lease.project, &lease.cost_center].map(name));
            cells.extend([lease.class.clone(), lease.priority.clone(), lease.mechanism.clone()]);
            let on: Vec<&str> = lease.gpus.iter().map(|gpu| short_gpu(&gpu.gpu_uuid.0)).collect();
            cells.extend([lease.lease_id.to_string(), if on.is_empty() { "-".to_owned() } else { on.join(",") }]);
        }
        cells
    };
    let begins = begins_later("The ledger begins", history.begins_unix_s, history.since_unix_s);
    if history.leases.is_empty() {
        return format!("Nothing ran.\n{begins}");
    }
    borderless(&columns, history.leases.iter().map(cells)) + &begins
}

/// The figures for programs and spreadsheets.
fn render_csv(history: &History) -> String {
    const HEADER: [&str; 26] = [
        "lease_id",
        "container_id",
        "pod",
        "team",
        "project",
        "cost_center",
        "uid",
        "class",
        "priority",
        "mechanism",
        "created_unix_ms",
        "ended_unix_ms",
        "ending",
        "waited_ms",
        "fraction_permille",
        "memory_cap_bytes",
        "memory_peak_bytes",
        "gpus",
        "gpu_uuids",
        "reserved_gpu_ns",
        "used_gpu_ns",
        "burst_gpu_ns",
        "lent_gpu_ns",
        "idle_gpu_ns",
        "unmetered_gpu_ns",
        "energy_millijoules",
    ];
    let row = |lease: &PastLease| {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let uuids: Vec<&str> = lease.gpus.iter().map(|gpu| gpu.gpu_uuid.0.as_str()).collect();
        vec![
            lease.lease_id.to_string(),
            lease.container_id.to_string(),
            name(&lease.pod),
            name(&lease.team),
            name(&lease.project),
            name(&lease.cost_center),
            lease.uid.to_string(),
            lease.class.clone(),
            lease.priority.clone(),
            lease.mechanism.clone(),
            lease.created_unix_ms.to_string(),
            number(lease.ended_unix_ms),
            name(&lease.ending),
            number(lease.waited_ms),
            number(lease.fraction_permille.map(u64::from)),
            number(lease.memory_cap_bytes),
            number(lease.memory_peak_bytes),
            uuids.len().to_string(),
            uuids.join(" "),
            lease.reserved_gpu_ns.to_string(),
            lease.used_gpu_ns.to_string(),
            lease.burst_gpu_ns.to_string(),
            lease.lent_gpu_ns.to_string(),
            lease.idle_gpu_ns.to_string(),
            lease.unmetered_gpu_ns.to_string(),
            lease.energy_millijoules.to_string(),
        ]
    };
    csv(&HEADER, history.leases.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, GpuUuid, PastGpu};

    const H: u64 = 3_600_000_000_000;

    fn sample() -> History {
        let lease = PastLease {
            lease_id: LeaseId("01K".into()),
            container_id: ContainerId("abcdef0123456789".into()),
            pod: None,
            team: Some("vision".into()),
            project: None,
            cost_center: None,
            uid: 1000,
            class: "batch".into(),
            priority: "guaranteed".into(),
            mechanism: "slice".into(),
            created_unix_ms: 1_793_491_200_000,
            ended_unix_ms: Some(1_793_498_400_000),
            ending: Some("preempted".into()),
            waited_ms: Some(90_000),
            fraction_permille: Some(300),
            memory_cap_bytes: Some(4 << 30),
            memory_peak_bytes: Some(1 << 30),
            gpus: vec![PastGpu {
                gpu_uuid: GpuUuid("GPU-51313131-0000-4000-8000-000000000000".into()),
                product: "NVIDIA H100 80GB HBM3".into(),
                mig_profile: None,
            }],
            reserved_gpu_ns: 2 * H,
            used_gpu_ns: 3 * H / 2,
            burst_gpu_ns: 0,
            lent_gpu_ns: H / 4,
            idle_gpu_ns: H / 4,
            unmetered_gpu_ns: 0,
            energy_millijoules: 0,
        };
        let runs = PastLease {
            created_unix_ms: 1_793_498_400_000,
            ended_unix_ms: None,
            ending: None,
            waited_ms: Some(0),
            memory_cap_bytes: None,
            reserved_gpu_ns: 0,
            gpus: Vec::new(),
            ..lease.clone()
        };
        History {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_577_600,
            begins_unix_s: Some(1_793_491_200),
            leases: vec![lease, runs],
        }
    }

    #[test]
    fn a_line_says_how_long_it_waited_and_ran_what_it_had_and_how_it_ended() {
        let drawn = render(&sample(), 1_793_498_400_500, false);
        let lines: Vec<Vec<&str>> = drawn.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..3], ["abcdef012345", "vision", "1000"]);
        assert_eq!(lines[1][4..], ["1m30s", "2h", "1", "30", "%", "4GiB", "1GiB", "1.500", "75", "%", "preempted"]);
        assert_eq!(lines[2][4..], ["0s", "<1s", "-", "30", "%", "-", "1GiB", "1.500", "-", "runs"]);
        let of_instance = PastLease { used_gpu_ns: 0, unmetered_gpu_ns: 2 * H, ..sample().leases.swap_remove(0) };
        assert_eq!((used(&of_instance), of_share(&of_instance)), (None, None), "nobody knows what it did");
        assert_eq!(render(&History { leases: Vec::new(), ..sample() }, 0, false), "Nothing ran.\n");
    }

    #[test]
    fn who_ran_in_both_halves_of_a_time_is_one_as_it_was_known_last() {
        let (mut first, mut second) = (sample(), sample());
        second.until_unix_s += 60;
        second.leases[0].used_gpu_ns = 7;
        second.leases[1].lease_id = LeaseId("02K".into());
        first.leases.truncate(1);
        let all = joined(vec![first, second]);
        assert_eq!((all.until_unix_s, all.leases.len()), (sample().until_unix_s + 60, 2));
        assert_eq!((all.leases[0].used_gpu_ns, all.leases[1].lease_id.0.as_str()), (7, "02K"));
    }

    #[test]
    fn csv_has_as_many_fields_as_names_and_nothing_for_what_is_not_known() {
        let drawn = render_csv(&sample());
        let lines: Vec<Vec<&str>> = drawn.lines().map(|line| line.split(',').collect()).collect();
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{drawn}");
        assert_eq!(lines[2][11..18], ["", "", "0", "300", "", "1073741824", "0"]);
    }
}
