//! After a restart: the leases that were, against the kernel's own facts.

use super::account::GpuAccount;
use super::book::{Dead, Process};
use super::debts::{Debts, KEPT_NS};
use super::described::{about, ended_unseen};
use super::entitlement::fails_open;
use super::entry::Entry;
use super::grant::{Leases, bind_patience};
use super::reading::{Written, read_all};
use super::record::{ProcessRecord, Record, RecordError, StandingRecord, region_dir_of};
use super::statement::Statement;
use crate::clock;
use crate::context_cost;
use crate::gatekeeper::Order;
use crate::procfs::{ProgramMark, WatchedProcess};
use crate::region::{RegionHost, Report};
use crate::service_manager;
use crate::uncounted::Uncounted;
use gpool_protocol::{EventKind, GpuUuid, LeaseId, LeaseState, SuspensionStage};
use gpool_shared_region::{CONTROL_FILE, SLOTS};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Takes over every lease whose container still runs, and clears away the rest. Running containers are not touched:
/// they keep their files, and find a supervisor's heartbeat again.
///
/// # Errors
/// When it cannot be read what leases there are.
pub fn take_over(leases: &Leases) -> Result<(), RecordError> {
    let run_dir = leases.configuration().paths.run_dir.clone();
    leases.book().debts = Debts::read(&run_dir);
    let Written { records, errors, remains } = read_all(&run_dir)?;
    for error in errors {
        log!("passed over a lease that cannot be read: {error}");
    }
    remains.iter().for_each(|id| leases.clear_away(id));
    let (kept, unused) = matched(&records, service_manager::kept());
    leases.book().kept_inits = kept;
    unused.iter().for_each(service_manager::forget);
    for record in records {
        if !is_settled(leases, &record, false) {
            leases.book().stranded.push(record);
        }
    }
    leases.take_places_over();
    let book = leases.book();
    leases.known_cgroups.note(&book);
    leases.files.remove_unused_shims(book.builds());
    Ok(())
}

/// Matches the descriptors that were kept with the inits of leases, and names those that belong to none: of leases that
/// ended meanwhile, of one that was never written down as bound, or of another process than that.
fn matched(records: &[Record], kept: Vec<(LeaseId, OwnedFd)>) -> (BTreeMap<LeaseId, WatchedProcess>, Vec<LeaseId>) {
    let (mut inits, mut unused) = (BTreeMap::new(), Vec::new());
    for (id, pidfd) in kept {
        let name = records.iter().find(|record| record.lease_id == id).and_then(|record| record.init);
        match name.and_then(|name| WatchedProcess::adopt(name, pidfd)) {
            Some(init) => drop(inits.insert(id, init)),
            None => unused.push(id),
        }
    }
    (inits, unused)
}

/// The init of a lease if it lives: by the pidfd that was kept of it, which no other process can have, or else by pid and
/// start time.
///
/// # Errors
/// When that cannot be told.
fn living_init(leases: &Leases, record: &Record) -> io::Result<Option<WatchedProcess>> {
    let Some(name) = record.init else { return Ok(None) };
    let kept = leases.book().kept_inits.get(&record.lease_id).map(WatchedProcess::try_clone);
    match kept {
        Some(Ok(init)) => Ok(Some(init).filter(|init| !init.has_ended())),
        Some(Err(_)) | None => WatchedProcess::find(name),
    }
}

/// The process that asked for a lease which is not bound yet, if it lives.
///
/// # Errors
/// When that cannot be told.
fn living_requester(record: &Record) -> io::Result<Option<WatchedProcess>> {
    let name = record.requester.filter(|_| record.init.is_none());
    name.map_or(Ok(None), WatchedProcess::find)
}

/// Tries again with the leases that could not be taken over though their containers run.
pub fn take_over_stranded(leases: &Leases) {
    // They stay in the book meanwhile: nobody may find their places free, or their MPS daemons unused.
    let stranded = leases.book().stranded.clone();
    for record in stranded.into_iter().filter(|record| is_settled(leases, record, true)) {
        let mut book = leases.book();
        book.stranded.retain(|other| other.lease_id != record.lease_id);
        book.stranded_for.remove(&record.lease_id);
        leases.write_places(&mut book);
        leases.known_cgroups.note(&book);
    }
}

/// Takes a lease over; one whose container has ended is cleared away. Whether either was done: one whose container runs
/// keeps its files and its place, and is tried again. A fault of ours must not sell its share to somebody else. `was_seen` is of one
/// that has been looked at under this supervisor before.
fn is_settled(leases: &Leases, record: &Record, was_seen: bool) -> bool {
    let Err(cause) = take_over_one(leases, record.clone()) else { return true };
    let id = &record.lease_id;
    let same_boot = record.boot_id == leases.boot_id;
    // Of whom nothing can be told may live.
    let is_over = |process: io::Result<Option<WatchedProcess>>| matches!(process, Ok(None));
    let init_lives = !is_over(living_init(leases, record)) || !is_over(living_requester(record));
    let others_live = record.cgroup.as_deref().is_some_and(crate::cgroup::is_populated);
    let waits = record.init.is_some() || (may_be_known(leases, record) && !is_given_up(record, clock::now_ns()));
    if same_boot && (init_lives || others_live) && waits {
        if is_news(&mut leases.book().stranded_for, id, &cause) {
            log!("lease {id} cannot be taken over yet: {cause}");
        }
        return false;
    }
    // Of one that nobody was told of nothing ends.
    let began = record.init.is_some() || may_be_known(leases, record);
    if began {
        // What stood in the way of taking it over is not why it ended.
        let cause = if same_boot && record.init.is_some() { "its container has ended" } else { cause.as_str() };
        let (about, message) = ended_unseen(record, cause, was_seen);
        leases.events.note(EventKind::LeaseEnded, about, message);
    }
    leases.clear_away_of(record);
    let mut book = leases.book();
    book.kept_inits.remove(id);
    if began && same_boot && leases.configuration().ledger.is_kept() {
        // When it ended nobody has seen.
        book.ended.push(Statement::of_lost(record, last_seen_unix_ms(record)));
    }
    // Its engine may start it again at once, and be waiting for this supervisor to answer.
    if same_boot {
        leases.keep_place_of_lost(&mut book, record);
    }
    drop(book);
    service_manager::forget(id);
    true
}

/// When a lease is known to have been there last, by its record.
fn last_seen_unix_ms(record: &Record) -> u64 {
    let written = record.standing.as_ref().map(|standing| clock::unix_ms_at(standing.at_ns));
    written.unwrap_or(record.created_unix_ms)
}

/// Whether whoever asked for a lease that is not bound can know of it. The answer is sent once the MPS daemon runs and the region
/// is ready; without them the supervisor ended in between, and a container that asks anew must not find the place taken. What
/// cannot be told may be.
fn may_be_known(leases: &Leases, record: &Record) -> bool {
    let has_daemon = record.mps_group.as_ref().is_none_or(|id| has_group(leases, id));
    let region_dir = region_dir_of(&leases.configuration().paths.run_dir, &record.lease_id);
    has_daemon && may_be_ready(&region_dir, record.owner_uid)
}

/// Whether the region there was ever ready for a container.
fn may_be_ready(region_dir: &Path, uid: u32) -> bool {
    let is_there = region_dir.join(CONTROL_FILE).try_exists().unwrap_or(true);
    is_there && RegionHost::open(region_dir, uid).map_or(true, |region| !region.is_blank())
}

fn has_group(leases: &Leases, id: &str) -> bool {
    leases.groups.all().iter().any(|group| group.record.id == id)
}

/// Whether a lease that nobody has bound is as old as one that is given up: its container did not start in time.
fn is_given_up(record: &Record, now_ns: u64) -> bool {
    u128::from(record.age_ns(now_ns)) >= bind_patience(record).as_nanos()
}

/// Whether a lease is stranded for another reason than was told last: it may be for as long as its container runs.
fn is_news(told: &mut BTreeMap<LeaseId, String>, id: &LeaseId, cause: &str) -> bool {
    told.insert(id.clone(), cause.to_owned()).as_deref() != Some(cause)
}

fn take_over_one(leases: &Leases, record: Record) -> Result<(), String> {
    if record.boot_id != leases.boot_id {
        return Err("the host was booted".into());
    }
    if let Some(what) = &record.unread {
        return Err(format!("a newer supervisor has written of it what this one does not know ({what})"));
    }
    let all = leases.gpus();
    let place = |uuid: &GpuUuid| {
        let found = all.iter().position(|gpu| gpu.uuid == *uuid);
        found.ok_or_else(|| format!("its GPU {uuid} is gone"))
    };
    let gpus = record.gpus().iter().map(place).collect::<Result<Vec<usize>, String>>()?;
    let unwatched = |what: &str, cause: io::Error| format!("{what} cannot be watched: {cause}");
    let init = living_init(leases, &record).map_err(|cause| unwatched("its init", cause))?;
    let requester = living_requester(&record).map_err(|cause| unwatched("the process that asked for it", cause))?;
    // Its init has ended, but others of its cgroup may hold the GPU still.
    let lingers = record.init.is_some() && record.cgroup.as_deref().is_some_and(crate::cgroup::is_populated);
    let state = match (&init, &requester) {
        (Some(_), _) if record.revocation.is_some() => LeaseState::Revoked,
        (Some(_), _) => LeaseState::Active,
        (None, Some(_)) => LeaseState::Pending,
        (None, None) if lingers => LeaseState::Ending,
        (None, None) => return Err("its container has ended".into()),
    };
    if state == LeaseState::Pending && !record.mps_group.as_ref().is_none_or(|id| has_group(leases, id)) {
        return Err("its MPS daemon was being started".into());
    }
    let region_dir = region_dir_of(&leases.configuration().paths.run_dir, &record.lease_id);
    let region = RegionHost::open(&region_dir, record.owner_uid);
    let region = region.map_err(|cause| cause.to_string())?;
    if !region.is_ours() {
        return Err("its region is of another layout".into());
    }
    let region = Arc::new(region);
    let is_half_way = record.suspension.is_some() && !record.is_out();
    let record = as_it_goes_on(record);
    region.set_suspended(record.suspension.is_some());
    // Before it beats again.
    let away_ns = clock::now_ns().saturating_sub(region.control().heartbeat_ns.load(Ordering::Relaxed));
    // A supervisor that died within an update may have written one and not the other; the record is the promise.
    region.control().memory_cap_bytes.store(record.memory_cap_bytes, Ordering::Relaxed);
    region.control().spill_bytes.store(record.spill_bytes, Ordering::Relaxed);
    keep_context_cost(&region, leases.context_bytes_of(&gpus));
    // The configuration may have changed since.
    region.set_fail_open(fails_open(&leases.configuration(), &record));
    region.set_fraction(record.fraction_permille);
    // Before anything is changed: a process of which nothing can be told has its account, and is tried again with the lease.
    let found = |known: &ProcessRecord| WatchedProcess::find(known.process).map(|watched| (*known, watched));
    let known = record.processes.iter().map(found).collect::<io::Result<Vec<_>>>();
    let known = known.map_err(|cause| unwatched("a process of it", cause))?;
    let debt_ns = debt_of(record.standing.as_ref(), clock::now_ns());
    let accounts = accounts(&gpus, record.standing.as_ref());
    let counted = record.standing.as_ref().and_then(|standing| standing.counted);
    let mut report = Report::new();
    report.read(&region, SLOTS);
    let mut book = leases.book();
    let about = about(&record, None);
    let id = record.lease_id.clone();
    let short = record.container_id.short().to_owned();
    let entry = Entry { record, accounts, region: region.clone(), requester, debt_ns, state, is_taken_over: true };
    let tenant = leases.enter(&mut book, entry);
    let was_kept = book.kept_inits.remove(&id).is_some();
    let lease = book.leases.get_mut(&id).expect("entered above");
    lease.init = init;
    lease.suspension.is_half_way = is_half_way;
    // One that was on its way, or is wanted, must not wait for somebody else's.
    leases.suspensions.ring();
    if let Some(init) = lease.init.as_ref().filter(|_| !was_kept) {
        service_manager::keep(&id, init.pidfd.as_fd());
    }
    lease.count_on(counted);
    for (place, uncounted) in lease.uncounted.iter_mut().enumerate() {
        let seen_bytes = region.control().uncounted_bytes[place].load(Ordering::Relaxed);
        *uncounted = Uncounted::going_on(seen_bytes, known.iter().map(|(known, _)| known.process));
    }
    lease.idleness = lease.record.idleness(clock::now_ns(), away_ns);
    let now = Instant::now();
    for (known, watched) in known {
        match watched {
            Some(watched) => {
                // Another one may have been executed since: that is seen by this mark.
                let program = known.program.or_else(|| ProgramMark::of(watched.name.pid));
                let registration = known.registration;
                lease.processes.insert(
                    known.slot,
                    Process { registration, watched, program, refusals_told: 0, refusals_seen: None },
                );
            }
            None => {
                let Some(dead) = died_meanwhile(&region, &known, now) else { continue };
                let last = report.taken().find(|(slot, _)| *slot == known.slot);
                last.iter().for_each(|(_, last)| lease.retired.count(last));
                let (pid, gpus) = (known.process.pid, lease.accounts.len());
                last.iter().for_each(|(_, last)| lease.lost_contexts.look(last, clock::now_ns(), Some(pid), gpus));
                lease.dead.insert(known.slot, dead);
            }
        }
    }
    lease.note_processes();
    leases.gatekeeper.order(Order::Look { tenant });
    leases.events.note(EventKind::LeaseTakenOver, about, format!("took {short} over"));
    Ok(())
}

/// One that was on its way to the host's memory is brought back: how far it came nobody knows.
fn as_it_goes_on(mut record: Record) -> Record {
    let goes_out = record.is_going_out();
    record.suspension.iter_mut().filter(|_| goes_out).for_each(|its| its.stage = SuspensionStage::Resuming);
    record
}

/// A process that has died while no supervisor was there, unless its slot has gone to another one since. What it held counts
/// until the device no longer has it, which nobody has asked yet: a child may hold its descriptors, or the driver be at it.
fn died_meanwhile(region: &RegionHost, known: &ProcessRecord, now: Instant) -> Option<Dead> {
    if region.registration(known.slot) != Some(known.registration) {
        return None;
    }
    region.clear_demand(known.slot);
    Some(Dead { name: Some(known.process), registration: known.registration, died: now, has_executed: false })
}

/// What a context of the lease is charged goes on from what its control page says.
fn keep_context_cost(region: &RegionHost, of_a_new_lease: u64) {
    let place = &region.control().context_bytes;
    place.store(context_cost::from_page(place.load(Ordering::Relaxed), of_a_new_lease), Ordering::Relaxed);
}

/// The accounts go on from what was written down last.
fn accounts(gpus: &[usize], standing: Option<&StandingRecord>) -> Vec<GpuAccount> {
    let before = |place: usize| standing.and_then(|standing| standing.gpus.get(place));
    let account = |(place, gpu): (usize, &usize)| match before(place) {
        Some(standing) => GpuAccount::going_on(*gpu, standing),
        None => GpuAccount::new(*gpu, 0),
    };
    gpus.iter().enumerate().map(account).collect()
}

/// What it owed when that was written down, unless it was too long ago: of several GPUs the most, because they are
/// served together.
fn debt_of(standing: Option<&StandingRecord>, now_ns: u64) -> u64 {
    let recent =
        |standing: &&StandingRecord| now_ns.checked_sub(standing.at_ns).is_some_and(|age_ns| age_ns <= KEPT_NS);
    let gpus = standing.filter(recent).into_iter().flat_map(|standing| &standing.gpus);
    gpus.map(|gpu| gpu.debt_ns).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::record::GpuStanding;
    use super::*;
    use crate::procfs::ProcessName;
    use crate::region::ControlPage;
    use gpool_protocol::HostPid;
    use gpool_shared_region::SLOT_BYTES;
    use std::os::unix::fs::FileExt;

    fn record_of(id: &str, init: Option<ProcessName>) -> Record {
        let record = serde_json::json!({
            "boot_id": "b", "lease_id": id, "container_id": "c", "gpu_uuid": "GPU-1", "fraction_permille": 300,
            "memory_cap_bytes": 1, "owner_uid": 0, "created_unix_ms": 1, "init": init,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_kept_init_goes_to_its_lease_and_what_is_nobodys_is_named() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let init = WatchedProcess::open(HostPid(child.id())).unwrap();
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let records =
            [record_of("bound", Some(init.name)), record_of("pending", None), record_of("other", Some(me.name))];
        let kept: Vec<(LeaseId, OwnedFd)> = ["bound", "pending", "over", "other"]
            .map(|id| (LeaseId(id.to_owned()), init.pidfd.try_clone().unwrap()))
            .into_iter()
            .collect();
        let (inits, unused) = matched(&records, kept);
        assert_eq!(inits.keys().map(|id| id.0.as_str()).collect::<Vec<_>>(), ["bound"]);
        assert_eq!(unused.iter().map(|id| id.0.as_str()).collect::<Vec<_>>(), ["pending", "over", "other"]);
        assert!(inits.values().all(|init| !init.has_ended()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(inits.values().all(WatchedProcess::has_ended));
    }

    #[test]
    fn what_nobody_has_seen_end_was_there_when_it_was_written_down_last() {
        let mut record = Record { created_unix_ms: 7, ..record_of("01", None) };
        assert_eq!(last_seen_unix_ms(&record), 7);
        let at_ns = clock::now_ns() - clock::ns(30);
        record.standing = Some(StandingRecord { at_ns, gpus: Vec::new(), counted: None, used_ns: None });
        let ago_ms = clock::unix_ms() - last_seen_unix_ms(&record);
        assert!((29_000..40_000).contains(&ago_ms), "{ago_ms} ms, and the supervisor has begun just now");
    }

    #[test]
    fn a_stranded_lease_is_told_when_its_cause_changes() {
        let (mut told, id) = (BTreeMap::new(), LeaseId("01".into()));
        let news = ["no descriptor", "no descriptor", "its GPU is gone", "its GPU is gone", "no descriptor"]
            .map(|cause| is_news(&mut told, &id, cause));
        assert_eq!(news, [true, false, true, false, true]);
        assert!(is_news(&mut told, &LeaseId("02".into()), "no descriptor"), "another lease");
    }

    fn page_with(context_bytes: u64) -> ControlPage<'static> {
        ControlPage { context_bytes, fraction_permille: 300, fail_open: false, ..ControlPage::of_half() }
    }

    #[test]
    fn what_a_process_held_that_died_meanwhile_waits_for_a_look_at_the_device() {
        const SLOT: usize = 3;
        let dir = tempfile::tempdir().unwrap();
        let region = RegionHost::create_unmounted(dir.path(), &page_with(2));
        // Registered as 9, with 4096 bytes.
        let report = std::fs::OpenOptions::new().write(true).open(dir.path().join("report")).unwrap();
        for (offset, word) in [(0, 9u64), (16, 4096)] {
            report.write_all_at(&word.to_le_bytes(), (SLOT * SLOT_BYTES + offset) as u64).unwrap();
        }
        let process = ProcessName { pid: HostPid(u32::MAX), start_ticks: 1 };
        let known = |registration: u64| ProcessRecord { slot: SLOT, registration, process, program: None };
        let now = Instant::now();
        assert!(died_meanwhile(&region, &known(8), now).is_none(), "another one has its slot");
        let dead = died_meanwhile(&region, &known(9), now).unwrap();
        assert_eq!((dead.name, dead.died), (Some(process), now));
        let mut report = Report::new();
        report.read(&region, SLOTS);
        let held: Vec<u64> = report.taken().map(|(_, slot)| slot.allocated_bytes()).collect();
        assert_eq!(held, [4096]);
    }

    /// The supervisor was killed between the record of a lease and its answer.
    #[test]
    fn a_lease_of_which_nobody_was_told_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!may_be_ready(dir.path(), 0), "there are no files yet");
        let region = RegionHost::create_unmounted(dir.path(), &page_with(2));
        assert!(may_be_ready(dir.path(), 0));
        region.control().magic.store(0, Ordering::Relaxed);
        assert!(!may_be_ready(dir.path(), 0), "nothing is written there yet");
        std::fs::remove_file(dir.path().join("report")).unwrap();
        assert!(may_be_ready(dir.path(), 0), "that it cannot be opened does not say that it was never there");
        let record = Record { created_ns: Some(clock::ns(1)), ..record_of("pending", None) };
        assert_eq!([300, 301, 0].map(|now| is_given_up(&record, clock::ns(now))), [false, true, false]);
        let of_parent = Record { asked_for_parent: true, ..record };
        assert_eq!(
            [30, 31].map(|now| is_given_up(&of_parent, clock::ns(now))),
            [false, true],
            "a podman that lives on"
        );
    }

    #[test]
    fn totals_go_on_and_debts_only_for_ten_seconds() {
        let gpus = [(7, 1), (9, 3)]
            .map(|(charged_ns, debt_ns)| GpuStanding { charged_ns, debt_ns, seen_until_us: 0 })
            .to_vec();
        let standing = StandingRecord { at_ns: 100, gpus, counted: None, used_ns: None };
        let charged: Vec<u64> = accounts(&[2, 5], Some(&standing)).iter().map(GpuAccount::charged_ns).collect();
        assert_eq!(charged, [7, 9]);
        assert_eq!(accounts(&[2], None)[0].charged_ns(), 0);
        assert_eq!(debt_of(Some(&standing), 100 + KEPT_NS), 3);
        assert_eq!(debt_of(Some(&standing), 101 + KEPT_NS), 0);
        assert_eq!(debt_of(Some(&standing), 99), 0, "a time to come is another clock's");
        assert_eq!(debt_of(None, 0), 0);
    }

    #[test]
    fn a_lease_that_is_taken_over_keeps_what_its_contexts_were_seen_to_cost() {
        const DEFAULT: u64 = 512 << 20;
        let charged_after = |page_bytes| {
            let dir = tempfile::tempdir().unwrap();
            drop(RegionHost::create_unmounted(dir.path(), &page_with(page_bytes)));
            let region = RegionHost::open(dir.path(), 0).unwrap();
            keep_context_cost(&region, DEFAULT);
            region.control().context_bytes.load(Ordering::Relaxed)
        };
        assert_eq!(charged_after(300 << 20), 300 << 20);
        assert_eq!(charged_after(DEFAULT), DEFAULT);
        assert_eq!(charged_after(0), DEFAULT, "no supervisor has written that");
    }
}
