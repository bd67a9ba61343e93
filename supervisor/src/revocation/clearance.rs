//! Whether anything of a container is left on the GPUs that were taken from it.

use crate::occupants::Occupants;
use crate::procfs::ProcessName;
use std::collections::BTreeSet;
use std::time::Instant;

/// What was seen of those who used the GPUs, since these were denied to the container.
#[derive(Debug, Default)]
pub struct Clearance {
    users: BTreeSet<ProcessName>,
    /// When the first look began that found nobody any more; none while the last one has found somebody.
    since: Option<Instant>,
    /// Those that had registered and were outside of its cgroup.
    strays: BTreeSet<ProcessName>,
    /// Whether it was ended as a whole.
    is_ended: bool,
    /// Whether the last look has not seen all of its processes.
    is_cut: bool,
}

impl Clearance {
    /// A look at the container's cgroup, begun at `begun`, has found these; none also where it has not seen all and others may be there.
    pub fn note(&mut self, begun: Instant, users: impl Iterator<Item = ProcessName>, is_cut: bool) {
        let mut is_anybody_there = false;
        self.users.extend(users.inspect(|_| is_anybody_there = true));
        self.is_cut = is_cut;
        self.since = match (is_anybody_there, is_cut) {
            (true, _) => None,
            (false, true) => self.since,
            (false, false) => self.since.or(Some(begun)),
        };
    }

    /// Whether the last look has not seen all of its processes.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// These had registered and were found outside of the container's cgroup.
    pub fn note_strays(&mut self, found: impl Iterator<Item = ProcessName>) {
        self.strays.extend(found);
    }

    /// How many those were.
    pub fn strays(&self) -> usize {
        self.strays.len()
    }

    /// Everybody who was found to use the GPUs in its cgroup.
    pub fn users(&self) -> BTreeSet<ProcessName> {
        self.users.clone()
    }

    /// The container is ended as a whole now.
    pub fn note_end(&mut self) {
        self.is_ended = true;
    }

    /// Whether it was. That is done once: whoever is killed may take long to end.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// When the first look began that found nobody; none while the last one has found somebody.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether none of them is on any of `gpus` by what NVML has said when it was asked after that. Where it does not answer,
    /// they count as gone after a while, as all that have ended do.
    pub fn is_over(&self, occupants: &Occupants, mut gpus: impl Iterator<Item = usize>) -> bool {
        let Some(since) = self.since else { return false };
        let has_back = |gpu| self.users.iter().all(|user| occupants.has_let_go(gpu, *user, since));
        gpus.all(|gpu| occupants.has_told(gpu, since) && has_back(gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::HostPid;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn gpus_are_free_of_a_container_when_nobody_is_found_and_a_later_look_lists_none() {
        let (occupants, start) = (Occupants::new(2), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let user = ProcessName { pid: HostPid(7), start_ticks: 100 };
        let list = |gpu, millis, listed: &[(u32, Option<u64>)]| {
            occupants.note(gpu, at(millis), listed.iter().map(|(pid, start)| (HostPid(*pid), *start)).collect());
        };
        let mut clearance = Clearance::default();
        let is_over = |clearance: &Clearance| clearance.is_over(&occupants, [0, 1].into_iter());
        for gpu in [0, 1] {
            occupants.note(gpu, at(5), BTreeMap::new());
        }
        assert!(!is_over(&clearance), "nobody has looked");
        clearance.note(at(8), [].into_iter(), true);
        assert!(clearance.since().is_none() && clearance.is_cut(), "others may be there whom it has not seen");
        clearance.note(at(10), [user].into_iter(), false);
        assert!(clearance.since().is_none() && !is_over(&clearance));
        clearance.note(at(20), [].into_iter(), false);
        clearance.note(at(40), [].into_iter(), false);
        assert!(clearance.since().is_some() && !is_over(&clearance), "NVML was asked before");
        list(0, 30, &[(7, None), (8, Some(5))]);
        list(1, 30, &[]);
        assert!(!is_over(&clearance), "the driver is not done with it");
        list(0, 31, &[(7, Some(101)), (8, Some(5))]);
        assert!(is_over(&clearance), "another process has its pid");
        list(1, 15, &[]);
        assert!(!is_over(&clearance), "of one GPU nothing is known");
        list(1, 32, &[]);
        let other = ProcessName { pid: HostPid(9), start_ticks: 200 };
        clearance.note(at(50), [other].into_iter(), true);
        assert!(!is_over(&clearance), "somebody has come back");
        clearance.note(at(60), [].into_iter(), false);
        list(0, 61, &[(9, None)]);
        list(1, 61, &[]);
        assert!(!is_over(&clearance), "the driver is not done with that one");
        list(0, 62, &[(12, None)]);
        assert!(is_over(&clearance), "whoever else has ended is another container's");
    }
}
