//! The functions that the shim answers itself.

pub use crate::memory::*;
pub use crate::processes::*;
