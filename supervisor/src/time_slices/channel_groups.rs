//! The channel groups of a process, found by asking for one handle after the other: the driver lists them to nobody.
//!
//! Clients are numbered over the whole host and looked for from the newest one down; objects are numbered in each client from
//! the first one up, libcuda's and those that the driver numbers. A look costs about 2.4 us (580.159.04 on an H100), so what was
//! found is remembered, only what may be new is looked for again, and a long search goes on another time: meanwhile the
//! process's files are not kept from being closed.

use super::control_file::ResourceManager;
use gpool_driver_abi::resource_manager::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_CONTEXT_SHARE, CLIENT_NUMBERS, FIRST_CLIENT, FIRST_GENERATED_OBJECT,
    FIRST_OBJECT,
};
use std::collections::{BTreeMap, BTreeSet};

/// How many handles without a client end the search below the last one that was found.
const CLIENT_GAP: u32 = 4096;
/// How many handles without an object end the search in a client.
const OBJECT_GAP: u32 = 0x400;
/// How many objects of a client are looked at, at most, in one go.
const OBJECTS: u32 = 1 << 15;
/// The same among the objects that the driver numbers: they are few.
const GENERATED_GAP: u32 = 0x80;
/// How many clients of a process are looked into; libcuda makes two.
const CLIENTS_OF_ONE: usize = 64;
/// How many looks one go takes at most: some 50 ms.
const LOOKS: u32 = 20_000;

/// The number `by` before `from`, round.
fn back(from: u32, by: u32) -> u32 {
    FIRST_CLIENT + (from - FIRST_CLIENT).wrapping_sub(by) % CLIENT_NUMBERS
}

/// What has been found of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelGroups {
    /// By client: up to which handle was looked, and its channel groups.
    clients: BTreeMap<u32, Client>,
    /// Newest client of the host when clients were looked for last: those before it were looked at or are being searched.
    newest: Option<u32>,
    /// The search for clients that has not come to its end.
    search: Option<Search>,
    /// Whether the next one from the newest client down goes on behind the first one that it finds.
    is_thorough: bool,
    /// Whether there are more clients than are looked into.
    pub is_too_many: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Search {
    newest: u32,
    /// How many are to be looked at, and were.
    count: u32,
    done: u32,
    /// Since the last one that was found.
    gap: u32,
    has_found: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Client {
    looked_to: u32,
    /// The last object that was ever there: numbers before it may have been given back.
    highest: u32,
    generated_to: u32,
    groups: BTreeSet<u32>,
    /// Those of them that have a context which computes.
    computing: BTreeSet<u32>,
}

impl ChannelGroups {
    /// Looks for clients that are new since the last time, through the process's files; `newest` is the newest client of the
    /// host. What takes too long goes on the next time: see [`ChannelGroups::is_searching`].
    pub fn look_for_clients(&mut self, files: &[impl ResourceManager], newest: u32) {
        // They are numbered round, and a host that is up for long has come round: what is looked for the first time may have any
        // number.
        let since = |last: u32| (newest - FIRST_CLIENT).wrapping_sub(last - FIRST_CLIENT) % CLIENT_NUMBERS;
        let count = self.newest.replace(newest).map_or(CLIENT_NUMBERS, since);
        let mut looks = 0;
        let mut search = match self.search.take() {
            None => Search { newest, count, ..Search::default() },
            // While a long one goes on, what comes is not kept waiting for its end.
            Some(search) => {
                let mut has_come = false;
                for by in 0..count.min(LOOKS) {
                    looks += files.len() as u32;
                    has_come |= self.look_at_client(files, back(newest, by));
                }
                Search { has_found: search.has_found || has_come, ..search }
            }
        };
        while search.done < search.count && !(search.has_found && search.gap >= CLIENT_GAP && !self.is_thorough) {
            if looks >= LOOKS {
                self.search = Some(search);
                return;
            }
            let at = back(search.newest, search.done);
            (search.done, search.gap) = (search.done + 1, search.gap + 1);
            looks += files.len() as u32;
            if self.look_at_client(files, at) {
                (search.gap, search.has_found) = (0, true);
            }
        }
        self.is_thorough = false;
    }

    /// Whether the process has a client of this number, which is known from then on.
    fn look_at_client(&mut self, files: &[impl ResourceManager], at: u32) -> bool {
        if !files.iter().any(|file| file.class(at, at) == Some(CLASS_CLIENT)) {
            return false;
        }
        self.is_too_many |= self.clients.len() >= CLIENTS_OF_ONE && !self.clients.contains_key(&at);
        if self.clients.len() < CLIENTS_OF_ONE {
            self.clients.entry(at).or_insert_with(Client::new);
        }
        true
    }

    /// Whether a search for clients has not come to its end.
    pub fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Forgets how far was looked: objects are looked for anew, and where none was found that computes although the process
    /// does, clients are, further than to the first; those that are known stay.
    pub fn look_anew(&mut self, computes: bool) {
        self.clients.values_mut().for_each(Client::look_anew);
        if self.computing().next().is_none() && self.search.is_none() {
            self.is_thorough = computes;
            if computes || self.clients.is_empty() {
                self.newest = None;
            }
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
    fn new() -> Self {
        Self {
            looked_to: FIRST_OBJECT,
            highest: FIRST_OBJECT,
            generated_to: FIRST_GENERATED_OBJECT,
            groups: BTreeSet::new(),
            computing: BTreeSet::new(),
        }
    }

    fn look_anew(&mut self) {
        (self.looked_to, self.generated_to) = (FIRST_OBJECT, FIRST_GENERATED_OBJECT);
    }

    fn look(&mut self, file: &impl ResourceManager, client: u32) {
        self.looked_to = self.look_from(file, client, self.looked_to, OBJECT_GAP);
        if self.highest > self.looked_to {
            // Where so many before it were given back that they look like the end.
            self.highest = self.look_from(file, client, self.highest, OBJECT_GAP);
        }
        self.highest = self.highest.max(self.looked_to);
        self.generated_to = self.look_from(file, client, self.generated_to, GENERATED_GAP);
    }

    /// Looks at objects from this number on until `most` numbers have none; the last one that there is. The next look begins
    /// there: the numbers after it may be taken by then.
    fn look_from(&mut self, file: &impl ResourceManager, client: u32, from: u32, most: u32) -> u32 {
        let (mut at, mut last, mut gap) = (from, from, 0);
        while gap < most && at - from < OBJECTS {
            gap += 1;
            let class = file.class(client, at);
            match class {
                Some(CLASS_CHANNEL_GROUP) => {
                    self.groups.insert(at);
                }
                Some(CLASS_CONTEXT_SHARE) => {
                    if let Some(group) = file.parent(client, at) {
                        self.groups.insert(group);
                        self.computing.insert(group);
                    }
                }
                Some(_) | None => {}
            }
            if class.is_some() {
                (gap, last) = (0, at);
            }
            at += 1;
        }
        last
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

    /// One go; how often was asked.
    fn go(groups: &mut ChannelGroups, files: &[&Fake], newest: u32) -> u32 {
        files.iter().for_each(|fake| fake.asked.set(0));
        groups.look_for_clients(files, newest);
        groups.look(files);
        files.iter().map(|fake| fake.asked.get()).sum()
    }

    /// As many goes as a search takes; how often was asked.
    fn look(groups: &mut ChannelGroups, files: &[&Fake], newest: u32) -> u32 {
        let mut asked = go(groups, files, newest);
        while groups.is_searching() {
            asked += go(groups, files, newest);
        }
        asked
    }

    #[test]
    fn groups_are_found_below_the_newest_client_and_new_ones_at_little_cost() {
        let (fake, empty) = (Fake::default(), Fake::default());
        let (client, newest) = (FIRST_CLIENT + 0x115, FIRST_CLIENT + 0x130);
        fake.add_context(client, FIRST_OBJECT + 0x14);
        let mut groups = ChannelGroups::default();
        // A second file without a client of its own is not looked through further than the first one.
        assert!(look(&mut groups, &[&empty, &fake], newest) < 3 * CLIENT_GAP);
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
        groups.look_anew(true);
        let later = newest + 7 + CLIENT_NUMBERS / 4;
        look(&mut groups, &[&fake], later);
        assert_eq!(groups.all().count(), 6);
        fake.objects.borrow_mut().clear();
        look(&mut groups, &[&fake], later + 1);
        assert_eq!(groups, ChannelGroups { newest: Some(later + 1), ..ChannelGroups::default() });
    }

    #[test]
    fn a_file_without_a_client_is_given_up_on() {
        let fake = Fake::default();
        let mut groups = ChannelGroups::default();
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 500), CLIENT_NUMBERS);
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 503), 3, "only what has come since");
        groups.look_anew(true);
        assert_eq!(look(&mut groups, &[&fake], FIRST_CLIENT + 700_000), CLIENT_NUMBERS);
    }

    #[test]
    fn the_oldest_client_is_found_after_a_restart_also_when_the_numbers_have_come_round() {
        for (old, newest) in [(100, CLIENT_NUMBERS - 5), (600, 500)] {
            let fake = Fake::default();
            fake.add_context(FIRST_CLIENT + old, FIRST_OBJECT + 0x14);
            let mut groups = ChannelGroups::default();
            assert!(look(&mut groups, &[&fake], FIRST_CLIENT + newest) < CLIENT_NUMBERS + 5000);
            assert_eq!(groups.computing().count(), 1, "{old}");
        }
    }

    #[test]
    fn what_comes_while_all_is_searched_is_found_at_once() {
        let (fake, newest) = (Fake::default(), FIRST_CLIENT + 500);
        let mut groups = ChannelGroups::default();
        go(&mut groups, &[&fake], newest);
        go(&mut groups, &[&fake], newest);
        assert!(groups.is_searching() && groups.computing().next().is_none());
        fake.add_context(newest + 3, FIRST_OBJECT + 0x14);
        assert!(go(&mut groups, &[&fake], newest + 9) < LOOKS + 5000);
        assert_eq!((groups.computing().count(), groups.is_searching()), (1, false), "and nothing else is searched for");
        assert!(go(&mut groups, &[&fake], newest + 9) < 5000);
    }

    /// A process whose newest client is NVML's, and whose other one is far older: as after a restart of the supervisor.
    #[test]
    fn an_old_client_behind_another_one_is_found_when_nothing_computes() {
        let fake = Fake::default();
        let (old, newest) = (FIRST_CLIENT + 100, FIRST_CLIENT + 50_000);
        fake.add(newest - 5, newest - 5, CLASS_CLIENT, 0);
        fake.add_context(old, FIRST_OBJECT + 0x14);
        let mut groups = ChannelGroups::default();
        look(&mut groups, &[&fake], newest);
        assert_eq!((groups.computing().count(), groups.is_searching()), (0, false));
        groups.look_anew(true);
        let (mut goes, mut found_in) = (0, None);
        while goes == 0 || groups.is_searching() {
            assert!(go(&mut groups, &[&fake], newest + goes) < LOOKS + 5000, "a go takes some 50 ms");
            goes += 1;
            found_in = found_in.or_else(|| groups.computing().next().map(|_| goes));
        }
        assert_eq!((groups.computing().count(), found_in), (1, Some(3)));
        // Found, and not looked for again.
        groups.look_anew(true);
        assert!(look(&mut groups, &[&fake], newest + goes) < 5000);
    }

    #[test]
    fn objects_behind_a_gap_and_those_that_the_driver_numbers_are_found() {
        let fake = Fake::default();
        let client = FIRST_CLIENT + 7;
        fake.add_context(client, FIRST_OBJECT + 0x14);
        for at in (0..2000).step_by(100) {
            fake.add(client, FIRST_OBJECT + 0x100 + at, 0x40, 0);
        }
        let mut groups = ChannelGroups::default();
        look(&mut groups, &[&fake], client);
        // What lay between is given back, and then a context comes behind it.
        fake.objects.borrow_mut().retain(|(_, at), _| {
            *at < FIRST_OBJECT + 0x100 || *at == FIRST_OBJECT + 0x100 + 1900 || *at >= FIRST_CLIENT
        });
        groups.look_anew(true);
        look(&mut groups, &[&fake], client);
        fake.add_context(client, FIRST_OBJECT + 0x100 + 1950);
        look(&mut groups, &[&fake], client);
        assert_eq!(groups.computing().count(), 2);
        fake.add(client, FIRST_GENERATED_OBJECT + 3, CLASS_CHANNEL_GROUP, 1);
        // Of a group whose own number is nowhere near: its context names it.
        fake.add(client, FIRST_GENERATED_OBJECT + 9, CLASS_CONTEXT_SHARE, 0x1234);
        look(&mut groups, &[&fake], client);
        assert_eq!((groups.computing().count(), groups.all().count()), (3, 6));
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
