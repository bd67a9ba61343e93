//! `gpool queue ls`, and `gpool queue cancel ID...` and what else is done with those that wait

use crate::arguments::{Format, QueueVerb};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use crate::table::short_gpu;
use gpool_protocol::{
    Client, GpuUuid, MemoryCap, Request, WaitingView, format_bytes, format_gpu_hours, format_permille, format_seconds,
    waiting_path,
};
use serde_json::{Value, json};

const COLUMNS: [Column; 10] = [
    figure("PLACE"),
    text("CONTAINER"),
    text("USER"),
    text("TEAM"),
    text("SHARE"),
    text("MEMORY"),
    figure("GPUS"),
    text("PRIORITY"),
    figure("WAITED"),
    figure("AT MOST"),
];
const WIDE: [Column; 8] = [
    text("MODE"),
    text("POD"),
    figure("HAD"),
    figure("RUN TIME"),
    text("KEPT ON"),
    figure("BEGINS IN"),
    figure("DEADLINE IN"),
    text("WHY"),
];
const HEADER: [&str; 23] = [
    "place",
    "container_id",
    "owner_uid",
    "team",
    "mode",
    "fraction_permille",
    "memory_bytes",
    "memory_permille",
    "gpus",
    "priority",
    "since_unix_ms",
    "waited_ms",
    "wait_seconds",
    "kept_on",
    "cause",
    "run_seconds",
    "begins_unix_ms",
    "deadline_unix_ms",
    "is_at_risk",
    "pod",
    "owner_had_gpu_seconds",
    "held_by",
    "is_first",
];

/// Runs a verb of `gpool queue`.
pub fn run(client: &Client, verb: &QueueVerb) -> Result<(), Failure> {
    match verb {
        QueueVerb::Ls { format } => list(client, *format),
        QueueVerb::Cancel { ids } => change(client, ids, "cancel"),
        QueueVerb::Hold { ids } => change(client, ids, "hold"),
        QueueVerb::Release { ids } => change(client, ids, "release"),
        QueueVerb::First { ids } => change(client, ids, "first"),
    }
}

fn list(client: &Client, format: Format) -> Result<(), Failure> {
    let waiting: Vec<WaitingView> = client.get("/v1/queue")?;
    match format {
        Format::Table => output::print(&borderless(&COLUMNS, waiting.iter().map(cells))),
        Format::Wide => {
            let columns: Vec<Column> = COLUMNS.into_iter().chain(WIDE).collect();
            output::print(&borderless(&columns, waiting.iter().map(wide_cells)))
        }
        Format::Json => output::print_json("queue", &waiting),
        Format::Csv => output::print(&render_csv(&waiting)),
    }
}

/// The figures of those that wait, for programs.
pub fn render_csv(waiting: &[WaitingView]) -> String {
    csv(&HEADER, waiting.iter().map(csv_cells))
}

/// One that is refused does not keep the others from it.
fn change(client: &Client, ids: &[String], how: &str) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for id in ids {
        let path = waiting_path(id).map(|path| format!("{path}/{how}"));
        match path.and_then(|path| client.post::<Value, WaitingView>(&path, &json!({}))) {
            Ok(waiting) => output::print(&format!("{}\n", waiting.container_id))?,
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)
}

fn cells(one: &WaitingView) -> Vec<String> {
    let request = &one.request;
    vec![
        place(one),
        one.container_id.short().to_owned(),
        one.owner_uid.to_string(),
        request.team.clone().unwrap_or_else(|| "-".to_owned()),
        share(request),
        memory(request),
        request.gpus.to_string(),
        request.priority.to_string(),
        format_seconds(one.waited_ms / 1000),
        format_seconds(request.wait_seconds.unwrap_or(0)),
    ]
}

/// Who is held back stands nowhere, and who was put first is marked.
fn place(one: &WaitingView) -> String {
    match (one.held_by, one.is_first) {
        (Some(_), _) => "held".to_owned(),
        (None, true) => format!("{}^", one.place),
        (None, false) => one.place.to_string(),
    }
}

fn wide_cells(one: &WaitingView) -> Vec<String> {
    let kept: Vec<&str> = one.kept_on.iter().map(|gpu| short_gpu(&gpu.0)).collect();
    let kept = if kept.is_empty() { "-".to_owned() } else { kept.join(", ") };
    let run = one.request.run_seconds.map_or_else(|| "-".to_owned(), format_seconds);
    let begins = begins_in(one).unwrap_or_else(|| "-".to_owned());
    let deadline = deadline_in(one).unwrap_or_else(|| "-".to_owned());
    let pod = one.pod.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let had = one.owner_had_gpu_seconds.map_or_else(|| "-".to_owned(), had_text);
    let rest = [one.request.mode.text().to_owned(), pod, had, run, kept, begins, deadline, one.cause.clone()];
    cells(one).into_iter().chain(rest).collect()
}

/// What an owner has had, in hours of a GPU.
fn had_text(seconds: u64) -> String {
    format_gpu_hours(seconds.saturating_mul(1_000_000_000))
}

/// In how long one that waits can begin at the latest, if anybody knows: as of when the supervisor said the rest of it.
pub fn begins_in(one: &WaitingView) -> Option<String> {
    let now_ms = one.since_unix_ms.saturating_add(one.waited_ms);
    one.begins_unix_ms.map(|at| format_seconds(at.saturating_sub(now_ms).div_ceil(1000)))
}

/// In how long it has to be through, if it says so; marked where it will probably not be.
pub fn deadline_in(one: &WaitingView) -> Option<String> {
    one.deadline_unix_ms?;
    let left = format_seconds(deadline_left_ms(one) / 1000);
    Some(if one.is_at_risk { format!("{left}!") } else { left })
}

/// How many milliseconds are left until its deadline; 0 when that is over.
pub fn deadline_left_ms(one: &WaitingView) -> u64 {
    let now_ms = one.since_unix_ms.saturating_add(one.waited_ms);
    one.deadline_unix_ms.unwrap_or(0).saturating_sub(now_ms)
}

/// What is asked for of each GPU: a share, or an instance by its profile.
fn share(request: &Request) -> String {
    match (&request.mig_profile, request.fraction_permille) {
        (Some(profile), 0) => profile.clone(),
        (None, 0) => "-".to_owned(),
        (_, permille) => format_permille(permille.into()),
    }
}

fn memory(request: &Request) -> String {
    match request.memory {
        Some(MemoryCap::Bytes(bytes)) => format_bytes(bytes),
        Some(MemoryCap::Permille(permille)) => format_permille(permille.into()),
        None => "-".to_owned(),
    }
}

fn csv_cells(one: &WaitingView) -> Vec<String> {
    let request = &one.request;
    let (bytes, permille) = match request.memory {
        Some(MemoryCap::Bytes(bytes)) => (bytes.to_string(), String::new()),
        Some(MemoryCap::Permille(permille)) => (String::new(), permille.to_string()),
        None => Default::default(),
    };
    let kept: Vec<&str> = one.kept_on.iter().map(|GpuUuid(uuid)| uuid.as_str()).collect();
    vec![
        one.place.to_string(),
        one.container_id.to_string(),
        one.owner_uid.to_string(),
        request.team.clone().unwrap_or_default(),
        request.mode.text().to_owned(),
        request.fraction_permille.to_string(),
        bytes,
        permille,
        request.gpus.to_string(),
        request.priority.to_string(),
        one.since_unix_ms.to_string(),
        one.waited_ms.to_string(),
        request.wait_seconds.unwrap_or(0).to_string(),
        kept.join(" "),
        one.cause.clone(),
        request.run_seconds.map(|seconds| seconds.to_string()).unwrap_or_default(),
        one.begins_unix_ms.map(|at| at.to_string()).unwrap_or_default(),
        one.deadline_unix_ms.map(|at| at.to_string()).unwrap_or_default(),
        if one.deadline_unix_ms.is_some() { one.is_at_risk.to_string() } else { String::new() },
        one.pod.as_ref().map(ToString::to_string).unwrap_or_default(),
        one.owner_had_gpu_seconds.map(|seconds| seconds.to_string()).unwrap_or_default(),
        one.held_by.map(|uid| uid.to_string()).unwrap_or_default(),
        one.is_first.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> WaitingView {
        let text = r#"{"container_id":"0123456789abcdef","place":1,"owner_uid":1000,"since_unix_ms":60000,"waited_ms":90500,
            "request":{"fraction_permille":500,"memory":{"bytes":4294967296},"team":"vision","wait_seconds":600,"run_seconds":7200},
            "cause":"50 % of a GPU is asked for, but GPU-1 has 10 % free","kept_on":["GPU-1"],"begins_unix_ms":1050000}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_line_says_who_waits_for_what_and_for_how_long() {
        let drawn = borderless(&COLUMNS, [cells(&waiting())]);
        let fields: Vec<&str> = drawn.lines().nth(1).unwrap().split_whitespace().collect();
        let want = ["1", "0123456789ab", "1000", "vision", "50", "%", "4GiB", "1", "guaranteed", "1m30s", "10m"];
        assert_eq!(fields, want);
        let wide = wide_cells(&waiting());
        assert_eq!(wide.len(), COLUMNS.len() + WIDE.len());
        assert_eq!(wide[13..17], ["2h", "GPU-1", "15m", "-"]);
        let mut hurried = waiting();
        (hurried.deadline_unix_ms, hurried.is_at_risk) = (Some(8_250_999), true);
        assert_eq!((wide_cells(&hurried)[16].as_str(), csv_cells(&hurried).len()), ("2h15m!", HEADER.len()));
        assert!(wide.last().unwrap().contains("GPU-1 has 10 % free"));
        assert_eq!(csv_cells(&waiting()).len(), HEADER.len());
        let mut placed = waiting();
        placed.is_first = true;
        assert_eq!(cells(&placed)[0], "1^");
        placed.held_by = Some(0);
        assert_eq!(cells(&placed)[0], "held");
    }

    #[test]
    fn what_is_not_asked_for_is_a_dash() {
        let mut one = waiting();
        (one.request.memory, one.request.team) = (None, None);
        (one.request.fraction_permille, one.request.mig_profile) = (0, Some("1g.10gb".into()));
        let cells = cells(&one);
        assert_eq!((cells[3].as_str(), cells[4].as_str(), cells[5].as_str()), ("-", "1g.10gb", "-"));
    }
}
