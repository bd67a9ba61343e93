//! The host's side of a lease's region: three files on a small tmpfs of their own.

mod futex;
mod host;
mod mounter;
mod mounts;
mod opening;
mod report;

pub use host::{ControlPage, RegionHost};
pub use mounter::serve as mount_for_others;
pub use mounts::{Mounts, mount_shared, unmount_shared};
pub use report::Report;
