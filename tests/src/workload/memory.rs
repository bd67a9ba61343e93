//! What the program holds of each GPU.

use super::allocator::Allocations;
use super::context::Context;
use super::options::Options;

const MIB: u64 = 1 << 20;

/// Allocations on one GPU.
pub(super) struct Holding<'a> {
    /// The context that they are made in.
    context: &'a Context<'a>,
    allocations: Allocations<'a>,
    chunk_bytes: u64,
    wanted_bytes: u64,
    pub(super) allocated_bytes: u64,
    /// How often an allocation was refused.
    pub(super) refused: u64,
}

impl<'a> Holding<'a> {
    pub(super) fn new(options: &Options, context: &'a Context<'a>) -> Self {
        let wanted_bytes = options.allocate_mib.map_or(u64::MAX, |mib| mib * MIB);
        let allocations = Allocations::new(context.driver(), options.allocator, context.gpu);
        Self {
            context,
            allocations,
            chunk_bytes: options.chunk_mib * MIB,
            wanted_bytes,
            allocated_bytes: 0,
            refused: 0,
        }
    }

    /// Allocates what is wanted, or until it is refused.
    pub(super) fn fill(&mut self) {
        while self.allocated_bytes < self.wanted_bytes && self.refused == 0 {
            self.allocate_more();
        }
    }

    /// Tries one more allocation if something is wanted still.
    pub(super) fn allocate_more(&mut self) {
        let bytes = self.chunk_bytes.min(self.wanted_bytes - self.allocated_bytes);
        if bytes == 0 {
            return;
        }
        self.context.enter();
        match self.allocations.allocate(bytes) {
            true => self.allocated_bytes += bytes,
            false => self.refused += 1,
        }
    }
}
