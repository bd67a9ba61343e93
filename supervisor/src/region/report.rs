//! A copy of a report, slot by slot.

use super::RegionHost;
use gpool_shared_region::{PiecesSnapshot, REPORT_BYTES, SLOT_BYTES, SLOTS, SlotSnapshot};

/// A buffer that reports are read into.
pub struct Report {
    bytes: Vec<u8>,
    length: usize,
    asked: usize,
}

impl Report {
    /// An empty buffer, for any region.
    pub fn new() -> Self {
        Self { bytes: vec![0; REPORT_BYTES], length: 0, asked: 0 }
    }

    /// Reads the first `slots` slots of `region`, and its pieces if these are all.
    pub fn read(&mut self, region: &RegionHost, slots: usize) {
        self.asked = slots.min(SLOTS);
        self.length = region.read_report(&mut self.bytes, self.asked);
    }

    /// Whether the tenant has cut its report short.
    pub fn is_cut(&self) -> bool {
        self.length < self.asked * SLOT_BYTES
    }

    /// The slots that are taken, with their indices.
    pub fn taken(&self) -> impl Iterator<Item = (usize, SlotSnapshot<'_>)> {
        let bytes = &self.bytes[..self.length.min(SLOTS * SLOT_BYTES)];
        bytes.chunks(SLOT_BYTES).enumerate().filter_map(|(index, chunk)| {
            let slot = SlotSnapshot::new(chunk)?;
            (slot.registration() != 0).then_some((index, slot))
        })
    }

    /// The slots that are taken are below this one.
    pub fn slots(&self) -> usize {
        self.taken().last().map_or(0, |(index, _)| index + 1)
    }

    /// What several processes may hold; nothing unless all slots have been read.
    pub fn pieces(&self) -> PiecesSnapshot<'_> {
        PiecesSnapshot::new(&self.bytes[..self.length])
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}
