//! The GPUs of this host, and what of the driver a container needs.

mod driver_files;
mod inventory;

pub use driver_files::{DriverFiles, DriverFilesError, read_only_mount};
pub use inventory::{Gpu, NvmlInventory, Occupancy};
