//! The thread that watches daemons and servers: it notices their deaths, starts the servers of new groups, and stops the
//! daemons that no lease uses any more.

use super::clients::Clients;
use super::control::{Control, was_not_asked};
use super::daemon::{self, clear_away};
use super::died::{Loss, clients_in, forgive};
use super::fault::note_state;
use super::group::{Group, GroupRecord, Stage, dir_of};
use super::join::{limits_wanted, list};
use super::{logs, room};
use crate::cgroup;
use crate::events::About;
use crate::faults::Faults;
use crate::lease::{GROUPS, Leases, about, mps_groups_used};
use crate::procfs::{self, ProcessName, WatchedProcess};
use gpool_protocol::{EventKind, HostPid, LeaseFault, LeaseState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks when nothing happens.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
/// How often a daemon is asked for its server's clients.
const CLIENTS_PERIOD: Duration = Duration::from_secs(1);
/// How often a daemon is told what its server gives that was told otherwise.
const LIMITS_PERIOD: Duration = Duration::from_secs(10);
/// How long a daemon may take to end after it was told to; it ends clients that are left after a second.
const STOP_PATIENCE: Duration = Duration::from_secs(4);
/// How long the whole of it may take: what it says to the command, ending, and being ended by force.
const STOP_LIMIT: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(10);

/// Finds the groups of an earlier supervisor again, before their leases are taken over; those of another boot are cleared
/// away.
pub fn take_over(leases: &Leases) {
    let run_dir = leases.configuration().paths.run_dir.clone();
    for id in GroupRecord::ids(&run_dir) {
        let record = GroupRecord::read(&run_dir, &id).ok().filter(|record| record.boot_id == leases.boot_id);
        let Some(record) = record else {
            leases.remove_folders(&run_dir, &id);
            continue;
        };
        if let Err(error) = record.close(&run_dir) {
            log!("{} stays open to every user of this host: {error}", dir_of(&run_dir, &id).display());
        }
        if record.has_ended {
            // Nobody is a client any more who comes from now on.
            let clients = Some(Clients::of_ended(None, Instant::now(), false));
            leases.groups.all().push(Group { clients, ..Group::new(record, Stage::Started) });
            continue;
        }
        let reopen = |name| WatchedProcess::reopen(name).ok();
        let (daemon, server) = (record.daemon.and_then(reopen), record.server.and_then(reopen));
        let is_known = record.daemon.is_some();
        let mut group = Group { daemon, server, ..Group::new(record, Stage::Started) };
        if is_known {
            leases.groups.all().push(group);
            continue;
        }
        // Its supervisor was killed before it had written down who it is: nobody is under it.
        if let Ok(program) = leases.mps_program() {
            // One that does not run does not answer.
            let _ = Control::of(&program, &run_dir, &id).quit();
        }
        clear_away(&mut group);
        leases.remove_folders(&run_dir, &id);
    }
}

/// Watches for ever; runs on its own thread.
pub fn watch(leases: &Leases) {
    let (mut uncut, mut unserved) = (Faults::default(), Faults::default());
    let mut tried = BTreeMap::new();
    loop {
        let all: Vec<OwnedFd> = {
            let groups = leases.groups.all();
            let processes = groups.iter().flat_map(|group| [&group.daemon, &group.server]).flatten();
            processes.filter_map(|process| process.pidfd.as_fd().try_clone_to_owned().ok()).collect()
        };
        let mut waits: Vec<PollFd<'_>> = all.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut waits, Some(&PERIOD));
        note_deaths(leases);
        forgive(leases);
        ensure_servers(leases, &mut unserved);
        note_clients(leases);
        cut_logs(leases, &mut uncut);
        adjust_limits(leases, &mut tried);
        room::note(leases);
        stop_unused(leases);
    }
}

/// Tells of daemons and servers that have ended, and marks the leases that had them.
fn note_deaths(leases: &Leases) {
    let mut book = leases.book();
    let run_dir = leases.configuration().paths.run_dir.clone();
    for group in leases.groups.all().iter_mut() {
        let has_ended = |process: &Option<WatchedProcess>| process.as_ref().is_none_or(WatchedProcess::has_ended);
        let (daemon, server) = (group.record.daemon, group.record.server);
        let who = match (daemon, server) {
            (Some(daemon), _) if has_ended(&group.daemon) => format!("daemon (process {})", daemon.pid),
            (_, Some(server)) if has_ended(&group.server) => format!("server (process {})", server.pid),
            _ => continue,
        };
        let now = Instant::now();
        let was_silent = group.silence.is_too_long(now);
        let served_nobody = group.clients.as_ref().is_some_and(Clients::are_none);
        let is_replaced = group.is_alive() && served_nobody;
        // Of the clients of one that had not been asked for them yet nobody knows.
        let seats = std::mem::take(&mut group.seats);
        let are_known = group.is_alive() && group.clients.as_ref().is_some_and(|clients| clients.asked_at().is_some());
        group.clients = if has_ended(&group.daemon) {
            (group.record.daemon, group.daemon, group.record.has_ended) = (None, None, true);
            // It may have started a server of which it has never told.
            daemon::kill_all(&group.record.id);
            Some(Clients::of_ended(group.clients.take(), now, was_silent))
        } else {
            // Another server starts.
            None
        };
        // A server without its daemon takes nobody in, and nobody would end it.
        if let Some(server) = &group.server {
            server.kill();
            group.leaving.push((server.name.pid, now + STOP_PATIENCE));
        }
        (group.record.server, group.server, group.limits) = (None, None, None);
        if let Err(error) = group.record.write(&run_dir) {
            log!("{error}");
        }
        // A daemon ends the server of one user, once it has no clients, for one of another.
        let of_group = |lease: &&mut crate::lease::Lease| lease.record.mps_group.as_ref() == Some(&group.record.id);
        // Somebody may have joined since it was asked last.
        let has_client =
            |lease: &mut crate::lease::Lease| !listed_in(leases, lease.record.cgroup.as_deref()).is_empty();
        if is_replaced && !book.leases.values_mut().filter(of_group).any(has_client) {
            continue;
        }
        for lease in book.leases.values_mut().filter(of_group) {
            if lease.state == LeaseState::Pending {
                continue;
            }
            if are_known {
                let mut lost = clients_in(&seats, lease.record.cgroup.as_deref());
                if lost.is_empty() {
                    // It may have one by now that the daemon was not asked for since.
                    lost = listed_in(leases, lease.record.cgroup.as_deref());
                }
                // It has lost nothing: what it starts from now on is a client of the next server.
                if lost.is_empty() {
                    continue;
                }
                group.losses.insert(lease.record.lease_id.clone(), Loss::of(lost, now));
            }
            lease.record.fault = Some(LeaseFault::MpsServerDied);
            if let Err(error) = lease.record.write(&run_dir) {
                log!("{error}");
            }
            let why = if was_silent { "did not answer any more and was ended" } else { "has ended" };
            let remedy = if are_known { "start them anew" } else { "start the container anew" };
            let message = format!(
                "{} has lost {}: its MPS {who} {why}, and with it the work of all programs that it served; {remedy}",
                lease.record.container_id.short(),
                list(&group.record.gpus),
            );
            leases.events.note(EventKind::MpsServerDied, about(&lease.record, None), message);
        }
    }
}

/// Has the server of each group that is known to have none started, and learns who it is; `unserved` has where that failed, since
/// it is tried three times a second.
fn ensure_servers(leases: &Leases, unserved: &mut Faults<String>) {
    let Ok(program) = leases.mps_program() else { return };
    let run_dir = leases.configuration().paths.run_dir.clone();
    let without: Vec<(String, u32)> = {
        let groups = leases.groups.all();
        let is_without = |group: &&Group| group.is_alive() && group.server.is_none();
        groups.iter().filter(is_without).map(|group| (group.record.id.clone(), group.record.domain.uid)).collect()
    };
    unserved.retain(|id| without.iter().any(|(its, _)| its == id));
    for (id, uid) in without {
        let since = Instant::now();
        let control = Control::of(&program, &run_dir, &id);
        let found = control.server_of(uid);
        note_answer(leases, &id, &control, since, found.as_ref().err());
        let server = match found.map(|pid| pid.map(WatchedProcess::open)) {
            Ok(Some(Ok(server))) => server,
            // Another look follows.
            Ok(None | Some(Err(_))) => continue,
            Err(error) => {
                let fault = Err::<(), _>(format!("the MPS server of {id} does not start ({error})"));
                unserved.note(id, &fault);
                continue;
            }
        };
        let mut groups = leases.groups.all();
        if let Some(group) = groups.iter_mut().find(|group| group.record.id == id) {
            // Root of a container of the team can answer in the daemon's place; its processes are in other cgroups.
            let daemon = group.daemon.as_ref().map(|daemon| cgroup::path_of(daemon.name.pid));
            if daemon != Some(cgroup::path_of(server.name.pid)) {
                let fault = Err::<(), _>(format!("process {} is no MPS server of {id}", server.name.pid));
                unserved.note(id, &fault);
                continue;
            }
            group.record.server = Some(server.name);
            group.server = Some(server);
            if let Err(error) = group.record.write(&run_dir) {
                log!("{error}");
            }
        }
    }
}

/// Asks each daemon for its server's clients, and how the server is: who is none of them and uses the GPU goes past it.
fn note_clients(leases: &Leases) {
    let Ok(program) = leases.mps_program() else { return };
    let run_dir = leases.configuration().paths.run_dir.clone();
    let asked_at = |group: &Group| group.clients.as_ref().and_then(Clients::asked_at);
    let is_due = |group: &&Group| asked_at(group).is_none_or(|at| at.elapsed() >= CLIENTS_PERIOD);
    let due: Vec<(String, HostPid)> = {
        let groups = leases.groups.all();
        let with_server = groups.iter().filter(is_due);
        with_server.filter_map(|group| Some((group.record.id.clone(), group.record.server?.pid))).collect()
    };
    for (id, server) in due {
        let since = Instant::now();
        let control = Control::of(&program, &run_dir, &id);
        let clients = control.clients_of(server);
        note_answer(leases, &id, &control, since, clients.as_ref().err());
        // Where there is no answer, the last one holds for whom it was about.
        let Ok(clients) = clients else { continue };
        // An older one does not know the question.
        if let Ok(Some(state)) = control.state_of(server) {
            note_state(leases, &id, state, &clients.iter().copied().collect());
        }
        if let Some(group) = leases.groups.all().iter_mut().find(|group| group.record.id == id) {
            // What is said of one that has ended meanwhile is not whom it had.
            if group.server.as_ref().is_none_or(WatchedProcess::has_ended) {
                continue;
            }
            group.seat(&clients);
            group.clients = Some(Clients::of_answer(since, clients));
        }
    }
}

/// Notes whether the daemon of the group `id` has answered a question of that time. Nobody knows the clients of one that
/// has not for too long, whoever is the cause: it is ended, and with it the work under its server.
fn note_answer(leases: &Leases, id: &str, control: &Control, asked_at: Instant, error: Option<&io::Error>) {
    // One may refuse a question and be there all the same. A question that could not be asked says nothing of it.
    let is_answered = match error {
        None => true,
        Some(error) if was_not_asked(error) => return,
        Some(_) => match control.clone().hasty().ask() {
            Err(error) if was_not_asked(&error) => return,
            answer => answer.is_ok(),
        },
    };
    let mut groups = leases.groups.all();
    let Some(group) = groups.iter_mut().find(|group| group.record.id == id) else { return };
    group.silence.note(asked_at, is_answered);
    if let Some(daemon) = group.daemon.as_ref().filter(|_| group.silence.is_too_long(Instant::now())) {
        log!("the MPS daemon of {id} does not answer and is ended");
        daemon.kill();
    }
}

/// Keeps logs of daemons from filling what they share with their clients; `uncut` has where that could not be done.
fn cut_logs(leases: &Leases, uncut: &mut Faults<String>) {
    let run_dir = leases.configuration().paths.run_dir.clone();
    let ids: Vec<String> = leases.groups.all().iter().map(|group| group.record.id.clone()).collect();
    uncut.retain(|id| ids.contains(id));
    for id in ids {
        let cut = logs::cut(&run_dir, &id);
        uncut.note(id, &cut);
    }
}

/// The processes in a container's cgroup that a GPU listed last.
pub fn listed_in(leases: &Leases, cgroup: Option<&str>) -> Vec<ProcessName> {
    let pids = cgroup.map(|cgroup| cgroup::processes_in_some(cgroup, GROUPS)).unwrap_or_default();
    let listed = pids.into_iter().filter(|pid| leases.occupants.lists(*pid));
    listed.filter_map(|pid| Some(ProcessName { pid, start_ticks: procfs::start_ticks(pid)? })).collect()
}

/// Has servers give less once their largest container has ended: a client without variables, and one that sets them anew, has what
/// the server gives. `tried` has when that last failed.
fn adjust_limits(leases: &Leases, tried: &mut BTreeMap<String, Instant>) {
    let due: Vec<String> = {
        let book = leases.book();
        let groups = leases.groups.all();
        let is_due = |group: &&Group| {
            let wanted = limits_wanted(&book, &group.record.id).map(|(limits, _)| limits);
            group.stage == Stage::Started && group.is_alive() && wanted.is_some() && group.limits != wanted
        };
        groups.iter().filter(is_due).map(|group| group.record.id.clone()).collect()
    };
    let now = Instant::now();
    tried.retain(|_, at| now.saturating_duration_since(*at) < LIMITS_PERIOD);
    for id in due {
        if tried.contains_key(&id) {
            continue;
        }
        // Where somebody else is busy with it he tells it. Nobody waits for this one.
        if let Err(error) = leases.make_ready(&id, now) {
            tried.insert(id.clone(), now);
            log!("the MPS server of {id} may give more than its containers have: {}", error.message);
        }
    }
}

/// Stops the daemons that no lease uses, and takes their folders away.
fn stop_unused(leases: &Leases) {
    let run_dir = leases.configuration().paths.run_dir.clone();
    let program = leases.mps_program().unwrap_or_else(|_| PathBuf::from(super::control::PROGRAM));
    while let Some(mut group) = next_unused(leases) {
        let id = group.record.id.clone();
        // The daemon of one that is new was never started: its lease was not made.
        if group.stage != Stage::New {
            stop(&program, &run_dir, &mut group);
            leases.remove_folders(&run_dir, &id);
        }
        leases.groups.all().retain(|group| group.record.id != id);
        // Somebody may wait for its GPUs, who looks at them with the book.
        drop(leases.book());
        leases.ended.notify_all();
        if matches!(group.stage, Stage::New | Stage::Failed(_)) {
            continue;
        }
        let domain = &group.record.domain;
        let gpus = list(&group.record.gpus);
        let message = format!("stopped MPS for {domain} on {gpus}: nobody uses it");
        leases.events.note(EventKind::MpsStopped, About::default(), message);
    }
}

/// A group that no lease uses, which nobody joins from now on.
fn next_unused(leases: &Leases) -> Option<Group> {
    let book = leases.book();
    let used = mps_groups_used(&book);
    // Whoever is busy with one gives it back, and its lease may have gone meanwhile.
    let is_unused = |group: &&mut Group| !used.contains(&group.record.id) && !group.is_busy();
    let mut groups = leases.groups.all();
    groups.iter_mut().find(is_unused).map(|group| group.begin_stop(Instant::now() + STOP_LIMIT))
}

fn stop(program: &Path, run_dir: &Path, group: &mut Group) {
    if group.is_alive() {
        // One that does not answer is ended by force.
        if let Err(error) = Control::of(program, run_dir, &group.record.id).quit() {
            log!("the MPS daemon of {} does not quit ({error})", group.record.id);
        }
        let deadline = Instant::now() + STOP_PATIENCE;
        while group.is_alive() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
    clear_away(group);
}
