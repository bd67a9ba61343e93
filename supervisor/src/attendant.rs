//! The thread that attends to births and deaths: processes that register, processes and containers that end, and
//! kept places that expire. Everything it knows of an end it sees itself, through pidfds and cgroups.

mod acceptance;
mod executed;
mod queue;

use crate::cgroup;
use crate::clock;
use crate::events::About;
use crate::gatekeeper::{Notice, Order};
use crate::hang;
use crate::lease::{BIND_GRACE, Dead, Lease, Leases, Process, about, bind_patience};
use crate::region::{RegionHost, Report, tend_aside};
use crate::revocation;
use crate::uncounted;
use acceptance::{Unwatched, look, write_down};
use gpool_policy::TenantId;
use gpool_protocol::{EventKind, HostPid, LeaseId, LeaseState};
use gpool_shared_region::SlotSnapshot;
use queue::{Queue, Registration};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Notices acted on before the next registration is looked at.
const NOTICES: usize = 256;
/// Registrations are looked at for so long before deaths are looked at again.
const TURNS: Duration = Duration::from_millis(20);
/// Deaths are looked at again unasked, or because a process registers, after so many times as long as that took: with many
/// processes it takes long, and who registers without end must not keep the book from the others by it.
const REST: u32 = 4;
/// How often an ending container's cgroup is looked at, at first ...
const ENDING_PERIOD: Duration = Duration::from_millis(20);
/// ... and later after this part of the time for which it has been ending: a process that hangs in the kernel may keep it from
/// its end for weeks.
const ENDING_PART: u32 = 100;
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
        let (mut queue, mut unwatched) = (Queue::default(), Unwatched::default());
        let (mut is_behind, mut next_try) = (false, Instant::now());
        let mut next_programs = next_try;
        loop {
            leases.progress.attendant.note();
            tend_aside();
            let begun = Instant::now();
            // Not at each look, which an end that is near makes more frequent.
            if begun >= next_try {
                crate::lease::take_over_stranded(leases);
                leases.clear_leftovers();
                leases.tend_queue();
                unwatched.try_again(&mut queue, begun);
                next_try = begun + IDLE_PERIOD;
            }
            if begun >= next_programs {
                executed::look(leases);
                next_programs = begun + executed::PERIOD;
            }
            let patience = self.look_after(leases);
            let watched = watched(leases);
            let now = Instant::now();
            let rest_until = now + (now - begun) * REST;
            let patience = queue.patience(now).map_or(patience, |its| patience.min(its));
            self.wait(&watched, if is_behind { Duration::ZERO } else { patience });
            is_behind = self.take_turns(leases, (&mut queue, &mut unwatched), &watched, rest_until);
        }
    }

    /// Acts on notices, and looks at one registration after the other, for a while at most: deaths are attended to in
    /// between, however much there is to do. With nothing to do it rests, unless one of `watched` ends. Whether something is
    /// left.
    fn take_turns(
        &self,
        leases: &Leases,
        (queue, unwatched): (&mut Queue, &mut Unwatched),
        watched: &[OwnedFd],
        rest_until: Instant,
    ) -> bool {
        let begun = Instant::now();
        let (end, rest_until) = (begun + TURNS, rest_until.min(begun + IDLE_PERIOD));
        let mut changed = BTreeSet::new();
        let is_behind = loop {
            // Between any two looks: who comes last waits for one of each of the others.
            let notices = self.receiver.try_iter().take(NOTICES);
            let has_more = notices.map(|notice| act_on(leases, queue, notice)).count() == NOTICES;
            let now = Instant::now();
            let patience = queue.patience(now).unwrap_or(IDLE_PERIOD);
            if now >= end && (has_more || patience.is_zero()) {
                break true;
            }
            match queue.next(now) {
                Some(next) => queue.spend(next.tenant, look(leases, unwatched, next, &mut changed)),
                None if has_more => {}
                None if now >= rest_until => break false,
                // Ends that come together are looked at together.
                None if now < end => {
                    self.wait(&[], patience.min(rest_until.min(end) - now));
                }
                None if self.wait(watched, patience.min(rest_until - now)) => break false,
                None => {}
            }
        };
        write_down(leases, &changed);
        is_behind
    }

    /// Waits until one of `watched` ends, a notice comes, or `patience` is over. Whether one has ended.
    fn wait(&self, watched: &[OwnedFd], patience: Duration) -> bool {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        fds.extend(watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&limit));
        let mut counter = [0u8; 8];
        let _ = rustix::io::read(&*self.bell, &mut counter);
        fds[1..].iter().any(|fd| !fd.revents().is_empty())
    }

    /// Acts on every end that can be seen now; says how long until it should look again unasked.
    fn look_after(&self, leases: &Leases) -> Duration {
        let mut book = leases.book();
        let now = Instant::now();
        let kept = book.held.len();
        book.give_up_places(now);
        let has_expired = book.held.len() < kept;
        leases.write_places(&mut book);
        let mut over: Vec<(LeaseId, &str)> = Vec::new();
        let mut patience = IDLE_PERIOD;
        for (id, lease) in &mut book.leases {
            note_deaths(leases, lease);
            let freed = [bury(leases, lease), revocation::settle(leases, lease)];
            patience = freed.into_iter().flatten().fold(patience, Duration::min);
            match end_of(lease, now) {
                End::Not => {}
                End::Coming { since } => patience = patience.min(ending_period(since, now)),
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

/// What is still to be watched. Descriptors are duplicated so that the book is not locked while waiting.
fn watched(leases: &Leases) -> Vec<OwnedFd> {
    let book = leases.book();
    let all = book.leases.values().flat_map(watched_by);
    all.filter_map(|fd| fd.try_clone_to_owned().ok()).collect()
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

/// How often it is looked whether what has been ending since then has ended.
fn ending_period(since: Instant, now: Instant) -> Duration {
    (now.saturating_duration_since(since) / ENDING_PART).clamp(ENDING_PERIOD, IDLE_PERIOD)
}

enum End {
    Not,
    Coming { since: Instant },
    Here(&'static str),
}

/// Whether a lease is over: the init has ended and its cgroup is empty, or nobody ever bound it.
fn end_of(lease: &mut Lease, now: Instant) -> End {
    match lease.state {
        LeaseState::Pending => {
            if lease.requester.as_ref().is_some_and(|requester| !requester.has_ended()) {
                // A daemon that makes containers outlives one that it gives up.
                let waited = now.duration_since(lease.since) >= bind_patience(&lease.record);
                return if waited { End::Here("its container did not start in time") } else { End::Not };
            }
            let since = *lease.abandoned.get_or_insert(now);
            match now.duration_since(since) >= BIND_GRACE {
                true => End::Here("its container never started"),
                false => End::Coming { since },
            }
        }
        LeaseState::Active | LeaseState::Revoked | LeaseState::Ending => {
            if lease.init.as_ref().is_some_and(|init| !init.has_ended()) {
                return End::Not;
            }
            lease.state = LeaseState::Ending;
            let since = *lease.ending_since.get_or_insert(now);
            // Several containers may share a PID namespace, so others can outlive the init.
            if lease.record.cgroup.as_deref().is_some_and(cgroup::is_populated) {
                return End::Coming { since };
            }
            End::Here(lease.stopped.unwrap_or("its container has ended"))
        }
        LeaseState::Held | LeaseState::Stranded => End::Not,
    }
}

/// Takes processes that have ended out of the lease, and keeps what they counted. What they held stays in their slots;
/// the slot of one that held nothing is free. Nothing is written down: that they have ended a supervisor that starts
/// finds out anew.
fn note_deaths(leases: &Leases, lease: &mut Lease) {
    let dead: Vec<usize> =
        lease.processes.iter().filter(|(_, process)| process.watched.has_ended()).map(|(slot, _)| *slot).collect();
    let died = Instant::now();
    take_out(leases, lease, &dead, |lease, slot, last, process| {
        let (name, registration) = (Some(process.watched.name), process.registration);
        retire(leases, lease, slot, last, Dead { name, registration, died, has_executed: false });
    });
}

/// Takes back what one has wanted that has ended, and frees its slot if it held nothing.
fn retire(leases: &Leases, lease: &mut Lease, slot: usize, last: Option<&SlotSnapshot<'_>>, dead: Dead) {
    let is_listed = dead.name.is_some_and(|name| leases.occupants.listed(&name));
    if last.is_some_and(SlotSnapshot::holds_nothing) && !is_listed {
        lease.region.clear_slot(slot);
    } else {
        lease.region.clear_demand(slot);
        lease.dead.insert(slot, dead);
    }
}

/// Whether the slot is not that registration's any more: while this supervisor stood still or was away, a process may have freed it,
/// and another one taken it.
fn is_anothers(region: &RegionHost, slot: usize, registration: u64) -> bool {
    region.registration(slot).is_some_and(|now| now != registration)
}

/// Takes the processes in these slots out of the lease, and keeps what they counted; `part` does what is to be done with a
/// slot.
fn take_out(
    leases: &Leases,
    lease: &mut Lease,
    slots: &[usize],
    part: impl Fn(&mut Lease, usize, Option<&SlotSnapshot<'_>>, &Process),
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
        let (Some(mut process), last) = (lease.processes.remove(slot), at(*slot)) else { continue };
        if is_anothers(&lease.region, *slot, process.registration) {
            continue;
        }
        let (pid, gpus) = (process.watched.name.pid, lease.accounts.len());
        last.iter().for_each(|last| {
            lease.retired.count(last);
            lease.shortages.look(&mut process, last, gpus);
            lease.lost_contexts.look(last, clock::now_ns(), Some(pid), gpus);
        });
        part(lease, *slot, last.as_ref(), &process);
    }
    lease.note_processes();
    if has_worked {
        leases.gatekeeper.order(Order::Look { tenant: lease.tenant });
    }
}

/// Frees the slots of dead processes that no GPU of the lease holds anything of. After how long NVML's next answer may free others,
/// if it may.
fn bury(leases: &Leases, lease: &mut Lease) -> Option<Duration> {
    let gpus: Vec<usize> = lease.gpus().collect();
    let region = &lease.region;
    // One that nobody has found out may live, and have closed what its lock was on.
    let registered: BTreeSet<HostPid> = lease.processes.values().map(|process| process.watched.name.pid).collect();
    let is_inside = |pid| {
        let its = lease.record.cgroup.as_deref();
        its.zip(cgroup::path_of(pid)).is_none_or(|(its, path)| cgroup::is_at_or_below(its, &path))
    };
    let may_be = |pid| !registered.contains(&pid) && is_inside(pid);
    let has_let_go = |gpu: usize, dead: &Dead| match dead.name {
        Some(name) => leases.occupants.has_let_go(gpu, name, dead.died),
        None => leases.occupants.has_let_go_of_unnamed(gpu, dead.died, may_be),
    };
    let (mut holding, uncounted) = (Vec::new(), &mut lease.uncounted);
    lease.dead.retain(|slot, dead| {
        let by = gpus.iter().filter(|gpu| !has_let_go(**gpu, dead)).map(|gpu| (*gpu, dead.died));
        let before = holding.len();
        holding.extend(by);
        let is_gone = holding.len() == before;
        // Of another program of it that goes on, more may show beside the account.
        if is_gone
            && !dead.has_executed
            && let Some(name) = &dead.name
        {
            uncounted::note_gone(uncounted, region.control(), name);
        }
        if is_gone && !is_anothers(region, *slot, dead.registration) {
            region.clear_slot(*slot);
        }
        !is_gone
    });
    leases.occupants.ask_soon_after(holding.into_iter(), Instant::now())
}

fn act_on(leases: &Leases, queue: &mut Queue, notice: Notice) {
    match notice {
        Notice::Registered { tenant, slot, registration } => {
            queue.put(Registration { tenant, slot, number: registration }, Instant::now());
        }
        Notice::ReportCut { tenant } => {
            let words = "has cut its report short: its processes can no longer be heard, and end when they use it";
            note_breach(leases, tenant, words);
        }
        Notice::KeepsWaiting { tenant } => {
            let words = "keeps whoever reads its bell or writes to its report waiting in the kernel, as by a file server or faults \
                         of its own that it does not serve: places of its dead processes may stay taken";
            note_breach(leases, tenant, words);
        }
        Notice::WasAway { for_ns } => {
            let seconds = for_ns as f64 / 1e9;
            let message = format!(
                "the supervisor stood still for {seconds:.1} s: containers of classes with fail_open = true ran unpaced meanwhile, the others \
                 stood, and what each had of the GPUs is owed to nobody; look for what keeps it from running: a host without memory, or \
                 a debugger"
            );
            leases.events.note(EventKind::SupervisorStalled, About::default(), message);
        }
        Notice::Hung { tenant, since_ns } => hang::act_on(leases, tenant, since_ns),
    }
}

/// Tells what a container has done to its region.
fn note_breach(leases: &Leases, tenant: TenantId, words: &str) {
    let mut book = leases.book();
    if let Some(lease) = book.of_tenant(tenant) {
        let message = format!("{} {words}", lease.record.container_id.short());
        leases.events.note(EventKind::Breach, about(&lease.record, None), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_does_not_come_is_looked_for_ever_less_often() {
        let start = Instant::now();
        let period = |ms| ending_period(start, start + Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 500, 2000, 10_000, 50_000].map(period), [20, 20, 20, 100, 500]);
        assert_eq!(period(14 * 86_400_000), 500, "as often as kept places are");
    }
}
