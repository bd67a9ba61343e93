//! Programs past the shims that may have ended when the guard looks again: whom it has found is held from then on, so that it is seen
//! when that one ends.

use crate::procfs::{ProcessName, WatchedProcess};
use gpool_policy::TenantId;
use gpool_policy::brief::{BriefFinding, BriefPrograms};
use gpool_protocol::{GuardedProcess, HostPid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many are held at once, and of one lease.
const HELD: usize = 1024;
const HELD_OF_ONE: usize = 64;
/// How often it is looked whether one of them has ended.
const TICK: Duration = Duration::from_millis(50);
/// One that was found, and has not been told of.
#[derive(Debug)]
struct Held {
    watched: WatchedProcess,
    process: GuardedProcess,
    /// When it was seen first and last past the shims, and when it was there last, CLOCK_MONOTONIC.
    since_ns: u64,
    seen_ns: u64,
    alive_ns: u64,
}

/// What is to be told of such programs of a container.
#[derive(Debug)]
pub struct BriefNews {
    /// Whose they were.
    pub tenant: TenantId,
    /// The last of them.
    pub last: GuardedProcess,
    /// How many, and for how long.
    pub finding: BriefFinding,
}

/// Whom the guard holds, and what came of others.
#[derive(Debug, Default)]
pub struct Brief {
    held: BTreeMap<(TenantId, ProcessName), Held>,
    programs: BTreeMap<TenantId, BriefPrograms>,
    /// When it was looked last whether one has ended.
    looked: Option<Instant>,
}

impl Brief {
    /// A process was seen past the shims at `now_ns`.
    pub fn see(&mut self, tenant: TenantId, watched: WatchedProcess, process: &GuardedProcess, now_ns: u64) {
        let place = (tenant, watched.name);
        if let Some(held) = self.held.get_mut(&place) {
            (held.seen_ns, held.alive_ns) = (now_ns, now_ns);
        } else if self.held.len() < HELD && self.held.keys().filter(|(its, _)| *its == tenant).count() < HELD_OF_ONE {
            let process = process.clone();
            let held = Held { watched, process, since_ns: now_ns, seen_ns: now_ns, alive_ns: now_ns };
            self.held.insert(place, held);
        }
    }

    /// Those that are there and are found no more, as they have closed the device: what they have done until then they have
    /// done. What is to be told.
    pub fn retain(&mut self, is_found: impl Fn(&(TenantId, ProcessName)) -> bool) -> Vec<BriefNews> {
        let is_over = |place: &(TenantId, ProcessName), held: &Held| !is_found(place) && !held.watched.has_ended();
        let let_go = self.take(is_over);
        let_go.into_iter().filter_map(|(tenant, held)| self.close(tenant, held.seen_ns, held)).collect()
    }

    /// Whom it was told of in the usual way is nothing of this any more.
    pub fn forget(&mut self, told: &[(TenantId, ProcessName)]) {
        for place in told {
            self.held.remove(place);
        }
    }

    /// Those that have ended by `now_ns`; what is to be told.
    pub fn look(&mut self, now_ns: u64) -> Vec<BriefNews> {
        self.looked = Some(Instant::now());
        let ended = self.take(|_, held| held.watched.has_ended());
        // A look that comes late, as a board did not answer, makes nobody's time longer.
        let until = |held: &Held| now_ns.min(held.alive_ns.saturating_add(TICK.as_nanos() as u64));
        let told = ended.into_iter().filter_map(|(tenant, held)| self.close(tenant, until(&held), held)).collect();
        self.held.values_mut().for_each(|held| held.alive_ns = now_ns);
        self.programs.retain(|_, programs| !programs.is_over(now_ns));
        told
    }

    /// Takes out those that are to go.
    fn take(&mut self, goes: impl Fn(&(TenantId, ProcessName), &Held) -> bool) -> Vec<(TenantId, Held)> {
        let places: Vec<_> =
            self.held.iter().filter(|(place, held)| goes(place, held)).map(|(place, _)| *place).collect();
        places.into_iter().filter_map(|place| Some((place.0, self.held.remove(&place)?))).collect()
    }

    fn close(&mut self, tenant: TenantId, until_ns: u64, held: Held) -> Option<BriefNews> {
        let finding = self.programs.entry(tenant).or_default().note(held.since_ns, until_ns)?;
        Some(BriefNews { tenant, last: held.process, finding })
    }

    /// When it is to be looked again whether one has ended, if any is held.
    pub fn next_tick(&self) -> Option<Instant> {
        (!self.held.is_empty()).then(|| self.looked.map_or_else(Instant::now, |looked| looked + TICK))
    }

    /// Whether there was too much of them in this container in the last minute.
    pub fn is_too_much(&self, tenant: TenantId, now_ns: u64) -> bool {
        self.programs.get(&tenant).is_some_and(|programs| programs.is_too_much(now_ns))
    }

    /// Who is held, and of whom.
    pub fn held(&self) -> impl Iterator<Item = (TenantId, HostPid)> + '_ {
        self.held.keys().map(|(tenant, name)| (*tenant, name.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, LeaseId};
    use std::process::{Child, Command};

    const S: u64 = 1_000_000_000;
    const TENANT: TenantId = TenantId(7);

    fn sleeper() -> (Child, GuardedProcess) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = GuardedProcess {
            lease_id: LeaseId("01".into()),
            container_id: ContainerId("c".repeat(64)),
            pid: HostPid(child.id()),
            name: "sleep".into(),
            is_registered: false,
            libraries: Vec::new(),
            finding: Some("it has not mapped the shim of its container".into()),
            memory_charged_bytes: None,
            memory_nvml_bytes: None,
        };
        (child, process)
    }

    fn see(brief: &mut Brief, process: &GuardedProcess, now_ns: u64) -> (TenantId, ProcessName) {
        let watched = WatchedProcess::open(process.pid).unwrap();
        let place = (TENANT, watched.name);
        brief.see(TENANT, watched, process, now_ns);
        place
    }

    #[test]
    fn who_ends_before_it_is_told_counts_for_as_long_as_it_was_there() {
        let mut brief = Brief::default();
        for turn in 0..3 {
            let (mut child, process) = sleeper();
            see(&mut brief, &process, 10 * turn * S);
            for ms in [0, 400, 850] {
                assert!(brief.look(10 * turn * S + ms * 1_000_000).is_empty(), "it is there");
            }
            assert_eq!(brief.held().collect::<Vec<_>>(), [(TENANT, process.pid)]);
            child.kill().and_then(|()| child.wait().map(drop)).unwrap();
            let told = brief.look(10 * turn * S + 900_000_000);
            assert_eq!(
                (told.len(), brief.is_too_much(TENANT, 10 * turn * S + S)),
                if turn < 2 { (0, false) } else { (1, true) }
            );
            if let [news] = &told[..] {
                assert_eq!((news.tenant, news.last.pid, news.finding.count()), (TENANT, process.pid, 3));
            }
        }
        assert!(brief.held().next().is_none() && brief.look(900 * S).is_empty() && brief.programs.is_empty());
    }

    #[test]
    fn who_was_told_of_or_is_found_no_more_is_let_go() {
        let mut brief = Brief::default();
        let (mut child, process) = sleeper();
        let place = see(&mut brief, &process, S);
        brief.forget(&[place]);
        assert!(brief.held.is_empty() && brief.programs.is_empty());
        see(&mut brief, &process, S);
        see(&mut brief, &process, 4 * S);
        let news = brief.retain(|_| false);
        assert!(brief.held.is_empty() && brief.is_too_much(TENANT, 9 * S));
        assert_eq!((news.len(), news[0].finding.together_ns()), (1, 3 * S), "until it was seen last");
        child.kill().and_then(|()| child.wait().map(drop)).unwrap();
    }
}
