//! Which gangs could have all their GPUs, and which of those are first on one of them.
//!
//! Whatever happens on a host happens on one of its GPUs, or on a few, and most gangs are idle or hold theirs. So a gang is
//! judged when one of its GPUs has changed since, when it was heard of or its gate has moved, or when the time has come at which
//! the answer would be another one by itself; else that would be as before. The decisions are those of a host that judges all of
//! them each time, which its tests compare.

use super::HostScheduler;
use crate::slice::arrears::Arrears;
use crate::slice::{Command, ServerSet, SliceScheduler, TenantId};

/// A tenant with several GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gang {
    servers: ServerSet,
    /// Whether its gate is open.
    is_open: bool,
    /// Since when all its GPUs have been its due at once, while its gate is closed.
    due_since_ns: Option<u64>,
    /// Whether it stands at its gate, and nothing of its own keeps it there.
    waits: bool,
    /// Whether it may be chosen on none of its GPUs.
    held_back: bool,
    arrears: Arrears,
    /// What was promised to it when those were counted last: see [`SliceScheduler::promise`].
    promise: (u16, u64),
    /// Whether it was heard of, or its gate has moved, since it was judged.
    has_news: bool,
    /// Whether what others do is nothing to it: its gate is open, or it wants none of its GPUs.
    is_aloof: bool,
    /// When it may be let go, if it is held back.
    recheck_ns: Option<u64>,
    /// From when on it has to be judged again, when anything is decided. That alone is no reason to decide.
    turns_ns: Option<u64>,
}

impl Gang {
    pub(super) fn of(servers: ServerSet) -> Self {
        Self { servers, has_news: true, ..Self::default() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether it may be judged otherwise than the last time, after these GPUs have changed.
    fn is_to_be_judged(&self, now_ns: u64, changed: ServerSet, servers: &[SliceScheduler]) -> bool {
        let is_time = self.turns_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let is_concerned = !self.is_aloof && self.servers.meets(changed);
        self.has_news || is_time || is_concerned || self.slice_ns(servers) != Some(self.promise.1)
    }

    /// A slice of the GPU whose promise counts.
    fn slice_ns(&self, servers: &[SliceScheduler]) -> Option<u64> {
        self.servers.iter().next().map(|index| servers[index].slice_ns())
    }

    /// Finds out whether it could have all its GPUs now, and tells them. All gangs were counted at `judged_ns` last, or would have
    /// been counted as this one was before.
    fn judge(&mut self, id: TenantId, servers: &mut [SliceScheduler], (now_ns, judged_ns): (u64, u64)) {
        self.count_arrears(id, servers, (now_ns, judged_ns));
        let (mut wants, mut waits, mut is_due, mut turns_ns) = (false, true, true, None);
        for index in self.servers.iter().filter(|_| !self.is_open) {
            let standing = servers[index].standing(id);
            wants |= standing.wants;
            waits &= standing.wants && standing.opens_ns.is_none_or(|opens_ns| opens_ns <= now_ns);
            is_due &= standing.is_due;
            turns_ns = earlier(turns_ns, standing.opens_ns.filter(|opens_ns| *opens_ns > now_ns));
        }
        self.waits = waits && !self.is_open;
        self.due_since_ns = (is_due && !self.is_open).then(|| self.due_since_ns.unwrap_or(now_ns));
        let mut from_ns = self.due_since_ns.map(|_| now_ns);
        for (index, since_ns) in self.servers.iter().filter_map(|index| Some((index, self.due_since_ns?))) {
            let its_ns = servers[index].accepts_from_ns(id, now_ns, now_ns - since_ns);
            from_ns = from_ns.zip(its_ns).map(|(one_ns, other_ns)| one_ns.max(other_ns));
            turns_ns = earlier(turns_ns, servers[index].turns_ns(now_ns, since_ns));
        }
        let held_back = !self.is_open && from_ns.is_none_or(|from_ns| from_ns > now_ns);
        let (permille, slice_ns) = self.promise;
        let behind_ns = self.waits.then(|| self.arrears.falls_behind_ns(permille, slice_ns)).flatten();
        self.recheck_ns = earlier(from_ns, behind_ns).filter(|_| held_back);
        turns_ns = earlier(turns_ns, self.recheck_ns);
        self.turns_ns = earlier(turns_ns, self.arrears.turns_ns(permille, slice_ns, self.is_open, self.waits));
        if held_back != self.held_back {
            self.servers.iter().for_each(|index| _ = servers[index].hold_back(id, held_back));
        }
        (self.is_aloof, self.held_back, self.has_news) = (!wants, held_back, false);
    }

    /// Counts what it is behind its promise, and tells its GPUs if that is much.
    fn count_arrears(&mut self, id: TenantId, servers: &mut [SliceScheduler], (now_ns, judged_ns): (u64, u64)) {
        let Some(first) = self.servers.iter().next() else { return };
        let was_behind = self.arrears.is_behind();
        let mut count = |until_ns, (permille, slice_ns)| {
            self.arrears.pass(until_ns, permille, slice_ns, self.is_open, self.waits);
        };
        let promise = servers[first].promise(id);
        if promise != self.promise {
            count(judged_ns, self.promise);
        }
        count(now_ns, promise);
        self.promise = promise;
        let is_behind = self.arrears.is_behind();
        if is_behind != was_behind {
            self.servers.iter().for_each(|index| servers[index].set_behind(id, is_behind));
        }
    }
}

impl HostScheduler {
    /// A tenant was heard of.
    pub(super) fn note_news(&mut self, tenant: TenantId) {
        if let Some(gang) = self.gangs.get_mut(&tenant) {
            gang.has_news = true;
            self.news.push(tenant);
        }
    }

    /// No gang is owed anything.
    pub(super) fn forgive_gangs(&mut self) {
        for (&id, gang) in &mut self.gangs {
            gang.arrears.forgive(self.now_ns);
            gang.has_news = true;
            gang.servers.iter().for_each(|index| self.servers[index].set_behind(id, false));
        }
    }

    /// Notes whether a gang's gate is open, and says whether it was.
    pub(super) fn set_open(&mut self, id: TenantId, is_open: bool) -> bool {
        let Some(gang) = self.gangs.get_mut(&id) else { return false };
        gang.count_arrears(id, &mut self.servers, (self.now_ns, self.judged_ns));
        (gang.due_since_ns, gang.waits, gang.has_news) = (None, false, true);
        self.news.push(id);
        std::mem::replace(&mut gang.is_open, is_open)
    }

    /// Finds out which gangs could have all their GPUs now. The GPUs that may choose one which they could not before.
    pub(super) fn judge_gangs(&mut self) -> ServerSet {
        #[cfg(test)]
        self.look_at_all();
        let mut changed = std::mem::take(&mut self.unjudged);
        let mut released = ServerSet::default();
        for (&id, gang) in &mut self.gangs {
            if gang.is_to_be_judged(self.now_ns, changed, &self.servers) {
                let was_held_back = gang.held_back;
                gang.judge(id, &mut self.servers, (self.now_ns, self.judged_ns));
                if gang.held_back != was_held_back {
                    // Those after it see that at once, those before it the next time.
                    changed = changed.union(gang.servers);
                    self.unjudged = self.unjudged.union(gang.servers);
                    self.untried = self.untried.union(gang.servers);
                    released = if was_held_back { released.union(gang.servers) } else { released };
                }
            }
            self.recheck_ns = earlier(self.recheck_ns, gang.recheck_ns);
        }
        self.judged_ns = self.now_ns;
        released
    }

    /// Opens the gates of gangs that could have all their GPUs and are first on one of them. The GPUs that have become
    /// free by it.
    pub(super) fn admit_gangs(&mut self, commands: &mut Vec<Command>) -> ServerSet {
        let changed = std::mem::take(&mut self.untried);
        let (mut freed, mut same) = (ServerSet::default(), ServerSet::default());
        if changed.is_empty() {
            return freed;
        }
        let closed: Vec<TenantId> = self.gangs.iter().filter(|(_, gang)| !gang.is_open).map(|(&id, _)| id).collect();
        for id in closed {
            let Some(index) = self.first_on(id, changed, &mut same) else { continue };
            let mut own = Vec::new();
            let until_ns = self.servers[index].seize(self.now_ns, id, &mut own);
            self.note_change(index);
            freed = freed.union(self.mediate(index, &mut own, commands));
            freed = freed.union(self.gather(index, id, until_ns, commands));
            // What the others may have is another question now.
            freed = freed.union(self.judge_gangs());
        }
        freed
    }

    /// The GPU that chooses a gang with a closed gate: one that has `changed`, as it would have been found before on another one. Those
    /// on which looking for that changes nothing are added to `same`: who may not be chosen need not look there as well.
    fn first_on(&mut self, id: TenantId, changed: ServerSet, same: &mut ServerSet) -> Option<usize> {
        let &Gang { servers, held_back, .. } = self.gangs.get(&id)?;
        for index in servers.iter() {
            let is_known = !changed.contains(index) || held_back && same.contains(index);
            if is_known && !self.untried.contains(index) {
                continue;
            }
            let (next, has_changed) = self.servers[index].find_next();
            if has_changed {
                self.note_change(index);
            } else {
                same.insert(index);
            }
            if next == Some(id) {
                return Some(index);
            }
        }
        None
    }

    /// Notes of gangs whose gates are closed on which of their GPUs their silences stand.
    pub(super) fn note_silences(&mut self) {
        let mut news = std::mem::take(&mut self.news);
        for id in news.drain(..) {
            if let Some(gang) = self.gangs.get(&id).filter(|gang| !gang.is_open) {
                gang.servers.iter().for_each(|index| self.servers[index].note_whether_silence_stands(id));
            }
        }
        self.news = news;
    }

    /// The same decisions, if everything might have changed.
    #[cfg(test)]
    fn look_at_all(&mut self) {
        if self.looks_at_all {
            (0..self.servers.len()).for_each(|index| self.note_change(index));
            self.gangs.values_mut().for_each(|gang| gang.has_news = true);
            self.news = self.gangs.keys().copied().collect();
        }
    }
}

/// The earlier one of two times, either of which may be never.
pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
