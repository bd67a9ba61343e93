//! The channel groups of a process, found by asking for one handle after the other: the driver lists them to nobody.
//!
//! Clients are numbered over the whole host and looked for from the newest one down; libcuda's objects are numbered in each
//! client from the first one up. A look costs about 2.4 us (580.159.04 on an H100), so what was found is remembered, and only
//! what may be new is looked for again.

use super::control_file::ResourceManager;
use gpool_driver_abi::resource_manager::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_CONTEXT_SHARE, FIRST_CLIENT, FIRST_OBJECT,
};
use std::collections::{BTreeMap, BTreeSet};

/// How many handles without a client end the search below the last one that was found.
const CLIENT_GAP: u32 = 4096;
/// How many clients back it goes at most before the first is found: hosts are up for long.
const CLIENTS: u32 = 1 << 18;
/// How many handles without an object end the search in a client.
const OBJECT_GAP: u32 = 0x400;
/// How many objects of a client are looked at, at most, in one go.
const OBJECTS: u32 = 1 << 15;

/// What has been found of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelGroups {
    /// By client: up to which handle was looked, and its channel groups.
    clients: BTreeMap<u32, Client>,
    /// Newest client of the host when clients were looked for last.
    newest: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Client {
    looked_to: u32,
    groups: BTreeSet<u32>,
    /// Those of them that have a context which computes.
    computing: BTreeSet<u32>,
}

impl ChannelGroups {
    /// Looks for what is new, through the process's files; `newest` is the newest client of the host.
    pub fn look(&mut self, files: &[impl ResourceManager], newest: u32) {
        for file in files {
            for client in self.new_clients(file, newest) {
                self.clients.entry(client).or_insert(Client { looked_to: FIRST_OBJECT, ..Client::default() });
            }
            for (handle, client) in &mut self.clients {
                if file.class(*handle, *handle) == Some(CLASS_CLIENT) {
                    client.look(file, *handle);
                }
            }
        }
        self.newest = newest;
    }

    /// Clients of this file beyond those that are known.
    fn new_clients(&self, file: &impl ResourceManager, newest: u32) -> Vec<u32> {
        let mut found = Vec::new();
        // Once some are known, newer ones than the host had at the last look are all that can have come.
        let end = if self.clients.is_empty() { FIRST_CLIENT } else { self.newest };
        let (mut at, mut gap, limit) = (newest, 0, newest.saturating_sub(CLIENTS).max(end));
        while at > limit && (found.is_empty() || gap < CLIENT_GAP) {
            gap += 1;
            if file.class(at, at) == Some(CLASS_CLIENT) {
                found.push(at);
                gap = 0;
            }
            at -= 1;
        }
        found
    }

    /// All channel groups: those of copies, too, with their clients.
    pub fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        self.clients.iter().flat_map(|(client, its)| its.groups.iter().map(|group| (*client, *group)))
    }

    /// How many of them take turns that compute; where none can be told, one of each client that has any.
    pub fn computing(&self) -> u32 {
        let of = |client: &Client| (client.computing.len() as u32).max(u32::from(!client.groups.is_empty()));
        self.clients.values().map(of).sum()
    }

    /// One that is not there any more.
    pub fn forget(&mut self, client: u32, group: u32) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.groups.remove(&group);
            client.computing.remove(&group);
        }
    }
}

impl Client {
    fn look(&mut self, file: &impl ResourceManager, client: u32) {
        let (mut at, mut gap, from) = (self.looked_to, 0, self.looked_to);
        while gap < OBJECT_GAP && at - from < OBJECTS {
            gap += 1;
            match file.class(client, at) {
                Some(CLASS_CHANNEL_GROUP) => {
                    self.groups.insert(at);
                }
                Some(CLASS_CONTEXT_SHARE) => self.computing.extend(file.parent(client, at)),
                Some(_) => {}
                None => {
                    at += 1;
                    continue;
                }
            }
            // The next look begins at the last object: the handles after it may be taken by then.
            (gap, self.looked_to) = (0, at);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io;

    /// A file with some clients and their objects: class and parent by client and handle.
    #[derive(Default)]
    struct Fake {
        objects: RefCell<BTreeMap<(u32, u32), (u32, u32)>>,
        asked: Cell<u32>,
    }

    impl Fake {
        fn add(&self, client: u32, handle: u32, class: u32, parent: u32) {
            self.objects.borrow_mut().insert((client, handle), (class, parent));
        }

        /// A context as libcuda makes it: one group that computes and one that copies.
        fn add_context(&self, client: u32, first: u32) {
            self.add(client, client, CLASS_CLIENT, 0);
            self.add(client, first, CLASS_CHANNEL_GROUP, FIRST_OBJECT + 1);
            self.add(client, first + 1, CLASS_CONTEXT_SHARE, first);
            self.add(client, first + 0x29, CLASS_CHANNEL_GROUP, FIRST_OBJECT + 1);
        }
    }

    impl ResourceManager for &Fake {
        fn class(&self, client: u32, object: u32) -> Option<u32> {
            self.asked.set(self.asked.get() + 1);
            self.objects.borrow().get(&(client, object)).map(|(class, _)| *class)
        }

        fn parent(&self, client: u32, object: u32) -> Option<u32> {
            self.objects.borrow().get(&(client, object)).map(|(_, parent)| *parent)
        }

        fn time_slice_us(&self, _: u32, _: u32) -> io::Result<u64> {
            unreachable!()
        }

        fn set_time_slice_us(&self, _: u32, _: u32, _: u64) -> io::Result<()> {
            unreachable!()
        }
    }

    #[test]
    fn groups_are_found_below_the_newest_client_and_new_ones_at_little_cost() {
        let fake = Fake::default();
        let (client, newest) = (FIRST_CLIENT + 0x115, FIRST_CLIENT + 0x130);
        fake.add_context(client, FIRST_OBJECT + 0x14);
        let mut groups = ChannelGroups::default();
        groups.look(&[&fake], newest);
        let first = (client, FIRST_OBJECT + 0x14);
        assert_eq!(groups.all().collect::<Vec<_>>(), [first, (client, FIRST_OBJECT + 0x3d)]);
        assert_eq!(groups.computing(), 1);
        fake.asked.set(0);
        groups.look(&[&fake], newest + 3);
        assert!(fake.asked.get() < 0x500, "{} looks", fake.asked.get());
        // A second context, in the same client, and one more client.
        fake.add_context(client, FIRST_OBJECT + 0x200);
        fake.add_context(newest + 5, FIRST_OBJECT + 0x14);
        groups.look(&[&fake], newest + 7);
        assert_eq!((groups.all().count(), groups.computing()), (6, 3));
        groups.forget(client, first.1);
        assert_eq!((groups.all().count(), groups.computing()), (5, 2));
    }

    #[test]
    fn a_file_without_a_client_is_given_up_on() {
        let fake = Fake::default();
        let mut groups = ChannelGroups::default();
        groups.look(&[&fake], FIRST_CLIENT + 500);
        assert_eq!((groups.all().count(), fake.asked.get()), (0, 500));
        groups.look(&[&fake], FIRST_CLIENT + 3 * CLIENTS);
        assert_eq!(fake.asked.get(), 500 + CLIENTS);
    }
}
