//! Sets the time slices of `mode=timeslice` containers, and looks again once a second: new contexts begin with the driver's
//! own, and whoever has a channel group may set its slice to what he likes.

use super::channel_groups::ChannelGroups;
use super::control_file::{ControlFile, ResourceManager};
use crate::device::Kind;
use crate::lease::{Leases, about, members};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_driver_abi::resource_manager::{CLASS_CHANNEL_GROUP, DEFAULT_TIME_SLICE_US};
use gpool_policy::TenantId;
use gpool_policy::time_slices::{Tenant, are_kept, time_slices_us};
use gpool_protocol::{EventKind, HostPid, Mechanism};
use rustix::process::ForeignRawFd;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks when nothing happens.
const PERIOD: Duration = Duration::from_secs(1);
/// A container that changes its own slices is told of so often at most.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// After so long everything is looked for anew.
const ANEW: Duration = Duration::from_secs(60);
/// A file that a process has opened may get its client so much later.
const UNTIL_CLIENT: Duration = Duration::from_secs(10);

/// A process of a container in time slices.
struct Member {
    groups: ChannelGroups,
    /// Its descriptors of the driver's control file.
    files: BTreeSet<ForeignRawFd>,
    /// When those changed last.
    changed: Instant,
    /// When all was looked for anew.
    anew: Instant,
    /// What was set last; none before the first time.
    set_us: Option<u64>,
    /// Looks in a row in which the device listed it and nothing that computes was found: one alone is a context that is being
    /// made.
    missed: u32,
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
    processes: Vec<WatchedProcess>,
    /// Their channel groups that compute; of processes that share files, each once.
    computing: BTreeSet<(u32, u32)>,
    /// Processes that could not be looked into, or of which nothing was found though the device lists them.
    unset: u32,
    was_changed: bool,
}

#[derive(Default)]
struct Keeper {
    members: BTreeMap<ProcessName, Member>,
    told: BTreeMap<TenantId, Instant>,
}

/// The newest client of the host, made when somebody wants to know.
struct Newest {
    device_dir: PathBuf,
    known: Option<u32>,
}

impl Newest {
    fn get(&mut self) -> io::Result<u32> {
        if self.known.is_none() {
            self.known = Some(ControlFile::open(&self.device_dir)?.newest_client()?);
        }
        self.known.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Keeper {
    fn look(&mut self, leases: &Leases) {
        let mut served = served(leases);
        let here: BTreeSet<ProcessName> =
            served.iter().flat_map(|lease| &lease.processes).map(|process| process.name).collect();
        self.members.retain(|name, _| here.contains(name));
        let mut newest = Newest { device_dir: leases.configuration().driver.device_dir.clone(), known: None };
        for lease in &mut served {
            for process in &lease.processes {
                let is_listed = leases.occupants.lists(process.name.pid);
                match self.find(process, is_listed, &mut newest) {
                    Ok(computing) if computing.is_empty() => {
                        lease.unset += u32::from(self.is_missed(process, is_listed))
                    }
                    Ok(computing) => lease.computing.extend(computing),
                    Err(_) => lease.unset += u32::from(!process.has_ended()),
                }
            }
        }
        for gpu in served.iter().map(|lease| lease.gpu).collect::<BTreeSet<usize>>() {
            self.set_on(gpu, &mut served);
        }
        self.note(leases, &served);
    }

    /// Whether a process of which nothing was found that computes should have had something.
    fn is_missed(&mut self, process: &WatchedProcess, is_listed: bool) -> bool {
        self.members.get_mut(&process.name).is_some_and(|member| {
            member.missed = if is_listed { member.missed + 1 } else { 0 };
            member.missed > 1
        })
    }

    /// Looks for the channel groups of a process, which the device lists or not; those that compute.
    fn find(&mut self, process: &WatchedProcess, is_listed: bool, newest: &mut Newest) -> io::Result<Vec<(u32, u32)>> {
        let (numbers, now) = (ControlFile::numbers_of(process)?, Instant::now());
        let member = self.members.entry(process.name).or_insert_with(|| Member {
            groups: ChannelGroups::default(),
            files: BTreeSet::new(),
            changed: now,
            anew: now,
            set_us: None,
            missed: 0,
        });
        if member.files != numbers {
            (member.files, member.changed) = (numbers, now);
        }
        if member.files.is_empty() {
            return Ok(Vec::new());
        }
        let is_anew = now.duration_since(member.anew) > ANEW;
        if is_anew {
            member.groups.look_anew(is_listed);
            member.anew = now;
        }
        let files = ControlFile::borrow(process, &member.files)?;
        if is_anew || member.groups.is_searching() || now.duration_since(member.changed) < UNTIL_CLIENT {
            member.groups.look_for_clients(&files, newest.get()?);
        }
        member.groups.look(&files);
        let computing: Vec<(u32, u32)> = member.groups.computing().collect();
        if !computing.is_empty() {
            member.missed = 0;
        }
        if member.groups.is_too_many || member.groups.is_searching() && !computing.is_empty() {
            return Err(io::Error::other("not all clients of the driver of a process are known"));
        }
        Ok(computing)
    }

    /// Sets the slices of all leases of one GPU.
    fn set_on(&mut self, gpu: usize, served: &mut [Served]) {
        // Who has nothing on the device takes no turn, and makes nobody's shorter.
        let mut there: Vec<&mut Served> =
            served.iter_mut().filter(|lease| lease.gpu == gpu && !lease.computing.is_empty()).collect();
        let tenant =
            |lease: &&mut Served| Tenant { share_permille: lease.share_permille, groups: lease.computing.len() as u32 };
        let tenants: Vec<Tenant> = there.iter().map(tenant).collect();
        // Where nobody was promised anything the driver's own slices are as good, and shorter.
        let is_promised = tenants.iter().any(|tenant| tenant.share_permille > 0);
        let slices_us = time_slices_us(&tenants);
        let are_kept = are_kept(&tenants, &slices_us);
        for (lease, us) in there.iter_mut().zip(slices_us) {
            lease.unset += u32::from(!are_kept);
            let Served { processes, unset, was_changed, .. } = &mut **lease;
            for process in processes {
                let (is_unset, is_changed) =
                    self.set(process, if is_promised { us } else { DEFAULT_TIME_SLICE_US }, is_promised);
                *unset += u32::from(is_unset);
                *was_changed |= is_changed;
            }
        }
    }

    /// Sees to it that all channel groups of a process have a slice of `us`, and, where that is no promise, only if they were
    /// set before. Whether that could not be done, and whether somebody else has made them longer.
    fn set(&mut self, process: &WatchedProcess, us: u64, is_promised: bool) -> (bool, bool) {
        let Some(member) = self.members.get_mut(&process.name) else { return (false, false) };
        if !is_promised && member.set_us.is_none() {
            return (false, false);
        }
        let Ok(files) = ControlFile::borrow(process, &member.files) else { return (!process.has_ended(), false) };
        let (mut is_unset, mut is_changed) = (false, false);
        let all: Vec<(u32, u32)> = member.groups.all().collect();
        for (client, group) in all {
            let is_it = |file: &&ControlFile| file.class(client, group) == Some(CLASS_CHANNEL_GROUP);
            let Some(file) = files.iter().find(is_it) else {
                member.groups.forget(client, group);
                continue;
            };
            // Where the driver does not say, it is set.
            let is_us = file.time_slice_us(client, group).ok();
            // A context that is new has the driver's own slice.
            let longest_us = member.set_us.map(|set_us| set_us.max(us).max(DEFAULT_TIME_SLICE_US));
            is_changed |= is_us.zip(longest_us).is_some_and(|(is_us, longest_us)| is_us > longest_us);
            if is_us != Some(us) {
                is_unset |= file.set_time_slice_us(client, group, us).is_err();
            }
        }
        member.set_us = is_promised.then_some(us);
        (is_unset && !process.has_ended(), is_changed)
    }

    fn note(&mut self, leases: &Leases, served: &[Served]) {
        let (mut book, now) = (leases.book(), Instant::now());
        // They go round together: where one's slices are not what they should be, nobody's share is kept.
        let spoilt: BTreeSet<usize> =
            served.iter().filter(|lease| lease.unset > 0 || lease.was_changed).map(|lease| lease.gpu).collect();
        for lease in served {
            let Some(its) = book.of_tenant(lease.tenant) else { continue };
            its.kept_until = (!spoilt.contains(&lease.gpu)).then(|| now + 3 * PERIOD);
            let is_told = self.told.get(&lease.tenant).is_some_and(|told| now.duration_since(*told) < TOLD_AGAIN);
            if lease.was_changed && !is_told {
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

/// The leases in time slices of GPUs that heed them, with their processes.
fn served(leases: &Leases) -> Vec<Served> {
    let gpus = leases.gpus();
    let heeds =
        |gpu: usize| gpus.get(gpu).is_some_and(|gpu| gpu.kind == Kind::Whole && leases.time_slices.keeps(&gpu.uuid));
    let in_slices: Vec<(TenantId, usize, u16)> = {
        let book = leases.book();
        let all = book.leases.values().filter(|lease| lease.record.mechanism == Mechanism::TimeSlice);
        all.filter_map(|lease| {
            let gpu = lease.gpus().next().filter(|gpu| heeds(*gpu))?;
            Some((lease.tenant, gpu, lease.record.fraction_permille))
        })
        .collect()
    };
    if in_slices.is_empty() {
        return Vec::new();
    }
    let members = members(leases, &BTreeSet::new(), usize::MAX);
    let processes = |tenant: &TenantId| -> Vec<WatchedProcess> {
        let pids = members.get(tenant).into_iter().flatten();
        pids.filter_map(|pid: &HostPid| WatchedProcess::open(*pid).ok()).collect()
    };
    let found = |(tenant, gpu, share_permille)| Served {
        tenant,
        gpu,
        share_permille,
        processes: processes(&tenant),
        computing: BTreeSet::new(),
        unset: 0,
        was_changed: false,
    };
    in_slices.into_iter().map(found).collect()
}
