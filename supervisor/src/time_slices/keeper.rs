//! Sets the time slices of `mode=timeslice` containers, and looks again once a second: new contexts begin with the driver's
//! own, and whoever has a channel group may set its slice to what he likes.

use super::channel_groups::ChannelGroups;
use super::control_file::{ControlFile, ResourceManager};
use crate::device::Kind;
use crate::lease::{Leases, about, members};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_policy::TenantId;
use gpool_policy::time_slices::{Tenant, time_slices_us};
use gpool_protocol::{EventKind, HostPid, Mechanism};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// Between two looks when nothing happens.
const PERIOD: Duration = Duration::from_secs(1);
/// A container that changes its own slices is told of so often at most.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// After so long everything is looked for anew.
const ANEW: Duration = Duration::from_secs(60);

/// A process of a container in time slices.
struct Member {
    groups: ChannelGroups,
    since: Instant,
    /// What was set last; none before the first time.
    set_us: Option<u64>,
}

/// Keeps them for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let mut keeper = Keeper::default();
    loop {
        keeper.look(leases);
        leases.time_slices.wait(PERIOD);
    }
}

/// A lease in time slices on a GPU that heeds them.
struct Served {
    tenant: TenantId,
    gpu: usize,
    share_permille: u16,
    pids: Vec<HostPid>,
}

#[derive(Default)]
struct Keeper {
    members: BTreeMap<ProcessName, Member>,
    told: BTreeMap<TenantId, Instant>,
}

/// What came of a look at one process.
#[derive(Default)]
struct Outcome {
    is_unset: bool,
    was_changed: bool,
}

impl Keeper {
    fn look(&mut self, leases: &Leases) {
        let served = served(leases);
        if served.is_empty() {
            *self = Self::default();
            return;
        }
        let Ok(own) = ControlFile::open(&leases.configuration().driver.device_dir) else { return };
        let Ok(newest) = own.newest_client() else { return };
        let mut processes: Vec<(usize, WatchedProcess, io::Result<u32>)> = Vec::new();
        for (index, lease) in served.iter().enumerate() {
            for process in lease.pids.iter().filter_map(|pid| WatchedProcess::open(*pid).ok()) {
                let found = self.find(&process, newest);
                processes.push((index, process, found));
            }
        }
        self.members.retain(|name, _| processes.iter().any(|(_, process, _)| process.name == *name));
        let groups = |index: usize| -> u32 {
            processes.iter().filter(|(its, ..)| *its == index).filter_map(|(.., found)| found.as_ref().ok()).sum()
        };
        let mut outcomes: BTreeMap<usize, (u32, bool)> = BTreeMap::new();
        for gpu in served.iter().map(|lease| lease.gpu).collect::<std::collections::BTreeSet<usize>>() {
            let here: Vec<usize> = (0..served.len()).filter(|index| served[*index].gpu == gpu).collect();
            // Who has nothing on the device takes no turn, and makes nobody's shorter.
            let there: Vec<usize> = here.into_iter().filter(|index| groups(*index) > 0).collect();
            let tenants: Vec<Tenant> = there
                .iter()
                .map(|index| Tenant { share_permille: served[*index].share_permille, groups: groups(*index) })
                .collect();
            for (index, us) in there.iter().zip(time_slices_us(&tenants)) {
                for (_, process, _) in processes.iter().filter(|(its, ..)| its == index) {
                    let outcome = self.set(process, us);
                    let (unset, changed) = outcomes.entry(*index).or_default();
                    *unset += u32::from(outcome.is_unset);
                    *changed |= outcome.was_changed;
                }
            }
        }
        // One into which nobody may look is not kept to its share either.
        for (index, _, found) in &processes {
            outcomes.entry(*index).or_default().0 += u32::from(found.is_err());
        }
        self.note(leases, &served, &outcomes);
    }

    /// Looks for the channel groups of a process; how many of them compute.
    fn find(&mut self, process: &WatchedProcess, newest: u32) -> io::Result<u32> {
        let files = ControlFile::of(process)?;
        let now = Instant::now();
        let new = || Member { groups: ChannelGroups::default(), since: now, set_us: None };
        let member = self.members.entry(process.name).or_insert_with(new);
        if now.duration_since(member.since) > ANEW {
            (member.groups, member.since) = (ChannelGroups::default(), now);
        }
        if !files.is_empty() {
            member.groups.look(&files, newest);
        }
        Ok(member.groups.computing())
    }

    /// Sees to it that all channel groups of a process have a slice of `us`.
    fn set(&mut self, process: &WatchedProcess, us: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let (Some(member), Ok(files)) = (self.members.get_mut(&process.name), ControlFile::of(process)) else {
            return Outcome { is_unset: !process.has_ended(), ..outcome };
        };
        let all: Vec<(u32, u32)> = member.groups.all().collect();
        for (client, group) in all {
            let is = files.iter().find_map(|file| Some((file, file.time_slice_us(client, group).ok()?)));
            let Some((file, is_us)) = is else {
                member.groups.forget(client, group);
                continue;
            };
            // A context that is new has what the driver gives, which is never what was set: that differs by process.
            outcome.was_changed |= member.set_us.is_some_and(|set_us| is_us > set_us.max(us) && is_us > DRIVERS_OWN_US);
            if is_us != us {
                outcome.is_unset |= file.set_time_slice_us(client, group, us).is_err();
            }
        }
        member.set_us = Some(us);
        outcome
    }

    fn note(&mut self, leases: &Leases, served: &[Served], outcomes: &BTreeMap<usize, (u32, bool)>) {
        let (mut book, now) = (leases.book(), Instant::now());
        for (index, lease) in served.iter().enumerate() {
            let (unset, was_changed) = outcomes.get(&index).copied().unwrap_or_default();
            let Some(its) = book.of_tenant(lease.tenant) else { continue };
            its.unset = unset;
            let is_told = self.told.get(&lease.tenant).is_some_and(|told| now.duration_since(*told) < TOLD_AGAIN);
            if was_changed && !is_told {
                self.told.insert(lease.tenant, now);
                let message = format!(
                    "{} has made its own time slices longer; they are set to its share again, at least once a second",
                    its.record.container_id.short()
                );
                leases.events.note(EventKind::TimeSlicesChanged, about(&its.record, None), message);
            }
        }
    }
}

/// The longest slice that libcuda gives a context by itself.
const DRIVERS_OWN_US: u64 = gpool_driver_abi::resource_manager::DEFAULT_TIME_SLICE_US;

/// The leases in time slices of GPUs that heed them, with their processes.
fn served(leases: &Leases) -> Vec<Served> {
    let gpus = leases.gpus();
    let heeds =
        |gpu: usize| gpus.get(gpu).is_some_and(|gpu| gpu.kind == Kind::Whole && leases.time_slices.keeps(&gpu.uuid));
    let mut found: Vec<Served> = {
        let book = leases.book();
        let in_slices = book.leases.values().filter(|lease| lease.record.mechanism == Mechanism::TimeSlice);
        in_slices
            .filter_map(|lease| {
                let gpu = lease.gpus().next().filter(|gpu| heeds(*gpu))?;
                let share_permille = lease.record.fraction_permille;
                Some(Served { tenant: lease.tenant, gpu, share_permille, pids: Vec::new() })
            })
            .collect()
    };
    if !found.is_empty() {
        let members = members(leases);
        for lease in &mut found {
            lease.pids = members.get(&lease.tenant).into_iter().flatten().copied().collect();
        }
    }
    found
}
