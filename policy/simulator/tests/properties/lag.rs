//! Between two tenants that always have work, how far apart they come.

use crate::observe::{Run, WARM_NS};

/// The extremes of `S_i/w_i - S_j/w_j`, times `w_i w_j`, since both have had work without end.
struct Pair {
    one: usize,
    other: usize,
    /// Since when, of both.
    since_ns: Option<(u64, u64)>,
    least: i64,
    most: i64,
}

/// The worst pair: in thousandths of `(u_i + U)/w_i + (u_j + U)/w_j`, by how much the difference of received time per
/// weight changed while both had work without end. None if there is no such pair. Judged are tenants of one priority
/// without limits: a limit takes time from its owner whatever it is owed.
///
/// Received time is the device's own. It is looked at whenever somebody's execution begins or ends, where alone the
/// difference can be extreme.
pub fn worst_permille(run: &Run) -> Option<u64> {
    worst_permille_from(run, WARM_NS)
}

/// The same from a moment on.
pub fn worst_permille_from(run: &Run, from_ns: u64) -> Option<u64> {
    let endless: Vec<Vec<(u64, u64)>> = (0..run.count()).map(|tenant| run.endless(tenant)).collect();
    let mut moments: Vec<u64> = endless.iter().flatten().flat_map(|&(from, to)| [from, to]).collect();
    let stretches = run.world.record.executions.iter().flat_map(|execution| execution.stretches());
    moments.extend(stretches.flat_map(|ran| [ran.start_ns, ran.end_ns]));
    moments.push(from_ns);
    moments.retain(|&at_ns| at_ns >= from_ns);
    moments.sort_unstable();
    moments.dedup();

    let judged: Vec<usize> = (0..run.count()).filter(|&tenant| !run.is_limited(tenant)).collect();
    let priority = |tenant: usize| run.scenario.tenants[tenant].share.priority;
    let pairs = judged.iter().flat_map(|&one| judged.iter().map(move |&other| (one, other)));
    let pairs = pairs.filter(|&(one, other)| one < other && priority(one) == priority(other));
    let mut pairs: Vec<Pair> =
        pairs.map(|(one, other)| Pair { one, other, since_ns: None, least: 0, most: 0 }).collect();
    let mut worst = None;
    let mut received = vec![0; run.count()];
    for at_ns in moments {
        let since = |tenant: usize| endless[tenant].iter().find(|&&(from, to)| from <= at_ns && at_ns <= to);
        let since_ns: Vec<Option<u64>> = (0..run.count()).map(|tenant| since(tenant).map(|span| span.0)).collect();
        for &tenant in &judged {
            received[tenant] = run.execution(tenant).received_before(at_ns).cast_signed();
        }
        for pair in &mut pairs {
            let both_since_ns = since_ns[pair.one].zip(since_ns[pair.other]);
            if both_since_ns.is_none() {
                continue;
            }
            let part = |a: usize, b: usize| received[a] * run.weight(b).cast_signed();
            let difference = part(pair.one, pair.other) - part(pair.other, pair.one);
            if pair.since_ns != both_since_ns {
                (pair.since_ns, pair.least, pair.most) = (both_since_ns, difference, difference);
            }
            (pair.least, pair.most) = (pair.least.min(difference), pair.most.max(difference));
            worst = worst.max(Some(pair.permille(run)));
        }
    }
    worst
}

impl Pair {
    fn permille(&self, run: &Run) -> u64 {
        let greatest = run.longest_turn_ns();
        let part = |a: usize, b: usize| (run.turn_ns(a) + greatest) * run.weight(b);
        let bound = part(self.one, self.other) + part(self.other, self.one);
        crate::observe::permille(self.most.abs_diff(self.least), bound)
    }
}
