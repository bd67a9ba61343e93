//! Finding out who has taken a slot, and accepting it.
//!
//! How long a look takes is in the tenant's hands: F_GETLK goes through all locks that it has put on its report, and it may
//! have as many threads as it is allowed. So the book is not locked meanwhile, and everything is looked at again under the
//! lock that may have changed. No other thread puts processes into the book while this one runs.

use super::queue::{Queue, Registration};
use super::{executed, is_anothers, take_out};
use crate::cgroup;
use crate::lease::{Dead, Lease, Leases, Process};
use crate::procfs::{self, ProcessName, ProgramMark, WatchedProcess};
use crate::region::{RegionHost, Report};
use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use gpool_shared_region::SLOT_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A slot's lock that has changed hands so often in one look is looked at another time.
const CHANGES: usize = 16;

/// Registrations of which nobody could find out whose they are, because there was no descriptor or no memory left. Nobody
/// tells them again, and their processes wait for memory until they are accepted. There are no more than slots.
#[derive(Debug, Default)]
pub struct Unwatched {
    numbers: BTreeMap<(TenantId, usize), u64>,
    /// Leases of which it was told that a slot is another's.
    told: BTreeSet<TenantId>,
}

impl Unwatched {
    /// Puts them into the queue again, each unless another process has taken its slot meanwhile.
    pub fn try_again(&self, queue: &mut Queue, now: Instant) {
        for ((tenant, slot), number) in &self.numbers {
            queue.put_again(Registration { tenant: *tenant, slot: *slot, number: *number }, now);
        }
    }

    /// Keeps a registration if looking at it has failed; whether that is new.
    fn note(&mut self, Registration { tenant, slot, number }: Registration, has_failed: bool) -> bool {
        if has_failed {
            return self.numbers.insert((tenant, slot), number) != Some(number);
        }
        self.numbers.remove(&(tenant, slot));
        false
    }
}

/// Finds out who has made a registration, now or at a later look. Leases with another process than before go to
/// `changed`: their records are to be written. How long it took, without waiting for the book.
pub fn look(
    leases: &Leases,
    unwatched: &mut Unwatched,
    registration: Registration,
    changed: &mut BTreeSet<TenantId>,
) -> Duration {
    let begun = Instant::now();
    let seen = seen(leases, registration);
    let looked = begun.elapsed();
    let is_new = unwatched.note(registration, seen.is_err());
    match seen {
        Ok(Some(seen)) => {
            let mut book = leases.book();
            let begun = Instant::now();
            if let Seen::Stranger(pid) = seen
                && !unwatched.told.contains(&registration.tenant)
            {
                unwatched.told.retain(|tenant| book.of_tenant(*tenant).is_some());
                unwatched.told.insert(registration.tenant);
                if let Some(lease) = book.of_tenant(registration.tenant) {
                    let short = lease.record.container_id.short();
                    log!(
                        "a place of {short} is held in the name of process {pid}, not of its cgroup: it is given to nobody"
                    );
                }
            }
            if let Some(lease) = book.of_tenant(registration.tenant)
                && accept(leases, lease, registration, seen)
            {
                changed.insert(registration.tenant);
            }
            looked + begun.elapsed()
        }
        Ok(None) => looked,
        Err(error) => {
            // A tenant can have that of every lock as often as it likes.
            if is_new && error.kind() != io::ErrorKind::WouldBlock {
                log!("a process cannot be watched: {error}; this is tried again");
            }
            looked
        }
    }
}

/// A program by the process that runs it; none of a mark that could not be told.
type Program = (ProcessName, Option<ProgramMark>);

/// Where to look, and who may be there.
struct Known {
    region: Arc<RegionHost>,
    /// The programs that have registered.
    programs: Vec<Program>,
    /// Processes whose earlier programs have been seen to be over, and have their slots still.
    executed: BTreeSet<ProcessName>,
    cgroup: Option<String>,
    init: Option<ProcessName>,
}

/// The same of a registration; none if there is nothing to look at.
fn known(leases: &Leases, registration: Registration) -> Option<Known> {
    let mut book = leases.book();
    let lease = book.of_tenant(registration.tenant)?;
    if !is_open(lease, registration) {
        return None;
    }
    let programs = lease.processes.values().map(|process| (process.watched.name, process.program)).collect();
    let executed = executed::names(&lease.dead).collect();
    let (region, cgroup) = (lease.region.clone(), lease.record.cgroup.clone());
    Some(Known { region, programs, executed, cgroup, init: lease.record.init })
}

/// Whether the slot waits for this registration to be accepted. One that another process has taken meanwhile is told of
/// anew, and one that is accepted already is told so again.
fn is_open(lease: &Lease, Registration { slot, number, .. }: Registration) -> bool {
    let is_dead = lease.dead.get(&slot).is_some_and(|dead| dead.registration == number);
    if is_dead || is_anothers(&lease.region, slot, number) {
        return false;
    }
    let is_known = lease.processes.get(&slot).is_some_and(|process| process.registration == number);
    if is_known {
        lease.region.accept(slot, number);
    }
    !is_known
}

/// What a look at a slot has found.
enum Seen {
    /// The process that holds it.
    Held {
        watched: WatchedProcess,
        program: Option<ProgramMark>,
        /// It has executed this program, and nobody else can hold what an earlier one had opened.
        is_alone: bool,
    },
    /// It is held in the name of this process, which is none of the lease's.
    Stranger(HostPid),
    /// Nobody holds it.
    Free,
}

/// Looks who holds the slot, without the book; none if there is nothing to look at.
fn seen(leases: &Leases, registration: Registration) -> io::Result<Option<Seen>> {
    let Some(Known { region, programs, executed, cgroup, init }) = known(leases, registration) else { return Ok(None) };
    let Some(watched) = holder_of(&region, registration.slot)? else { return Ok(Some(Seen::Free)) };
    if is_stranger(cgroup.as_deref(), init, &watched)? {
        return Ok(Some(Seen::Stranger(watched.name.pid)));
    }
    let program = ProgramMark::of(watched.name.pid);
    let has_executed = executed.contains(&watched.name)
        || programs.iter().any(|(name, before)| is_before((*name, *before), watched.name, program));
    let is_alone = has_executed && !procfs::has_children(watched.name.pid);
    Ok(Some(Seen::Held { watched, program, is_alone }))
}

/// Whether a process lives, is not in this cgroup of a lease, and does not come from the lease's first process either, as what a session
/// manager has put elsewhere does (`su`). Of a lease without a cgroup that cannot be told: its members are who has registered.
///
/// # Errors
/// Where it is cannot be read, because there is no descriptor or memory left.
fn is_stranger(cgroup: Option<&str>, init: Option<ProcessName>, process: &WatchedProcess) -> io::Result<bool> {
    let Some(cgroup) = cgroup else { return Ok(false) };
    let path = match cgroup::known_path_of(process.name.pid) {
        Ok(path) => path.or_else(|| cgroup::path_of_a_thread(process.name.pid)),
        Err(_) if process.has_ended() => return Ok(false),
        Err(error) => return Err(error),
    };
    let is_in_it = path.is_some_and(|path| cgroup::is_at_or_below(cgroup, &path));
    Ok(!is_in_it && !process.has_ended() && !init.is_some_and(|init| procfs::descends(process.name.pid, &init)))
}

/// Whether the process `name` ran that program before it executed the one that it runs now.
fn is_before(before: Program, name: ProcessName, now: Option<ProgramMark>) -> bool {
    before.0 == name && ProgramMark::has_changed(before.1, now)
}

/// Accepts a process, or frees a slot that nobody holds, if it still waits for that; whether there is a new process.
fn accept(leases: &Leases, lease: &mut Lease, registration: Registration, seen: Seen) -> bool {
    let Registration { slot, number, .. } = registration;
    if !is_open(lease, registration) {
        return false;
    }
    match seen {
        Seen::Held { watched, program, is_alone } => {
            if is_alone {
                free_earlier(leases, lease, watched.name, program);
            }
            lease.processes.insert(
                slot,
                Process { registration: number, watched, program, refusals_told: 0, refusals_seen: Some(0) },
            );
            lease.dead.remove(&slot);
            // It may wait for this. What the record says of it a supervisor that starts finds out anew.
            lease.region.accept_behind_what_is_cleared(slot, number);
            true
        }
        // Dead before it was seen, or of a name that is another's by now.
        Seen::Free | Seen::Stranger(_) if lease.region.registration(slot) == Some(number) => {
            free(lease, slot, number);
            false
        }
        Seen::Free | Seen::Stranger(_) => false,
    }
}

/// Frees a slot whose process has ended before it was accepted. One that has waited for that in vain has gone on, and what
/// it held a process that it has forked may still hold: that stays in the slot until the device has it back.
fn free(lease: &mut Lease, slot: usize, registration: u64) {
    let mut report = Report::new();
    report.read(&lease.region, slot + 1);
    let last = report.taken().find(|(index, _)| *index == slot).map(|(_, last)| last);
    last.iter().for_each(|last| lease.retired.count(last));
    if last.is_some_and(|last| last.holds_nothing()) {
        lease.region.clear_slot(slot);
    } else {
        lease.region.clear_demand(slot);
        let died = Instant::now();
        lease.dead.insert(slot, Dead { name: None, registration, died, has_executed: false });
    }
}

/// Frees the slots of the program that this process ran before it executed another one: the kernel has closed what it had
/// opened of the device, and all that it held went with that. Its pidfd says nothing of it. Not to be called while it has
/// children: one that it has forked may hold on to it all.
fn free_earlier(leases: &Leases, lease: &mut Lease, name: ProcessName, program: Option<ProgramMark>) {
    let processes = lease.processes.iter();
    let before = processes.filter(|(_, process)| is_before((process.watched.name, process.program), name, program));
    let before: Vec<usize> = before.map(|(slot, _)| *slot).collect();
    take_out(leases, lease, &before, |lease, slot, _, _| lease.region.clear_slot(slot));
    executed::free(&lease.region, &mut lease.dead, name);
}

/// Writes down who is registered with these leases.
pub fn write_down(leases: &Leases, changed: &BTreeSet<TenantId>) {
    for tenant in changed {
        let mut book = leases.book();
        let Some(lease) = book.of_tenant(*tenant) else { continue };
        lease.note_processes();
        if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
            log!("{error}");
        }
    }
}

/// The process that has the pid in whose name the slot's first byte is locked; none when nobody holds it. That is who made the lock,
/// which is not always who holds it: a process that shares its open files with another (CLONE_FILES) may end, and its lock stays
/// with the other. Its pid may be anybody's then.
///
/// # Errors
/// No descriptor or memory is left, or [`io::ErrorKind::WouldBlock`] if the lock goes from hand to hand.
fn holder_of(region: &RegionHost, slot: usize) -> io::Result<Option<WatchedProcess>> {
    for _ in 0..CHANGES {
        let Some(pid) = lock_holder(region, slot)? else { return Ok(None) };
        match WatchedProcess::open(pid) {
            // Still in its name after its pidfd was opened. What is not so by now was another holder's.
            Ok(watched) if lock_holder(region, slot)? == Some(pid) => return Ok(Some(watched)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => match error.raw_os_error() {
                Some(nix::libc::ESRCH) => {}
                _ => return Err(error),
            },
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

fn lock_holder(region: &RegionHost, slot: usize) -> io::Result<Option<HostPid>> {
    let mut lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: (slot * SLOT_BYTES) as i64,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(region.report_file(), nix::fcntl::FcntlArg::F_GETLK(&mut lock))?;
    let held = lock.l_type != nix::libc::F_UNLCK as i16 && lock.l_pid > 0;
    Ok(held.then_some(HostPid(lock.l_pid as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_another_cgroup_is_none_of_the_lease_s() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        let is_stranger = |cgroup: Option<&str>, init| is_stranger(cgroup, init, &watched).unwrap();
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap().name;
        assert!(is_stranger(Some("/gpool-no-such-cgroup"), None) && !is_stranger(None, None));
        assert!(!is_stranger(Some("/gpool-no-such-cgroup"), Some(this)), "it comes from the lease's own first process");
        let earlier = ProcessName { start_ticks: this.start_ticks - 1, ..this };
        assert!(is_stranger(Some("/gpool-no-such-cgroup"), Some(earlier)), "its pid is another's by now");
        assert!(!procfs::descends(this.pid, &watched.name));
        if let Some(own) = cgroup::path_of(HostPid(child.id())) {
            assert!(!is_stranger(Some(&own), None) && is_stranger(Some(&format!("{own}/below")), None));
        }
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(!is_stranger(Some("/gpool-no-such-cgroup"), None), "it was there, and what it held may still be");
    }

    #[test]
    fn a_registration_that_cannot_be_looked_at_is_kept_until_it_can_and_told_once() {
        let (mut unwatched, place) = (Unwatched::default(), (TenantId(3), 5));
        let registration = |number| Registration { tenant: place.0, slot: place.1, number };
        assert!(unwatched.note(registration(7), true));
        assert!(!unwatched.note(registration(7), true), "told once");
        assert_eq!(unwatched.numbers, BTreeMap::from([(place, 7)]));
        assert!(unwatched.note(registration(8), true), "another process has the slot");
        let (mut queue, now) = (Queue::default(), Instant::now());
        unwatched.try_again(&mut queue, now);
        assert_eq!((queue.next(now), queue.next(now)), (Some(registration(8)), None));
        queue.put(registration(9), now);
        unwatched.try_again(&mut queue, now);
        assert_eq!((queue.next(now), queue.next(now)), (Some(registration(9)), None), "the newer one is not forgotten");
        assert!(!unwatched.note(registration(8), false));
        assert!(unwatched.numbers.is_empty());
    }
}
