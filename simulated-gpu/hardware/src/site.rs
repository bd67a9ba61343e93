//! Where a device sits among the others of its host.

use crate::Layout;
use std::fs;

/// Its links and its processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Devices of the same number are linked by NVLink.
    pub island: Option<u32>,
    /// Devices of the same number are near the same processor.
    pub processor: u32,
}

impl Site {
    /// Says that this is where the device with this index sits.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note(self, layout: &Layout, index: u32) -> std::io::Result<()> {
        let island = self.island.map_or_else(|| "-".to_owned(), |island| island.to_string());
        fs::write(layout.site(index), format!("{island} {}", self.processor))
    }

    /// Where it was said to sit: near the first processor, and linked with none, if nothing was said.
    #[must_use]
    pub fn read(layout: &Layout, index: u32) -> Self {
        let said = fs::read_to_string(layout.site(index)).unwrap_or_default();
        let mut numbers = said.split_whitespace().map(|number| number.parse().ok());
        Self { island: numbers.next().flatten(), processor: numbers.next().flatten().unwrap_or(0) }
    }
}
