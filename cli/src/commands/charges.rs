//! `gpool charges`: the rows of a bill.

mod focus;
mod joined;

use super::days::{queries, until_of};
use super::halves::in_halves;
use crate::arguments::{ChargesFormat, ChargesOptions};
use crate::exit::Failure;
use crate::money::{exact, exact_micros, rounded};
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use gpool_protocol::{Charge, Charges, Client};
use jiff::Timestamp;
use joined::joined;

/// Prints what each lease is charged for each day on each of its GPUs.
pub fn run(client: &Client, options: &ChargesOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let charges = ask(client, options, now_s)?;
    if options.format == ChargesFormat::Focus {
        focus::check(&charges)?;
    }
    let unpriced = unpriced(&charges);
    if unpriced > 0 && options.format == ChargesFormat::Csv {
        eprintln!("gpool: {}", unpriced_words(unpriced));
    }
    match options.format {
        ChargesFormat::Table => output::print(&render(&charges, false)),
        ChargesFormat::Wide => output::print(&render(&charges, true)),
        ChargesFormat::Json => output::print_json_of([("charges", to_value(&charges))]),
        ChargesFormat::Csv => output::print(&render_csv(&charges)),
        ChargesFormat::Focus => output::print(&focus::render(&charges, &site(options))),
    }
}

/// A day at a time, so that an answer is never longer than a day's: rows are of days in any case. A day on which too many leases ran
/// for one answer is put together of its parts.
fn ask(client: &Client, options: &ChargesOptions, now_s: u64) -> Result<Charges, Failure> {
    let (since, until) = span(options, now_s);
    let filters = options.scope.filters() + &options.of.filter();
    let mut once = |query: &str| client.get::<Charges>(&format!("/v1/charges?{query}{filters}"));
    let mut asked = |query: &str| in_halves(query, now_s, &mut once).map(joined);
    let mut queries = queries(since, until, now_s).into_iter();
    let mut all = asked(&queries.next().unwrap_or_default())?;
    // Before the ledger there is nothing.
    let begins = all.begins_unix_s.unwrap_or(0);
    for query in queries.skip_while(|query| until_of(query).is_some_and(|until| until <= begins)) {
        let part = asked(&query)?;
        all.until_unix_s = part.until_unix_s;
        all.total_cost_nanos = all.total_cost_nanos.saturating_add(part.total_cost_nanos);
        all.rows.extend(part.rows);
    }
    Ok(all)
}

fn span(options: &ChargesOptions, now_s: u64) -> (u64, Option<u64>) {
    options.month.map_or_else(|| options.scope.time.unix_s(now_s), |month| month.unix_s(now_s))
}

/// Who bills.
fn site(options: &ChargesOptions) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
    options.site.clone().or_else(|| host().ok()).unwrap_or_else(|| "gpool".to_owned())
}

fn or_dash(name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| "-".to_owned())
}

fn price(micros: Option<u64>) -> String {
    micros.map_or_else(|| "-".to_owned(), |micros| rounded(i128::from(micros) * 1000))
}

/// A table for people, with the sum below.
fn render(charges: &Charges, is_wide: bool) -> String {
    let mut columns: Vec<Column> = ["DAY", "CONTAINER", "TEAM", "PROJECT", "COST CENTER", "GPU"].map(text).to_vec();
    columns.extend(["RESERVED h", "USED h", "BILLED h", "PRICE", "COST"].map(figure));
    if is_wide {
        columns.extend(["BURST h", "LENT h", "IDLE h", "LIST COST"].map(figure));
        columns.extend(["MODEL", "PROFILE", "CLASS", "PRIORITY", "MECHANISM", "USER", "LEASE", "ESTIMATED"].map(text));
    }
    let hours = super::usage::hours::<u64>;
    let cells = |row: &Charge| {
        let mut cells = vec![
            super::usage::moment(row.begins_unix_s).get(..10).unwrap_or_default().to_owned(),
            row.container_id.short().to_owned(),
            or_dash(row.team.as_ref()),
            or_dash(row.project.as_ref()),
            or_dash(row.cost_center.as_ref()),
            crate::table::short_gpu(&row.gpu_uuid.0).to_owned(),
        ];
        cells.extend([row.reserved_gpu_ns, row.used_gpu_ns, row.billed_gpu_ns].map(hours));
        cells.extend([price(row.price_micros), rounded(row.cost_nanos)]);
        if is_wide {
            cells.extend([row.burst_gpu_ns, row.lent_gpu_ns, row.idle_gpu_ns].map(hours));
            cells.extend([rounded(row.list_cost_nanos), row.product.clone(), or_dash(row.mig_profile.as_ref())]);
            cells.extend([row.class.clone(), row.priority.clone(), row.mechanism.clone(), row.uid.to_string()]);
            cells.extend([row.lease_id.to_string(), if row.is_estimated { "yes" } else { "no" }.to_owned()]);
        }
        cells
    };
    let mut rows: Vec<Vec<String>> = charges.rows.iter().map(cells).collect();
    let sum = |of: fn(&Charge) -> u64| charges.rows.iter().map(of).fold(0, u64::saturating_add);
    let mut total = vec!["(all)".to_owned()];
    total.extend(std::iter::repeat_n("-".to_owned(), 5));
    total.extend([sum(|row| row.reserved_gpu_ns), sum(|row| row.used_gpu_ns), sum(|row| row.billed_gpu_ns)].map(hours));
    total.extend(["-".to_owned(), rounded(charges.total_cost_nanos)]);
    if is_wide {
        total.extend([sum(|row| row.burst_gpu_ns), sum(|row| row.lent_gpu_ns), sum(|row| row.idle_gpu_ns)].map(hours));
        total.push(rounded(sum(|row| row.list_cost_nanos)));
    }
    total.extend(std::iter::repeat_n("-".to_owned(), columns.len() - total.len()));
    rows.push(total);
    borderless(&columns, rows) + &note(charges)
}

/// What the prices are in, or that there are none.
fn note(charges: &Charges) -> String {
    let begins = super::usage::begins_later("The ledger begins", charges.begins_unix_s, charges.since_unix_s);
    match &charges.currency {
        Some(currency) => {
            let unpriced = match unpriced(charges) {
                0 => String::new(),
                rows => unpriced_words(rows) + "\n",
            };
            format!("Prices and costs are in {currency}.\n{unpriced}{begins}")
        }
        None => format!("This host has no prices: [rates] of its config.toml is where they stand.\n{begins}"),
    }
}

/// Rows that cost nothing because nobody has said what they cost.
fn unpriced(charges: &Charges) -> usize {
    let has_none = |row: &&Charge| row.price_micros.is_none();
    if charges.currency.is_some() { charges.rows.iter().filter(has_none).count() } else { 0 }
}

fn unpriced_words(rows: usize) -> String {
    format!("{rows} of these rows have no price: [rates] has none for their GPU and day.")
}

/// The figures for programs and spreadsheets.
fn render_csv(charges: &Charges) -> String {
    const HEADER: [&str; 30] = [
        "begins",
        "ends",
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
        "gpu_uuid",
        "model",
        "mig_profile",
        "reserved_gpu_ns",
        "used_gpu_ns",
        "burst_gpu_ns",
        "lent_gpu_ns",
        "idle_gpu_ns",
        "memory_cap_mib_s",
        "memory_used_mib_s",
        "energy_millijoules",
        "is_estimated",
        "billed_gpu_ns",
        "currency",
        "price",
        "list_price",
        "cost",
        "list_cost",
    ];
    let or_none = |name: &Option<String>| name.clone().unwrap_or_default();
    let micros = |micros: Option<u64>| micros.map(exact_micros).unwrap_or_default();
    let row = |row: &Charge| {
        vec![
            super::usage::moment(row.begins_unix_s),
            super::usage::moment(row.ends_unix_s),
            row.lease_id.to_string(),
            row.container_id.to_string(),
            or_none(&row.pod),
            or_none(&row.team),
            or_none(&row.project),
            or_none(&row.cost_center),
            row.uid.to_string(),
            row.class.clone(),
            row.priority.clone(),
            row.mechanism.clone(),
            row.gpu_uuid.to_string(),
            row.product.clone(),
            or_none(&row.mig_profile),
            row.reserved_gpu_ns.to_string(),
            row.used_gpu_ns.to_string(),
            row.burst_gpu_ns.to_string(),
            row.lent_gpu_ns.to_string(),
            row.idle_gpu_ns.to_string(),
            row.memory_cap_mib_s.to_string(),
            row.memory_used_mib_s.to_string(),
            row.energy_millijoules.to_string(),
            row.is_estimated.to_string(),
            row.billed_gpu_ns.to_string(),
            or_none(&charges.currency),
            micros(row.price_micros),
            micros(row.list_price_micros),
            exact(row.cost_nanos),
            exact(row.list_cost_nanos),
        ]
    };
    csv(&HEADER, charges.rows.iter().map(row))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, GpuUuid, LeaseId};

    const H: u64 = 3_600_000_000_000;

    pub fn sample() -> Charges {
        let row = Charge {
            begins_unix_s: 1_793_491_200,
            ends_unix_s: 1_793_577_600,
            lease_id: LeaseId("01K".into()),
            container_id: ContainerId("abcdef0123456789".into()),
            pod: None,
            team: Some("vision".into()),
            project: Some("mars".into()),
            cost_center: Some("4711".into()),
            uid: 0,
            class: "batch".into(),
            priority: "guaranteed".into(),
            mechanism: "slice".into(),
            created_unix_ms: 1_793_491_200_000,
            ended_unix_ms: None,
            gpu_uuid: GpuUuid("GPU-51313131-0000-4000-8000-000000000000".into()),
            product: "NVIDIA H100 80GB HBM3".into(),
            mig_profile: None,
            compute_slices: 7,
            of_compute_slices: 7,
            reserved_gpu_ns: 3 * H,
            used_gpu_ns: 2 * H,
            burst_gpu_ns: H / 2,
            lent_gpu_ns: H,
            idle_gpu_ns: H / 2,
            memory_cap_mib_s: 3600 * 4096,
            memory_used_mib_s: 3600 * 1024,
            energy_millijoules: 900_000_000,
            is_estimated: false,
            billed_gpu_ns: 7 * H / 2,
            price_micros: Some(2_000_000),
            list_price_micros: Some(2_500_000),
            cost_nanos: 7_000_000_000,
            list_cost_nanos: 8_750_000_000,
        };
        let other =
            Charge { team: None, project: None, cost_center: None, price_micros: None, cost_nanos: 0, ..row.clone() };
        Charges {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_577_600,
            begins_unix_s: Some(1_793_491_200),
            currency: Some("EUR".into()),
            rows: vec![row, other],
            total_cost_nanos: 7_000_000_000,
        }
    }

    #[test]
    fn a_table_ends_with_the_sum_and_says_what_has_no_price() {
        let drawn = render(&sample(), false);
        let lines: Vec<Vec<&str>> = drawn.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..5], ["2026-11-01", "abcdef012345", "vision", "mars", "4711"]);
        assert_eq!(lines[1][6..], ["3.000", "2.000", "3.500", "2.00", "7.00"]);
        assert_eq!(lines[2][2..5], ["-", "-", "-"]);
        assert_eq!(lines[3], ["(all)", "-", "-", "-", "-", "-", "6.000", "4.000", "7.000", "-", "7.00"]);
        assert!(drawn.contains("in EUR.\n1 of these rows have no price"), "{drawn}");
        let none = Charges { currency: None, ..sample() };
        assert!(
            render(&none, true).ends_with("This host has no prices: [rates] of its config.toml is where they stand.\n")
        );
    }

    #[test]
    fn csv_has_costs_that_a_spreadsheet_adds_up() {
        let drawn = render_csv(&sample());
        let (header, row) = drawn.split_once('\n').unwrap();
        assert_eq!(header.split(',').count(), row.lines().next().unwrap().split(',').count());
        assert!(row.contains(",EUR,2,2.5,7,8.75\n"), "{row}");
    }
}
