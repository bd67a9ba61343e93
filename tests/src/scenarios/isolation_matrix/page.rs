//! The verdicts beside what docs/isolation.md tells.

use crate::failure::{Context, Failure, Result, ensure};
use std::fs;

/// The page, from the root of the repository.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/isolation.md");
/// What its table begins with.
const HEAD: &str = "| mechanism | memory | compute | fault | jitter |";
/// What stands for a cell that only a measurement on a GPU may fill.
const NOT_MEASURED: &str = "not measured";

/// Fails unless the page's table says of each mechanism what was found, and nothing of jitter that no GPU has shown.
pub fn compare(found: &[(&str, [&str; 3])]) -> Result<()> {
    let text = fs::read_to_string(PAGE).context(PAGE)?;
    let mut rows = text.lines().skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    for (name, verdicts) in found {
        let row = rows.next().ok_or_else(|| Failure::new(format!("{PAGE} has no row for {name} below {HEAD:?}")))?;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let is_told = cells.len() == 5 && cells[0] == format!("`{name}`") && cells[1..4] == *verdicts;
        ensure(is_told, || format!("{PAGE} says {row:?}, found was {verdicts:?}"))?;
        // Whoever has measured it names the GPU and the day, and the page of the run.
        let is_honest = cells[4] == NOT_MEASURED || cells[4].contains("measurements/");
        ensure(is_honest, || format!("{PAGE}: the jitter of {name} is {:?}, without a measurement", cells[4]))?;
    }
    ensure(rows.next().is_none(), || format!("{PAGE} tells of more than was found"))
}
