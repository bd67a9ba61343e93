//! How many processes of a lease are told of by themselves: a container may have any number past its shims, and what is told of those
//! drives nothing else out of what is kept.

use crate::lease::Tellings;
use gpool_policy::TenantId;
use gpool_protocol::GuardedProcess;
use std::collections::BTreeMap;

/// So many of each lease are. Of the others it is told together, ever more rarely.
const BY_THEMSELVES: u8 = 8;

/// Who was found in a lease.
#[derive(Debug, Default)]
struct Crowd {
    by_themselves: u8,
    /// Whether one of those came at this look.
    has_news: bool,
    /// How many others there were, and the last of them.
    others: u64,
    last: Option<GuardedProcess>,
    tellings: Tellings,
}

/// Who was found in all leases.
#[derive(Debug, Default)]
pub struct Crowds(BTreeMap<TenantId, Crowd>);

impl Crowds {
    /// Takes one that is to be told of. Whether it is by itself.
    pub fn take(&mut self, tenant: TenantId, process: &GuardedProcess) -> bool {
        let crowd = self.0.entry(tenant).or_default();
        if crowd.by_themselves < BY_THEMSELVES {
            crowd.by_themselves += 1;
            crowd.has_news = true;
            return true;
        }
        crowd.others += 1;
        crowd.last = Some(process.clone());
        false
    }

    /// Ends a look at `now_ns`. What is to be told of the others of each lease: the last of them, and how many there are beside it.
    /// Where something follows, as `acts` says, it follows at each look, and once.
    pub fn end(&mut self, now_ns: u64, acts: impl Fn(TenantId) -> bool) -> Vec<(TenantId, GuardedProcess, u64)> {
        let told = |(tenant, crowd): (&TenantId, &mut Crowd)| {
            let (acts, has_news) = (acts(*tenant), std::mem::take(&mut crowd.has_news));
            let untold = crowd.tellings.untold(crowd.others);
            let is_due = crowd.tellings.look(now_ns, crowd.others) || acts;
            if untold == 0 || !is_due {
                return None;
            }
            crowd.tellings.note_told(crowd.others);
            let last = crowd.last.take()?;
            (!(acts && has_news)).then_some((*tenant, last, untold - 1))
        };
        self.0.iter_mut().filter_map(told).collect()
    }

    /// Keeps those of leases that there are, and for which the same follows as before.
    pub fn retain(&mut self, keeps: impl Fn(TenantId) -> bool) {
        self.0.retain(|tenant, _| keeps(*tenant));
    }
}

/// Behind what is said of one, how many more there are.
pub fn and_more(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "; so does 1 process more".to_owned(),
        _ => format!("; so do {count} processes more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, HostPid, LeaseId};

    const LEASE: TenantId = TenantId(1);
    const S: u64 = 1_000_000_000;

    fn process(pid: u32) -> GuardedProcess {
        GuardedProcess {
            lease_id: LeaseId("01".into()),
            container_id: ContainerId("c".into()),
            pid: HostPid(pid),
            name: "python3".into(),
            is_registered: false,
            libraries: Vec::new(),
            finding: None,
            memory_charged_bytes: None,
            memory_nvml_bytes: None,
        }
    }

    fn take(crowds: &mut Crowds, pids: std::ops::Range<u32>) -> usize {
        pids.filter(|pid| crowds.take(LEASE, &process(*pid))).count()
    }

    #[test]
    fn a_lease_that_forks_and_forks_is_told_of_a_few_times() {
        let mut crowds = Crowds::default();
        assert_eq!(take(&mut crowds, 0..3000), 8);
        assert_eq!(crowds.end(100 * S, |_| false), [(LEASE, process(2999), 2991)]);
        let mut told = Vec::new();
        for second in 101..4000 {
            assert_eq!(take(&mut crowds, 5 * second..5 * second + 5), 0);
            told.extend(crowds.end(u64::from(second) * S, |_| false).into_iter().map(|(.., more)| more));
        }
        assert_eq!(told[..4], [4, 9, 19, 39]);
        assert!(told.len() < 20, "{told:?}");
        assert_eq!(crowds.end(4600 * S, |_| false).len(), 1, "the rest is told, if nothing comes any more");
        assert!(crowds.end(9000 * S, |_| false).is_empty());
        assert!(crowds.take(TenantId(2), &process(1)), "another lease's");
        crowds.retain(|tenant| tenant != LEASE);
        assert_eq!(take(&mut crowds, 0..9), 8, "something else follows");
    }

    #[test]
    fn what_follows_does_so_at_each_look_and_once() {
        let mut crowds = Crowds::default();
        take(&mut crowds, 0..100);
        assert!(crowds.end(1, |_| true).is_empty(), "it has followed for the first of them");
        take(&mut crowds, 100..102);
        assert_eq!(crowds.end(2, |_| true), [(LEASE, process(101), 1)]);
        take(&mut crowds, 102..103);
        assert_eq!(crowds.end(3, |_| true), [(LEASE, process(102), 0)]);
        assert!(crowds.end(4, |_| true).is_empty());
        assert_eq!([0, 1, 2].map(and_more).concat(), "; so does 1 process more; so do 2 processes more");
    }
}
