//! `gpool simulate SCENARIO`

mod figures;
mod from_host;

use crate::arguments::{Format, Simulation};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use figures::{RunView, render, render_csv};
use gpool_policy_simulator::designs::Design;
use gpool_policy_simulator::scenario::{SHIPPED, Scenario};
use gpool_policy_simulator::{Outcome, plot, run as simulate};
use gpool_protocol::{Client, LeaseView};
use std::io::IsTerminal;

/// Columns of a plot on a terminal: as wide as terminals always were.
const PLOT_COLUMNS: usize = 80;

/// Runs a scenario under the asked designs, prints the figures beside each other and draws shares over time.
pub fn run(simulation: &Simulation, client: impl FnOnce() -> Client) -> Result<(), Failure> {
    let for_people = matches!(simulation.format, Format::Table | Format::Wide);
    if simulation.plot_terminal && !for_people {
        let sentence = "gpool: --plot-terminal goes with --format table or wide; use --plot FILE beside json and csv";
        return Err(Failure::Refused(ExitStatus::Usage, sentence.to_owned()));
    }
    let (file, text) = match &simulation.scenario {
        Some(name) => text_of(name)?,
        None => {
            let leases: Vec<LeaseView> = client().get("/v1/leases")?;
            ("this-host.toml".to_owned(), from_host::text(&leases, simulation.gpu.as_deref())?)
        }
    };
    // Also one that cannot be run, to be corrected.
    if simulation.print {
        return output::print(&text);
    }
    let mut scenario = parsed(&file, &text)?;
    if let Some(seconds) = simulation.duration {
        scenario.duration_ns = seconds * 1_000_000_000;
    }
    let (first, last) = match (simulation.seed, simulation.seeds) {
        (Some(seed), _) => (seed, seed),
        (None, Some(seeds)) => seeds,
        (None, None) => (scenario.seeds.0, scenario.seeds.0),
    };
    let designs = designs(&simulation.scheduler)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for &design in &designs {
        outcomes.extend((first..=last).map(|seed| simulate(&scenario, seed, design)));
    }
    match simulation.format {
        Format::Table => output::print(&render(&scenario, &outcomes, false))?,
        Format::Wide => output::print(&render(&scenario, &outcomes, true))?,
        Format::Json => {
            let views: Vec<RunView> = outcomes.iter().map(|outcome| RunView::new(&scenario, outcome)).collect();
            output::print_json("runs", &views)?;
        }
        Format::Csv => output::print(&render_csv(&scenario, &outcomes))?,
    }
    let of_first_seed: Vec<Outcome> = outcomes.into_iter().filter(|outcome| outcome.seed == first).collect();
    if let Some(path) = &simulation.plot {
        std::fs::write(path, plot::svg(&scenario.name, &of_first_seed)).map_err(|error| {
            let sentence = format!("gpool: --plot: {} cannot be written ({error}); name another file", path.display());
            Failure::Refused(ExitStatus::Failed, sentence)
        })?;
    }
    let on_terminal = for_people && std::io::stdout().is_terminal();
    if (simulation.plot_terminal || on_terminal)
        && let Some(outcome) = of_first_seed.first()
    {
        output::print(&format!("\n{}", plot::terminal(&scenario.name, outcome, PLOT_COLUMNS)))?;
    }
    Ok(())
}

/// A shipped scenario by its name, or a file: what it is called, and its text.
fn text_of(scenario: &str) -> Result<(String, String), Failure> {
    if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == scenario) {
        return Ok((format!("{name}.toml"), (*text).to_owned()));
    }
    let text = std::fs::read_to_string(scenario).map_err(|error| {
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        usage(format!("{scenario} cannot be read ({error}); name a file, or one of the shipped scenarios {names}"))
    })?;
    Ok((scenario.to_owned(), text))
}

fn parsed(file: &str, text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(file, text).map_err(|error| usage(error.to_string()))
}

fn usage(sentence: String) -> Failure {
    Failure::Refused(ExitStatus::Usage, format!("gpool: {sentence}"))
}

fn designs(name: &str) -> Result<Vec<Design>, Failure> {
    if name == "all" {
        return Ok(Design::ALL.to_vec());
    }
    Design::named(name).map(|design| vec![design]).ok_or_else(|| {
        let names: Vec<&str> = Design::ALL.iter().map(|design| design.name()).collect();
        let sentence = format!("gpool: --scheduler: {name} is none; write all, {}", names.join(", "));
        Failure::Refused(ExitStatus::Usage, sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        let Err(Failure::Refused(ExitStatus::Usage, sentence)) = text_of("/no/such/scenario.toml") else {
            panic!("a file that is not there was read")
        };
        assert!(sentence.contains("/no/such/scenario.toml") && sentence.contains("mix"), "{sentence}");
        let Err(Failure::Refused(ExitStatus::Usage, sentence)) = designs("lottery") else { panic!("it was found") };
        assert!(sentence.contains("lottery") && sentence.contains("eevdf"), "{sentence}");
    }

    #[test]
    fn a_run_is_the_same_in_every_format() {
        let (file, text) = text_of("mix").unwrap();
        let mut scenario = parsed(&file, &text).unwrap();
        scenario.duration_ns = 3_000_000_000;
        let outcomes = [simulate(&scenario, 1, Design::Gpool), simulate(&scenario, 1, Design::DriverSlicing)];
        let table = render(&scenario, &outcomes, false);
        assert_eq!(render(&scenario, &outcomes, true).matches("Tenants under").count(), 2);
        assert!(table.contains("SCHEDULER") && table.contains("driver-slicing") && table.contains("inference"));
        let lines = render_csv(&scenario, &outcomes);
        assert_eq!(lines.lines().count(), 1 + 2 * scenario.tenants.len());
        let view = output::to_value(&RunView::new(&scenario, &outcomes[0]));
        assert_eq!(view["scheduler"], "gpool");
        assert_eq!(view["tenants"].as_array().unwrap().len(), 3);
        let received_ns = view["tenants"][0]["received_ns"].as_u64().unwrap();
        assert!(lines.lines().nth(1).unwrap().contains(&received_ns.to_string()));
        let unserved = view["tenants"][2]["requests"]["unserved"].as_u64().unwrap();
        assert!(lines.lines().next().unwrap().ends_with(",requests_unserved"), "{lines}");
        assert!(lines.lines().nth(3).unwrap().ends_with(&format!(",{unserved}")), "{lines}");
        assert!(lines.lines().nth(1).unwrap().ends_with(','), "who has no requests has none that were not served");
    }
}
