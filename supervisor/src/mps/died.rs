//! Clients of a server as they were last told, and a server that has ended while its daemon lives: the work of those clients is lost.
//! Their containers are marked until something of theirs is a client of the next server, or for a while after the last of those
//! programs has ended, so that who looks why they did sees it. A daemon that has ended is no such thing: nobody who is under it ever
//! gets another server.

use super::group::Group;
use super::watch::listed_in;
use crate::cgroup;
use crate::lease::{Lease, Leases};
use crate::procfs::{self, ProcessName};
use gpool_protocol::{HostPid, LeaseFault};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a container stays marked at least that has no new client yet.
const SHOWN: Duration = Duration::from_secs(60);

/// Where a client of a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    name: ProcessName,
    cgroup: String,
}

impl Seat {
    fn of(pid: HostPid) -> Option<Self> {
        let start_ticks = procfs::start_ticks(pid)?;
        Some(Self { name: ProcessName { pid, start_ticks }, cgroup: cgroup::path_of(pid)? })
    }
}

/// What a lease lost with a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    at: Instant,
    /// Its processes that were clients.
    clients: Vec<ProcessName>,
}

impl Loss {
    /// At `now`, of these.
    pub fn of(clients: Vec<ProcessName>, at: Instant) -> Self {
        Self { at, clients }
    }

    fn is_over(&self, now: Instant, goes_on: impl Fn(&ProcessName) -> bool) -> bool {
        now.saturating_duration_since(self.at) >= SHOWN && !self.clients.iter().any(goes_on)
    }
}

impl Group {
    /// Notes where the clients are that its server has now.
    pub fn seat(&mut self, clients: &[HostPid]) {
        self.seats.retain(|pid, _| clients.contains(pid));
        for pid in clients {
            // One that has ended by now is nowhere.
            if !self.seats.contains_key(pid)
                && let Some(seat) = Seat::of(*pid)
            {
                self.seats.insert(*pid, seat);
            }
        }
    }
}

/// The clients that are in a container's cgroup.
pub fn clients_in(seats: &BTreeMap<HostPid, Seat>, cgroup: Option<&str>) -> Vec<ProcessName> {
    let Some(cgroup) = cgroup else { return Vec::new() };
    let its = seats.values().filter(|seat| cgroup::is_at_or_below(cgroup, &seat.cgroup));
    its.map(|seat| seat.name).collect()
}

/// Takes the marks from containers that go on.
pub fn forgive(leases: &Leases) {
    let now = Instant::now();
    let mut book = leases.book();
    let run_dir = leases.configuration().paths.run_dir.clone();
    let mut groups = leases.groups.all();
    // How one has ended is to be seen by it to its end.
    let is_marked = |lease: &&mut Lease| lease.record.fault == Some(LeaseFault::MpsServerDied) && lease.is_alive();
    for lease in book.leases.values_mut().filter(is_marked) {
        let id = lease.record.mps_group.as_deref();
        let group = groups.iter_mut().find(|group| Some(group.record.id.as_str()) == id && group.is_alive());
        let Some(group) = group else { continue };
        let goes_on = |name: &ProcessName| procfs::goes_on(name.pid, Some(name.start_ticks));
        // Of one that was marked before this supervisor began, or whose clients nobody knew, as if that were now.
        let cgroup = lease.record.cgroup.as_deref();
        let clients = clients_in(&group.seats, cgroup);
        let had = || listed_in(leases, cgroup).into_iter().filter(|name| !clients.contains(name)).collect();
        let lost = group.losses.entry(lease.record.lease_id.clone()).or_insert_with(|| Loss::of(had(), now));
        // Who was a client of the one before is none of the next, whatever a daemon says of it.
        let has_client = clients.iter().any(|name| !lost.clients.contains(name));
        if has_client || lost.is_over(now, goes_on) {
            group.losses.remove(&lease.record.lease_id);
            lease.record.fault = None;
            if let Err(error) = lease.record.write(&run_dir) {
                log!("{error}");
            }
        }
    }
    for group in groups.iter_mut().filter(|group| !group.losses.is_empty()) {
        group.losses.retain(|lease, _| book.leases.contains_key(lease));
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::{Domain, GroupRecord, Stage};
    use super::*;

    fn name(pid: u32) -> ProcessName {
        ProcessName { pid: HostPid(pid), start_ticks: 100 }
    }

    #[test]
    fn only_containers_with_clients_lose_something_with_a_server() {
        let seat = |pid, cgroup: &str| (HostPid(pid), Seat { name: name(pid), cgroup: cgroup.to_owned() });
        let seats = BTreeMap::from([seat(7, "/docker/a"), seat(8, "/docker/a/inner"), seat(9, "/docker/ab")]);
        let clients = |cgroup| clients_in(&seats, cgroup);
        assert_eq!(clients(Some("/docker/a")), [name(7), name(8)]);
        assert!(clients(Some("/docker/b")).is_empty() && clients(None).is_empty());
    }

    #[test]
    fn a_loss_is_over_when_none_of_its_programs_is_left_and_it_was_shown_for_a_while() {
        let start = Instant::now();
        let loss = Loss::of(vec![name(7), name(8)], start);
        let is_over = |seconds, alive: &[u32]| {
            loss.is_over(start + Duration::from_secs(seconds), |name| alive.contains(&name.pid.0))
        };
        assert!(!is_over(59, &[]) && is_over(60, &[]));
        assert!(!is_over(3600, &[8]), "who lives on has still lost its work");
    }

    #[test]
    fn seats_are_of_the_clients_of_now() {
        let domain = Domain { team: "vision".into(), namespace: None, uid: 0 };
        let record = GroupRecord {
            boot_id: "b".into(),
            id: "01".into(),
            domain,
            gpus: Vec::new(),
            daemon: None,
            server: None,
            has_ended: false,
        };
        let mut group = Group::new(record, Stage::Started);
        let gone = HostPid(u32::MAX >> 1);
        group.seats.insert(gone, Seat { name: name(gone.0), cgroup: "/a".into() });
        group.seat(&[HostPid(std::process::id()), HostPid(gone.0 - 1)]);
        assert!(!group.seats.contains_key(&gone) && !group.seats.contains_key(&HostPid(gone.0 - 1)));
    }
}
