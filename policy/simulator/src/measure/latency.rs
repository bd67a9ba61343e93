//! How long requests took.

use crate::client::Client;

/// Times from a request's arrival to the end of its last kernel on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Requests that were served.
    pub served: u64,
    /// Requests that were not when the run or their process ended.
    pub unserved: u64,
    /// Half of those served took no longer.
    pub p50_ns: u64,
    /// 99 in 100 of those served took no longer.
    pub p99_ns: u64,
    /// The longest, those included that were still waiting then.
    pub max_ns: u64,
}

/// Of these clients together, up to `now_ns`. None if nothing was asked for. Requests that were never served count in
/// `unserved` and `max_ns`; if they are many, the percentiles say little.
#[must_use]
pub fn latency<'a>(clients: impl Iterator<Item = &'a Client> + Clone, now_ns: u64) -> Option<Latency> {
    let mut took_ns: Vec<u64> = clients
        .clone()
        .flat_map(|client| client.served.iter().map(|served| served.ended_ns - served.arrived_ns))
        .collect();
    let waited_ns = |client: &'a Client| {
        let lost = client.lost.iter().map(|lost| lost.ended_ns - lost.arrived_ns);
        lost.chain(client.unserved_since_ns().map(move |since_ns| now_ns - since_ns))
    };
    let waiting_ns: Vec<u64> = clients.flat_map(waited_ns).collect();
    took_ns.sort_unstable();
    let max_ns = took_ns.last().copied().max(waiting_ns.iter().copied().max())?;
    let (served, unserved) = (took_ns.len() as u64, waiting_ns.len() as u64);
    let rank = |permille| percentile(&took_ns, permille);
    Some(Latency { served, unserved, p50_ns: rank(500), p99_ns: rank(990), max_ns })
}

/// The nearest-rank percentile of sorted values; 0 of none.
fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1000);
    rank.checked_sub(1).map_or(0, |index| sorted[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&sorted, 500), percentile(&sorted, 990)), (100, 198));
        assert_eq!((percentile(&[7], 990), percentile(&[], 990)), (7, 0));
    }
}
