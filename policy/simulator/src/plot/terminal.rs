//! A plot of letters.

use crate::Outcome;

const ROWS: usize = 20;
/// One sign a tenant; those beyond share the last one.
const SIGNS: &[u8] = b"abcdefghijklmnopqrstuvwxyz*";
const PPM: u64 = 1_000_000;

/// Draws the shares of a run in `columns` columns, a row for each 5 % of the GPU. Where lines meet, the later
/// tenant is seen. A column is the mean of the seconds that it stands for.
#[must_use]
pub fn terminal(scenario: &str, outcome: &Outcome, columns: usize) -> String {
    let seconds = outcome.tenants.iter().map(|tenant| tenant.shares_ppm.len()).max().unwrap_or(0);
    let width = columns.saturating_sub(7).max(1);
    let mut rows = vec![vec![b' '; width]; ROWS + 1];
    for (index, tenant) in outcome.tenants.iter().enumerate() {
        let sign = SIGNS[index.min(SIGNS.len() - 1)];
        let heights = (0..width).map(|column| {
            let from = column * seconds / width;
            let to = ((column + 1) * seconds / width).max(from + 1).min(tenant.shares_ppm.len());
            height(&tenant.shares_ppm[from.min(to)..to])
        });
        for (column, height) in heights.enumerate() {
            if let Some(height) = height {
                rows[ROWS - height][column] = sign;
            }
        }
    }
    let mut text = format!("{scenario}, seed {}: {}\n", outcome.seed, outcome.design.name());
    for (index, row) in rows.iter().enumerate() {
        let percent = (ROWS - index) * 100 / ROWS;
        let label = if percent.is_multiple_of(25) { format!("{percent:3} %") } else { " ".repeat(5) };
        let line = format!("{label} |{}", String::from_utf8_lossy(row));
        text += &(line.trim_end().to_owned() + "\n");
    }
    text += &format!("      +{}\n", "-".repeat(width));
    let legend = outcome.tenants.iter().enumerate();
    let legend: Vec<String> = legend
        .map(|(index, tenant)| format!("{} {}", char::from(SIGNS[index.min(SIGNS.len() - 1)]), tenant.name))
        .collect();
    text + &format!("       0 to {seconds} s   {}\n", legend.join("   "))
}

/// The row of the mean share; none of no seconds.
fn height(shares_ppm: &[u64]) -> Option<usize> {
    let mean_ppm = shares_ppm.iter().sum::<u64>().checked_div(shares_ppm.len() as u64)?;
    Some(((mean_ppm.min(PPM) * ROWS as u64 + PPM / 2) / PPM) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_the_nearest_twentieths_of_the_mean() {
        assert_eq!(height(&[500_000, 520_000]), Some(10));
        assert_eq!(height(&[1_000_000]), Some(ROWS));
        assert_eq!(height(&[]), None);
    }
}
