//! `gpool quota ls`

use super::usage::moment;
use crate::arguments::{Format, QuotaVerb};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use gpool_protocol::{Client, QuotaBudget, QuotaOf, QuotaView, format_bytes, format_gpu_hours, format_gpus};

const COLUMNS: [Column; 6] =
    [text("WHO"), figure("GPUS"), figure("MEMORY"), figure("CONTAINERS"), figure("GPU HOURS"), figure("WAITING")];
const WIDE: [Column; 4] = [text("EACH CONTAINER"), text("BEGINS ANEW"), text("LASTS UNTIL"), text("BOUNDED BY")];
const HEADER: [&str; 21] = [
    "of",
    "team",
    "uid",
    "held_share_permille",
    "allowed_share_permille",
    "held_memory_bytes",
    "allowed_memory_bytes",
    "held_leases",
    "allowed_leases",
    "waiting",
    "table",
    "budget_period",
    "spent_gpu_ns",
    "budget_gpu_ns",
    "budget_began_unix_s",
    "budget_ends_unix_s",
    "lasts_until_unix_s",
    "held_up",
    "lifted_until_unix_s",
    "allowed_container_share_permille",
    "allowed_container_memory_bytes",
];

/// Runs a verb of `gpool quota`.
pub fn run(client: &Client, QuotaVerb::Ls { format }: &QuotaVerb) -> Result<(), Failure> {
    let quotas: Vec<QuotaView> = client.get("/v1/quota")?;
    match format {
        Format::Table => output::print(&borderless(&COLUMNS, quotas.iter().map(cells))),
        Format::Wide => {
            let columns: Vec<Column> = COLUMNS.into_iter().chain(WIDE).collect();
            output::print(&borderless(&columns, quotas.iter().map(wide_cells)))
        }
        Format::Json => output::print_json("quotas", &quotas),
        Format::Csv => output::print(&csv(&HEADER, quotas.iter().map(csv_cells))),
    }
}

fn cells(quota: &QuotaView) -> Vec<String> {
    let (held, allowed) = (&quota.held, &quota.allowed);
    vec![
        who(quota),
        of_most(format_gpus(held.share_permille), allowed.share_permille.map(format_gpus)),
        of_most(format_bytes(held.memory_bytes), allowed.memory_bytes.map(format_bytes)),
        of_most(held.leases.to_string(), allowed.leases.map(|leases| leases.to_string())),
        quota.budget.as_ref().map_or_else(|| "-".to_owned(), of_budget),
        quota.waiting.to_string(),
    ]
}

fn wide_cells(quota: &QuotaView) -> Vec<String> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let budget = quota.budget.as_ref();
    let wide = [
        of_one(quota),
        or_none(budget.map(|budget| moment(budget.ends_unix_s))),
        or_none(budget.and_then(|budget| budget.lasts_until_unix_s).map(moment)),
        match quota.lifted_until_unix_s {
            Some(until) => format!("nothing until {} (gpool override ls)", moment(until)),
            None => or_none(quota.table.clone()),
        },
    ];
    cells(quota).into_iter().chain(wide).collect()
}

/// `0.5, 40GiB`, what any one container may have.
fn of_one(quota: &QuotaView) -> String {
    let allowed = &quota.allowed;
    let (share, memory) =
        (allowed.container_share_permille.map(format_gpus), allowed.container_memory_bytes.map(format_bytes));
    let all: Vec<String> = share.into_iter().chain(memory).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// `312.5/500 month`; `?/500 month` while nobody knows
fn of_budget(budget: &QuotaBudget) -> String {
    let (spent, allowed) = (budget.spent_gpu_ns.map(format_gpu_hours), format_gpu_hours(budget.allowed_gpu_ns));
    format!("{}/{allowed} {}", spent.as_deref().unwrap_or("?"), budget.period.text())
}

fn who(quota: &QuotaView) -> String {
    let uid = quota.uid.map(|uid| uid.to_string());
    match quota.of {
        QuotaOf::Team => format!("team {}", quota.team.as_deref().unwrap_or("-")),
        QuotaOf::NoTeam => "without a team".to_owned(),
        QuotaOf::User => format!("user {}", uid.as_deref().unwrap_or("-")),
    }
}

/// `1.5/2`; `1.5/-` where it is not bounded.
fn of_most(held: String, allowed: Option<String>) -> String {
    format!("{held}/{}", allowed.as_deref().unwrap_or("-"))
}

fn csv_cells(quota: &QuotaView) -> Vec<String> {
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let of = |what: fn(&QuotaBudget) -> Option<u64>| number(quota.budget.as_ref().and_then(what));
    let (held, allowed) = (&quota.held, &quota.allowed);
    vec![
        quota.of.text().to_owned(),
        quota.team.clone().unwrap_or_default(),
        number(quota.uid.map(u64::from)),
        held.share_permille.to_string(),
        number(allowed.share_permille),
        held.memory_bytes.to_string(),
        number(allowed.memory_bytes),
        held.leases.to_string(),
        number(allowed.leases),
        quota.waiting.to_string(),
        quota.table.clone().unwrap_or_default(),
        quota.budget.map_or_else(String::new, |budget| budget.period.text().to_owned()),
        of(|budget| budget.spent_gpu_ns),
        of(|budget| Some(budget.allowed_gpu_ns)),
        of(|budget| Some(budget.began_unix_s)),
        of(|budget| Some(budget.ends_unix_s)),
        of(|budget| budget.lasts_until_unix_s),
        quota.held_up.to_string(),
        quota.lifted_until_unix_s.map(|until| until.to_string()).unwrap_or_default(),
        number(allowed.container_share_permille),
        number(allowed.container_memory_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> QuotaView {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_line_says_who_has_how_much_of_what() {
        let vision = quota(
            r#"{"of":"team","team":"vision","table":"quota.team.vision","waiting":1,
                "held":{"share_permille":1500,"memory_bytes":4294967296,"leases":2},
                "allowed":{"share_permille":2000,"memory_bytes":42949672960,"container_share_permille":500,
                           "container_memory_bytes":17179869184},
                "budget":{"period":"month","allowed_gpu_ns":1800000000000000,"spent_gpu_ns":1125001000000000,
                          "began_unix_s":1796083200,"ends_unix_s":1798761600,"lasts_until_unix_s":1798000000}}"#,
        );
        let root = quota(
            r#"{"of":"user","uid":0,"held":{"share_permille":0,"memory_bytes":0,"leases":1},"allowed":{},"waiting":0}"#,
        );
        let drawn = borderless(&COLUMNS, [cells(&vision), cells(&root)]);
        let fields = |line: usize| drawn.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(fields(1), ["team", "vision", "1.5/2", "4GiB/40GiB", "2/-", "312.5/500", "month", "1"]);
        assert_eq!(fields(2), ["user", "0", "0/-", "0B/-", "1/-", "-", "0"]);
        assert_eq!(wide_cells(&vision).last().unwrap(), "quota.team.vision");
        assert_eq!(wide_cells(&root)[6..], ["-", "-", "-", "-"]);
        assert_eq!(wide_cells(&vision)[6..9], ["0.5, 16GiB", "2027-01-01T00:00:00Z", "2026-12-23T04:26:40Z"]);
        assert_eq!(csv_cells(&vision)[11..14], ["month", "1125001000000000", "1800000000000000"]);
        assert_eq!(csv_cells(&vision).len(), HEADER.len());
        assert_eq!(csv_cells(&vision)[19..], ["500", "17179869184"]);
        assert_eq!(csv_cells(&vision)[3..9], ["1500", "2000", "4294967296", "42949672960", "2", ""]);
    }
}
