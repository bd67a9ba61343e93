//! After a restart: the leases that were, against the kernel's own facts.

use super::book::Process;
use super::grant::{Leases, about};
use super::record::{Record, region_dir_of};
use crate::gatekeeper::Order;
use crate::procfs::WatchedProcess;
use crate::region::RegionHost;
use gpool_protocol::{EventKind, LeaseState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Takes over every lease whose container still runs, and clears away the rest. Running containers are not touched:
/// they keep their files, and find a supervisor's heartbeat again.
pub fn take_over(leases: &Leases) {
    let run_dir = leases.configuration.paths.run_dir.clone();
    let (records, errors) = Record::read_all(&run_dir);
    for error in errors {
        eprintln!("gpool-supervisor: passed over a lease that cannot be read: {error}");
    }
    records.into_iter().for_each(|record| take_over_or_strand(leases, record));
}

/// Tries again with the leases that could not be taken over though their containers run.
pub fn take_over_stranded(leases: &Leases) {
    let stranded = std::mem::take(&mut leases.book().stranded);
    stranded.into_iter().for_each(|record| take_over_or_strand(leases, record));
}

/// A lease whose container has ended is cleared away. One whose container runs keeps its files and its place, and is
/// tried again: a fault of ours must not sell its share to somebody else.
fn take_over_or_strand(leases: &Leases, record: Record) {
    let run_dir = &leases.configuration.paths.run_dir;
    let Err(cause) = take_over_one(leases, record.clone()) else { return };
    let id = &record.lease_id;
    let same_boot = record.boot_id == leases.boot_id;
    let init_lives = record.init.is_some_and(|name| WatchedProcess::reopen(name).is_ok());
    let others_live = record.cgroup.as_deref().is_some_and(crate::cgroup::is_populated);
    if same_boot && (init_lives || others_live) {
        eprintln!("gpool-supervisor: lease {id} cannot be taken over yet: {cause}");
        leases.book().stranded.push(record);
        return;
    }
    eprintln!("gpool-supervisor: lease {id} is over: {cause}");
    RegionHost::remove(&region_dir_of(run_dir, id));
    Record::remove(run_dir, id);
}

fn take_over_one(leases: &Leases, record: Record) -> Result<(), String> {
    if record.boot_id != leases.boot_id {
        return Err("it is of another boot".into());
    }
    let gpu = leases.gpus.iter().position(|gpu| gpu.uuid == record.gpu_uuid);
    let gpu = gpu.ok_or_else(|| format!("its GPU {} is gone", record.gpu_uuid))?;
    let init = record.init.and_then(|name| WatchedProcess::reopen(name).ok());
    let requester =
        record.requester.filter(|_| record.init.is_none()).and_then(|name| WatchedProcess::reopen(name).ok());
    // Its init has ended, but others of its cgroup may hold the GPU still.
    let lingers = record.init.is_some() && record.cgroup.as_deref().is_some_and(crate::cgroup::is_populated);
    let state = match (&init, &requester) {
        (Some(_), _) => LeaseState::Active,
        (None, Some(_)) => LeaseState::Pending,
        (None, None) if lingers => LeaseState::Ending,
        (None, None) => return Err("its container has ended".into()),
    };
    let region = RegionHost::open(&region_dir_of(&leases.configuration.paths.run_dir, &record.lease_id));
    let region = region.map_err(|cause| cause.to_string())?;
    if !region.is_ours() {
        return Err("its region is of another layout".into());
    }
    let region = Arc::new(region);
    // A supervisor that died within an update may have written one and not the other; the record is the promise.
    region.control().memory_cap_bytes.store(record.memory_cap_bytes, Ordering::Relaxed);
    region.control().context_bytes.store(leases.context_bytes[gpu].load(Ordering::Relaxed), Ordering::Relaxed);
    let known = record.processes.clone();
    let mut book = leases.book();
    let about = about(&record, None);
    let id = record.lease_id.clone();
    let short = record.container_id.short().to_owned();
    let tenant = leases.enter(&mut book, record, gpu, region.clone(), requester, 0, state);
    let lease = book.leases.get_mut(&id).expect("entered above");
    lease.init = init;
    for process in known {
        match WatchedProcess::reopen(process.process) {
            Ok(watched) => {
                let registration = process.registration;
                lease.processes.insert(process.slot, Process { registration, watched });
            }
            // It died while nobody looked: its bytes come back now.
            Err(_) => region.clear_slot(process.slot),
        }
    }
    lease.note_processes();
    leases.gatekeeper.order(Order::Look { tenant });
    leases.events.note(EventKind::LeaseTakenOver, about, format!("took {short} over"));
    Ok(())
}
