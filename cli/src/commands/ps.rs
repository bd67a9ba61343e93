//! `gpool ps`

use super::shown;
use crate::arguments::{Format, LeasesOptions};
use crate::exit::Failure;
use crate::output;
use crate::table::{LeaseRow, render, render_csv, render_wide};
use gpool_protocol::{Client, LeaseView};

/// Lists the leases, all or some; `quiet`, their containers' ids.
pub fn run(client: &Client, whose: &LeasesOptions, quiet: bool, format: Format) -> Result<(), Failure> {
    let leases = shown::leases(client, whose)?;
    if quiet {
        return output::print(&leases.iter().map(|lease| format!("{}\n", lease.container_id)).collect::<String>());
    }
    print(&leases, format)
}

/// Prints `leases` once.
pub fn print(leases: &[LeaseView], format: Format) -> Result<(), Failure> {
    match format {
        Format::Table => output::print(&render(&rows(leases))),
        Format::Wide => output::print(&render_wide(&rows(leases))),
        Format::Json => output::print_json("leases", &leases),
        Format::Csv => output::print(&render_csv(leases)),
    }
}

fn rows(leases: &[LeaseView]) -> Vec<LeaseRow> {
    leases.iter().map(LeaseRow::from).collect()
}
