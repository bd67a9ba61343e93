//! What a device says of its own health, and what it does wrong without saying so. What runs on it is left as it is, but for kernels
//! that are executed.

use crate::Layout;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;

/// What NVML tells of a device's health, and what nobody tells.
#[derive(Args, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
// The verb that takes it has a group of the same name.
#[group(skip)]
#[serde(default)]
pub struct Health {
    /// Rows of memory that were replaced by spare ones for errors that could be corrected.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub correctable_rows: u32,
    /// Rows that were for other errors.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub uncorrectable_rows: u32,
    /// Some are to be replaced at the next reset.
    #[arg(long)]
    pub remap_pending: bool,
    /// One could not be replaced, once.
    #[arg(long)]
    pub remap_failure: bool,
    /// Errors of its memory that could not be corrected.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub uncorrected_errors: u64,
    /// Why its clocks are low, bits of nvml.h's `nvmlClocksEventReasons`: 32 and 64 for heat, 128 for the power brake.
    #[arg(long, value_name = "BITS", default_value_t = 0)]
    pub clock_reasons: u64,
    /// Its temperature in degrees Celsius.
    #[arg(long, value_name = "N", default_value_t = Health::USUAL_CELSIUS)]
    pub celsius: u32,
    /// How often something had to be sent again over its bus.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub pcie_replays: u32,
    /// Lanes of its bus that it uses, of 16.
    #[arg(long, value_name = "N", default_value_t = Health::PCIE_LANES)]
    pub pcie_lanes: u32,
    /// This multiprocessor computes wrong now and then, which NVML does not tell.
    #[arg(long, value_name = "NUMBER")]
    pub wrong_multiprocessor: Option<u32>,
    /// A word of 8 bytes that far into each allocation does not keep one of its bits, which NVML does not tell.
    #[arg(long, value_name = "BYTES")]
    pub bad_memory: Option<u64>,
    /// It supports none of these questions, as an old one.
    #[arg(long)]
    pub unsupported: bool,
}

impl Health {
    /// The temperature of a device of which nothing is said.
    pub const USUAL_CELSIUS: u32 = 40;
    /// Lanes of its bus.
    pub const PCIE_LANES: u32 = 16;

    /// A healthy device.
    #[must_use]
    pub fn good() -> Self {
        Self { celsius: Self::USUAL_CELSIUS, pcie_lanes: Self::PCIE_LANES, ..Self::default() }
    }

    /// Says it of the device with this index, of which nothing else is so from now on.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note(&self, layout: &Layout, index: u32) -> std::io::Result<()> {
        let path = layout.health(index);
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        // Who reads has the old one or the new one.
        fs::rename(&new, &path)
    }

    /// What was said of it: a healthy one if nothing was.
    #[must_use]
    pub fn read(layout: &Layout, index: u32) -> Self {
        let said = fs::read(layout.health(index)).ok();
        said.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_else(Self::good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        crate::program::command().debug_assert();
    }

    #[test]
    fn what_was_said_last_is_so_and_a_device_of_which_nothing_was_said_is_healthy() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        fs::create_dir(layout.state()).unwrap();
        assert_eq!(Health::read(&layout, 0), Health::good());
        let sick = Health { remap_pending: true, uncorrectable_rows: 1, ..Health::good() };
        sick.note(&layout, 0).unwrap();
        assert_eq!((Health::read(&layout, 0), Health::read(&layout, 1)), (sick, Health::good()));
        Health::good().note(&layout, 0).unwrap();
        assert_eq!(Health::read(&layout, 0), Health::good());
    }
}
