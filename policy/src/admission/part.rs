//! A part of a GPU.

use super::{Demand, GpuCapacity, MemoryDemand, Use};
use crate::slice::Priority;

/// A share and memory of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Guaranteed share, permille.
    pub permille: u16,
    /// Memory.
    pub bytes: u64,
}

impl Part {
    /// What both have.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self { permille: self.permille.min(other.permille), bytes: self.bytes.min(other.bytes) }
    }

    /// Without another one.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { permille: self.permille.saturating_sub(other.permille), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    /// With another one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { permille: self.permille.saturating_add(other.permille), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Whether all of the other is in it.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        self.common(other) == other
    }
}

impl Demand {
    /// Just that of one GPU, promised, on slices.
    #[must_use]
    pub fn exactly(part: Part) -> Self {
        Self {
            fraction_permille: part.permille,
            memory: MemoryDemand::Bytes(part.bytes),
            priority: Priority::Guaranteed,
            gpus: 1,
            usage: Use::Sliced,
        }
    }
}

impl GpuCapacity {
    /// What a lease on slices could have of it.
    #[must_use]
    pub fn part_free(&self) -> Part {
        match self.users.in_the_way_of(Use::Sliced) {
            Some(_) => Part::default(),
            None => Part { permille: self.share_free_permille(), bytes: self.memory_free_bytes() },
        }
    }
}
