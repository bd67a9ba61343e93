//! `gpool reservation ls`

use super::usage::moment;
use crate::arguments::{Format, ReservationVerb};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use crate::table::short_gpu;
use gpool_protocol::{Client, ReservationState, ReservationView, format_bytes, format_gpus, format_permille};

const COLUMNS: [Column; 6] =
    [text("NAME"), text("FOR"), figure("GPUS"), figure("MEMORY"), text("STATE"), text("UNTIL")];
const WIDE: [Column; 3] = [text("OF EACH"), text("KEPT ON"), text("MISSING")];
const HEADER: [&str; 17] = [
    "name",
    "teams",
    "users",
    "priority",
    "gpus",
    "share_permille",
    "memory_bytes",
    "model",
    "state",
    "begins_unix_s",
    "ends_unix_s",
    "reserved_share_permille",
    "reserved_memory_bytes",
    "used_share_permille",
    "used_memory_bytes",
    "missing_share_permille",
    "missing_memory_bytes",
];

/// Runs a verb of `gpool reservation`.
pub fn run(client: &Client, ReservationVerb::Ls { format }: &ReservationVerb) -> Result<(), Failure> {
    let all: Vec<ReservationView> = client.get("/v1/reservations")?;
    match format {
        Format::Table => output::print(&borderless(&COLUMNS, all.iter().map(cells))),
        Format::Wide => {
            let columns: Vec<Column> = COLUMNS.into_iter().chain(WIDE).collect();
            output::print(&borderless(&columns, all.iter().map(wide_cells)))
        }
        Format::Json => output::print_json("reservations", &all),
        Format::Csv => output::print(&csv(&HEADER, all.iter().map(csv_cells))),
    }
}

fn cells(its: &ReservationView) -> Vec<String> {
    let ((share, memory), (used_share, used_memory)) = (its.reserved(), its.used());
    let of = |used: String, all: String| if its.seats.is_empty() { "-".to_owned() } else { format!("{used}/{all}") };
    vec![
        its.name.clone(),
        whom(its),
        of(format_gpus(used_share), format_gpus(share)),
        of(format_bytes(used_memory), format_bytes(memory)),
        state(its).to_owned(),
        // When the state ends.
        its.ends_unix_s.or(its.begins_unix_s).map_or_else(|| "-".to_owned(), moment),
    ]
}

fn wide_cells(its: &ReservationView) -> Vec<String> {
    let share = format_permille(its.share_permille.into());
    let memory = its.memory_bytes.map_or_else(|| share.clone(), format_bytes);
    let model = its.model.as_ref().map_or_else(String::new, |model| format!(" of {model}"));
    let on: Vec<String> = its
        .seats
        .iter()
        .map(|seat| {
            let kept = (format_permille(seat.kept_share_permille.into()), format_bytes(seat.kept_memory_bytes));
            format!("{} {}, {}", short_gpu(&seat.gpu_uuid.0), kept.0, kept.1)
        })
        .collect();
    let wide = [
        format!("{} x {share}, {memory}{model}", its.gpus),
        if on.is_empty() { "-".to_owned() } else { on.join("; ") },
        missing(its),
    ];
    cells(its).into_iter().chain(wide).collect()
}

/// `team vision, users 1000`, `guaranteed`
fn whom(its: &ReservationView) -> String {
    let users: Vec<String> = its.users.iter().map(u32::to_string).collect();
    let list = |what: &str, names: &[String]| match names {
        [] => None,
        [one] => Some(format!("{what} {one}")),
        several => Some(format!("{what}s {}", several.join(" "))),
    };
    let named: Vec<String> = list("team", &its.teams).into_iter().chain(list("user", &users)).collect();
    match (named.is_empty(), its.priority) {
        (true, None) => "nobody".to_owned(),
        (true, Some(least)) => format!("{least} and above").replace("guaranteed and above", "guaranteed"),
        (false, None) => named.join(", "),
        (false, Some(least)) => format!("{} ({least})", named.join(", ")),
    }
}

/// `short` in its time while others have something of it.
fn state(its: &ReservationView) -> &'static str {
    match (its.state, its.is_whole()) {
        (ReservationState::Open, false) => "short",
        (state, _) => state.text(),
    }
}

/// What others have of it, in words.
pub fn missing(its: &ReservationView) -> String {
    let (share, memory) = its.missing();
    let shown = |is_missing: bool, text: String| is_missing.then_some(text);
    let all: Vec<String> = [
        shown(its.missing_gpus() > 0, format!("{} of {} GPUs", its.missing_gpus(), its.gpus)),
        shown(share > 0, format!("share {}", format_gpus(share))),
        shown(memory > 0, format_bytes(memory)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn csv_cells(its: &ReservationView) -> Vec<String> {
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let users: Vec<String> = its.users.iter().map(u32::to_string).collect();
    let sums = [its.reserved(), its.used(), its.missing()];
    let mut cells = vec![
        its.name.clone(),
        its.teams.join(" "),
        users.join(" "),
        its.priority.map(|least| least.to_string()).unwrap_or_default(),
        its.gpus.to_string(),
        its.share_permille.to_string(),
        number(its.memory_bytes),
        its.model.clone().unwrap_or_default(),
        its.state.text().to_owned(),
        number(its.begins_unix_s),
        number(its.ends_unix_s),
    ];
    cells.extend(sums.into_iter().flat_map(|(share, memory)| [share.to_string(), memory.to_string()]));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(text: &str) -> ReservationView {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_line_says_for_whom_it_is_and_what_of_it_is_had() {
        let serving = view(
            r#"{"name":"serving","teams":["vision"],"users":[7,8],"priority":"guaranteed","gpus":2,"share_permille":500,
                "memory_bytes":8589934592,"model":"H100","state":"open","ends_unix_s":1798761600,"seats":[
                {"gpu_uuid":"GPU-5ca1ab1e-0","share_permille":500,"memory_bytes":8589934592,"kept_share_permille":200,
                 "kept_memory_bytes":4294967296,"missing_share_permille":100,"missing_memory_bytes":0}]}"#,
        );
        let shown = wide_cells(&serving);
        let want =
            ["serving", "team vision, users 7 8 (guaranteed)", "0.3/0.5", "4GiB/8GiB", "short", "2027-01-01T00:00:00Z"];
        assert_eq!(shown[..6], want);
        assert_eq!(shown[6..], ["2 x 50 %, 8GiB of H100", "GPU-5ca1ab1e 20 %, 4GiB", "1 of 2 GPUs, share 0.6"]);
        let headroom = view(
            r#"{"name":"headroom","priority":"guaranteed","gpus":1,"share_permille":1000,"state":"closed",
                "begins_unix_s":1798761600,"seats":[]}"#,
        );
        let shown = wide_cells(&headroom);
        assert_eq!(shown[..6], ["headroom", "guaranteed", "-", "-", "closed", "2027-01-01T00:00:00Z"]);
        assert_eq!(shown[6..], ["1 x 100 %, 100 %", "-", "-"]);
        assert_eq!(csv_cells(&serving).len(), HEADER.len());
        assert_eq!(csv_cells(&serving)[11..], ["500", "8589934592", "300", "4294967296", "600", "0"]);
    }
}
