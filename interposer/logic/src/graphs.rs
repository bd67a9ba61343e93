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
    /// All of it, freed again or not: it holds no more at once.
    pub all: u64,
    /// The largest piece, in whole pages: it holds no less.
    pub largest: u64,
}

/// What a graph allocates of each device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Needs([Need; DEVICES]);

impl Needs {
    /// The driver gives out whole pieces of so many bytes.
    const GRANULE: u64 = 512;

    /// One more node allocates `bytes`.
    pub fn add(&mut self, device: usize, bytes: u64) {
        if let Some(need) = self.0.get_mut(device) {
            need.all = need.all.saturating_add(bytes.saturating_add(Self::GRANULE - 1) / Self::GRANULE * Self::GRANULE);
            need.largest = need.largest.max(bytes / PAGE_BYTES * PAGE_BYTES);
        }
    }

    /// Whether it allocates at all.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|need| need.all == 0)
    }
}

fn key(graph: u64, device: usize) -> u64 {
    // Handles are addresses, which end below.
    graph ^ (device as u64) << 56
}

impl<const CAPACITY: usize> Handles<CAPACITY> {
    /// `graph` has been made. What had its handle before is forgotten.
    pub fn graph_made(&mut self, graph: u64, needs: &Needs) {
        self.graph_gone(graph);
        for (device, need) in needs.0.iter().enumerate().filter(|(_, need)| need.all > 0) {
            let ending = (need.largest / PAGE_BYTES).min(u64::from(u32::MAX)) as u32;
            // Without room it is not known, and what it takes is charged when somebody looks.
            self.put(Held { ending, ..Held::new(Kind::Graph, key(graph, device), need.all) });
        }
    }

    /// `graph` is being destroyed.
    pub fn graph_gone(&mut self, graph: u64) {
        for device in 0..DEVICES {
            self.take(Kind::Graph, key(graph, device));
        }
    }

    /// What `graph` allocates of `device` when it is launched into `stream`, unless it is nothing, or the stream has kept
    /// that since it was launched there before. `trims` tells how often streams have been made to give back what they keep.
    pub fn graph_needs(&mut self, graph: u64, device: usize, stream: u64, trims: u32) -> Option<Need> {
        let held = self.find(Kind::Graph, key(graph, device))?;
        let is_kept = held.mappings > 0 && (held.owner, held.references) == (stream, trims);
        (!is_kept).then_some(Need { all: held.bytes, largest: u64::from(held.ending) * PAGE_BYTES })
    }

    /// `stream` keeps from now on what `graph` allocates of `device`.
    pub fn graph_kept(&mut self, graph: u64, device: usize, stream: u64, trims: u32) {
        if let Some(held) = self.find(Kind::Graph, key(graph, device)) {
            (held.owner, held.references, held.mappings) = (stream, trims, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_graph_needs_the_sum_of_what_it_allocates_on_each_device() {
        let mut needs = Needs::default();
        assert!(needs.is_empty());
        let pieces = [(0, 1), (0, 512), (3, 2 * MIB), (3, 5 * MIB), (DEVICES, 7)];
        pieces.iter().for_each(|(device, bytes)| needs.add(*device, *bytes));
        assert!(!needs.is_empty());
        let mut handles = Handles::<64>::new();
        handles.graph_made(0x7000, &needs);
        let need = |handles: &mut Handles<64>, device| handles.graph_needs(0x7000, device, 0, 0);
        let expected = [Some(Need { all: 1024, largest: 0 }), None, Some(Need { all: 7 * MIB, largest: 4 * MIB })];
        assert_eq!([0, 1, 3].map(|device| need(&mut handles, device)), expected);
        needs.add(0, u64::MAX);
        handles.graph_made(0x7000, &needs);
        assert!(need(&mut handles, 0).is_some_and(|need| need.all > 1 << 62 && need.largest > 1 << 52));
        handles.graph_gone(0x7000);
        assert_eq!([0, 1, 3].map(|device| need(&mut handles, device)), [None; 3]);
    }

    #[test]
    fn a_stream_keeps_what_it_was_given_until_it_is_trimmed_or_the_graph_goes_elsewhere() {
        let (mut handles, mut needs) = (Handles::<64>::new(), Needs::default());
        needs.add(1, MIB);
        handles.graph_made(0x7000, &needs);
        let is_kept =
            |handles: &mut Handles<64>, stream, trims| handles.graph_needs(0x7000, 1, stream, trims).is_none();
        assert!(!is_kept(&mut handles, 0, 0), "it was never launched");
        handles.graph_kept(0x7000, 1, 5, 2);
        assert!(is_kept(&mut handles, 5, 2) && !is_kept(&mut handles, 6, 2) && !is_kept(&mut handles, 5, 3));
        handles.graph_made(0x7000, &needs);
        assert!(!is_kept(&mut handles, 5, 2), "a handle that comes back is another graph");
        handles.graph_gone(0x7000);
        handles.graph_kept(0x7000, 1, 5, 2);
        assert!(handles.find(Kind::Graph, key(0x7000, 1)).is_none(), "it is not known");
    }
}
