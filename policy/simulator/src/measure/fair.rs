//! What each tenant should have had of a stretch of time.

use gpool_policy::slice::{Priority, Share};

/// One tenant's claim on a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Weight, limit and priority.
    pub share: Share,
    /// The GPU time it could have used.
    pub demand_ns: u64,
}

/// Splits `capacity_ns` of GPU time: weighted max-min fairness bounded by demand (Keshav 1997, "progressive filling").
/// Guaranteed tenants are served first, then burst, then scavenger. Limits are bounds of `demand_ns`, set by the
/// caller.
///
/// Everybody receives in proportion to the weights until some have what they demand; what they leave goes to the
/// others in the same way.
#[must_use]
pub fn split(capacity_ns: u64, claims: &[Claim]) -> Vec<u64> {
    let mut entitled_ns = vec![0; claims.len()];
    let mut left_ns = capacity_ns;
    for priority in [Priority::Guaranteed, Priority::Burst, Priority::Scavenger] {
        let mut open: Vec<usize> =
            (0..claims.len()).filter(|&index| claims[index].share.priority == priority).collect();
        loop {
            let weight: u64 = open.iter().map(|&index| weight_of(&claims[index])).sum();
            let part = |index: &usize| {
                (u128::from(left_ns) * u128::from(weight_of(&claims[*index])) / u128::from(weight.max(1))) as u64
            };
            let sated: Vec<usize> =
                open.iter().copied().filter(|index| claims[*index].demand_ns <= part(index)).collect();
            if sated.is_empty() {
                open.iter().for_each(|index| entitled_ns[*index] = part(index));
                left_ns = if open.is_empty() { left_ns } else { 0 };
                break;
            }
            for index in sated {
                entitled_ns[index] = claims[index].demand_ns;
                left_ns -= claims[index].demand_ns;
                open.retain(|other| *other != index);
            }
        }
    }
    entitled_ns
}

fn weight_of(claim: &Claim) -> u64 {
    u64::from(claim.share.weight_permille.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(weight: u16, demand_ns: u64) -> Claim {
        Claim { share: Share::of(weight), demand_ns }
    }

    #[test]
    fn what_one_leaves_goes_to_the_others_by_weight() {
        assert_eq!(split(1000, &[claim(500, 2000), claim(300, 2000), claim(200, 40)]), [600, 360, 40]);
        assert_eq!(split(1000, &[claim(500, 2000), claim(300, 2000), claim(200, 900)]), [500, 300, 200]);
        assert_eq!(split(1000, &[claim(500, 100), claim(500, 200)]), [100, 200]);
    }

    #[test]
    fn scavengers_get_what_nobody_else_wants() {
        let scavenger = Claim { share: Share { priority: Priority::Scavenger, ..Share::of(900) }, demand_ns: 9999 };
        assert_eq!(split(1000, &[claim(100, 400), scavenger]), [400, 600]);
        assert_eq!(split(1000, &[claim(100, 4000), scavenger]), [1000, 0]);
    }
}
