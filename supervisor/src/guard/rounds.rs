//! In which order the processes of a lease are looked at, and for how long: what a look takes is up to whoever runs in the
//! container, and everybody waits for it.

use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A look at all leases takes so long at most, but for those processes that are looked at each time, and for the last of the others.
const LOOK: Duration = Duration::from_millis(400);

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
    /// With whom the next look begins, where this one had no time for all leases.
    first: Option<TenantId>,
    /// Whether that has been told.
    has_told_all: bool,
}

impl Rounds {
    /// A look at these leases begins: the order in which they have their turns.
    pub fn begin(&mut self, leases: &BTreeSet<TenantId>) -> Vec<TenantId> {
        self.next.retain(|tenant, _| leases.contains(tenant));
        self.told.retain(|tenant| leases.contains(tenant));
        self.has_told_all &= self.first.is_some();
        let first = self.first.take().unwrap_or(TenantId(0));
        leases.range(first..).chain(leases.range(..first)).copied().collect()
    }

    /// There was no time for this lease; it is the first at the next look if it is the first of these. Whether it is to be told that
    /// there is too much of all of them.
    pub fn pass_over(&mut self, tenant: TenantId) -> bool {
        self.first.get_or_insert(tenant);
        !std::mem::replace(&mut self.has_told_all, true)
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

/// The time that a look at all leases has left.
pub struct LookTime {
    left: Duration,
    /// Those that have not had their turn.
    leases: u32,
}

impl LookTime {
    /// Of a look at so many leases.
    pub fn of(leases: usize) -> Self {
        Self { left: LOOK, leases: u32::try_from(leases).unwrap_or(u32::MAX) }
    }

    /// What the next lease has of it: its part of what those before it have left.
    pub fn part(&mut self) -> Budget {
        let leases = self.leases.max(1);
        self.leases = leases - 1;
        Budget::new((!self.left.is_zero()).then(|| self.left / leases))
    }

    /// It has taken so long.
    pub fn spend(&mut self, spent: Duration) {
        self.left = self.left.saturating_sub(spent);
    }
}

/// How long a look at a lease has taken, but for the processes that are looked at each time.
pub struct Budget {
    /// None where there is no time for anything.
    most: Option<Duration>,
    begun: Option<Instant>,
    has_gone_on: bool,
}

impl Budget {
    fn new(most: Option<Duration>) -> Self {
        Self { most, begun: None, has_gone_on: false }
    }

    /// Whether there is no time for the lease at all.
    pub fn is_nothing(&self) -> bool {
        self.most.is_none()
    }

    /// Whether it is spent before a process whose turn this is. Where there is any, one in turn is always looked at, or a lease would
    /// never be seen whole.
    pub fn is_spent_before(&mut self, turn: Turn) -> bool {
        if turn == Turn::Always {
            return false;
        }
        let Some(most) = self.most else { return true };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let is_first = turn == Turn::Usual && !std::mem::replace(&mut self.has_gone_on, true);
        !is_first && begun.elapsed() >= most
    }

    /// How much of it is spent.
    pub fn spent(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
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
        rounds.begin(&BTreeSet::new());
        assert_eq!(rounds.order(TENANT, &all, |_| Turn::Usual)[0].0, HostPid(1));
    }

    #[test]
    fn many_leases_have_less_each_and_each_has_its_turn_within_a_few_looks() {
        const EACH: Duration = Duration::from_millis(2);
        let leases = |count| (1..=count).map(TenantId).collect::<BTreeSet<_>>();
        let mut rounds = Rounds::default();
        // How many have their turn in a look, if each takes so long, and whether it is told that not all do.
        let mut look = |all: &BTreeSet<TenantId>, seen: &mut BTreeSet<TenantId>| {
            let (mut time, mut turns, mut is_news) = (LookTime::of(all.len()), 0, false);
            for tenant in rounds.begin(all) {
                if time.part().is_nothing() {
                    is_news |= rounds.pass_over(tenant);
                    continue;
                }
                time.spend(EACH);
                seen.insert(tenant);
                turns += 1;
            }
            (turns, is_news)
        };
        let mut seen = BTreeSet::new();
        assert_eq!(look(&leases(100), &mut seen), (100, false));
        let mut seen = BTreeSet::new();
        let all = leases(1000);
        assert_eq!(look(&all, &mut seen), (200, true));
        assert_eq!([0; 4].map(|_| look(&all, &mut seen)), [(200, false); 4], "no look takes longer than it may");
        assert_eq!(seen.len(), 1000);
        // What was told is told again after a look that has come to its end.
        assert_eq!(look(&all, &mut seen), (200, false));
        assert_eq!([100, 1000].map(|count| look(&leases(count), &mut seen)), [(100, false), (200, true)]);
    }

    #[test]
    fn what_a_lease_leaves_of_its_part_is_for_those_after_it() {
        let parts = |spent_ms: [u64; 4]| {
            let mut time = LookTime::of(spent_ms.len());
            spent_ms.map(|ms| {
                let most = time.part().most;
                time.spend(Duration::from_millis(ms));
                most.map(|most| most.as_millis())
            })
        };
        assert_eq!(parts([100; 4]), [Some(100); 4]);
        assert_eq!(parts([10, 130, 100, 0]), [Some(100), Some(130), Some(130), Some(160)]);
        assert_eq!(parts([100, 350, 0, 0]), [Some(100), Some(100), None, None], "one process can take longer");
        let mut none = Budget::new(Some(Duration::ZERO));
        let turns = [Turn::Always, Turn::Again, Turn::Usual, Turn::Usual, Turn::Always];
        let spent = turns.map(|turn| none.is_spent_before(turn));
        assert_eq!(spent, [false, true, false, true, false], "one in turn is looked at whatever those before it take");
        let mut nothing = Budget::new(None);
        assert_eq!(turns.map(|turn| nothing.is_spent_before(turn)), [false, true, true, true, false]);
        assert_eq!((nothing.is_nothing(), nothing.spent()), (true, Duration::ZERO));
    }
}
