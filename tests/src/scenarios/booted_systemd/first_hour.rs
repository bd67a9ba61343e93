//! The commands of the README's first hour, taken from it and typed one after the other.

use crate::booted::{Booted, Packages};
use crate::failure::{Failure, Result, ensure};
use crate::tenant::report;
use std::time::Instant;

const README: &str = include_str!("../../../../README.md");
const HEADING: &str = "## The first hour";
/// Done already, outside of the system: a machine that builds is another one than a host.
const BUILDING: &str = "make package";
/// Of the simulated GPU's 24 GiB, 30 %.
const SEEN_BYTES: std::ops::RangeInclusive<u64> = (7 << 30)..=(24 << 30) * 3 / 10;

/// Types them and looks at what the last one shows.
pub fn run(booted: &Booted, packages: &Packages) -> Result<()> {
    for package in super::PACKAGES {
        let (file, name) = packages.new_one(package);
        booted.bring(&file, &format!("target/package/{name}"))?;
    }
    let commands = commands()?;
    ensure(commands.first().is_some_and(|first| first == BUILDING), || format!("{HEADING} begins with {commands:?}"))?;
    let start = Instant::now();
    let mut said = String::new();
    for command in &commands[1..] {
        said = booted.sh(command)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let seen = report(&said)?;
    ensure(SEEN_BYTES.contains(&seen.cuda_total_bytes) && seen.cuda_total_bytes == seen.nvml_total_bytes, || {
        format!("the container sees {seen:?}")
    })?;
    let count = commands.len() - 1;
    println!("from packages to 30 % of a GPU: {count} commands, {seconds:.1} s");
    Ok(())
}

/// The lines of the first block of commands below the heading, with their continuations, without comments.
fn commands() -> Result<Vec<String>> {
    let missing = || Failure::new(format!("README.md has no block of commands below {HEADING:?}"));
    let section = README.split_once(HEADING).ok_or_else(missing)?.1;
    let block = section.split("```").nth(1).ok_or_else(missing)?;
    let block = block.split_once('\n').ok_or_else(missing)?.1.replace("\\\n", " ");
    let command = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    Ok(block.lines().map(command).filter(|line| !line.is_empty()).collect())
}
