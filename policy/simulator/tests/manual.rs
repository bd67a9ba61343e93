//! The figures of the manual, docs/simulation.md, are those that come out.

use std::collections::BTreeSet;

use gpool_policy_simulator::Outcome;
use gpool_policy_simulator::designs::Design;
use gpool_policy_simulator::run;
use gpool_policy_simulator::scenario::shipped;

/// The rows of the table: scenario, design, and the row as it is written. A scenario is named in its first row.
fn rows(page: &str) -> Vec<(String, String, String)> {
    let figures = page.split("\n## Figures\n").nth(1).expect("the section").split("\n## ").next().unwrap_or_default();
    let lines = figures.lines().filter(|line| line.starts_with("| ") && line.contains(" % |"));
    let mut scenario = String::new();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !cells[1].is_empty() {
            scenario = cells[1].to_owned();
        }
        (scenario.clone(), cells[2].trim_matches('*').to_owned(), line.to_owned())
    };
    lines.map(row).collect()
}

/// With so many decimals as the size of a figure deserves.
fn rounded(figure: f64, (hundredths_below, tenths_below): (f64, f64)) -> String {
    match figure {
        _ if figure < hundredths_below => format!("{figure:.2}"),
        _ if figure < tenths_below => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

/// The worst of each figure, as the row has them that the manual has for it: where it leaves the errors or the times out, so.
fn worst(outcomes: &[Outcome], written: &str) -> String {
    let is_written = |cell: usize| written.split('|').nth(cell).is_some_and(|cell| !cell.trim().is_empty());
    let points = |of: fn(&Outcome) -> Option<u64>| {
        let ppm = outcomes.iter().filter_map(of).max().expect("windows");
        rounded(ppm as f64 / 10_000.0, (1.0, 20.0))
    };
    let ms = |of: fn(&Outcome) -> Option<u64>| {
        let ns = outcomes.iter().filter_map(of).max().expect("requests");
        rounded(ns as f64 / 1_000_000.0, (0.0, 20.0))
    };
    let busy_ppm = outcomes.iter().map(|outcome| outcome.busy_ppm).min().expect("runs");
    let mut cells = vec![format!("{} %", rounded(busy_ppm as f64 / 10_000.0, (0.0, 99.95)))];
    cells.extend(match is_written(4) {
        true => [points(|run| run.share_error_1s_ppm), points(|run| run.share_error_10s_ppm)],
        false => Default::default(),
    });
    cells.extend(match is_written(6) {
        true => [
            ms(|run| Some(run.latency?.p50_ns)),
            ms(|run| Some(run.latency?.p99_ns)),
            ms(|run| Some(run.latency?.max_ns)),
        ],
        false => Default::default(),
    });
    let names = written.split('|').take(3).collect::<Vec<_>>().join("|");
    let cells: String =
        cells.iter().map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") }).collect();
    format!("{names}|{cells}")
}

#[test]
#[ignore = "long"]
fn the_figures_of_the_manual_are_what_comes_out() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulation.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let rows = rows(&page);
    let scenarios: BTreeSet<&str> = rows.iter().map(|(name, ..)| name.as_str()).collect();
    assert!(scenarios.len() >= 8 && rows.len() >= 30, "{rows:?}");
    let is = |(name, design, written): &(String, String, String)| {
        let scenario = shipped(name).expect(name).expect("it is good");
        let design = Design::named(design).expect(design);
        let (first, last) = scenario.seeds;
        let outcomes: Vec<Outcome> = (first..=last).map(|seed| run(&scenario, seed, design)).collect();
        worst(&outcomes, written)
    };
    let is: Vec<String> = rows.iter().map(is).collect();
    let written: Vec<String> = rows.into_iter().map(|(.., written)| written).collect();
    assert!(is == written, "docs/simulation.md has other figures; these come out:\n\n{}\n", is.join("\n"));
}
