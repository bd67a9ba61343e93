//! `gpool doctor`

use crate::arguments::{Checkup, DoctorVerb, Format};
use crate::doctor::{self, Checked, State, Surroundings, check_all};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{Client, ConfigurationView};
use std::path::Path;

/// Examines the host, or prints a page of the manual. Fails by the worst that was found.
pub fn run(checkup: &Checkup, socket: Option<&Path>) -> Result<(), Failure> {
    if let Some(DoctorVerb::Explain { code }) = &checkup.verb {
        return explain(code);
    }
    let look = || Surroundings::of_this_host(&checkup.config, socket);
    let mut host = look();
    let mut checked = check_all(&host);
    let client = Client::new(socket.unwrap_or(&host.configuration().socket.path));
    if let Ok(view) = host.ask::<ConfigurationView>(&client, "/v1/configuration") {
        super::config::tell_of_another_file(&view.path, &checkup.config, |file| {
            format!("checks look at the latter: gpool doctor --config {file} looks at what it works with")
        });
    }
    if checkup.fix && repair(&checked, &client) {
        host = look();
        checked = check_all(&host);
    }
    if let Some(file) = &checkup.bundle {
        let files = doctor::contents(&host, &client, &checked);
        let written = doctor::write_bundle(file, &files, host.now_unix_ms / 1000);
        written.map_err(|sentence| Failure::Refused(ExitStatus::Failed, format!("gpool: {sentence}")))?;
        eprintln!("gpool: wrote {}; look through it before you send it", file.display());
    }
    print(&checked, checkup.format())?;
    judge(&checked)
}

/// Prints the page of a code or a check.
fn explain(code: &str) -> Result<(), Failure> {
    match doctor::page(code) {
        Some(page) => output::print(&page),
        None => {
            let last = doctor::names().count();
            let sentence =
                format!("gpool: {code:?} is no code and no check; give one such as GPOOL-E201, or 1 to {last}");
            Err(Failure::Refused(ExitStatus::Usage, sentence))
        }
    }
}

/// Does what is safe, and says what was done; whether there was anything.
fn repair(checked: &[Checked], client: &Client) -> bool {
    let fixes: Vec<_> = checked.iter().flat_map(|check| &check.outcome.fixes).collect();
    for fix in &fixes {
        match fix.apply(client) {
            Ok(done) => eprintln!("gpool: {done}"),
            Err(why) => eprintln!("gpool: {why}"),
        }
    }
    !fixes.is_empty()
}

fn print(checked: &[Checked], format: Format) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide => output::print(&checked.iter().map(paragraph).collect::<String>()),
        Format::Json => output::print_json("checks", &checked),
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
        )),
    }
}

/// The exit code: by the worst finding. What could not be told counts as nothing, since the cause of it is a finding.
fn judge(checked: &[Checked]) -> Result<(), Failure> {
    let in_state = |state: State| {
        let found = checked.iter().filter(|check| check.outcome.state == state);
        found.map(|check| format!("{} ({})", check.number, check.name)).collect::<Vec<_>>()
    };
    let (failed, warned) = (in_state(State::Fail), in_state(State::Warn));
    match (failed.is_empty(), warned.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => Err(Failure::Refused(ExitStatus::Failed, format!("gpool: failed: {}", failed.join(", ")))),
        (true, false) => Err(Failure::Refused(ExitStatus::Warned, format!("gpool: warned: {}", warned.join(", ")))),
    }
}

/// A line with what was found, and one with what to do about it.
fn paragraph(check: &Checked) -> String {
    let outcome = &check.outcome;
    let line = format!("{:>2}  {:4}  {:17}  {}\n", check.number, outcome.state.text(), check.name, outcome.found);
    let remedy = outcome.remedy.iter().map(|remedy| format!("{:29}-> {remedy}\n", "")).collect::<String>();
    line + &remedy
}
