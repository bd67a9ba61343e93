//! Executable graphs that allocate. Each launch takes its memory from what the stream keeps for graphs, which grows by the
//! first one. So that is made to happen before it, by an upload that is charged. What graphs hold is charged as pools are.

use crate::handles::{Handles, Held, Kind};
use crate::physical::PAGE_BYTES;
use gpool_shared_region::GPUS;

/// Devices, by ordinal, whose graphs are followed. A process sees no more than its lease has.
pub const DEVICES: usize = GPUS;

/// What a graph allocates of one device, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The most that is there at once, if its nodes run one after the other in the order in which they were made. Those
    /// beside each other may need more.
    pub peak: u64,
    /// The largest piece, in whole pages.
    pub largest: u64,
    /// What is there at the end. The next launch has it again, once somebody has freed it, and no other graph.
    pub left: u64,
}

/// What a graph allocates of each device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Needs([Need; DEVICES]);

/// What [`Handles::graph_needs`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// What it allocates.
    pub needs: Needs,
    /// It was launched before: what it leaves is held already, or was freed and kept.
    pub was_launched: bool,
    /// What a launch leaves the next one frees.
    pub frees_itself: bool,
}

impl Known {
    /// What it has left before of `need`, which is one of its own, in bytes.
    pub fn own_bytes(&self, need: &Need) -> u64 {
        if self.was_launched { need.left } else { 0 }
    }
}

/// The driver gives out whole pieces of so many bytes.
const GRANULE: u64 = 512;

impl Needs {
    /// One more node allocates `bytes`.
    pub fn add(&mut self, device: usize, bytes: u64) {
        if let Some(need) = self.0.get_mut(device) {
            need.left = need.left.saturating_add(rounded(bytes));
            need.peak = need.peak.max(need.left);
            need.largest = need.largest.max(u64::from(pages(bytes)) * PAGE_BYTES);
        }
    }

    /// One more frees `bytes` that one before has allocated.
    pub fn subtract(&mut self, device: usize, bytes: u64) {
        if let Some(need) = self.0.get_mut(device) {
            need.left = need.left.saturating_sub(rounded(bytes));
        }
    }

    /// Where it allocates, and how much.
    pub fn each(&self) -> impl Iterator<Item = (usize, &Need)> {
        self.0.iter().enumerate().filter(|(_, need)| need.peak > 0)
    }

    /// Whether a launch leaves something allocated.
    pub fn leave(&self) -> bool {
        self.each().any(|(_, need)| need.left > 0)
    }
}

fn pages(bytes: u64) -> u32 {
    bytes.div_ceil(PAGE_BYTES).min(u64::from(u32::MAX)) as u32
}

fn rounded(bytes: u64) -> u64 {
    bytes.saturating_add(GRANULE - 1) / GRANULE * GRANULE
}

/// Where a graph was launched, and when: as often as the age says what streams keep has changed under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// What tells the stream from all others there were.
    pub stream: u64,
    /// The age of what streams keep.
    pub age: u32,
}

fn key(graph: u64, device: usize) -> u64 {
    // Handles are addresses, which end below.
    graph ^ (device as u64) << 56
}

impl<const CAPACITY: usize> Handles<CAPACITY> {
    /// `graph` has been made, and `frees_itself` what a launch before has left. What had its handle before is forgotten.
    pub fn graph_made(&mut self, graph: u64, needs: &Needs, frees_itself: bool) {
        self.graph_gone(graph);
        for (device, need) in needs.each() {
            let (ending, serial) = (pages(need.largest), pages(need.left));
            // Without room it is not known, and what it takes is charged when somebody looks.
            self.put(Held {
                ending,
                serial,
                is_shared: frees_itself,
                ..Held::new(Kind::Graph, key(graph, device), need.peak)
            });
        }
    }

    /// `graph` is being destroyed.
    pub fn graph_gone(&mut self, graph: u64) {
        for device in 0..DEVICES {
            self.take(Kind::Graph, key(graph, device));
        }
    }

    /// What `graph` allocates of the first `devices`; none if nothing.
    pub fn graph_needs(&mut self, graph: u64, devices: usize) -> Option<Known> {
        let mut known = Known { needs: Needs::default(), was_launched: false, frees_itself: false };
        for device in 0..devices.min(DEVICES) {
            if let Some(held) = self.find(Kind::Graph, key(graph, device)) {
                let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES;
                known.needs.0[device] =
                    Need { peak: held.bytes, largest: bytes(held.ending), left: bytes(held.serial) };
                known.was_launched |= held.mappings > 0;
                known.frees_itself |= held.is_shared;
            }
        }
        known.needs.each().next().is_some().then_some(known)
    }

    /// Whether the stream keeps what `graph` allocates since it was launched there before.
    pub fn is_graph_kept(&mut self, graph: u64, needs: &Needs, launch: Launch) -> bool {
        needs.each().all(|(device, _)| {
            let held = self.find(Kind::Graph, key(graph, device));
            held.is_some_and(|held| held.mappings > 0 && (held.owner, held.references) == (launch.stream, launch.age))
        })
    }

    /// The stream keeps it from now on.
    pub fn graph_kept(&mut self, graph: u64, needs: &Needs, launch: Launch) {
        for (device, _) in needs.each() {
            if let Some(held) = self.find(Kind::Graph, key(graph, device)) {
                (held.owner, held.references, held.mappings) = (launch.stream, launch.age, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(handles: &mut Handles<64>, device: usize) -> Option<(u64, u64)> {
        let needs = handles.graph_needs(0x7000, DEVICES)?.needs;
        needs.each().find(|(at, _)| *at == device).map(|(_, need)| (need.peak, need.largest))
    }

    #[test]
    fn a_graph_needs_the_most_that_it_has_at_once_on_each_device() {
        let mut needs = Needs::default();
        assert!(needs.each().next().is_none() && !needs.leave());
        let pieces = [(0, 1), (0, 512), (3, 2 * MIB), (3, 5 * MIB), (DEVICES, 7)];
        pieces.iter().for_each(|(device, bytes)| needs.add(*device, *bytes));
        needs.subtract(3, 5 * MIB);
        needs.add(3, 4 * MIB);
        assert!(needs.leave());
        let mut handles = Handles::<64>::new();
        handles.graph_made(0x7000, &needs, false);
        assert_eq!([0, 1, 3].map(|at| of(&mut handles, at)), [Some((1024, 2 * MIB)), None, Some((7 * MIB, 6 * MIB))]);
        let known = handles.graph_needs(0x7000, 3).unwrap();
        assert!(known.needs.leave() && known.needs.each().count() == 1 && !known.was_launched);
        handles.graph_kept(0x7000, &needs, Launch { stream: 5, age: 2 });
        assert!(handles.graph_needs(0x7000, 3).is_some_and(|known| known.was_launched && !known.frees_itself));
        handles.graph_made(0x7000, &needs, true);
        assert!(handles.graph_needs(0x7000, 3).is_some_and(|known| known.frees_itself && !known.was_launched));
        needs.add(0, u64::MAX);
        handles.graph_made(0x7000, &needs, false);
        assert!(of(&mut handles, 0).is_some_and(|(peak, largest)| peak > 1 << 62 && largest > 1 << 52));
        handles.graph_gone(0x7000);
        assert_eq!(handles.graph_needs(0x7000, DEVICES), None);
    }

    #[test]
    fn a_stream_keeps_what_it_was_given_until_that_ages_or_the_graph_goes_elsewhere() {
        let (mut handles, mut needs) = (Handles::<64>::new(), Needs::default());
        [0, 1].iter().for_each(|device| needs.add(*device, MIB));
        handles.graph_made(0x7000, &needs, false);
        let is_kept =
            |handles: &mut Handles<64>, stream, age| handles.is_graph_kept(0x7000, &needs, Launch { stream, age });
        assert!(!is_kept(&mut handles, 0, 0), "it was never launched");
        handles.graph_kept(0x7000, &needs, Launch { stream: 5, age: 2 });
        assert!(is_kept(&mut handles, 5, 2) && !is_kept(&mut handles, 6, 2) && !is_kept(&mut handles, 5, 3));
        handles.graph_made(0x7000, &needs, false);
        assert!(!is_kept(&mut handles, 5, 2), "a handle that comes back is another graph");
        handles.graph_gone(0x7000);
        handles.graph_kept(0x7000, &needs, Launch { stream: 5, age: 2 });
        assert!(!is_kept(&mut handles, 5, 2), "it is not known");
    }
}
