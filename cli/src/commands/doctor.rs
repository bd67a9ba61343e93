//! `gpool doctor`

use crate::arguments::Format;
use crate::doctor::{Checked, State, Surroundings, check_all};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use std::path::Path;

/// Runs every check and prints what it found. Fails when one of them does.
pub fn run(configuration: &Path, socket: Option<&Path>, format: Format) -> Result<(), Failure> {
    let checked = check_all(&Surroundings::of_this_host(configuration, socket));
    match format {
        Format::Table | Format::Wide => output::print(&checked.iter().map(paragraph).collect::<String>())?,
        Format::Json => output::print_json("checks", &checked)?,
        Format::Csv => output::print(&output::csv(
            &["number", "name", "state", "found", "remedy"],
            checked.iter().map(|check| {
                let outcome = &check.outcome;
                vec![
                    check.number.to_string(),
                    check.name.into(),
                    outcome.state.text().into(),
                    outcome.found.clone(),
                    outcome.remedy.clone().unwrap_or_default(),
                ]
            }),
        ))?,
    }
    let failed: Vec<String> = checked
        .iter()
        .filter(|check| check.outcome.state == State::Fail)
        .map(|check| format!("{} ({})", check.number, check.name))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(ExitStatus::Failed, format!("gpool: failed: {}", failed.join(", "))))
}

/// A line with what was found, and one with what to do about it.
fn paragraph(check: &Checked) -> String {
    let outcome = &check.outcome;
    let line = format!("{:>2}  {:4}  {:17}  {}\n", check.number, outcome.state.text(), check.name, outcome.found);
    let remedy = outcome.remedy.iter().map(|remedy| format!("{:29}-> {remedy}\n", "")).collect::<String>();
    line + &remedy
}
