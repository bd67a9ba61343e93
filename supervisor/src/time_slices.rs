//! Shares that the hardware keeps: the driver's time slices of the channel groups of `mode=timeslice` containers, set from
//! outside, in the ratio of what was promised. Nothing in the container has a part in it.
//!
//! Whether the hardware heeds them is firmware's business, so it is tried on two processes of our own before the first
//! container is promised anything, once for each driver and GPU; where it does not, once for each boot as well.

mod channel_groups;
mod control_file;
mod keeper;
mod load;
mod self_test;
mod verdicts;

pub use keeper::keep;
pub use load::main as load;
pub use self_test::test_all;
pub use verdicts::Verdicts;
