//! NVML (nvml.h).
//!
//! A function's type is its symbol's name in camel case: `nvmlInit_v2` is an [`NvmlInitV2`].

mod data;
mod functions;
mod mig;
mod results;

pub use data::*;
pub use functions::*;
pub use mig::*;
pub use results::*;
