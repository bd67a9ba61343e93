//! How far shares are from what they should be, over every window of a length.
//!
//! A window's GPU time is what all tenants together received in it; a tenant's share is its part of that. What it
//! should have had is [`fair::split`] of the same time, where
//!
//! * a tenant with endless work demands the whole window, or its limit's part of the window;
//! * a tenant with requests demands what had been asked for by the window's end less what it had received by its
//!   beginning, and not more than its limit's part; one whose process has ended demands nothing.
//!
//! A window counts if nobody's endless work began or ended in it, and nobody's process did, and a tenant is judged in it if it had work at every
//! sample: nobody can be short of time that it did not ask for. The error is the greatest difference over all windows
//! that begin at a multiple of 10 ms and all judged tenants, in millionths of the GPU: 10,000 are one point.

use gpool_policy::slice::Share;

use super::fair::{self, Claim};
use crate::record::{Record, Wanted};

const STEP_NS: u64 = 10_000_000;

/// The state of one tenant at each step, as sums from the start.
struct Samples {
    share: Share,
    received_ns: Vec<u64>,
    /// GPU time asked for by requests.
    requested_ns: Vec<u64>,
    /// Whether endless work was there.
    endless: Vec<bool>,
    /// Steps so far at which it had no work.
    without_work: Vec<u32>,
    /// Changes of endless work so far.
    changes: Vec<u32>,
}

impl Samples {
    fn new(record: &Record, tenant: usize, share: Share, end_ns: u64) -> Self {
        let execution = &record.executions[tenant];
        let steps = (end_ns / STEP_NS) as usize + 1;
        let mut samples = Self {
            share,
            received_ns: Vec::with_capacity(steps),
            requested_ns: Vec::with_capacity(steps),
            endless: Vec::with_capacity(steps),
            without_work: Vec::with_capacity(steps),
            changes: Vec::with_capacity(steps),
        };
        let mut wanted = record.wanted[tenant].iter().peekable();
        let (mut requested_ns, mut endless, mut without_work, mut changes) = (0, false, 0, 0);
        let mut gone = false;
        for at_ns in (0..=end_ns).step_by(STEP_NS as usize) {
            while let Some((_, change)) = wanted.next_if(|(when_ns, _)| *when_ns <= at_ns) {
                match change {
                    Wanted::On => (endless, changes) = (true, changes + 1),
                    Wanted::Off => (endless, changes) = (false, changes + 1),
                    Wanted::Request(work_ns) => requested_ns += work_ns,
                    Wanted::Gone => (endless, changes, gone) = (false, changes + 1, true),
                }
            }
            let received_ns = execution.received_before(at_ns);
            if gone {
                requested_ns = received_ns;
            }
            without_work += u32::from(!endless && requested_ns <= received_ns);
            samples.received_ns.push(received_ns);
            samples.requested_ns.push(requested_ns);
            samples.endless.push(endless);
            samples.without_work.push(without_work);
            samples.changes.push(changes);
        }
        samples
    }

    fn received_ns(&self, from: usize, to: usize) -> u64 {
        self.received_ns[to] - self.received_ns[from]
    }

    fn is_steady(&self, from: usize, to: usize) -> bool {
        self.changes[from] == self.changes[to]
    }

    fn is_judged(&self, from: usize, to: usize) -> bool {
        let before = from.checked_sub(1).map_or(0, |before| self.without_work[before]);
        self.without_work[to] == before
    }

    fn claim(&self, from: usize, to: usize) -> Claim {
        let window_ns = (to - from) as u64 * STEP_NS;
        let limit_ns = self.share.limit_permille.map_or(window_ns, |limit| window_ns / 1000 * u64::from(limit));
        let asked_ns = match self.endless[from] {
            true => window_ns,
            false => self.requested_ns[to].saturating_sub(self.received_ns[from]),
        };
        Claim { share: self.share, demand_ns: asked_ns.min(limit_ns) }
    }
}

/// The shares of a run, prepared for questions.
pub struct Shares {
    tenants: Vec<Samples>,
    steps: usize,
}

impl Shares {
    /// Of a record that goes up to `end_ns`. `shares` are those of its tenants, in order.
    #[must_use]
    pub fn new(record: &Record, shares: &[Share], end_ns: u64) -> Self {
        let of = |(tenant, &share)| Samples::new(record, tenant, share, end_ns);
        Self { tenants: shares.iter().enumerate().map(of).collect(), steps: (end_ns / STEP_NS) as usize }
    }

    /// The worst error over windows of `window_ns` (rounded down to 10 ms), in millionths of the GPU. None if no window
    /// counts. The first `skip_ns` are left out.
    #[must_use]
    pub fn worst_error_ppm(&self, window_ns: u64, skip_ns: u64) -> Option<u64> {
        let (length, skip) = ((window_ns / STEP_NS).max(1) as usize, (skip_ns / STEP_NS) as usize);
        let last = self.steps.checked_sub(length)?;
        (skip..=last).filter_map(|from| self.error_ppm(from, from + length)).max()
    }

    fn error_ppm(&self, from: usize, to: usize) -> Option<u64> {
        if !self.tenants.iter().all(|tenant| tenant.is_steady(from, to)) {
            return None;
        }
        let delivered_ns: u64 = self.tenants.iter().map(|tenant| tenant.received_ns(from, to)).sum();
        let claims: Vec<Claim> = self.tenants.iter().map(|tenant| tenant.claim(from, to)).collect();
        let entitled_ns = fair::split(delivered_ns, &claims);
        let judged = self.tenants.iter().zip(entitled_ns).filter(|(tenant, _)| tenant.is_judged(from, to));
        let apart = judged.map(|(tenant, entitled_ns)| tenant.received_ns(from, to).abs_diff(entitled_ns));
        apart.max().map(|apart_ns| ppm(apart_ns, delivered_ns))
    }
}

/// A part in millionths of the whole; 0 of nothing.
#[must_use]
pub fn ppm(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1_000_000 / u128::from(whole.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Execution;

    const MS: u64 = 1_000_000;

    /// Two tenants with work without end that take turns of `one` and `other` ms.
    fn turns(one: u64, other: u64, end_ns: u64) -> Record {
        let mut executions = vec![Execution::default(), Execution::default()];
        let mut at = 0;
        while at < end_ns {
            executions[0].add(at, at + one * MS);
            executions[1].add(at + one * MS, at + (one + other) * MS);
            at += (one + other) * MS;
        }
        Record { executions, wanted: vec![vec![(0, Wanted::On)], vec![(0, Wanted::On)]], work_ns: end_ns }
    }

    #[test]
    fn the_worst_window_counts() {
        let record = turns(30, 10, 2000 * MS);
        let exact = Shares::new(&record, &[Share::of(750), Share::of(250)], 2000 * MS);
        assert_eq!(exact.worst_error_ppm(40 * MS, 0), Some(0));
        assert_eq!(exact.worst_error_ppm(10 * MS, 0), Some(750_000));
        let equal = Shares::new(&record, &[Share::of(500), Share::of(500)], 2000 * MS);
        assert_eq!(equal.worst_error_ppm(400 * MS, 0), Some(250_000));
    }

    #[test]
    fn windows_in_which_somebody_comes_or_goes_do_not_count() {
        let mut record = turns(30, 10, 2000 * MS);
        record.wanted[1].push((1000 * MS, Wanted::Off));
        let shares = Shares::new(&record, &[Share::of(750), Share::of(250)], 2000 * MS);
        assert_eq!(shares.worst_error_ppm(1600 * MS, 0), None);
        assert_eq!(shares.worst_error_ppm(400 * MS, 0), Some(250_000), "from 1 s on the second one wanted nothing");
    }

    #[test]
    fn who_is_gone_wants_nothing_of_what_it_had_asked_for() {
        let mut record = turns(30, 10, 1000 * MS);
        (25..50).for_each(|round| record.executions[0].add(round * 40 * MS, (round + 1) * 40 * MS));
        record.wanted[1] = vec![(0, Wanted::Request(9000 * MS)), (1000 * MS, Wanted::Gone)];
        let shares = Shares::new(&record, &[Share::of(750), Share::of(250)], 2000 * MS);
        assert_eq!((shares.worst_error_ppm(400 * MS, 0), shares.worst_error_ppm(1600 * MS, 0)), (Some(0), None));
    }

    #[test]
    fn what_is_requested_and_served_is_no_error() {
        let mut record = turns(30, 10, 2000 * MS);
        record.wanted[1] = (0..50).map(|round| (round * 40 * MS, Wanted::Request(10 * MS))).collect();
        let shares = Shares::new(&record, &[Share::of(500), Share::of(500)], 2000 * MS);
        assert!(shares.worst_error_ppm(400 * MS, 0).is_some_and(|ppm| ppm <= 25_000));
    }
}
