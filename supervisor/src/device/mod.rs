//! The GPUs of this host, and what of the driver a container needs.

mod builds;
mod capabilities;
mod dividing;
mod driver_files;
mod first_answers;
mod generation;
mod gpu_instances;
mod health;
mod inventory;
mod inventory_error;
mod kept_nvml;
mod links;
mod memory;
mod memory_limits;
mod mig;
mod occupancy;
mod questions;
mod roster;
mod served;
mod shims;
mod xids;

pub use driver_files::{DriverFiles, DriverFilesError};
pub use first_answers::StartPatience;
pub use gpu_instances::{Compute, GpuInstance};
#[cfg(test)]
pub use inventory::MigInstance;
pub use inventory::{Found, Gpu, Kind, NvmlInventory, PATIENCE, ProcessUse, SilentBoard, answering};
pub use inventory_error::InventoryError;
pub use links::Links;
pub use memory_limits::{FoundLimit, LimitRefusal, WantedLimit};
pub use mig::{Board, MigMode};
pub use occupancy::Occupancy;
pub use roster::{Changes, Roster, with_places};
pub use served::Served;
pub use shims::Chosen;
