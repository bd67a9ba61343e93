//! The host's memory that containers may have beside that of their GPUs.

use crate::quantity::MemoryAmount;
use serde::{Deserialize, Serialize};

/// `[spill]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spill {
    /// How much of it all containers together may ask for; absent: none, and who asks is refused.
    pub memory: Option<MemoryAmount>,
}

impl Spill {
    /// In bytes; 0 for none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.map_or(0, |memory| memory.bytes)
    }
}
