//! How long requests took.

use serde_json::{Value, json};

/// Number and latencies of requests: `{"count", "p50_us", "p99_us", "max_us"}`, the latter without requests null.
pub(super) fn summary(latencies_us: &[u64]) -> Value {
    let mut sorted = latencies_us.to_vec();
    sorted.sort_unstable();
    json!({
        "count": sorted.len(),
        "p50_us": percentile(&sorted, 50),
        "p99_us": percentile(&sorted, 99),
        "max_us": sorted.last(),
    })
}

/// The smallest value that at least so many percent do not exceed (nearest rank).
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let latencies: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(summary(&latencies), json!({"count": 200, "p50_us": 100, "p99_us": 198, "max_us": 200}));
        assert_eq!(summary(&[7]), json!({"count": 1, "p50_us": 7, "p99_us": 7, "max_us": 7}));
        assert_eq!(summary(&[]), json!({"count": 0, "p50_us": null, "p99_us": null, "max_us": null}));
    }
}
