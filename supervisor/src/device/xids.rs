//! Xids as NVML tells of them: one board at a time, so that one that hangs in the driver hides no other's.

use super::inventory::{NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

/// How long the driver is asked at a time, in milliseconds: who wants the board for himself waits for no longer.
const WAIT_MS: u32 = 500;
/// What nvml.h has for an Xid that is not known.
const UNKNOWN: u64 = 999;

impl NvmlInventory {
    /// Tells each Xid of the board `index` from now on, until `goes_on` says no, which it is asked twice a second. False if NVML
    /// does not tell of this board's.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn xids(
        &self,
        index: u32,
        mut tell: impl FnMut(u64),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<bool, InventoryError> {
        let board = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        match board.supported_event_types() {
            Ok(types) if types.contains(EventTypes::CRITICAL_XID_ERROR) => {}
            Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => return Ok(false),
            Err(cause) => return Err(unanswered("of what a GPU tells")(cause)),
        }
        let set = self.nvml().create_event_set().map_err(unanswered("a set of events"))?;
        let registered = board.register_events(EventTypes::CRITICAL_XID_ERROR, set);
        let set = registered.map_err(|cause| unanswered("a GPU's Xids")(cause.error))?;
        while goes_on() {
            match set.wait(WAIT_MS) {
                Ok(event) => match event.event_data {
                    Some(XidError::Value(number)) => tell(number),
                    Some(XidError::Unknown) => tell(UNKNOWN),
                    None => {}
                },
                Err(NvmlError::Timeout) => {}
                Err(cause) => return Err(unanswered("whether a GPU tells of an Xid")(cause)),
            }
        }
        Ok(true)
    }
}
