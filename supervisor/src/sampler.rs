//! Once a second: what NVML says of memory, what the scheduler has charged, and which allocations were refused. In between,
//! where a GPU's device was opened, who has opened it.
//!
//! NVML is asked here, by who divides GPUs, by what reads their health and by what keeps the driver's limits. A call may block for
//! long on a sick GPU: each board is asked on a thread that is waited for a while, and not again before it has answered.

use crate::auditor::Auditor;
use crate::baseline::BaselineWatch;
use crate::context_cost::{Claim, Claims, ContextCosts};
use crate::device::{Gpu, Kind, NvmlInventory, Occupancy, ProcessUse};
use crate::driver_watch::DriverWatch;
use crate::energy::Energy;
use crate::faults::Faults;
use crate::foreign;
use crate::gatekeeper::Statistics;
use crate::gpu_failures;
use crate::guard::{Descriptors, EarlyLooks, Guard, descriptors};
use crate::idle_leases::IdleLeases;
use crate::late_boards::LateBoards;
use crate::latencies;
use crate::lease::{GROUPS, Holding, Leases, Members, Record, members, members_of};
use crate::mig;
use crate::occupants::Woken;
use crate::preemptions::Preemptions;
use crate::procfs;
use crate::refusals;
use crate::region::Report;
use crate::run_times;
use crate::silence;
use crate::sites::LinkWatch;
use crate::uncounted;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::{HostPid, LeaseId};
use gpool_shared_region::SLOTS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Samples for ever; runs on its own thread.
pub fn sample(
    leases: &Arc<Leases>,
    (mut late_boards, mut links): (LateBoards, LinkWatch),
    mut costs: ContextCosts,
    mut guard: Guard,
) {
    let inventory = &leases.inventory;
    let mut auditor = Auditor::new(leases.roster.limit());
    let (mut driver, mut idle) = (DriverWatch::default(), IdleLeases::default());
    let (mut preemptions, mut energy) = (Preemptions::default(), Energy::default());
    let (mut baseline, mut early) = (BaselineWatch::default(), EarlyLooks::default());
    let (mut unseen, mut unwritten) = (Faults::default(), Faults::default());
    loop {
        leases.progress.sampler.note();
        if !inventory.boards().is_empty() {
            mig::look(leases, &mut unseen);
        }
        late_boards.look(leases);
        driver.look(leases);
        let occupancies = note_memory(leases, inventory, &mut costs);
        leases.look_for_outsiders();
        links.look(leases);
        let with_context = occupancies.iter().flatten().flat_map(|gpu| gpu.present.iter().copied()).collect();
        let members = members(leases, &with_context, GROUPS);
        guard.look(leases, &members, &occupancies);
        note_seen_memory(leases, &members, &occupancies);
        let statistics = leases.gatekeeper.statistics();
        note_charges(leases, &statistics, &mut unwritten);
        latencies::look(leases, &statistics);
        energy.look(leases, &members, &occupancies);
        auditor.look(leases, &members, |gpu, since_us| process_use(leases, &occupancies, gpu, since_us), &statistics);
        baseline.look(leases, &members, &occupancies, &auditor);
        refusals::tell(leases);
        gpu_failures::look(leases);
        idle.look(leases, |gpu| auditor.has_figures(gpu));
        preemptions.look(leases);
        run_times::look(leases);
        auditor.note_past_the_shims(guard.held());
        let next = Instant::now() + PERIOD;
        while let Some(why) = wait(leases, next, (&guard, &early)) {
            if why.is_asked {
                note_memory(leases, inventory, &mut costs);
            } else if !why.letting_go.is_empty() {
                note_memory_of(leases, inventory, &mut costs, |gpu| why.letting_go.contains(&gpu));
            }
            let is_late = why == Woken::LATE;
            if !why.opened_by.is_empty() {
                early.begin(Instant::now(), why.opened_by);
            }
            if is_late {
                look_between(leases, (&mut guard, &mut early), &mut costs, &mut auditor);
            }
        }
    }
}

/// Waits for the next look at everything, due at `next`; why, if something else is to be done before.
fn wait(leases: &Leases, next: Instant, (guard, early): (&Guard, &EarlyLooks)) -> Option<Woken> {
    let due = [early.due(), guard.next_end()].into_iter().flatten().fold(next, Instant::min);
    let why = leases.occupants.wait(due);
    (why != Woken::LATE || Instant::now() < next).then_some(why)
}

/// Looks for programs that may be gone by the next look at everything.
fn look_between(
    leases: &Leases,
    (guard, early): (&mut Guard, &mut EarlyLooks),
    costs: &mut ContextCosts,
    auditor: &mut Auditor,
) {
    let begun = Instant::now();
    if early.due().is_none_or(|due| due > begun) {
        return guard.look_at_ends(leases);
    }
    // Whoever has opened a device may be on the GPUs of its lease and on no other.
    let gpus: BTreeSet<usize> = {
        let book = leases.book();
        let openers = book.leases.values().filter(|lease| early.openers().contains(&lease.tenant));
        openers.flat_map(|lease| lease.gpus()).collect()
    };
    let occupancies = note_memory_of(leases, &leases.inventory, costs, |gpu| gpus.contains(&gpu));
    let with_context = occupancies.iter().flatten().flat_map(|gpu| gpu.present.iter().copied()).collect();
    guard.look_early(leases, &members_of(leases, early.openers(), &with_context, GROUPS), &occupancies);
    auditor.note_past_the_shims(guard.held());
    early.end(begun, Instant::now());
}

/// Asks NVML once who holds what on each GPU; none of one that does not answer.
pub fn note_memory(
    leases: &Leases,
    inventory: &Arc<NvmlInventory>,
    costs: &mut ContextCosts,
) -> Vec<Option<Occupancy>> {
    let begun = Instant::now();
    let occupancies = note_memory_of(leases, inventory, costs, |_| true);
    leases.occupants.note_looked(begun);
    occupancies
}

/// The same of those GPUs alone that are wanted, which is no look at all of them.
fn note_memory_of(
    leases: &Leases,
    inventory: &Arc<NvmlInventory>,
    costs: &mut ContextCosts,
    is_wanted: impl Fn(usize) -> bool,
) -> Vec<Option<Occupancy>> {
    let gpus = leases.gpus();
    let mut occupancies = vec![None; gpus.len()];
    // A divided board shows what its instances hold, each of which is asked by itself.
    let held_by = |gpu: &Gpu| matches!(gpu.kind, Kind::Whole | Kind::Instance(_));
    for (index, gpu) in gpus.iter().enumerate().filter(|(index, _)| is_wanted(*index)) {
        if !held_by(gpu) {
            leases.compute_modes.note(index, ComputeMode::Default);
            continue;
        }
        let (before, since) = (claims(leases, index), Instant::now());
        let asked = gpu.clone();
        match inventory.ask(gpu.index, move |its| its.occupancy(&asked)) {
            Ok(mut occupancy) => {
                let after = claims(leases, index);
                let listed = told_apart(leases, index, &mut occupancy);
                costs.attribute(leases, index, &before, &mut occupancy);
                costs.learn(leases, index, &before, &after, &occupancy);
                uncounted::note(leases, index, &before, &after, &occupancy);
                foreign::note(leases, index, &occupancy, &listed);
                leases.occupants.note(index, since, listed);
                leases.compute_modes.note(index, occupancy.compute_mode);
                occupancies[index] = Some(occupancy);
                silence::note(leases, (index, gpu), since, None);
            }
            Err(error) => silence::note(leases, (index, gpu), since, Some(&error)),
        }
    }
    occupancies
}

/// With which start times NVML lists processes on a GPU: none of one that has ended, also if its pid has come to another one
/// that uses no GPU.
fn told_apart(leases: &Leases, gpu: usize, occupancy: &mut Occupancy) -> BTreeMap<HostPid, Option<u64>> {
    let listed: BTreeMap<_, _> = occupancy.present.iter().map(|pid| (*pid, procfs::start_ticks(*pid))).collect();
    let inherited = leases.occupants.inherited(gpu, &listed);
    if inherited.is_empty() {
        return listed;
    }
    let devices = leases.files.gpu_devices(&leases.gpus());
    occupancy.note_inherited(inherited, |pid| descriptors(pid, &devices) != Descriptors::NotOpen);
    listed.into_iter().map(|(pid, ticks)| (pid, ticks.filter(|_| occupancy.present.contains(&pid)))).collect()
}

/// How busy each process kept a GPU since then. One that has just not said who is on it is not asked.
fn process_use(
    leases: &Leases,
    occupancies: &[Option<Occupancy>],
    (index, gpu): (usize, &Gpu),
    since_us: u64,
) -> Option<ProcessUse> {
    if !occupancies.get(index).is_some_and(Option::is_some) {
        return None;
    }
    let (asked, since) = (gpu.clone(), Instant::now());
    let samples = leases.inventory.ask(gpu.index, move |its| Ok(its.process_use(&asked, since_us)));
    samples.inspect_err(|error| silence::note(leases, (index, gpu), since, Some(error))).ok()
}

/// What each registered process of a GPU claims.
fn claims(leases: &Leases, gpu: usize) -> Claims {
    let mut report = Report::new();
    let mut claims = BTreeMap::new();
    for lease in leases.book().leases.values() {
        let Some(place) = lease.place_of(gpu).filter(|_| !lease.processes.is_empty()) else { continue };
        report.read(&lease.region, SLOTS);
        for (slot, claimed) in report.taken() {
            if let Some(process) = lease.processes.get(&slot) {
                let holding = Holding::of(&claimed, &report.pieces(), place, lease.accounts.len());
                let (image_bytes, is_changing) = (claimed.image_bytes(), claimed.changing() != 0);
                let is_inexact = claimed.is_inexact();
                let changes = claimed.changes();
                let claim = Claim { holding, image_bytes, is_inexact, is_changing, changes };
                claims.insert(process.watched.name, claim);
            }
        }
    }
    claims
}

/// Who has no shims reports no memory: what NVML says of its processes is noted.
fn note_seen_memory(leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>]) {
    let mut book = leases.book();
    for lease in book.leases.values_mut().filter(|lease| !lease.record.mechanism.has_shims()) {
        let Some(pids) = members.get(&lease.tenant) else { continue };
        let mut most_bytes = 0;
        for account in &mut lease.accounts {
            let Some(Some(occupancy)) = occupancies.get(account.gpu) else { continue };
            let bytes = pids.iter().filter_map(|pid| occupancy.bytes_of(*pid)).sum();
            account.see_memory(bytes);
            most_bytes = most_bytes.max(bytes);
        }
        lease.note_peak(most_bytes);
    }
}

/// What the scheduler has charged goes into the book, and into the record if there is anything new: a restarted
/// supervisor goes on from there. `unwritten` has whose record could not be written.
fn note_charges(leases: &Leases, statistics: &Statistics, unwritten: &mut Faults<LeaseId>) {
    let mut book = leases.book();
    book.charged_until_ns = book.charged_until_ns.max(statistics.at_ns);
    let mut more_ns = vec![0_i64; leases.gpus().len()];
    for standing in &statistics.standings {
        let Some(lease) = book.of_tenant(standing.tenant) else { continue };
        let its_ns = lease.note_charges(standing.gpu, statistics.at_ns, standing.used_ns(), standing.lag_ns);
        if let Some(account) = lease.account_on(standing.gpu) {
            account.found_ns = standing.found_ns;
        }
        if let Some(more_ns) = more_ns.get_mut(standing.gpu) {
            *more_ns = more_ns.saturating_add(its_ns);
        }
    }
    for (gpu, more_ns) in more_ns.into_iter().enumerate() {
        book.charges.entry(gpu).or_default().add(statistics.at_ns, more_ns);
    }
    unwritten.retain(|id| book.leases.contains_key(id));
    drop(book);
    // A record is written in the hold in which it was changed: others write it too, and take it away with the lease.
    let mut report = Report::new();
    leases.each_in_turn(|lease| {
        lease.note_kernels(statistics.at_ns, &mut report);
        let write = |record: &Record| record.write(&leases.configuration().paths.run_dir);
        if let Some(written) = lease.note_standing(statistics.at_ns, write) {
            unwritten.note(lease.record.lease_id.clone(), &written);
        }
    });
}
