//! The kill matrix's figures, beside the others in the results: the scenario counts, in a run of its own.

use crate::failure::{Context, Failure, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Lines of the scenario that are figures begin with this.
const FIGURE: &str = "killmatrix.";

/// Runs the scenario and adds what it says to the results at `path`.
///
/// # Errors
/// When the scenario fails, or the results are none.
pub fn add_to(path: &Path) -> Result<()> {
    let own = std::env::current_exe().context("this program's path")?;
    let mut command = Command::new(own.with_file_name("gpool-integration"));
    let output = command.arg("kill-matrix").stderr(Stdio::inherit()).output().context("gpool-integration")?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    ensure(output.status.success(), || format!("kill-matrix ended with {}", output.status))?;
    let text = fs::read_to_string(path).context(path.display())?;
    let mut results: Value = serde_json::from_str(&text).context(path.display())?;
    let all = results.as_object_mut().ok_or_else(|| Failure::new(format!("{} has no figures", path.display())))?;
    let figures = figures(&said);
    ensure(!figures.is_empty(), || "kill-matrix told no figures".to_owned())?;
    all.extend(figures.into_iter().map(|(name, value)| (name, json!({"value": value}))));
    let unfinished = path.with_extension("new");
    fs::write(&unfinished, format!("{results:#}\n")).context(unfinished.display())?;
    fs::rename(&unfinished, path).context(path.display())
}

fn figures(said: &str) -> Vec<(String, f64)> {
    let figure = |line: &str| {
        let (name, value) = line.trim().split_once(' ')?;
        Some((name.starts_with(FIGURE).then(|| name.to_owned())?, value.parse().ok()?))
    };
    said.lines().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_from_other_lines() {
        let said =
            "    killmatrix.lost 0\n    lease back 1.2 s after the kill of x\n    killmatrix.back_p50_s 0.25\nok\n";
        assert_eq!(figures(said), [("killmatrix.lost".to_owned(), 0.0), ("killmatrix.back_p50_s".to_owned(), 0.25)]);
    }
}
