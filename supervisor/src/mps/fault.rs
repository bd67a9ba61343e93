//! A server after a program's fatal fault: the work of all its clients has ended, and it takes nobody in until those that the
//! fault has reached have ended, too (NVIDIA's documentation of MPS, "Handling Application Failures"). Their containers are
//! told and marked; nobody else can put an end to it.

use super::control::{Control, ServerState};
use super::died::clients_in;
use super::group::{Domain, Group, Groups};
use super::join::list;
use crate::cgroup;
use crate::lease::{Book, Leases, about};
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, GpuUuid, HostPid, LeaseFault, LeaseId, LeaseState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// One fault is told once, by whichever way it is heard of first: several Xids, and what the daemon says.
const ONE_FAULT: Duration = Duration::from_secs(10);

/// The server of the group `id` is in the state `state` and has these clients. Those of its leases whose programs keep it from
/// taking others in are marked and told, each once.
pub fn note_state(leases: &Leases, id: &str, state: ServerState, clients: &BTreeSet<HostPid>) {
    // The book is not locked while cgroups are read, which nothing but a fault needs.
    let reached = if state == ServerState::Fault { reached(leases, id, clients) } else { BTreeSet::new() };
    let run_dir = leases.configuration().paths.run_dir.clone();
    let mut book = leases.book();
    let Some((server, gpus, was_faulted, mut told)) = change(leases, id, |group| {
        let was_faulted = group.is_faulted();
        group.state = Some(state);
        (group.record.server, list(&group.record.gpus), was_faulted, group.told_faults.clone())
    }) else {
        return;
    };
    for lease in book.leases.values_mut().filter(|lease| lease.record.mps_group.as_deref() == Some(id)) {
        let is_marked = lease.record.fault == Some(LeaseFault::MpsServerFault);
        let is_reached = reached.contains(&lease.record.lease_id);
        // Who has lost a server for good, or the GPU, is marked so already.
        let is_marked_else = matches!(lease.record.fault, Some(LeaseFault::MpsServerDied | LeaseFault::GpuFailed));
        if is_marked == is_reached || is_marked_else {
            continue;
        }
        lease.record.fault = is_reached.then_some(LeaseFault::MpsServerFault);
        if let Err(error) = lease.record.write(&run_dir) {
            log!("{error}");
        }
        // Told also where an Xid was a moment ago: that this server takes nobody in says nothing else.
        if is_reached {
            told.insert(lease.record.lease_id.clone(), Instant::now());
            let server = server.map_or_else(String::new, |server| format!(" (process {})", server.pid));
            let message = format!(
                "{} has lost {gpus}: a fatal fault of a program has ended the work of all under its MPS server{server}, which \
                 takes nobody in until they have ended; start the container anew",
                lease.record.container_id.short(),
            );
            leases.events.note(EventKind::MpsServerFault, about(&lease.record, None), message);
        }
    }
    change(leases, id, |group| group.told_faults = told);
    drop(book);
    if was_faulted && state != ServerState::Fault {
        log!("the MPS server of {id} takes clients in again");
        // Somebody may wait for that.
        leases.ended.notify_all();
    }
}

/// The driver has told of a fault of a program on this board, which ends the work of all under its MPS server, if it has one: those that
/// have clients are told. Programs that end at once do not keep the server from taking others in, and its daemon, which is asked once a
/// second, says nothing of it then.
pub fn note_xid(leases: &Leases, board: &GpuUuid, cause: &str) {
    let (book, now) = (leases.book(), Instant::now());
    let mut groups = leases.groups.all();
    let is_there = |group: &&mut Group| group.record.gpus.contains(board) && group.is_alive();
    for group in groups.iter_mut().filter(is_there) {
        let its = book.leases.values().filter(|lease| lease.record.mps_group.as_deref() == Some(&group.record.id));
        let its = its.filter(|lease| lease.state == LeaseState::Active && lease.record.fault.is_none());
        for record in its.map(|lease| &lease.record) {
            let has_clients = !clients_in(&group.seats, record.cgroup.as_deref()).is_empty();
            // Where none is known all are under suspicion.
            let is_reached = has_clients || group.seats.is_empty();
            if !is_reached || !is_news(&mut group.told_faults, &record.lease_id, now) {
                continue;
            }
            let message = format!(
                "{} has lost {}: {cause}; start anew what has ended in the container",
                record.container_id.short(),
                list(&group.record.gpus),
            );
            leases.events.note(EventKind::MpsServerFault, about(record, None), message);
        }
    }
}

/// Whether nobody has told a lease of a fault a moment ago; it counts as told from now on.
fn is_news(told: &mut BTreeMap<LeaseId, Instant>, lease: &LeaseId, now: Instant) -> bool {
    told.retain(|_, at| now.saturating_duration_since(*at) < ONE_FAULT);
    match told.contains_key(lease) {
        true => false,
        false => told.insert(lease.clone(), now).is_none(),
    }
}

fn change<T>(leases: &Leases, id: &str, work: impl FnOnce(&mut Group) -> T) -> Option<T> {
    leases.groups.all().iter_mut().find(|group| group.record.id == id).map(work)
}

/// The leases of the group whose containers hold these clients. A daemon that does not name those that a fault has reached
/// leaves all of them under suspicion.
fn reached(leases: &Leases, id: &str, clients: &BTreeSet<HostPid>) -> BTreeSet<LeaseId> {
    let all: Vec<(LeaseId, Option<String>)> = {
        let book = leases.book();
        let its = book.leases.values().filter(|lease| lease.record.mps_group.as_deref() == Some(id));
        let its = its.filter(|lease| lease.state == LeaseState::Active || lease.state == LeaseState::Ending);
        its.map(|lease| (lease.record.lease_id.clone(), lease.record.cgroup.clone())).collect()
    };
    let holds_client = |cgroup: &str| clients.iter().any(|pid| cgroup::has(cgroup, *pid));
    let named: BTreeSet<LeaseId> = (all.iter())
        .filter(|(_, cgroup)| cgroup.as_deref().is_some_and(holds_client))
        .map(|(lease, _)| lease.clone())
        .collect();
    if named.is_empty() { all.into_iter().map(|(lease, _)| lease).collect() } else { named }
}

impl Groups {
    /// Whether programs on this board are under an MPS server.
    pub fn serve(&self, board: &GpuUuid) -> bool {
        self.all().iter().any(|group| group.record.gpus.contains(board) && group.is_alive())
    }
}

impl Leases {
    /// Asks how the server of the group `id` is, and waits until `deadline` at most for one that is not ready yet: its clients
    /// wait for that themselves.
    pub fn learn_server_state(&self, id: &str, deadline: Instant) {
        let Ok(program) = self.mps_program() else { return };
        let control = Control::of(&program, &self.configuration().paths.run_dir, id).hasty();
        // A daemon that does not say takes clients in, as far as anybody knows.
        if let Ok(Some(state)) = control.settled_state(deadline) {
            let was_faulted = change(self, id, |group| {
                let was_faulted = group.is_faulted();
                group.state = Some(state);
                was_faulted && !group.is_faulted()
            });
            if was_faulted == Some(true) {
                self.ended.notify_all();
            }
        }
    }

    /// A refusal, with what it has to do with servers of `domain` that take nobody in after a fault, if there are any.
    pub fn with_faults(&self, refusal: ErrorBody, book: &Book, domain: &Domain) -> ErrorBody {
        let groups = self.groups.all();
        let mut faulted = groups.iter().filter(|group| group.is_faulted() && group.record.domain == *domain).peekable();
        if refusal.code != ErrorCode::ShareNotFree || faulted.peek().is_none() {
            return refusal;
        }
        let sentences: Vec<String> = faulted.map(|group| sentence(book, group)).collect();
        let remedy = "restart or remove the containers that gpool ps marks mps-server-fault";
        ErrorBody::new(refusal.code, format!("{}; {}", refusal.message, sentences.join("; ")), remedy)
    }

    /// Refuses while the server of the group takes nobody in after a fault.
    ///
    /// # Errors
    /// It does.
    pub fn must_take_in(&self, id: &str, book: &Book) -> Result<(), ErrorBody> {
        let groups = self.groups.all();
        let Some(group) = groups.iter().find(|group| group.record.id == id && group.is_faulted()) else {
            return Ok(());
        };
        let remedy = "restart or remove the containers that gpool ps marks mps-server-fault, and start this one again";
        Err(ErrorBody::new(ErrorCode::ShareNotFree, sentence(book, group), remedy))
    }
}

/// Which server takes nobody in, and who keeps it from that.
fn sentence(book: &Book, group: &Group) -> String {
    let its = book.leases.values().map(|lease| &lease.record);
    let its = its.filter(|record| record.mps_group.as_deref() == Some(&group.record.id));
    let marked = its.filter(|record| record.fault == Some(LeaseFault::MpsServerFault));
    let containers: Vec<&str> = marked.map(|record| record.container_id.short()).collect();
    let programs = match containers.is_empty() {
        true => "all programs that it served".to_owned(),
        false => format!("the programs of {}", containers.join(", ")),
    };
    format!(
        "the MPS server of {} on {} takes nobody in after a fault until {programs} have ended",
        group.record.domain,
        list(&group.record.gpus),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_is_told_once_however_it_is_heard_of() {
        let (mut told, now) = (BTreeMap::new(), Instant::now());
        let [one, other] = ["01", "02"].map(|id| LeaseId(id.into()));
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(is_news(&mut told, &one, now) && !is_news(&mut told, &one, at(9)), "of the Xid, then of the daemon");
        assert!(is_news(&mut told, &other, at(9)), "of another one nobody has told");
        assert!(is_news(&mut told, &one, at(10)) && told.len() == 2, "the next fault");
    }
}
