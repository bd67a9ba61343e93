//! What a board says of its own health.
//!
//! Sources: nvml.h. `nvmlDeviceGetRemappedRows`, for which nvml-wrapper has no name, is called through its function table: it
//! writes four numbers of 32 bits, rows replaced for correctable and for uncorrectable errors, whether more are pending, and
//! whether one has ever failed; on a board with MIG instances it is not supported.

use super::inventory::{NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use gpool_policy::health::{Reading, Rows};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// What a board has said of its health, and what it has not, each with NVML's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// What it has.
    pub reading: Reading,
    /// What it has not, as `remapped rows (this operation is not supported)`.
    pub untold: Vec<String>,
}

impl Told {
    fn take<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        answer.inspect_err(|cause| self.untold.push(format!("{what} ({cause})"))).ok()
    }
}

impl NvmlInventory {
    /// Asks the board `index` for the figures of its health. One of them that an older driver does not know, or the board does
    /// not have, keeps none of the others from being told.
    ///
    /// # Errors
    /// There is no such board now.
    pub fn health(&self, index: u32) -> Result<Told, InventoryError> {
        let board = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let mut told = Told::default();
        let errors = board.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        told.reading = Reading {
            pcie_replays: told.take("PCIe replays", board.pcie_replay_counter()),
            pcie_lanes: told.take("PCIe lanes", lanes(&board)),
            rows: told.take("remapped rows", self.rows(&board)),
            uncorrected_errors: told.take("uncorrected errors", errors),
            // Bits that this version has no names for are none that it looks for.
            clock_reasons: told
                .take("what holds the clocks down", board.current_throttle_reasons())
                .map(|bits| bits.bits()),
            temperature_celsius: told.take("the temperature", board.temperature(TemperatureSensor::Gpu)),
        };
        Ok(told)
    }

    fn rows(&self, board: &Device<'_>) -> Result<Rows, NvmlError> {
        let ask = nvml_sym(self.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
        let (mut correctable, mut uncorrectable, mut is_pending, mut has_failed) = (0, 0, 0, 0);
        // SAFETY: the handle is one that the library has just given, and all four places are live.
        let code =
            unsafe { ask(board.handle(), &mut correctable, &mut uncorrectable, &mut is_pending, &mut has_failed) };
        nvml_try(code)?;
        Ok(Rows { correctable, uncorrectable, is_pending: is_pending != 0, has_failed: has_failed != 0 })
    }
}

/// Lanes now, and as many as there could be; a board that has none now, as one on no such bus, does not say.
fn lanes(board: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    match (board.current_pcie_link_width()?, board.max_pcie_link_width()?) {
        (0, _) => Err(NvmlError::NotSupported),
        lanes => Ok(lanes),
    }
}
