//! In which order the processes of a lease are looked at, and for how long: what a look takes is up to whoever runs in the
//! container, and everybody waits for it.

use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A look at all leases takes so long at most, but for what has to be looked at each time ...
const LOOK: Duration = Duration::from_millis(400);
/// ... and at one lease at least so long, if it has so much.
const LEAST: Duration = Duration::from_millis(20);

/// Where looks have stopped.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Of each lease that has more than a look takes: who comes first at the next one.
    next: BTreeMap<TenantId, HostPid>,
}

impl Rounds {
    /// A look at these leases begins; how long it may take for one of them.
    pub fn begin(&mut self, is_there: impl Fn(&TenantId) -> bool, leases: usize) -> Duration {
        self.next.retain(|tenant, _| is_there(tenant));
        (LOOK / u32::try_from(leases.max(1)).unwrap_or(u32::MAX)).max(LEAST)
    }

    /// The processes of a lease in the order in which they are looked at: first those that have to be each time, then the others
    /// from where the last look has stopped. Says of each whether it has to be.
    pub fn order(
        &self,
        tenant: TenantId,
        all: &BTreeSet<HostPid>,
        has_to_be: impl Fn(HostPid) -> bool,
    ) -> Vec<(HostPid, bool)> {
        let (first, rest): (Vec<HostPid>, Vec<HostPid>) = all.iter().copied().partition(|pid| has_to_be(*pid));
        let begin = self.next.get(&tenant).map_or(0, |next| rest.partition_point(|pid| pid < next));
        let rest = rest[begin..].iter().chain(&rest[..begin]);
        first.iter().map(|pid| (*pid, true)).chain(rest.map(|pid| (*pid, false))).collect()
    }

    /// The look at a lease has got as far as `next`, or to its end. Whether it is the first of some that has not got to its end.
    pub fn end(&mut self, tenant: TenantId, next: Option<HostPid>) -> bool {
        match next {
            Some(next) => self.next.insert(tenant, next).is_none(),
            None => {
                self.next.remove(&tenant);
                false
            }
        }
    }
}

/// Whether a look that began then has taken so long.
pub fn is_over(begun: Instant, most: Duration) -> bool {
    begun.elapsed() >= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_more_than_a_look_takes_is_seen_whole_in_several() {
        const TENANT: TenantId = TenantId(1);
        let all: BTreeSet<HostPid> = (1..=9).map(HostPid).collect();
        let mut rounds = Rounds::default();
        let mut look = |most: usize| {
            let order = rounds.order(TENANT, &all, |pid| pid.0 == 5);
            assert_eq!((order.len(), order[0]), (9, (HostPid(5), true)), "that one comes first each time");
            let seen: Vec<u32> = order.iter().take(most).map(|(pid, _)| pid.0).collect();
            let is_news = rounds.end(TENANT, order.get(most).map(|(pid, _)| *pid));
            (seen, is_news)
        };
        assert_eq!(look(4), (vec![5, 1, 2, 3], true));
        assert_eq!(look(4), (vec![5, 4, 6, 7], false));
        assert_eq!(look(4), (vec![5, 8, 9, 1], false));
        assert_eq!(look(9), (vec![5, 2, 3, 4, 6, 7, 8, 9, 1], false));
        assert_eq!(look(3), (vec![5, 1, 2], true), "it is told again after one that was whole");
        rounds.begin(|_| false, 0);
        assert_eq!(rounds.order(TENANT, &all, |_| false)[0].0, HostPid(1));
    }

    #[test]
    fn many_leases_have_less_each_and_none_nothing() {
        let mut rounds = Rounds::default();
        assert_eq!([1, 10, 1000].map(|leases| rounds.begin(|_| true, leases).as_millis()), [400, 40, 20]);
    }
}
