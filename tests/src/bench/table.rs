//! The table on stdout.

use super::catalog::{Promise, Reduce};
use super::sheet::Line;

const HEADER: [&str; 8] = ["FIGURE", "VALUE", "UNIT", "NATIVE", "PROMISE", "VERDICT", "ROUNDS", "GPU"];
/// Columns of figures stand at the right.
const IS_FIGURE: [bool; 8] = [false, true, false, true, true, false, false, false];

/// The table's text, with what each figure is below it.
pub fn render(lines: &[Line]) -> String {
    let rows: Vec<[String; 8]> = lines.iter().map(cells).collect();
    let mut text = laid_out(&rows);
    text.push('\n');
    for line in lines {
        text += &format!("{}: {}{}\n", line.figure.name, line.figure.what, count(line));
    }
    let missed: Vec<&str> = lines.iter().filter(|line| kept(line) == Some(false)).map(|l| l.figure.name).collect();
    let promised = lines.iter().filter(|line| kept(line).is_some()).count();
    text += &format!("\n{} of {promised} promises kept", promised - missed.len());
    if !missed.is_empty() {
        text += &format!("; missed: {}", missed.join(", "));
    }
    text + "\n"
}

fn kept(line: &Line) -> Option<bool> {
    line.figure.promise.is_kept(line.value)
}

/// A percentile says of how many.
fn count(line: &Line) -> String {
    match line.figure.reduce {
        Reduce::P99 => format!("; 99th percentile of {} events", line.events),
        Reduce::Worst => format!("; worst of each round, {} events in all", line.events),
        Reduce::Median => String::new(),
        Reduce::Quotient(over, under) => format!("; {over} over {under}, of all rounds"),
    }
}

fn cells(line: &Line) -> [String; 8] {
    let promise = match line.figure.promise {
        Promise::Nothing => String::new(),
        Promise::AtMost(limit) => format!("<= {}", number(limit)),
        Promise::AtLeast(limit) => format!(">= {}", number(limit)),
        Promise::Within(low, high) => format!("{}..{}", number(low), number(high)),
    };
    let verdict = match kept(line) {
        Some(true) => "kept",
        Some(false) => "MISSED",
        None => "",
    };
    [
        line.figure.name.into(),
        number(line.value),
        line.figure.unit.into(),
        line.native.map_or("-".into(), number),
        promise,
        verdict.into(),
        line.rounds.iter().copied().map(number).collect::<Vec<_>>().join(" "),
        if line.figure.is_simulated { "simulated".into() } else { "-".into() },
    ]
}

/// About four digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn laid_out(rows: &[[String; 8]]) -> String {
    let header = HEADER.map(String::from);
    let width = |column: usize| {
        let cells = std::iter::once(&header).chain(rows);
        cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let cell = |text: &String, column: usize| {
        let width = widths[column];
        if IS_FIGURE[column] { format!("{text:>width$}") } else { format!("{text:<width$}") }
    };
    let line = |row: &[String; 8]| {
        let cells: Vec<String> = row.iter().enumerate().map(|(column, text)| cell(text, column)).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    std::iter::once(&header).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sheet::Sheet;
    use super::*;

    #[test]
    fn a_missed_promise_is_marked() {
        let mut sheet = Sheet::default();
        sheet.add("share.error_10s", &[1.25], &[27.0]).unwrap();
        sheet.add("decide.16", &[1234.5], &[]).unwrap();
        let drawn = render(&sheet.lines());
        let rows: Vec<&str> = drawn.lines().take(3).collect();
        let want = [
            "FIGURE           VALUE  UNIT    NATIVE  PROMISE  VERDICT  ROUNDS  GPU",
            "share.error_10s   1.25  points   27.00  <= 1.00  MISSED   1.25    simulated",
            "decide.16         1234  ns           -                    1234    -",
        ];
        assert_eq!(rows, want);
        assert!(drawn.ends_with("0 of 1 promises kept; missed: share.error_10s\n"), "{drawn}");
    }
}
