//! The host's side of a lease's region: three files on a small tmpfs of their own.

mod aside;
mod bell;
mod futex;
#[cfg(test)]
mod held_tests;
mod host;
mod mounter;
mod mounts;
mod opening;
mod report;
mod report_file;

pub use aside::tend as tend_aside;
#[cfg(test)]
pub use held_tests::Holder;
pub use host::{ControlPage, RegionHost};
pub use mounter::serve as mount_for_others;
pub use mounts::{Mounts, mount_shared, unmount_shared};
pub use report::Report;
