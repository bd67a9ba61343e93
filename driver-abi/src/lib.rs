//! The CUDA driver API, NVML and a part of the kernel driver's own interface as data: constants, structures, function types and the symbol lists per driver
//! generation. Names are NVIDIA's own. Nothing here does anything, and nothing depends on the standard library.
//!
//! Source: the public ABI as NVIDIA documents it in the CUDA Driver API and NVML API references (CUDA 12.2, driver
//! 535), for x86-64 Linux.

#![no_std]

mod class;
pub mod cuda;
pub mod nvml;
mod old_glibc;
pub mod resource_manager;

pub use class::{Class, cuda_classes};
pub use old_glibc::OLD_GLIBC_LIBRARIES;

/// A generation of the driver: what its libraries export, and so what the shims that stand in for them do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// Its name: the driver's major version, and the directory of its shims.
    pub name: &'static str,
    /// The names that its libcuda.so.1 exports, one on each line.
    pub cuda: &'static str,
    /// The names that its libnvidia-ml.so.1 exports, one on each line.
    pub nvml: &'static str,
}

/// The generations for which shims are built, the oldest first; each has all names of the one before it.
pub const GENERATIONS: [Generation; 4] = [
    Generation { name: "535", cuda: CUDA_535, nvml: NVML_535 },
    Generation { name: "550", cuda: CUDA_550, nvml: NVML_550 },
    Generation { name: "555", cuda: CUDA_555, nvml: NVML_555 },
    Generation { name: "580", cuda: CUDA_580, nvml: NVML_580 },
];

/// The names that libcuda.so.1 of driver 535 exports, one on each line.
pub const CUDA_535: &str = include_str!("../symbols/cuda-535.txt");

/// The names that libcuda.so.1 of driver 550 exports, one on each line.
pub const CUDA_550: &str = include_str!("../symbols/cuda-550.txt");

/// The names that libcuda.so.1 of driver 555 exports, one on each line.
pub const CUDA_555: &str = include_str!("../symbols/cuda-555.txt");

/// The names that libcuda.so.1 of driver 580 exports, one on each line.
pub const CUDA_580: &str = include_str!("../symbols/cuda-580.txt");

/// The [`Class`] of each entry point of libcuda, behind comments: a name and a class on each line.
pub const CUDA_CLASSES: &str = include_str!("../symbols/cuda-classes.txt");

/// The names, behind comments, that the shim should answer by their class and does not answer yet.
pub const CUDA_NOT_INTERCEPTED: &str = include_str!("../symbols/cuda-not-intercepted.txt");

/// The names that libnvidia-ml.so.1 of driver 535 exports, one on each line.
pub const NVML_535: &str = include_str!("../symbols/nvml-535.txt");

/// The names that libnvidia-ml.so.1 of driver 550 exports, one on each line.
pub const NVML_550: &str = include_str!("../symbols/nvml-550.txt");

/// The names that libnvidia-ml.so.1 of driver 555 exports, one on each line.
pub const NVML_555: &str = include_str!("../symbols/nvml-555.txt");

/// The names that libnvidia-ml.so.1 of driver 580 exports, one on each line.
pub const NVML_580: &str = include_str!("../symbols/nvml-580.txt");

/// The name without version and variant, which is what a program gives to cuGetProcAddress: `cuMemAlloc_v2_ptds` is
/// `cuMemAlloc`.
pub fn base_name(name: &str) -> &str {
    let plain = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
    match plain.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => plain,
    }
}
