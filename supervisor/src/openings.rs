//! Has the guard look when a process of a lease opens a GPU's device node, so that a program past the shims is seen that is gone a second
//! later. Where the kernel tells nobody of that, the guard looks once a second alone.

use crate::cgroup;
use crate::cgroup::openings::{Group, Openers, Openings, own_group};
use crate::lease::{GROUPS, Leases};
use crate::log::{self, Priority};
use gpool_policy::TenantId;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether there are other devices than before.
const PERIOD: Duration = Duration::from_secs(5);
/// Between two words to the guard, however often they are opened.
const REST: Duration = Duration::from_millis(5);
/// A thread that is woken runs within this, or finds what woke it older than it is, which costs a look.
const LAG: Duration = Duration::from_millis(20);
/// For so long a group that was no lease's is none: it may have become a container's by then.
const STRANGE: Duration = Duration::from_secs(1);
/// So many of them are known at most, but for those of one look.
const STRANGERS: usize = 1024;
/// Between two looks at whose groups there are lie so many times what the first took.
const REST_OF_LOOKS: u32 = 19;

/// Watches on a thread of its own, from now on.
///
/// # Errors
/// No thread can be started.
pub fn watch(leases: &Arc<Leases>) -> io::Result<()> {
    let leases = leases.clone();
    std::thread::Builder::new().name("openings".into()).spawn(move || keep(&leases)).map(drop)
}

fn keep(leases: &Leases) {
    let mut devices = BTreeSet::new();
    loop {
        // A node that is not there for a while comes back with the same number.
        devices.extend(leases.files.gpu_devices(&leases.gpus()));
        match Openings::watch(&devices) {
            Ok(openings) => tell(leases, &openings, &devices),
            Err(error) => {
                let words = format_args!(
                    "the kernel does not tell when a GPU's device is opened ({error}): programs past the shims are looked for once a second"
                );
                return log::line(Priority::Information, words);
            }
        }
    }
}

/// Tells the guard of each opening by a process of a lease, until there are other devices.
fn tell(leases: &Leases, openings: &Openings, devices: &BTreeSet<(u32, u32)>) {
    let (mut looked, mut owners, mut unknown) = (Instant::now(), Owners::default(), Openers::default());
    let (mut own, mut heard) = (own_group(), Instant::now());
    loop {
        let due = if unknown.is_nobody() { PERIOD } else { owners.rest_left(Instant::now()) };
        let begun = Instant::now();
        let mut openers = openings.wait(due.min(PERIOD));
        let since = opened_since(heard, begun, Instant::now());
        leave_out_own(&mut openers, own, || leases.inventory.has_asked_since(since));
        heard = Instant::now();
        unknown.groups.extend(openers.groups);
        unknown.are_more |= openers.are_more;
        if !unknown.is_nobody() {
            let tenants = owners.take(&mut unknown, Instant::now(), || groups_of_leases(leases));
            if !tenants.is_empty() {
                leases.occupants.note_opening(tenants);
            }
            std::thread::sleep(REST);
        }
        if looked.elapsed() >= PERIOD {
            (looked, own) = (Instant::now(), own_group());
            if !leases.files.gpu_devices(&leases.gpus()).is_subset(devices) {
                return;
            }
        }
    }
}

/// Since when those have opened a device of whom was heard now, at `now`. They were waited for from `begun` on; until `heard` it was
/// known who had.
fn opened_since(heard: Instant, begun: Instant, now: Instant) -> Instant {
    let has_waited = now.saturating_duration_since(begun) > LAG;
    if has_waited { now - LAG } else { heard }
}

/// Leaves out the supervisor itself, which opens devices when it asks NVML: who looks because of that asks again. By its group it is
/// known where no container can be in the same one; else by its having asked since the last time.
fn leave_out_own(openers: &mut Openers, own: Option<Group>, has_asked: impl Fn() -> bool) {
    if openers.are_more && openers.groups.is_empty() && has_asked() {
        openers.are_more = false;
    }
    if let Some(own) = own.filter(|own| openers.groups.contains(&own.number))
        && (!own.is_root || has_asked())
    {
        openers.groups.remove(&own.number);
    }
}

/// The groups of each lease that could go past its shims; none of one that has no group of version 2 to itself, or too many.
type Groups = BTreeMap<TenantId, Option<Vec<u64>>>;

/// The book is not locked while cgroups are read.
fn groups_of_leases(leases: &Leases) -> Groups {
    let book = leases.book();
    let with_shims = book.leases.values().filter(|lease| lease.record.mechanism.has_shims());
    let all: Vec<_> = with_shims.map(|lease| (lease.tenant, lease.record.cgroup.clone())).collect();
    drop(book);
    let groups = |cgroup: Option<String>| cgroup::groups_of_version_2(&cgroup?, GROUPS);
    all.into_iter().map(|(tenant, cgroup)| (tenant, groups(cgroup))).collect()
}

/// Whose the groups are in which devices are opened.
#[derive(Debug, Default)]
struct Owners {
    of: BTreeMap<u64, TenantId>,
    /// Of whom no group is known: whatever is nobody else's may be theirs.
    anywhere: BTreeSet<TenantId>,
    everybody: BTreeSet<TenantId>,
    /// Groups that were no lease's when it was looked last.
    strange: BTreeSet<u64>,
    looked: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Owners {
    /// How long until it may be looked again whose groups there are.
    fn rest_left(&self, now: Instant) -> Duration {
        self.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Takes those out of `openers` of whom it is known at `now` who they are: the tenants that they may be of. Programs of the host, of
    /// which the supervisor is one, are nobody's. `groups` looks which there are, if that is needed and it may be looked again.
    fn take(&mut self, openers: &mut Openers, now: Instant, groups: impl FnOnce() -> Groups) -> BTreeSet<TenantId> {
        let is_old = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= STRANGE);
        let is_known = |group: &u64| self.of.contains_key(group) || !is_old && self.strange.contains(group);
        if (openers.are_more || !openers.groups.iter().all(is_known)) && self.rest_left(now).is_zero() {
            if is_old || self.strange.len() > STRANGERS {
                self.strange.clear();
            }
            self.look(now, groups);
            self.strange.extend(&openers.groups);
            self.strange.retain(|group| !self.of.contains_key(group));
        }
        let mut tenants = BTreeSet::new();
        openers.groups.retain(|group| {
            let (of, is_strange) = (self.of.get(group), self.strange.contains(group));
            tenants.extend(of);
            if is_strange {
                tenants.extend(&self.anywhere);
            }
            of.is_none() && !is_strange
        });
        if openers.are_more && self.looked == Some(now) {
            openers.are_more = false;
            tenants.extend(&self.everybody);
        }
        tenants
    }

    fn look(&mut self, now: Instant, groups: impl FnOnce() -> Groups) {
        let begun = Instant::now();
        let found = groups();
        self.everybody = found.keys().copied().collect();
        self.anywhere = found.iter().filter(|(_, groups)| groups.is_none()).map(|(tenant, _)| *tenant).collect();
        let each =
            found.into_iter().flat_map(|(tenant, groups)| groups.into_iter().flatten().map(move |its| (its, tenant)));
        self.of = each.collect();
        self.looked = Some(now);
        self.rests_until = Some(now + begun.elapsed() * (1 + REST_OF_LOOKS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const NEW: TenantId = TenantId(3);

    fn by(groups: &[u64]) -> Openers {
        Openers { groups: groups.iter().copied().collect(), are_more: false }
    }

    /// What is taken, what is left, and how often it was looked whose groups there are.
    fn take(
        owners: &mut Owners,
        openers: Openers,
        now: Instant,
        groups: &[(TenantId, Option<Vec<u64>>)],
    ) -> (Vec<TenantId>, Openers, usize) {
        let (mut openers, mut looks) = (openers, 0);
        let tenants = owners.take(&mut openers, now, || {
            looks += 1;
            groups.iter().cloned().collect()
        });
        (tenants.into_iter().collect(), openers, looks)
    }

    #[test]
    fn an_opening_is_told_of_the_lease_in_whose_groups_it_was_and_of_nobody_else() {
        let (start, mut owners) = (Instant::now(), Owners::default());
        let after = |ms| start + Duration::from_millis(ms);
        let mut groups = vec![(A, Some(vec![10, 11])), (B, Some(vec![20]))];
        assert_eq!(take(&mut owners, by(&[11]), after(0), &groups), (vec![A], by(&[]), 1));
        assert_eq!(take(&mut owners, by(&[20, 10]), after(100), &groups), (vec![A, B], by(&[]), 0), "they are known");
        // The host's: looked for once a second, however often it opens the device.
        let looks: usize = (1..40).map(|turn| take(&mut owners, by(&[1]), after(100 + turn * 50), &groups).2).sum();
        assert!((2..=3).contains(&looks), "{looks}");
        // A container that is new is found although others open it meanwhile.
        groups.push((NEW, Some(vec![30])));
        assert_eq!(take(&mut owners, by(&[1, 30]), after(2150), &groups), (vec![NEW], by(&[]), 1));
        // One that has no group to itself may be anywhere but in another one's.
        groups.push((TenantId(4), None));
        assert_eq!(take(&mut owners, by(&[1]), after(4000), &groups), (vec![TenantId(4)], by(&[]), 1));
        assert_eq!(take(&mut owners, by(&[20]), after(4010), &groups), (vec![B], by(&[]), 0));
    }

    #[test]
    fn what_the_supervisor_opens_itself_makes_nobody_look() {
        let (own, root) = (Group { number: 5, is_root: false }, Group { number: 5, is_root: true });
        let more = |groups: &[u64]| Openers { are_more: true, ..by(groups) };
        let left = |mut openers: Openers, own, has_asked| {
            leave_out_own(&mut openers, own, || has_asked);
            openers
        };
        for has_asked in [false, true] {
            assert_eq!(left(by(&[5, 6]), Some(own), has_asked), by(&[6]));
            assert_eq!(left(more(&[5]), Some(own), has_asked), more(&[]), "more than the ring holds");
            assert_eq!(left(by(&[6]), None, has_asked), by(&[6]));
        }
        // Others may be in the group of all groups, and anybody is nowhere.
        assert_eq!([left(by(&[5]), Some(root), false), left(by(&[5]), Some(root), true)], [by(&[5]), by(&[])]);
        assert_eq!([left(more(&[]), None, false), left(more(&[]), None, true)], [more(&[]), by(&[])]);
    }

    #[test]
    fn what_is_heard_after_a_wait_has_just_happened() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(opened_since(at(0), at(300), at(301)), at(0), "while something else was done");
        assert_eq!(
            opened_since(at(0), at(5), at(900)),
            at(900) - LAG,
            "a question that was answered long before is none"
        );
    }

    #[test]
    fn where_the_kernel_tells_no_group_it_may_have_been_everybody() {
        let (start, mut owners) = (Instant::now(), Owners::default());
        let groups = [(A, Some(vec![10])), (B, None)];
        let more = || Openers { are_more: true, ..by(&[]) };
        assert_eq!(take(&mut owners, more(), start, &groups), (vec![A, B], by(&[]), 1));
        // Not more often than the looking is worth: it is told later.
        owners.rests_until = Some(start + Duration::from_secs(9));
        assert_eq!(take(&mut owners, more(), start + Duration::from_secs(8), &groups), (vec![], more(), 0));
        assert_eq!(owners.rest_left(start + Duration::from_secs(8)), Duration::from_secs(1));
        assert_eq!(take(&mut owners, more(), start + Duration::from_secs(9), &groups), (vec![A, B], by(&[]), 1));
    }
}
