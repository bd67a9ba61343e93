//! The GPUs of this host, and what of the driver a container needs.

mod builds;
mod driver_files;
mod generation;
mod inventory;
mod shims;

pub use driver_files::{DriverFiles, DriverFilesError};
pub use inventory::{Gpu, NvmlInventory, Occupancy};
pub use shims::Chosen;
