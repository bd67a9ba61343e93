//! The channel groups of a process, found by asking for one handle after the other: the driver lists them to nobody.
//!
//! Clients are numbered over the whole host and looked for from the newest one down; libcuda's objects are numbered in each
//! client from the first one up. A look costs about 2.4 us (580.159.04 on an H100), so what was found is remembered, and only
//! what may be new is looked for again.

use super::control_file::ResourceManager;
use gpool_driver_abi::resource_manager::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_CONTEXT_SHARE, CLIENT_NUMBERS, FIRST_CLIENT, FIRST_OBJECT,
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
/// How many clients of a process are looked into; libcuda makes two.
const CLIENTS_OF_ONE: usize = 64;

/// What has been found of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelGroups {
    /// By client: up to which handle was looked, and its channel groups.
    clients: BTreeMap<u32, Client>,
    /// Newest client of the host when clients were looked for last.
    newest: Option<u32>,
    /// Whether there are more clients than are looked into.
    pub is_too_many: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Client {
    looked_to: u32,
    groups: BTreeSet<u32>,
    /// Those of them that have a context which computes.
    computing: BTreeSet<u32>,
}

impl ChannelGroups {
    /// Looks for clients that are new since the last time, through the process's files; `newest` is the newest client of the
    /// host.
    pub fn look_for_clients(&mut self, files: &[impl ResourceManager], newest: u32) {
        // They are numbered round.
        let back = |from: u32, by: u32| FIRST_CLIENT + (from - FIRST_CLIENT).wrapping_sub(by) % CLIENT_NUMBERS;
        let since = self.newest.map(|last| (newest - FIRST_CLIENT).wrapping_sub(last - FIRST_CLIENT) % CLIENT_NUMBERS);
        let (mut gap, mut has_found) = (0, false);
        // The first time, those before the first number are not looked for: hosts that have come round are rare.
        let count = since.unwrap_or(newest - FIRST_CLIENT + 1).min(CLIENTS);
        for by in 0..count {
            let at = back(newest, by);
            gap += 1;
            if files.iter().any(|file| file.class(at, at) == Some(CLASS_CLIENT)) {
                (gap, has_found) = (0, true);
                self.is_too_many |= self.clients.len() >= CLIENTS_OF_ONE && !self.clients.contains_key(&at);
                if self.clients.len() < CLIENTS_OF_ONE {
                    self.clients.entry(at).or_insert(Client { looked_to: FIRST_OBJECT, ..Client::default() });
                }
            }
            if has_found && gap >= CLIENT_GAP {
                break;
            }
        }
        self.newest = Some(newest);
    }

    /// Forgets how far was looked: clients and objects are looked for anew, those that are known stay.
    pub fn look_anew(&mut self) {
        self.clients.values_mut().for_each(|client| client.looked_to = FIRST_OBJECT);
        if self.clients.is_empty() {
            self.newest = None;
        }
    }

    /// Looks for channel groups that are new in the known clients.
    pub fn look(&mut self, files: &[impl ResourceManager]) {
        let mut gone = Vec::new();
        for (handle, client) in &mut self.clients {
            match files.iter().find(|file| file.class(*handle, *handle) == Some(CLASS_CLIENT)) {
                Some(file) => client.look(file, *handle),
                None => gone.push(*handle),
            }
        }
        gone.iter().for_each(|handle| drop(self.clients.remove(handle)));
    }

    /// All channel groups: those of copies, too, with their clients.
    pub fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        self.clients.iter().flat_map(|(client, its)| its.groups.iter().map(|group| (*client, *group)))
    }

    /// Those that take turns that compute; where none can be told, the first one of each client that has any.
    pub fn computing(&self) -> impl Iterator<Item = (u32, u32)> {
        self.clients.iter().flat_map(|(client, its)| {
            let first = its.groups.first().filter(|_| its.computing.is_empty());
            its.computing.iter().chain(first).map(|group| (*client, *group))
        })
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

    fn look(groups: &mut ChannelGroups, files: &[&Fake], newest: u32) -> u32 {
        files.iter().for_each(|fake| fake.asked.set(0));
        groups.look_for_clients(files, newest);
        groups.look(files);
        files.iter().map(|fake| fake.asked.get()).sum()
    }

    #[test]
    fn groups_are_found_below_the_newest_client_and_new_ones_at_little_cost() {
        let (fake, empty) = (Fake::default(), Fake::default());
        let (client, newest) = (FIRST_CLIENT + 0x115, FIRST_CLIENT + 0x130);
        fake.add_context(client, FIRST_OBJECT + 0x14);
        let mut groups = ChannelGroups::default();
        // A second file without a client of its own is not looked through further than the first one.
        assert!(look(&mut groups, &[&empty, &fake], newest) < 0x1000);
        let first = (client, FIRST_OBJECT + 0x14);
        assert_eq!(groups.all().collect::<Vec<_>>(), [first, (client, FIRST_OBJECT + 0x3d)]);
        assert_eq!(groups.computing().collect::<Vec<_>>(), [first]);
        let asked = look(&mut groups, &[&fake], newest + 3);
        assert!(asked < 0x500, "{asked} looks");
        // A second context, in the same client, and one more client.
        fake.add_context(client, FIRST_OBJECT + 0x200);
        fake.add_context(newest + 5, FIRST_OBJECT + 0x14);
        look(&mut groups, &[&fake], newest + 7);
        assert_eq!((groups.all().count(), groups.computing().count()), (6, 3));
        groups.forget(client, first.1);
        assert_eq!((groups.all().count(), groups.computing().count()), (5, 2));
        // What is known is kept when all is looked for anew, however many clients the host has had since.
        groups.look_anew();
        look(&mut groups, &[&fake], newest + 7 + CLIENTS);
        assert_eq!(groups.all().count(), 6);
        fake.objects.borrow_mut().clear();
        look(&mut groups, &[&fake], newest + 8 + CLIENTS);
        assert_eq!(groups, ChannelGroups { newest: Some(newest + 8 + CLIENTS), ..ChannelGroups::default() });
    }

    #[test]
    fn a_file_without_a_client_is_given_up_on() {
        let fake = Fake::default();
        let mut groups = ChannelGroups::default();
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 500), 501);
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 503), 3, "only what has come since");
        groups.look_anew();
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 3 * CLIENTS), CLIENTS);
    }

    #[test]
    fn clients_are_numbered_round() {
        let fake = Fake::default();
        let mut groups = ChannelGroups::default();
        let last = FIRST_CLIENT + CLIENT_NUMBERS - 1;
        look(&mut groups, &[&fake], last - 2);
        fake.add_context(last, FIRST_OBJECT + 0x14);
        look(&mut groups, &[&fake], FIRST_CLIENT + 2);
        assert_eq!(groups.all().count(), 2);
    }
}
