//! The CUDA driver API and NVML as data: constants, structures, function types and the symbol lists per driver
//! generation. Names are NVIDIA's own. Nothing here does anything, and nothing depends on the standard library.
//!
//! Source: the public ABI as NVIDIA documents it in the CUDA Driver API and NVML API references (CUDA 12.2, driver
//! 535), for x86-64 Linux.

#![no_std]

pub mod cuda;
pub mod nvml;

/// The names that libcuda.so.1 of driver 535 exports, one on each line.
pub const CUDA_535: &str = include_str!("../symbols/cuda-535.txt");

/// The names that libnvidia-ml.so.1 of driver 535 exports, one on each line.
pub const NVML_535: &str = include_str!("../symbols/nvml-535.txt");
