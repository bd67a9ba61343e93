//! The guard: who uses a GPU, seen from outside, once a second. It does not ask the container, and what it finds does not
//! rest on anything that a shim has written.
//!
//! A process uses a GPU when the driver lists it or when it has a device node of one open. In a leased container it must
//! have come through a shim that the container was started with; `policy` judges. That the shim is mapped does not
//! prove that the program's calls go through it, so one with a context must be registered too; what it holds and how long
//! it keeps the GPU busy is compared with its account beside.

mod brief;
mod builds;
mod charge;
mod consequence;
mod crowd;
mod early;
mod outside;
mod process;
mod reader;
mod rounds;
mod shown;
mod unregistered;

use crate::cgroup;
use crate::clock;
use crate::device::Occupancy;
use crate::lease::{Leases, Members};
use crate::procfs::{self, ProcessName, ProgramMark, WatchedProcess};
use crate::revocation;
use brief::Brief;
use builds::Builds;
use charge::{Charge, charges};
use crowd::{Crowds, and_more};
pub use early::EarlyLooks;
use gpool_configuration::BypassAction;
use gpool_policy::TenantId;
use gpool_policy::guard::{Bypass, CapWatch, Evidence, Findings, Mapped, cap_tolerance_bytes, judge};
use gpool_protocol::{EventKind, GuardedProcess, HostPid, MappedLibrary, format_bytes};
use outside::Outside;
pub use process::{Descriptors, descriptors};
use process::{Library, Look, Maps};
use rounds::{LookTime, Rounds, Turn};
pub use shown::with_charges;
use shown::{listed_bytes, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use unregistered::Unregistered;

/// Remembers from one look to the next.
pub struct Guard {
    /// Device nodes of GPUs, by major and minor number.
    devices: BTreeSet<(u32, u32)>,
    /// Which builds mapped files are.
    builds: Builds,
    /// What processes have mapped.
    maps: Maps,
    /// Processes that came through a shim and registered.
    proven: BTreeMap<HostPid, (Option<ProgramMark>, GuardedProcess)>,
    /// Others that have mapped one.
    unregistered: Unregistered,
    bypassing: Findings<(TenantId, ProcessName)>,
    /// How many of them have been told of.
    crowds: Crowds,
    /// Those of the last look.
    found: BTreeMap<(TenantId, ProcessName), GuardedProcess>,
    rounds: Rounds,
    /// Those that may have ended before the next look.
    brief: Brief,
    /// All processes of leases at the last look.
    known: BTreeSet<HostPid>,
    outside: Outside,
    caps: BTreeMap<(TenantId, usize), CapWatch>,
    /// Containers that were frozen for what they did.
    frozen: BTreeSet<TenantId>,
    /// What followed at the last look.
    actions: BTreeMap<TenantId, BypassAction>,
    /// Since when processes have been seen to have a context, and when they were started.
    contexts: BTreeMap<HostPid, (Instant, Option<u64>)>,
    /// Where looking after revoked leases has come to.
    upkeep: revocation::Upkeep,
    /// Whether there has been a look: leases that are there at the first one were taken over.
    has_looked: bool,
}

impl Guard {
    /// For the GPUs with these device nodes.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(devices: BTreeSet<(u32, u32)>) -> std::io::Result<Self> {
        Ok(Self {
            devices,
            builds: Builds::new()?,
            maps: Maps::new("/proc".into())?,
            proven: BTreeMap::new(),
            unregistered: Unregistered::default(),
            bypassing: Findings::default(),
            crowds: Crowds::default(),
            found: BTreeMap::new(),
            rounds: Rounds::default(),
            brief: Brief::default(),
            known: BTreeSet::new(),
            outside: Outside::default(),
            caps: BTreeMap::new(),
            frozen: BTreeSet::new(),
            actions: BTreeMap::new(),
            contexts: BTreeMap::new(),
            upkeep: revocation::Upkeep::default(),
            has_looked: false,
        })
    }

    /// Looks at every process that uses a GPU; `occupancies` is what NVML says of each GPU, in order, none where it says
    /// nothing.
    pub fn look(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>]) {
        revocation::keep_up(leases, &mut self.upkeep);
        // A GPU may come while it runs, and its node with it.
        self.devices.extend(leases.files.gpu_devices(&leases.gpus()));
        let charges = charges(leases);
        self.builds.begin(charges.values().flat_map(|charge| &charge.shims));
        self.maps.begin();
        self.unregistered.begin(Instant::now());
        let with_context: BTreeSet<HostPid> =
            occupancies.iter().flatten().flat_map(|gpu| gpu.present.iter().copied()).collect();
        self.note_contexts(with_context.iter().map(|pid| (*pid, procfs::start_ticks(*pid))), Instant::now());
        self.tell_again(&charges);
        let lists = |pid| listed_bytes(occupancies, pid);
        self.look_at_members(leases, &charges, members, &with_context, lists);
        self.known = members.values().flatten().copied().collect();
        self.look_at_caps(leases, &charges, members, occupancies);
        let leased: BTreeSet<HostPid> = members.values().flatten().copied().collect();
        self.outside.look(leases, with_context.difference(&leased).copied(), lists);
    }

    /// These have a context at `now`, by pid and start time.
    fn note_contexts(&mut self, with_context: impl Iterator<Item = (HostPid, Option<u64>)>, now: Instant) {
        let since =
            |pid, ticks| self.contexts.get(&pid).filter(|(_, its)| *its == ticks).map_or(now, |(since, _)| *since);
        self.contexts = with_context.map(|(pid, ticks)| (pid, (since(pid, ticks), ticks))).collect();
    }

    /// Where something else follows than at the last look, since the configuration or the lease's class has changed: whoever
    /// is found and has been told may be the reason for that.
    fn tell_again(&mut self, charges: &BTreeMap<TenantId, Charge>) {
        let actions = charges.iter().map(|(tenant, charge)| (*tenant, charge.action)).collect();
        let before = std::mem::replace(&mut self.actions, actions);
        let is_another = |tenant: &TenantId| before.get(tenant).is_some_and(|action| *action != charges[tenant].action);
        let changed: BTreeSet<TenantId> = charges.keys().copied().filter(is_another).collect();
        self.bypassing.tell_again(|(tenant, _)| changed.contains(tenant));
        self.crowds.retain(|tenant| !changed.contains(&tenant) && charges.contains_key(&tenant));
        self.frozen.retain(|tenant| !changed.contains(tenant));
        let watches = self.caps.iter_mut().filter(|((tenant, _), _)| changed.contains(tenant));
        watches.for_each(|(_, watch)| watch.tell_again());
    }

    fn look_at_members(
        &mut self,
        leases: &Leases,
        charges: &BTreeMap<TenantId, Charge>,
        members: &Members,
        with_context: &BTreeSet<HostPid>,
        lists: impl Fn(HostPid) -> Option<u64>,
    ) {
        let (mut seen, mut found, mut passed_over) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let before = std::mem::take(&mut self.found);
        let again: BTreeSet<HostPid> = before.keys().map(|(_, name)| name.pid).collect();
        let with_shims = charges.iter().filter(|(tenant, charge)| charge.has_shims && members.contains_key(tenant));
        let with_shims: BTreeSet<TenantId> = with_shims.map(|(tenant, _)| *tenant).collect();
        let mut time = LookTime::of(with_shims.len());
        for tenant in self.rounds.begin(&with_shims) {
            let (charge, its) = (&charges[&tenant], &members[&tenant]);
            let turn = |pid| match pid {
                _ if with_context.contains(&pid) || self.proven.contains_key(&pid) => Turn::Always,
                _ if again.contains(&pid) => Turn::Again,
                _ => Turn::Usual,
            };
            let (order, mut budget, mut stopped_at) = (self.rounds.order(tenant, its, turn), time.part(), None);
            for (pid, turn) in order {
                if budget.is_spent_before(turn) {
                    // The next one in turn comes in any case.
                    stopped_at = Some((pid, turn));
                    if turn == Turn::Usual {
                        break;
                    }
                    continue;
                }
                let Some((process, bypass)) = self.examine(charge, pid, with_context.contains(&pid)) else { continue };
                if bypass.is_some()
                    && let Ok(watched) = WatchedProcess::open(pid)
                {
                    found.insert((tenant, watched.name), process.clone());
                }
                seen.push(process);
            }
            time.spend(budget.spent());
            match stopped_at {
                None => self.rounds.end(tenant),
                Some(_) if budget.is_nothing() => {
                    passed_over.insert(tenant);
                    if self.rounds.pass_over(tenant) {
                        log!("there are more processes in all containers than are looked at in a second: not each is");
                    }
                }
                Some(at) if self.rounds.stop(tenant, at) => {
                    let short = charge.container_id.short();
                    log!(
                        "{short} has more processes, or more open in them, than are looked at in a second: not each is"
                    );
                }
                Some(_) => {}
            }
        }
        for (tenant, charge) in charges {
            let its = members.get(tenant).into_iter().flatten().filter(|pid| with_context.contains(pid));
            for process in self.past_server(leases, charge, its) {
                if let Ok(watched) = WatchedProcess::open(process.pid) {
                    found.insert((*tenant, watched.name), process.clone());
                }
                seen.push(process);
            }
        }
        let through: BTreeSet<HostPid> =
            seen.iter().filter(|process| process.finding.is_none()).map(|process| process.pid).collect();
        self.proven.retain(|pid, _| through.contains(pid));
        // Who was found in a lease that had no turn is taken for what it was.
        let kept: BTreeMap<_, _> = before
            .into_iter()
            .filter(|((tenant, name), _)| {
                let is_passed_over = passed_over.contains(tenant) && !with_context.contains(&name.pid);
                is_passed_over && procfs::start_ticks(name.pid) == Some(name.start_ticks)
            })
            .collect();
        let told = self.bypassing.look_but(kept.keys().copied(), found.keys().copied());
        seen.extend(kept.values().cloned());
        found.extend(kept);
        self.follow(leases, charges, &found, &told);
        self.note_bypassing(leases, &found);
        *leases.guarded.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(shown(seen, lists));
        for key in told {
            if self.crowds.take(key.0, &found[&key]) {
                self.tell(leases, charges, key.0, (&found[&key], 0));
            }
        }
        let acts = |tenant: TenantId| charges[&tenant].has_shims && charges[&tenant].action != BypassAction::Event;
        for (tenant, process, more) in self.crowds.end(clock::now_ns(), acts) {
            self.tell(leases, charges, tenant, (&process, more));
        }
        // What was frozen for this and thawed by somebody is frozen again while the cause lasts.
        self.frozen.retain(|tenant| found.keys().any(|(its, _)| its == tenant));
        for tenant in self.frozen.clone() {
            let is_frozen = charges[&tenant].cgroup.as_deref().is_none_or(cgroup::is_frozen);
            if let Some((_, process)) = found.iter().find(|((its, _), _)| *its == tenant && !is_frozen) {
                self.tell(leases, charges, tenant, (process, 0));
            }
        }
        self.found = found;
    }

    /// What is to be seen of a process that uses a GPU; none of any other.
    fn examine(
        &mut self,
        charge: &Charge,
        pid: HostPid,
        has_context: bool,
    ) -> Option<(GuardedProcess, Option<Bypass>)> {
        let program = ProgramMark::of(pid);
        // A program that it has executed since has neither registered nor mapped the shim by that.
        let is_same = |then: Option<ProgramMark>| !ProgramMark::has_changed(then, program);
        let is_registered = charge.registered.iter().any(|(its, then)| *its == pid && is_same(*then));
        // Held by pidfd since it registered, so it is the same process; what it has mapped since does not unmap the shim.
        // It may have gone there at any time since.
        let has_other_clock = procfs::has_other_clock(pid);
        if let Some((then, known)) = self.proven.get(&pid)
            && is_registered
            && !has_other_clock
            && is_same(*then)
            && known.lease_id == charge.lease_id
        {
            return Some((known.clone(), None));
        }
        if !has_context
            && !is_registered
            && let Some(known) = self.unregistered.get(pid, program, &charge.lease_id)
        {
            return Some((known, None));
        }
        // Who has a context uses the device, whatever else it has open.
        let descriptors = if has_context { Descriptors::NotOpen } else { descriptors(pid, &self.devices) };
        if !has_context && descriptors == Descriptors::NotOpen {
            return None;
        }
        // Nothing can be said of what cannot be read.
        let look = self.maps.libraries(pid, |file, path| self.builds.of(file, path))?;
        let (cuda, nvml) = (charge.mapped(&look, true), charge.mapped(&look, false));
        // A server has a hundred thousand sockets and no driver's library; who has both is judged as if it had the device.
        let holds_device = match descriptors {
            Descriptors::Open => true,
            Descriptors::NotOpen => false,
            Descriptors::TooMany => look.is_cut || !look.libraries.is_empty(),
        };
        if !has_context && !holds_device {
            return None;
        }
        let evidence = Evidence { has_context, holds_device, cuda, nvml, is_registered, has_other_clock };
        // A lease of a supervisor that did not write its shims down: who has registered has come through one of them.
        let is_unproven = charge.shims.is_empty() && is_registered;
        let bypass = judge(&evidence).filter(|_| !is_unproven);
        let view = |library: &Library| MappedLibrary {
            path: library.path.clone(),
            build_id: library.build_id.clone(),
            is_shim: charge.is_shim(library),
        };
        let process = GuardedProcess {
            lease_id: charge.lease_id.clone(),
            container_id: charge.container_id.clone(),
            pid,
            name: procfs::comm(pid),
            is_registered,
            libraries: look.libraries.iter().map(view).collect(),
            finding: bypass.map(|bypass| in_words(bypass, &look)),
            memory_charged_bytes: None,
            memory_nvml_bytes: None,
        };
        // What it had open and what it has mapped may be of two programs, one executed after the other.
        if ProgramMark::has_changed(program, ProgramMark::of(pid)) {
            return None;
        }
        if evidence.cuda == Mapped::Shim && is_registered && !has_other_clock {
            self.proven.insert(pid, (program, process.clone()));
        } else if evidence.cuda == Mapped::Shim && !has_context {
            self.unregistered.note(&process, program, Instant::now());
        }
        Some((process, bypass))
    }

    fn note_bypassing(&self, leases: &Leases, found: &BTreeMap<(TenantId, ProcessName), GuardedProcess>) {
        let now_ns = clock::now_ns();
        for lease in leases.book().leases.values_mut() {
            let count = found.keys().filter(|(tenant, _)| *tenant == lease.tenant).count() as u32;
            lease.bypassing = count.max(self.brief.is_too_much(lease.tenant, now_ns).into());
        }
    }

    /// Tells of a process, and of how many more there are like it.
    fn tell(
        &mut self,
        leases: &Leases,
        charges: &BTreeMap<TenantId, Charge>,
        tenant: TenantId,
        (process, more): (&GuardedProcess, u64),
    ) {
        let sentence = match charges[&tenant].mps_group {
            None => bypass_sentence(process),
            Some(_) => format!(
                "{} uses a GPU past its MPS server in process {} ({}): neither its threads nor its memory are limited",
                process.container_id.short(),
                process.pid,
                process.name,
            ),
        };
        consequence::act_on(leases, tenant, EventKind::Bypass, &(sentence + &and_more(more)));
        self.note_freeze(tenant, &charges[&tenant]);
    }

    fn note_freeze(&mut self, tenant: TenantId, charge: &Charge) {
        if charge.action == BypassAction::Freeze && charge.cgroup.as_deref().is_some_and(cgroup::is_frozen) {
            self.frozen.insert(tenant);
        }
    }

    /// Those of a lease's processes, all of which have a context, that are not clients of its MPS server.
    fn past_server<'a>(
        &self,
        leases: &Leases,
        charge: &Charge,
        with_context: impl Iterator<Item = &'a HostPid>,
    ) -> Vec<GuardedProcess> {
        let Some(group) = &charge.mps_group else { return Vec::new() };
        let Some(clients) = leases.groups.clients_of(group) else { return Vec::new() };
        let is_past =
            |pid: &&HostPid| self.contexts.get(pid).is_some_and(|(since, _)| clients.leave_out(**pid, *since));
        let seen = |pid: &HostPid| GuardedProcess {
            lease_id: charge.lease_id.clone(),
            container_id: charge.container_id.clone(),
            pid: *pid,
            name: procfs::comm(*pid),
            is_registered: false,
            libraries: Vec::new(),
            finding: Some("it has a context of its own beside its MPS server".to_owned()),
            memory_charged_bytes: None,
            memory_nvml_bytes: None,
        };
        with_context.filter(is_past).map(seen).collect()
    }

    /// What the device says that each lease holds, beside its cap.
    fn look_at_caps(
        &mut self,
        leases: &Leases,
        charges: &BTreeMap<TenantId, Charge>,
        members: &Members,
        occupancies: &[Option<Occupancy>],
    ) {
        self.caps.retain(|(tenant, _), _| charges.contains_key(tenant));
        for (tenant, charge) in charges.iter().filter(|(_, charge)| charge.has_shims) {
            for gpu in &charge.gpus {
                let Some(Some(occupancy)) = occupancies.get(*gpu) else { continue };
                let its = members.get(tenant).into_iter().flatten().filter_map(|pid| occupancy.bytes_of(*pid));
                let (processes, held_bytes) = its.fold((0, 0u64), |(n, sum), bytes| (n + 1, sum.saturating_add(bytes)));
                let tolerance_bytes = cap_tolerance_bytes(charge.cap_bytes, charge.context_bytes, processes);
                let fresh = match self.has_looked {
                    true => CapWatch::default(),
                    false => CapWatch::after_a_gap(charge.highest_cap_bytes),
                };
                let watch = self.caps.entry((*tenant, *gpu)).or_insert(fresh);
                if let Some(excess_bytes) = watch.look(held_bytes, charge.cap_bytes, tolerance_bytes) {
                    let sentence = format!(
                        "{} holds {} of {}, {} more than it may, by NVML's figures",
                        charge.container_id.short(),
                        format_bytes(held_bytes),
                        leases.gpus()[*gpu].uuid,
                        format_bytes(excess_bytes),
                    );
                    consequence::act_on(leases, *tenant, EventKind::OverCap, &sentence);
                }
            }
        }
        // Until NVML has spoken once, what leases held before is not known.
        self.has_looked |= occupancies.iter().any(Option::is_some);
    }
}

fn in_words(bypass: Bypass, look: &Look) -> String {
    match bypass {
        Bypass::NoShim if look.is_unread => {
            "it has made its context without the shim, and what it has mapped cannot be \
                                             read now"
                .to_owned()
        }
        Bypass::NoShim if look.is_cut => "it has more mapped than is read, and the shim is not in that".to_owned(),
        Bypass::NoShim => "it has not mapped the shim of its container".to_owned(),
        Bypass::NotRegistered => "it has mapped the shim, and made its context without it".to_owned(),
        Bypass::OtherClock => "it is in a time namespace of its own, where the shim cannot pace it".to_owned(),
    }
}

fn bypass_sentence(process: &GuardedProcess) -> String {
    // Behind a shim of NVML there is the driver's, which is no news.
    let is_cuda = |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda"));
    let mapped = process.libraries.iter().filter(|library| !library.is_shim);
    let paths: Vec<&str> = mapped.map(|library| library.path.as_str()).filter(is_cuda).collect();
    let driver = if paths.is_empty() { "no library named as libcuda is".to_owned() } else { paths.join(", ") };
    format!(
        "{} uses a GPU past the shims in process {} ({}): {}; it has mapped {driver}",
        process.container_id.short(),
        process.pid,
        process.name,
        process.finding.as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
