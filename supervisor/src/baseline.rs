//! What containers and programs without a lease use of the GPUs, once a second, for whoever wants to know what sharing would be
//! worth before anything is shared. Nothing is asked of them and nothing is done to them: NVML lists who has a context, with
//! how much memory, and how busy each keeps the GPU.

mod pods;
mod whose;

use crate::auditor::Auditor;
use crate::clock;
use crate::device::{Gpu, Kind, Occupancy};
use crate::lease::{Leases, Members};
use crate::ledger::{GpuSighting, Sighting};
use crate::procfs;
use gpool_protocol::{GpuUuid, HostPid, Unleased, UnleasedKind};
use std::collections::{BTreeMap, BTreeSet};

/// The device tells late of what a process has done: one that has ended is known for so long.
const KNOWN_NS: u64 = 10_000_000_000;
/// Of a longer time between two answers of a GPU no more is counted: who was there in it nobody knows.
const LONGEST_NS: u64 = 3_000_000_000;
/// A GPU that has told nothing for long tells of no more than the last so long (`LOOK_BACK_US` in policy's honesty.rs).
const TOLD_NS: u64 = 8_000_000_000;
/// So many are kept apart in an hour; those that come later in it are others.
const USERS: usize = 512;
const HOUR_S: u64 = 3600;

/// A process that has, or had, a context.
#[derive(Debug)]
struct Known {
    start_ticks: Option<u64>,
    /// Whose it is; none of one that was a lease's, or gpool's own.
    user: Option<Unleased>,
    /// Of which pod that is.
    pod: Option<String>,
    /// Its name, as long as it lived.
    command: String,
    seen_ns: u64,
}

/// Who is kept apart in this hour.
#[derive(Debug, Default)]
struct KeptApart {
    hour: u64,
    users: BTreeSet<Unleased>,
}

impl KeptApart {
    fn admits(&mut self, user: &Unleased, unix_s: u64) -> bool {
        let hour = unix_s / HOUR_S;
        if hour != self.hour {
            *self = Self { hour, users: BTreeSet::new() };
        }
        self.users.contains(user) || (self.users.len() < USERS && self.users.insert(user.clone()))
    }
}

/// What was new in one answer of a GPU.
struct Answer<'a> {
    occupancy: &'a Occupancy,
    /// How long each process kept it busy.
    busy: BTreeMap<HostPid, u64>,
    /// Since the answer before.
    elapsed_ns: u64,
    /// Whether it told how busy processes keep it.
    has_figures: bool,
    /// Since it told that before.
    busy_since_ns: u64,
}

/// Remembers from one look to the next.
#[derive(Debug, Default)]
pub struct BaselineWatch {
    known: BTreeMap<HostPid, Known>,
    /// When each GPU answered last, CLOCK_MONOTONIC.
    answered_ns: BTreeMap<GpuUuid, u64>,
    /// When each told last how busy processes keep it.
    told_ns: BTreeMap<GpuUuid, u64>,
    apart: KeptApart,
}

impl BaselineWatch {
    /// Notes in the ledger who used which GPU without a lease since the last look; to be called after the auditor has looked.
    pub fn look(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>], auditor: &Auditor) {
        if !leases.configuration().ledger.is_kept() {
            return;
        }
        let (now_ns, unix_s) = (clock::now_ns(), clock::unix_ms() / 1000);
        let leased: BTreeSet<HostPid> = members.values().flatten().copied().collect();
        let cgroups = leases.book().cgroups();
        let is_gpools = |pid| leases.groups.has_process(pid) || procfs::is_own_child(pid) || leases.gpu_tests.has(pid);
        let present = occupancies.iter().flatten().flat_map(|its| its.present.iter().copied()).collect();
        self.learn(&present, now_ns, |pid| leased.contains(&pid) || is_gpools(pid) || cgroups.have(pid));
        let (mut seen, gpus) = (Vec::new(), leases.gpus());
        for (place, (gpu, occupancy)) in gpus.iter().zip(occupancies).enumerate() {
            let is_asked = |gpu: &Gpu| matches!(gpu.kind, Kind::Whole | Kind::Instance(_));
            let Some(occupancy) = occupancy.as_ref().filter(|_| is_asked(gpu)) else { continue };
            // Of the first answer it is not known since when it holds.
            let Some(last_ns) = self.answered_ns.insert(gpu.uuid.clone(), now_ns) else { continue };
            let has_figures = auditor.has_figures(place);
            let told_ns = if auditor.tells(place) { self.told_ns.insert(gpu.uuid.clone(), now_ns) } else { None };
            let answer = Answer {
                occupancy,
                busy: auditor.busy(place).collect(),
                elapsed_ns: now_ns.saturating_sub(last_ns),
                has_figures,
                busy_since_ns: now_ns.saturating_sub(told_ns.unwrap_or(last_ns)),
            };
            let users = self.kept_apart(self.on(&answer), unix_s);
            seen.push(GpuSighting { gpu: gpu.uuid.clone(), watched_ns: answer.counted_ns(), users });
        }
        let is_there = |uuid: &GpuUuid| gpus.iter().any(|gpu| gpu.uuid == *uuid);
        self.answered_ns.retain(|uuid, _| is_there(uuid));
        self.told_ns.retain(|uuid, _| is_there(uuid));
        note_at_once(&mut seen);
        leases.ledger.note_unleased(unix_s, seen);
    }

    /// Whose the processes are that have a context now. One that was a lease's stays that until it ends, also when the lease has;
    /// one that has ended stays whose it was while the device lists it.
    fn learn(&mut self, present: &BTreeSet<HostPid>, now_ns: u64, is_no_stranger: impl Fn(HostPid) -> bool) {
        for pid in present {
            let start_ticks = procfs::start_ticks(*pid);
            if self.known.get(pid).is_some_and(|its| start_ticks.is_some() && its.start_ticks != start_ticks) {
                self.known.remove(pid);
            }
            let is_no_stranger = is_no_stranger(*pid);
            let known = self.known.entry(*pid).or_insert_with(|| {
                let (user, pod) = if is_no_stranger { None } else { whose::whose(*pid) }.unzip();
                Known { start_ticks, user, pod: pod.flatten(), command: String::new(), seen_ns: now_ns }
            });
            known.seen_ns = now_ns;
            if is_no_stranger {
                known.user = None;
            }
            // Under the same pid and start time it may be another program by now.
            if known.user.is_some() && start_ticks.is_some() {
                known.command = procfs::comm(*pid);
            }
        }
        self.known.retain(|_, its| now_ns.saturating_sub(its.seen_ns) < KNOWN_NS);
    }

    /// What each of them did on one GPU since the answer before.
    fn on(&self, answer: &Answer<'_>) -> BTreeMap<Unleased, Sighting> {
        let stranger = |pid: &HostPid| self.known.get(pid).and_then(|its| Some((its.user.clone()?, its)));
        let (counted_ns, mut all) = (answer.counted_ns(), BTreeMap::<Unleased, Sighting>::new());
        for pid in &answer.occupancy.present {
            let Some((user, known)) = stranger(pid) else { continue };
            let its = all.entry(user).or_default();
            its.seen.held_ns = counted_ns;
            its.seen.unmetered_ns = if answer.has_figures { 0 } else { counted_ns };
            its.seen.peak_bytes = its.seen.peak_bytes.saturating_add(answer.occupancy.bytes_of(*pid).unwrap_or(0));
            if its.command.is_empty() {
                its.command.clone_from(&known.command);
            }
            if its.pod.is_none() {
                its.pod.clone_from(&known.pod);
            }
        }
        let busy = || answer.busy.iter().map(|(pid, ns)| (pid, answer.counted_of(*ns)));
        let all_ns: u64 = busy().fold(0, |sum, (_, ns)| sum.saturating_add(ns));
        for (pid, ns) in busy() {
            if let Some((user, _)) = stranger(pid) {
                let its = all.entry(user).or_default();
                its.seen.busy_ns = its.seen.busy_ns.saturating_add(ns);
            }
        }
        all.values_mut().for_each(|its| its.seen.others_ns = all_ns.saturating_sub(its.seen.busy_ns));
        all
    }

    /// Those that are kept apart, and all others as one, who has all that they hold together.
    fn kept_apart(&mut self, all: BTreeMap<Unleased, Sighting>, unix_s: u64) -> BTreeMap<Unleased, Sighting> {
        let (apart, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(user, _)| self.apart.admits(user, unix_s));
        let mut users = apart;
        if !others.is_empty() {
            let mut sum = Sighting::default();
            for its in others.values() {
                let peak_bytes = sum.seen.peak_bytes.saturating_add(its.seen.peak_bytes);
                sum.seen.add(&its.seen);
                (sum.seen.peak_bytes, sum.seen.others_ns) = (peak_bytes, 0);
            }
            users.insert(Unleased { kind: UnleasedKind::Others, ..Unleased::default() }, sum);
        }
        users
    }
}

impl Answer<'_> {
    /// How much of the time since the answer before is counted.
    fn counted_ns(&self) -> u64 {
        self.elapsed_ns.min(LONGEST_NS)
    }

    /// The same part of what was done in it, and before it since it told of that: then nobody saw how busy who kept it.
    fn counted_of(&self, ns: u64) -> u64 {
        let of_ns = self.busy_since_ns.max(self.elapsed_ns).clamp(1, TOLD_NS);
        let part = u128::from(ns) * u128::from(self.counted_ns()) / u128::from(of_ns);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// On how many GPUs each is at work in this look, or may be, where nobody sees it.
fn note_at_once(seen: &mut [GpuSighting]) {
    let is_at_work = |its: &Sighting| its.seen.held_ns > 0 && its.seen.busy_ns + its.seen.unmetered_ns > 0;
    let mut at_once: BTreeMap<Unleased, u64> = BTreeMap::new();
    for (user, _) in seen.iter().flat_map(|gpu| &gpu.users).filter(|(_, its)| is_at_work(its)) {
        *at_once.entry(user.clone()).or_insert(0) += 1;
    }
    for (user, its) in seen.iter_mut().flat_map(|gpu| &mut gpu.users).filter(|(_, its)| is_at_work(its)) {
        its.seen.at_once = at_once.get(user).copied().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::mechanism::ComputeMode;
    use gpool_policy::sizing::Seen;

    const S: u64 = 1_000_000_000;

    fn user(name: &str) -> Unleased {
        Unleased { kind: UnleasedKind::Container, name: name.into(), uid: None }
    }

    /// Processes 1 and 2 are one container's, 3 is another one's, 4 is a lease's.
    fn watch() -> BaselineWatch {
        let known = |name: Option<&str>| Known {
            start_ticks: None,
            user: name.map(user),
            pod: Some("ml/a".into()),
            command: "train".into(),
            seen_ns: 0,
        };
        let all = [(1, Some("a")), (2, Some("a")), (3, Some("b")), (4, None)];
        BaselineWatch { known: all.map(|(pid, name)| (HostPid(pid), known(name))).into(), ..BaselineWatch::default() }
    }

    fn occupancy(pids: &[u32]) -> Occupancy {
        Occupancy {
            used_bytes: 0,
            is_still: true,
            by_process: pids.iter().map(|pid| (HostPid(*pid), u64::from(*pid) * 100)).collect(),
            listed: BTreeMap::new(),
            present: pids.iter().map(|pid| HostPid(*pid)).collect(),
            inherited: BTreeSet::new(),
            compute_mode: ComputeMode::Default,
            energy: None,
        }
    }

    fn answer<'a>(occupancy: &'a Occupancy, busy: &[(u32, u64)], elapsed_ns: u64) -> Answer<'a> {
        let busy = busy.iter().map(|(pid, ns)| (HostPid(*pid), *ns)).collect();
        Answer { occupancy, busy, elapsed_ns, has_figures: true, busy_since_ns: elapsed_ns }
    }

    #[test]
    fn what_processes_of_one_container_did_is_one_sum_and_leases_are_left_out() {
        let there = occupancy(&[1, 2, 4]);
        let seen = watch().on(&answer(&there, &[(1, S / 4), (3, S / 10), (4, S / 2), (9, S / 20)], S));
        let [(a, first), (b, other)] = seen.iter().collect::<Vec<_>>()[..] else { panic!("{seen:?}") };
        let all_ns = S / 4 + S / 10 + S / 2 + S / 20;
        let want = |held_ns, busy_ns, peak_bytes| Seen {
            held_ns,
            busy_ns,
            others_ns: all_ns - busy_ns,
            peak_bytes,
            ..Seen::default()
        };
        assert_eq!((a, first.seen, first.command.as_str()), (&user("a"), want(S, S / 4, 300), "train"));
        assert_eq!(first.pod.as_deref(), Some("ml/a"));
        // It has ended, and what it did was told after that.
        assert_eq!((b, other.seen), (&user("b"), want(0, S / 10, 0)));
        let there = occupancy(&[3]);
        let hidden = watch().on(&Answer { has_figures: false, ..answer(&there, &[], S) });
        assert_eq!(hidden[&user("b")].seen.unmetered_ns, S, "an instance tells of nobody's work");
    }

    #[test]
    fn of_a_gpu_that_was_silent_for_long_as_much_work_is_counted_as_time() {
        let there = occupancy(&[3]);
        let seen = watch().on(&answer(&there, &[(3, 5 * S)], 10 * S));
        let its = seen[&user("b")].seen;
        assert_eq!((its.held_ns, its.busy_ns), (3 * S, 15 * S / 8), "of the last eight seconds");
        let seen = watch().on(&Answer { busy_since_ns: 8 * S, ..answer(&there, &[(3, 8 * S)], S) });
        let its = seen[&user("b")].seen;
        assert_eq!((its.held_ns, its.busy_ns), (S, S), "for seven seconds before it was there and nobody saw it work");
    }

    #[test]
    fn beyond_those_that_are_kept_apart_all_are_one_for_the_rest_of_the_hour() {
        let many = |count: u32| -> BTreeMap<Unleased, Sighting> {
            let its = Sighting { seen: Seen { held_ns: S, peak_bytes: 7, ..Seen::default() }, ..Sighting::default() };
            (0..count).map(|number| (user(&format!("{number:04}")), its.clone())).collect()
        };
        let mut watch = BaselineWatch::default();
        let most = u32::try_from(USERS).unwrap();
        assert_eq!(watch.kept_apart(many(most - 1), HOUR_S).len(), USERS - 1);
        let all = watch.kept_apart(many(most + 3), HOUR_S + 60);
        let others = &all[&Unleased { kind: UnleasedKind::Others, ..Unleased::default() }];
        assert_eq!((all.len(), others.seen.held_ns, others.seen.peak_bytes), (USERS + 1, 3 * S, 21));
        assert_eq!(watch.kept_apart(many(most), 2 * HOUR_S).len(), USERS);
    }

    #[test]
    fn gpus_at_once_are_those_on_which_it_works_in_one_look() {
        let its = |busy_ns, unmetered_ns, held_ns| Sighting {
            seen: Seen { held_ns, busy_ns, unmetered_ns, ..Seen::default() },
            ..Sighting::default()
        };
        let gpu = |uuid: &str, a: Sighting, b: Option<Sighting>| GpuSighting {
            gpu: GpuUuid(uuid.into()),
            watched_ns: S,
            users: [(user("a"), a)].into_iter().chain(b.map(|b| (user("b"), b))).collect(),
        };
        let mut seen = [
            gpu("0", its(1, 0, S), Some(its(0, S, S))),
            gpu("1", its(1, 0, S), None),
            gpu("2", its(0, 0, S), Some(its(9, 0, 0))),
        ];
        note_at_once(&mut seen);
        let at_once = |gpu: usize, name: &str| seen[gpu].users.get(&user(name)).map(|its| its.seen.at_once);
        assert_eq!([0, 1, 2].map(|gpu| at_once(gpu, "a")), [Some(2), Some(2), Some(0)]);
        assert_eq!([0, 2].map(|gpu| at_once(gpu, "b")), [Some(1), Some(0)], "told late, of where it was before");
    }

    #[test]
    fn who_was_a_lease_s_stays_that_and_who_has_ended_is_known_for_a_while() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = HostPid(child.id());
        let (present, mut watch) = (BTreeSet::from([pid]), BaselineWatch::default());
        watch.learn(&present, S, |_| false);
        let user = watch.known[&pid].user.clone();
        assert!(user.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        watch.learn(&present, 2 * S, |_| false);
        let its = &watch.known[&pid];
        assert!(its.user == user && its.command != "?", "the device lists it still: {its:?}");
        let me = HostPid(std::process::id());
        let present = BTreeSet::from([me]);
        watch.learn(&present, 3 * S, |_| true);
        watch.learn(&present, 4 * S, |_| false);
        assert!(watch.known[&me].user.is_none(), "its lease has ended, and it not yet");
        watch.learn(&BTreeSet::new(), 11 * S, |_| false);
        assert!(watch.known.contains_key(&pid) && watch.known.contains_key(&me));
        watch.learn(&BTreeSet::new(), 14 * S, |_| false);
        assert!(watch.known.is_empty());
        // Another process that has its pid.
        let before = Known { start_ticks: Some(1), user: None, pod: None, command: String::new(), seen_ns: 14 * S };
        watch.known.insert(me, before);
        watch.learn(&present, 15 * S, |_| false);
        assert!(watch.known[&me].user.is_some());
    }
}
