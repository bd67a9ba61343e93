//! What a group can run out of: the room of its tmpfs, which is also the `/dev/shm` of its containers, and its server's clients. What
//! a program that has crashed leaves in the first stays there as long as the group. Each is told once, until there is room again.

use super::group::{Group, GroupRecord, Stage, shared_of};
use super::join::list;
use crate::events::About;
use crate::lease::Leases;
use gpool_policy::mechanism::MPS_CLIENTS;
use gpool_protocol::EventKind;
use std::path::Path;

/// A tmpfs of which so much is used is about to be full.
const FULL_PERCENT: u64 = 80;
/// One that has been is not any more.
const FREE_PERCENT: u64 = 70;

/// What has been told of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    shared: bool,
    clients: bool,
}

impl Told {
    /// Whether it is to be told now that so much of the tmpfs is used.
    fn note_shared(&mut self, percent: u64) -> bool {
        let limit = if self.shared { FREE_PERCENT } else { FULL_PERCENT };
        let is_full = percent >= limit;
        let was_full = std::mem::replace(&mut self.shared, is_full);
        is_full && !was_full
    }

    /// Whether it is to be told now that the server has so many clients.
    fn note_clients(&mut self, clients: usize) -> bool {
        let is_full = clients >= MPS_CLIENTS;
        let was_full = std::mem::replace(&mut self.clients, is_full);
        is_full && !was_full
    }
}

/// Looks at all groups whose daemons run.
pub fn note(leases: &Leases) {
    let run_dir = leases.configuration().paths.run_dir.clone();
    let is_there = |group: &&mut Group| group.stage == Stage::Started && group.is_alive();
    let mut messages = Vec::new();
    for group in leases.groups.all().iter_mut().filter(is_there) {
        let percent = used_percent(&shared_of(&run_dir, &group.record.id)).unwrap_or(0);
        if group.told.note_shared(percent) {
            messages.push(shared_is_full(&group.record, percent));
        }
        let clients = group.clients.as_ref().map_or(0, |clients| clients.count());
        if group.told.note_clients(clients) {
            messages.push(clients_are_full(&group.record, clients));
        }
    }
    for message in messages {
        leases.events.note(EventKind::MpsLimit, About::default(), message);
    }
}

/// How much of a file system is used, of its room or of its files, whichever is more.
fn used_percent(dir: &Path) -> Option<u64> {
    let its = rustix::fs::statvfs(dir).ok()?;
    let percent = |all: u64, free: u64| (all.saturating_sub(free) * 100).checked_div(all).unwrap_or(0);
    Some(percent(its.f_blocks, its.f_bfree).max(percent(its.f_files, its.f_ffree)))
}

fn shared_is_full(record: &GroupRecord, percent: u64) -> String {
    format!(
        "{percent} % of the /dev/shm that the containers of {} under MPS on {} share are in use: take away what \
         programs have left there that have crashed (ls -l /dev/shm in one of them), or end all of them, and it is emptied",
        record.domain,
        list(&record.gpus),
    )
}

fn clients_are_full(record: &GroupRecord, clients: usize) -> String {
    format!(
        "the MPS server of {} on {} has {clients} clients, and may take no more in: run fewer programs at \
         once in its containers, or start some of those anew on another GPU",
        record.domain,
        list(&record.gpus),
    )
}

#[cfg(test)]
mod tests {
    use super::super::group::Domain;
    use super::*;
    use gpool_protocol::GpuUuid;

    #[test]
    fn what_runs_out_is_told_once_until_there_is_room_again() {
        let mut told = Told::default();
        let shared = [79, 80, 95, 71, 80, 69, 75, 80].map(|percent| told.note_shared(percent));
        assert_eq!(shared, [false, true, false, false, false, false, false, true]);
        let clients = [47, 48, 60, 47, 48].map(|clients| told.note_clients(clients));
        assert_eq!(clients, [false, true, false, false, true]);
    }

    #[test]
    fn what_to_do_is_said_with_it() {
        let domain = Domain { team: "vision".into(), namespace: None, uid: 1000 };
        let gpus = vec![GpuUuid("GPU-1".into())];
        let record = GroupRecord {
            boot_id: "b".into(),
            id: "01".into(),
            domain,
            gpus,
            daemon: None,
            server: None,
            has_ended: false,
        };
        let shared = shared_is_full(&record, 84);
        assert!(
            shared.starts_with("84 % of the /dev/shm that the containers of team vision and user 1000"),
            "{shared}"
        );
        let clients = clients_are_full(&record, 48);
        assert!(clients.contains("on GPU-1 has 48 clients") && clients.ends_with("on another GPU"), "{clients}");
        assert!(used_percent(Path::new("/")).is_some_and(|percent| percent <= 100));
        assert_eq!(used_percent(Path::new("/nonexistent")), None);
    }
}
