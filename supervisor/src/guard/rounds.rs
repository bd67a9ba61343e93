//! In which order the processes of a lease are looked at, and for how long: what a look takes is up to whoever runs in the
//! container, and everybody waits for it.

use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Looks at all leases take so long at most, but for those processes that are looked at each time ...
const LOOK: Duration = Duration::from_millis(400);
/// ... and at one lease at least so long, if it has so much.
const LEAST: Duration = Duration::from_millis(20);

/// When a process is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Each time, however long it takes: the device or NVML bounds how many those are, or it costs nothing.
    Always,
    /// Before the others: the last look has found something.
    Again,
    /// From where the last look has stopped.
    Usual,
}

/// Where looks have stopped.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Of each lease that has more than a look takes: who comes first at the next one.
    next: BTreeMap<TenantId, HostPid>,
    /// Those of which it has been told.
    told: BTreeSet<TenantId>,
}

impl Rounds {
    /// A look at these leases begins; how long it may take for one of them.
    pub fn begin(&mut self, is_there: impl Fn(&TenantId) -> bool, leases: usize) -> Duration {
        self.next.retain(|tenant, _| is_there(tenant));
        self.told.retain(|tenant| is_there(tenant));
        (LOOK / u32::try_from(leases.max(1)).unwrap_or(u32::MAX)).max(LEAST)
    }

    /// The processes of a lease in the order in which they are looked at.
    pub fn order(
        &self,
        tenant: TenantId,
        all: &BTreeSet<HostPid>,
        turn: impl Fn(HostPid) -> Turn,
    ) -> Vec<(HostPid, Turn)> {
        let next = self.next.get(&tenant).copied().unwrap_or(HostPid(0));
        let mut order: Vec<(HostPid, Turn)> = all.iter().map(|pid| (*pid, turn(*pid))).collect();
        order.sort_by_key(|(pid, turn)| (*turn, *turn == Turn::Usual && *pid < next, *pid));
        order
    }

    /// The look at a lease has stopped before this process. Whether that is to be told.
    pub fn stop(&mut self, tenant: TenantId, at: (HostPid, Turn)) -> bool {
        if at.1 == Turn::Usual {
            self.next.insert(tenant, at.0);
        }
        self.told.insert(tenant)
    }

    /// It has come to its end.
    pub fn end(&mut self, tenant: TenantId) {
        self.next.remove(&tenant);
        self.told.remove(&tenant);
    }
}

/// How long a look at a lease has taken, but for the processes that are looked at each time.
pub struct Budget {
    most: Duration,
    begun: Option<Instant>,
    has_gone_on: bool,
}

impl Budget {
    /// So much.
    pub fn new(most: Duration) -> Self {
        Self { most, begun: None, has_gone_on: false }
    }

    /// Whether it is spent before a process whose turn this is. One in turn is always looked at, or a lease would never be seen
    /// whole.
    pub fn is_spent_before(&mut self, turn: Turn) -> bool {
        if turn == Turn::Always {
            return false;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let is_first = turn == Turn::Usual && !std::mem::replace(&mut self.has_gone_on, true);
        !is_first && begun.elapsed() >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_more_than_a_look_takes_is_seen_whole_in_several() {
        const TENANT: TenantId = TenantId(1);
        let all: BTreeSet<HostPid> = (1..=9).map(HostPid).collect();
        let turn = |pid: HostPid| match pid.0 {
            5 => Turn::Always,
            8 => Turn::Again,
            _ => Turn::Usual,
        };
        let mut rounds = Rounds::default();
        let mut look = |most: usize| {
            let order = rounds.order(TENANT, &all, turn);
            let seen: Vec<u32> = order.iter().take(most).map(|(pid, _)| pid.0).collect();
            let is_news = match order.get(most) {
                Some(at) => rounds.stop(TENANT, *at),
                None => {
                    rounds.end(TENANT);
                    false
                }
            };
            (seen, is_news)
        };
        assert_eq!(look(4), (vec![5, 8, 1, 2], true));
        assert_eq!(look(5), (vec![5, 8, 3, 4, 6], false));
        assert_eq!(look(1), (vec![5], false), "what was found is next in any case");
        assert_eq!(look(5), (vec![5, 8, 7, 9, 1], false));
        assert_eq!(look(9), (vec![5, 8, 2, 3, 4, 6, 7, 9, 1], false));
        assert_eq!(look(3), (vec![5, 8, 1], true), "it is told again after one that was whole");
        rounds.begin(|_| false, 0);
        assert_eq!(rounds.order(TENANT, &all, |_| Turn::Usual)[0].0, HostPid(1));
    }

    #[test]
    fn many_leases_have_less_each_and_none_nothing() {
        let mut rounds = Rounds::default();
        assert_eq!([1, 10, 1000].map(|leases| rounds.begin(|_| true, leases).as_millis()), [400, 40, 20]);
        let mut none = Budget::new(Duration::ZERO);
        let turns = [Turn::Always, Turn::Again, Turn::Usual, Turn::Usual, Turn::Always];
        let spent = turns.map(|turn| none.is_spent_before(turn));
        assert_eq!(spent, [false, true, false, true, false], "one in turn is looked at whatever those before it take");
    }
}
