//! Layouts of MIG in the format of NVIDIA's mig-parted: a file of them, and what one makes of the GPUs of a host.

mod file;
mod goals;

pub use file::{Devices, Entry, Filter, LayoutFile, load};
pub use goals::{Divisible, Goal, goals};
