//! `gpool simulate`

use super::Format;
use super::scope::parse_plain;
use clap::Args;
use std::path::PathBuf;

/// A run of a scenario, without a GPU, and without a supervisor unless it is asked who runs.
#[derive(Debug, Args)]
pub struct Simulation {
    /// A scenario file, or the name of a shipped one: mix, coarse, many, heavy, long, stalls, over, cap, services
    #[arg(required_unless_present = "from_host")]
    pub scenario: Option<String>,
    /// In place of a scenario, who shares a GPU of this host now, each with its share and as if it always had work
    #[arg(long, conflicts_with = "scenario")]
    pub from_host: bool,
    /// Of which GPU, by the beginning of its UUID, where several are shared
    // What is required is not missed beside what it conflicts with.
    #[arg(long, value_name = "UUID", requires = "from_host", conflicts_with = "scenario", value_parser = parse_plain)]
    pub gpu: Option<String>,
    /// Print the scenario as a file, to begin one's own with, and run nothing
    #[arg(long, conflicts_with_all = ["seed", "seeds", "duration", "plot", "plot_terminal"])]
    pub print: bool,
    /// The seed [default: the scenario's first]
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Seeds, first and last included; the table shows the worst of each figure
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub seeds: Option<(u64, u64)>,
    /// Who decides: all, gpool, eevdf, stride, sfq, driver-slicing, hami-like, gemini-like, wall-slices
    #[arg(long, value_name = "NAME", default_value = "all")]
    pub scheduler: String,
    /// Seconds of virtual time [default: the scenario's]
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub duration: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Draw the shares over time into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Draw them below the table too, when that does not go to a terminal
    #[arg(long)]
    pub plot_terminal: bool,
}

/// `A..B`, both included, at most ten thousand of them.
fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let seeds = ends.filter(|(first, last): &(u64, u64)| first <= last && last - first < 10_000);
    seeds.ok_or("write A..B, for example 1..20, at most 10000 seeds".to_owned())
}
