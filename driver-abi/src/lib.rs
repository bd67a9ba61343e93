//! The CUDA driver API and NVML as data: constants, structures, function types and the symbol lists per driver
//! generation. Names are NVIDIA's own. Nothing here does anything, and nothing depends on the standard library.
//!
//! Source: the public ABI as NVIDIA documents it in the CUDA Driver API and NVML API references (CUDA 12.2, driver
//! 535), for x86-64 Linux.

#![no_std]

mod class;
pub mod cuda;
pub mod nvml;
mod old_glibc;

pub use class::{Class, cuda_classes};
pub use old_glibc::OLD_GLIBC_LIBRARIES;

/// The names that libcuda.so.1 of driver 535 exports, one on each line.
pub const CUDA_535: &str = include_str!("../symbols/cuda-535.txt");

/// The names that libcuda.so.1 of driver 555 exports, one on each line; those of driver 550 are among them.
pub const CUDA_555: &str = include_str!("../symbols/cuda-555.txt");

/// The [`Class`] of each entry point of libcuda, behind comments: a name and a class on each line.
pub const CUDA_CLASSES: &str = include_str!("../symbols/cuda-classes.txt");

/// The names, behind comments, that the shim should answer by their class and does not answer yet.
pub const CUDA_NOT_INTERCEPTED: &str = include_str!("../symbols/cuda-not-intercepted.txt");

/// The names that libnvidia-ml.so.1 of driver 535 exports, one on each line.
pub const NVML_535: &str = include_str!("../symbols/nvml-535.txt");
