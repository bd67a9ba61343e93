//! The rule that chooses.

use super::TenantId;

/// A tenant that wants the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) tenant: TenantId,
    /// Virtual eligible time.
    pub(super) eligible_at: i128,
    /// Virtual deadline of a full slice: only debtors ask for less, and they are not eligible.
    pub(super) deadline: i128,
    /// Whether it is owed time, or at least owes none.
    pub(super) eligible: bool,
}

/// Chooses who is next. The rules, in order:
///
/// 1. among the eligible, the earliest deadline (EEVDF, Stoica & Abdel-Wahab 1995);
/// 2. if nobody is eligible, because those who are owed time do not want any now, the least virtual eligible time.
///
/// Equals go by virtual eligible time, then by id.
pub(super) fn pick(candidates: impl Iterator<Item = Candidate>) -> Option<TenantId> {
    let order = |candidate: &Candidate| {
        let first = if candidate.eligible { candidate.deadline } else { candidate.eligible_at };
        (!candidate.eligible, first, candidate.eligible_at, candidate.tenant)
    };
    candidates.min_by_key(order).map(|candidate| candidate.tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(tenant: u64, eligible_at: i128, deadline: i128) -> Candidate {
        Candidate { tenant: TenantId(tenant), eligible_at, deadline, eligible: eligible_at <= 10 }
    }

    #[test]
    fn the_earliest_deadline_among_the_eligible_wins() {
        let all = [candidate(1, 0, 30), candidate(2, 10, 20), candidate(3, 11, 12)];
        assert_eq!(pick(all.into_iter()), Some(TenantId(2)));
    }

    #[test]
    fn without_an_eligible_one_the_least_ahead_wins() {
        let all = [candidate(1, 13, 14), candidate(2, 12, 40)];
        assert_eq!(pick(all.into_iter()), Some(TenantId(2)));
        assert_eq!(pick(std::iter::empty()), None);
    }
}
