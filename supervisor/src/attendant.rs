//! The thread that attends to births and deaths: processes that register, processes and containers that end, and
//! kept places that expire. Everything it knows of an end it sees itself, through pidfds and cgroups.

use crate::cgroup;
use crate::gatekeeper::{Notice, Order};
use crate::hang;
use crate::lease::{BIND_GRACE, BIND_PATIENCE, Dead, Lease, Leases, Process, about};
use crate::procfs::{self, ProcessName, ProgramMark, WatchedProcess};
use crate::region::Report;
use crate::revocation;
use gpool_policy::TenantId;
use gpool_protocol::{EventKind, HostPid, LeaseId, LeaseState};
use gpool_shared_region::{SLOT_BYTES, SlotSnapshot};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Notices acted on before deaths are looked at again.
const NOTICES: usize = 256;
/// How often an ending container's cgroup is looked at.
const ENDING_PERIOD: Duration = Duration::from_millis(20);
/// Kept places and abandoned requests are looked at this often.
const IDLE_PERIOD: Duration = Duration::from_millis(500);

/// The attendant's mailbox, before the thread runs and while it does.
pub struct Mailbox {
    sender: Sender<Notice>,
    receiver: Receiver<Notice>,
    bell: Arc<OwnedFd>,
}

/// Puts notices into the mailbox.
#[derive(Clone)]
pub struct Post {
    sender: Sender<Notice>,
    bell: Arc<OwnedFd>,
}

impl Post {
    /// Puts `notice` in and wakes the attendant.
    pub fn put(&self, notice: Notice) {
        let _ = self.sender.send(notice);
        self.wake();
    }

    /// Wakes the attendant: there is something new to watch.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// When the kernel gives no descriptor.
    pub fn new() -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { sender, receiver, bell })
    }

    /// For those who write to it.
    pub fn post(&self) -> Post {
        Post { sender: self.sender.clone(), bell: self.bell.clone() }
    }

    /// Attends for ever; runs on its own thread.
    pub fn attend(self, leases: &Leases) {
        let (mut unwatched, mut next_try) = (Unwatched::default(), Instant::now());
        loop {
            leases.progress.attendant.note();
            // Not at each look, which an end that is near makes more frequent.
            if Instant::now() >= next_try {
                crate::lease::take_over_stranded(leases);
                next_try = Instant::now() + IDLE_PERIOD;
            }
            let patience = self.look_after(leases);
            unwatched.try_again(leases);
            self.wait(leases, patience);
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(&*self.bell, &mut counter);
            // So many at a time: deaths are attended to in between, however much there is to read.
            for notice in self.receiver.try_iter().take(NOTICES) {
                act_on(leases, &mut unwatched, notice);
            }
        }
    }

    /// Waits until a watched process ends, a notice comes, or `patience` is over.
    fn wait(&self, leases: &Leases, patience: Duration) {
        // Descriptors are duplicated so that the book is not locked while waiting.
        let watched: Vec<OwnedFd> = {
            let book = leases.book();
            let all = book.leases.values().flat_map(watched_by);
            all.filter_map(|fd| fd.try_clone_to_owned().ok()).collect()
        };
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        fds.extend(watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&limit));
    }

    /// Acts on every end that can be seen now; says how long until it should look again unasked.
    fn look_after(&self, leases: &Leases) -> Duration {
        let mut book = leases.book();
        let now = Instant::now();
        let kept = book.held.len();
        book.held.retain(|held| held.until > now);
        let has_expired = book.held.len() < kept;
        let mut over: Vec<(LeaseId, &str)> = Vec::new();
        let mut patience = IDLE_PERIOD;
        for (id, lease) in &mut book.leases {
            note_deaths(leases, lease);
            if bury(leases, lease) {
                patience = ENDING_PERIOD;
            }
            revocation::settle(leases, lease);
            match end_of(lease, now) {
                End::Not => {}
                End::Coming => patience = ENDING_PERIOD,
                End::Here(cause) => over.push((id.clone(), cause)),
            }
        }
        let has_ended = !over.is_empty();
        for (id, cause) in over {
            leases.end(&mut book, &id, cause);
        }
        if has_ended || has_expired {
            leases.files.remove_unused_shims(book.builds());
        }
        patience
    }
}

/// Registrations of which nobody could find out whose they are, because there was no descriptor or no memory left. Nobody
/// tells them again, and their processes wait for memory until they are accepted. There are no more than slots.
#[derive(Debug, Default)]
struct Unwatched(BTreeMap<(TenantId, usize), u64>);

impl Unwatched {
    /// Finds out who has taken a slot, now or at a later look.
    fn look(&mut self, leases: &Leases, (tenant, slot): (TenantId, usize), registration: u64) {
        let seen = accept(leases, tenant, slot, registration);
        let is_new = self.note((tenant, slot), registration, seen.is_err());
        if let Some(error) = seen.err().filter(|_| is_new) {
            log!("a process cannot be watched: {error}; this is tried again");
        }
    }

    /// Keeps a registration if looking at it has failed; whether that is new.
    fn note(&mut self, place: (TenantId, usize), registration: u64, has_failed: bool) -> bool {
        if has_failed {
            return self.0.insert(place, registration) != Some(registration);
        }
        self.0.remove(&place);
        false
    }

    fn try_again(&mut self, leases: &Leases) {
        for (place, registration) in self.0.clone() {
            self.look(leases, place, registration);
        }
    }
}

/// What is still to be watched of a lease; what has been seen to end no longer is.
fn watched_by(lease: &Lease) -> impl Iterator<Item = BorrowedFd<'_>> {
    let container = match lease.state {
        LeaseState::Active | LeaseState::Revoked => lease.init.as_ref(),
        LeaseState::Pending if lease.abandoned.is_none() => lease.requester.as_ref(),
        _ => None,
    };
    container.into_iter().chain(lease.processes.values().map(|process| &process.watched)).map(|p| p.pidfd.as_fd())
}

enum End {
    Not,
    Coming,
    Here(&'static str),
}

/// Whether a lease is over: the init has ended and its cgroup is empty, or nobody ever bound it.
fn end_of(lease: &mut Lease, now: Instant) -> End {
    match lease.state {
        LeaseState::Pending => {
            if lease.requester.as_ref().is_some_and(|requester| !requester.has_ended()) {
                // A daemon that makes containers outlives one that it gives up.
                let waited = now.duration_since(lease.since) >= BIND_PATIENCE;
                return if waited { End::Here("its container did not start in time") } else { End::Not };
            }
            let since = *lease.abandoned.get_or_insert(now);
            if now.duration_since(since) >= BIND_GRACE { End::Here("its container never started") } else { End::Coming }
        }
        LeaseState::Active | LeaseState::Revoked | LeaseState::Ending => {
            if lease.init.as_ref().is_some_and(|init| !init.has_ended()) {
                return End::Not;
            }
            lease.state = LeaseState::Ending;
            // Several containers may share a PID namespace, so others can outlive the init.
            if lease.record.cgroup.as_deref().is_some_and(cgroup::is_populated) {
                return End::Coming;
            }
            End::Here(lease.stopped.unwrap_or("its container has ended"))
        }
        LeaseState::Held => End::Not,
    }
}

/// Takes processes that have ended out of the lease, and keeps what they counted. What they held stays in their slots;
/// the slot of one that held nothing is free. Nothing is written down: that they have ended a supervisor that starts
/// finds out anew.
fn note_deaths(leases: &Leases, lease: &mut Lease) {
    let dead: Vec<usize> =
        lease.processes.iter().filter(|(_, process)| process.watched.has_ended()).map(|(slot, _)| *slot).collect();
    let died = Instant::now();
    take_out(leases, lease, &dead, |lease, slot, last, name| {
        if last.is_some_and(SlotSnapshot::holds_nothing) && !leases.occupants.listed(&name) {
            lease.region.clear_slot(slot);
        } else {
            lease.region.clear_demand(slot);
            lease.dead.insert(slot, Dead { name, died });
        }
    });
}

/// Takes the processes in these slots out of the lease, and keeps what they counted; `part` does what is to be done with a
/// slot.
fn take_out(
    leases: &Leases,
    lease: &mut Lease,
    slots: &[usize],
    part: impl Fn(&mut Lease, usize, Option<&SlotSnapshot<'_>>, ProcessName),
) {
    let Some(last) = slots.last() else { return };
    let mut report = Report::new();
    report.read(&lease.region, last + 1);
    let at = |slot: usize| report.taken().find(|(index, _)| *index == slot).map(|(_, last)| last);
    let has_worked = slots.iter().any(|slot| at(*slot).is_none_or(|last| !last.did_nothing()));
    if has_worked {
        // Their last bursts are in the slots that are about to be cleared.
        leases.gatekeeper.collect(lease.tenant);
    }
    for slot in slots {
        let (Some(process), last) = (lease.processes.remove(slot), at(*slot)) else { continue };
        last.iter().for_each(|last| lease.retired.count(last));
        part(lease, *slot, last.as_ref(), process.watched.name);
    }
    lease.note_processes();
    if has_worked {
        leases.gatekeeper.order(Order::Look { tenant: lease.tenant });
    }
}

/// Frees the slots of the program that this process ran before it executed another one: the kernel has closed what it had
/// opened of the device, and all that it held went with that. Its pidfd says nothing of it. A child that it has forked may
/// hold on to it all, so they stay as they are while there is one.
fn note_execution(leases: &Leases, lease: &mut Lease, name: ProcessName, program: Option<ProgramMark>) {
    let is_before =
        |process: &Process| process.watched.name == name && ProgramMark::has_changed(process.program, program);
    let before: Vec<usize> =
        lease.processes.iter().filter(|(_, process)| is_before(process)).map(|(slot, _)| *slot).collect();
    if before.is_empty() || procfs::has_children(name.pid) {
        return;
    }
    take_out(leases, lease, &before, |lease, slot, _, _| lease.region.clear_slot(slot));
}

/// Frees the slots of dead processes that no GPU of the lease holds anything of; true if there are others.
fn bury(leases: &Leases, lease: &mut Lease) -> bool {
    let gpus: Vec<usize> = lease.gpus().collect();
    let region = &lease.region;
    lease.dead.retain(|slot, dead| {
        let is_gone = gpus.iter().all(|gpu| leases.occupants.has_let_go(*gpu, dead.name, dead.died));
        if is_gone {
            region.clear_slot(*slot);
        }
        !is_gone
    });
    let is_waiting = !lease.dead.is_empty();
    if is_waiting {
        leases.occupants.ask();
    }
    is_waiting
}

fn act_on(leases: &Leases, unwatched: &mut Unwatched, notice: Notice) {
    match notice {
        Notice::Registered { tenant, slot, registration } => unwatched.look(leases, (tenant, slot), registration),
        Notice::ReportCut { tenant } => {
            let mut book = leases.book();
            if let Some(lease) = book.of_tenant(tenant) {
                let message = format!(
                    "{} has cut its report short: its processes can no longer be heard, and end when they use it",
                    lease.record.container_id.short()
                );
                leases.events.note(EventKind::Breach, about(&lease.record, None), message);
            }
        }
        Notice::Hung { tenant, since_ns } => hang::act_on(leases, tenant, since_ns),
    }
}

/// Finds out who has taken a slot, and accepts it; a slot that nobody holds is freed again, and one that another process
/// has taken meanwhile is told of anew.
fn accept(leases: &Leases, tenant: TenantId, slot: usize, registration: u64) -> std::io::Result<()> {
    let mut book = leases.book();
    let Some(lease) = book.of_tenant(tenant) else { return Ok(()) };
    let is_anothers = lease.region.registration(slot).is_some_and(|now| now != registration);
    if lease.dead.contains_key(&slot) || is_anothers {
        return Ok(());
    }
    if lease.processes.get(&slot).is_some_and(|process| process.registration == registration) {
        lease.region.accept(slot, registration);
        return Ok(());
    }
    match holder_of(lease, slot)? {
        Some(watched) => {
            let program = ProgramMark::of(watched.name.pid);
            note_execution(leases, lease, watched.name, program);
            lease.processes.insert(slot, Process { registration, watched, program, refusals_told: 0 });
            // It may wait for this. What the record says of it a supervisor that starts finds out anew.
            lease.region.accept(slot, registration);
            lease.note_processes();
            if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
                log!("{error}");
            }
        }
        // Dead before it was seen, and nothing can be charged to it: it allocates after it is accepted.
        None if lease.region.registration(slot) == Some(registration) => lease.region.clear_slot(slot),
        None => {}
    }
    Ok(())
}

/// The process that holds the record lock on the slot's first byte; none when nobody does.
fn holder_of(lease: &Lease, slot: usize) -> std::io::Result<Option<WatchedProcess>> {
    loop {
        let Some(pid) = lock_holder(lease, slot)? else { return Ok(None) };
        match WatchedProcess::open(pid) {
            // Still the holder after its pidfd was opened, so the pid cannot have changed hands in between.
            Ok(watched) if lock_holder(lease, slot)? == Some(pid) => return Ok(Some(watched)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => match error.raw_os_error() {
                Some(nix::libc::ESRCH) => {}
                _ => return Err(error),
            },
        }
    }
}

fn lock_holder(lease: &Lease, slot: usize) -> std::io::Result<Option<HostPid>> {
    let mut lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: (slot * SLOT_BYTES) as i64,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(lease.region.report_file(), nix::fcntl::FcntlArg::F_GETLK(&mut lock))?;
    let held = lock.l_type != nix::libc::F_UNLCK as i16 && lock.l_pid > 0;
    Ok(held.then_some(HostPid(lock.l_pid as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_that_cannot_be_looked_at_is_kept_until_it_can_and_told_once() {
        let (mut unwatched, place) = (Unwatched::default(), (TenantId(3), 5));
        assert!(unwatched.note(place, 7, true));
        assert!(!unwatched.note(place, 7, true), "told once");
        assert_eq!(unwatched.0, BTreeMap::from([(place, 7)]));
        assert!(unwatched.note(place, 8, true), "another process has the slot");
        assert!(!unwatched.note(place, 8, false));
        assert!(unwatched.0.is_empty());
    }
}
