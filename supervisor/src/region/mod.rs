//! The host's side of a lease's region: three files on a small tmpfs of their own.

mod futex;
mod host;
mod report;

pub use host::{ControlPage, RegionHost};
pub use report::Report;
