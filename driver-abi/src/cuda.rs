//! The CUDA driver API (cuda.h).
//!
//! A function's type is its symbol's name in camel case: `cuMemAlloc_v2` is a [`CuMemAllocV2`]. The `_ptsz` and
//! `_ptds` variants have the type of the name that they extend.

mod checkpoint;
mod constants;
mod copies;
mod data;
mod functions;
mod graph_memory;
mod memory;
mod results;
mod sharing;

pub use checkpoint::*;
pub use constants::*;
pub use copies::*;
pub use data::*;
pub use functions::*;
pub use graph_memory::*;
pub use memory::*;
pub use results::*;
pub use sharing::*;
