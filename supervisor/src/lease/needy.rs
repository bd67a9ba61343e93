//! For whom of those who wait others may have to go.

use super::grant::Leases;
use super::room::{Choice, Scene};
use crate::queue::Waiter;
use gpool_protocol::{LeaseRequest, Mechanism, Mode};

/// Of each line so many are looked at, each beside all before it.
const LOOKED_AT: usize = 16;
/// Of so many it is found out what they lack: what an empty host would give them is worked out for that.
const CLOSELY: usize = 8 * LOOKED_AT;

/// What keeps one that waits. Each has a line of its own, so that those for whom seldom anybody can go take no place of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// Room on GPUs and nothing else.
    Room,
    /// A quota, that others of its team may leave; or it would have a part under an MPS server or an instance by now.
    More,
}

impl Leases {
    /// Those of the queue, with their places, for whom others may have to go: so many at most, and none that begins in time without
    /// that.
    pub fn needy<'a>(&self, in_order: &[&'a Waiter], scene: &Scene<'_>) -> Vec<(usize, &'a Waiter)> {
        first_of_each(in_order, named_lack, |waiter| self.lack_of(waiter, scene))
    }

    /// Whether a request stands so far in front that others may have to go for it.
    pub fn is_near(&self, (asked, uid): (&LeaseRequest, u32), scene: &Scene<'_>) -> bool {
        let queue = &scene.book.queue;
        let own = queue.waiter_of(asked, uid).and_then(|waiter| self.lack_of(waiter, scene)).unwrap_or(Lack::Room);
        let ahead = queue.ahead_of(asked, uid);
        let is_like = |waiter: &&Waiter| !waiter.has_settled_plan() && self.lack_of(waiter, scene) == Some(own);
        ahead.into_iter().filter(is_like).take(LOOKED_AT).count() < LOOKED_AT
    }

    /// What one lacks that waits; nothing that anybody's going would give it, if it is none of that.
    fn lack_of(&self, waiter: &Waiter, scene: &Scene<'_>) -> Option<Lack> {
        let lack = named_lack(waiter)?;
        if lack == Lack::More || waiter.asked.request.mode != Mode::Auto {
            return Some(lack);
        }
        // Nobody goes for what serves it best if nobody is there, but it may be served otherwise beside others.
        let is_joined = |choice: &Choice| choice.served.mechanism == Mechanism::Mps || choice.served.instance.is_some();
        let alone = self.alone(&waiter.asked, waiter.uid, scene);
        Some(if alone.is_none_or(|(choice, _)| is_joined(&choice)) { Lack::More } else { Lack::Room })
    }
}

/// The same as far as it is known without a look at the GPUs.
fn named_lack(waiter: &Waiter) -> Option<Lack> {
    let request = &waiter.asked.request;
    // Nobody goes for the host's memory; under an MPS server and in an instance, who may join goes by the others.
    if waiter.lacks_host_memory || matches!(request.mode, Mode::Mps | Mode::Mig) || request.mig_profile.is_some() {
        return None;
    }
    Some(if waiter.is_over_quota { Lack::More } else { Lack::Room })
}

/// The first of each line, with their places. What one seems to lack costs nothing to find out, unlike what it lacks.
fn first_of_each<'a>(
    in_order: &[&'a Waiter],
    seems: impl Fn(&Waiter) -> Option<Lack>,
    lack_of: impl Fn(&Waiter) -> Option<Lack>,
) -> Vec<(usize, &'a Waiter)> {
    let (mut for_room, mut for_more, mut closely) = (0, 0, 0);
    let mut found = Vec::new();
    let waiting = in_order.iter().copied().enumerate();
    for (place, waiter) in waiting.filter(|(_, waiter)| !waiter.has_settled_plan()) {
        let is_full = match seems(waiter) {
            Some(Lack::Room) => for_room == LOOKED_AT,
            Some(Lack::More) => for_more == LOOKED_AT,
            None => true,
        };
        if is_full || closely == CLOSELY {
            continue;
        }
        closely += 1;
        let count = match lack_of(waiter) {
            Some(Lack::Room) => &mut for_room,
            Some(Lack::More) => &mut for_more,
            None => continue,
        };
        if *count < LOOKED_AT {
            *count += 1;
            found.push((place, waiter));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use gpool_policy::queue::Claim;
    use gpool_policy::slice::Priority;
    use gpool_protocol::HostPid;

    fn waits(request: &str) -> Waiter {
        let asked =
            format!(r#"{{"container_id":"c","request":{{"fraction_permille":300,"wait_seconds":60{request}}}}}"#);
        let asked: LeaseRequest = serde_json::from_str(&asked).unwrap();
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        Waiter::new(&asked, 0, this, Claim { priority: Priority::Guaranteed, is_ordinary: true, round: 0, since_ns: 1 })
    }

    fn places(waiters: &[Waiter]) -> Vec<usize> {
        let in_order: Vec<&Waiter> = waiters.iter().collect();
        first_of_each(&in_order, named_lack, named_lack).into_iter().map(|(place, _)| place).collect()
    }

    #[test]
    fn who_waits_for_a_quota_takes_nobody_s_place_who_waits_for_room() {
        let mut waiters: Vec<Waiter> = (0..20).map(|_| waits(r#","mode":"slice""#)).collect();
        waiters.iter_mut().for_each(|waiter| waiter.is_over_quota = true);
        waiters.push(waits(r#","mode":"slice""#));
        let expected: Vec<usize> = (0..LOOKED_AT).chain([20]).collect();
        assert_eq!(places(&waiters), expected, "and some are looked at for whom their own team may go");
        waiters.extend((0..20).map(|_| waits(r#","mode":"exclusive""#)));
        assert_eq!(places(&waiters).into_iter().filter(|place| *place >= 20).count(), LOOKED_AT);
    }

    #[test]
    fn for_whom_nobody_can_go_nobody_is_looked_at() {
        let mut waiters: Vec<Waiter> = (0..LOOKED_AT).map(|_| waits(r#","mode":"mps""#)).collect();
        waiters.extend((0..LOOKED_AT).map(|_| waits(r#","mode":"slice","mig_profile":"1g.10gb""#)));
        waiters.extend((0..LOOKED_AT).map(|_| waits(r#","mode":"slice""#)));
        waiters[2 * LOOKED_AT..].iter_mut().for_each(|waiter| waiter.lacks_host_memory = true);
        waiters.push(waits(r#","mode":"slice""#));
        assert_eq!(places(&waiters), [3 * LOOKED_AT]);
    }
}
