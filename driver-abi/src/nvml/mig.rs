//! What NVML has for MIG. Source: nvml.h, "Multi Instance GPU Management".

#![allow(non_camel_case_types, non_snake_case)] // NVIDIA's names

use super::data::nvmlDevice_t;
use core::ffi::{c_char, c_uint, c_ulonglong, c_void};

/// A GPU instance.
pub type nvmlGpuInstance_t = *mut c_void;
/// A compute instance of a GPU instance.
pub type nvmlComputeInstance_t = *mut c_void;

/// How many GPU instance profiles have a number, of which a board has some.
pub const NVML_GPU_INSTANCE_PROFILE_COUNT: c_uint = 17;
/// How many compute instance profiles have a number.
pub const NVML_COMPUTE_INSTANCE_PROFILE_COUNT: c_uint = 8;
/// How many kinds of engines a compute instance may have.
pub const NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED: c_uint = 0;
/// What `version` of [`nvmlGpuInstanceProfileInfo_v2_t`] has to hold: the size and the version, shifted by 24.
pub const NVML_GPU_INSTANCE_PROFILE_INFO_V2: c_uint =
    size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | (2 << 24);

/// Where an instance lies, in slices.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlGpuInstancePlacement_t {
    /// The first one.
    pub start: c_uint,
    /// How many.
    pub size: c_uint,
}

/// What instances of a profile have.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlGpuInstanceProfileInfo_t {
    /// By which instances of it are made.
    pub id: c_uint,
    /// Whether they reach other GPUs' memory.
    pub isP2pSupported: c_uint,
    /// Compute slices.
    pub sliceCount: c_uint,
    /// The most of it on the GPU.
    pub instanceCount: c_uint,
    /// Multiprocessors.
    pub multiprocessorCount: c_uint,
    /// Copy engines.
    pub copyEngineCount: c_uint,
    /// Video decoders.
    pub decoderCount: c_uint,
    /// Video encoders.
    pub encoderCount: c_uint,
    /// JPEG engines.
    pub jpegCount: c_uint,
    /// Optical flow engines.
    pub ofaCount: c_uint,
    /// Memory, in MiB.
    pub memorySizeMB: c_ulonglong,
}

/// The same with a name.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlGpuInstanceProfileInfo_v2_t {
    /// [`NVML_GPU_INSTANCE_PROFILE_INFO_V2`], set by the caller.
    pub version: c_uint,
    /// By which instances of it are made.
    pub id: c_uint,
    /// Whether they reach other GPUs' memory.
    pub isP2pSupported: c_uint,
    /// Compute slices.
    pub sliceCount: c_uint,
    /// The most of it on the GPU.
    pub instanceCount: c_uint,
    /// Multiprocessors.
    pub multiprocessorCount: c_uint,
    /// Copy engines.
    pub copyEngineCount: c_uint,
    /// Video decoders.
    pub decoderCount: c_uint,
    /// Video encoders.
    pub encoderCount: c_uint,
    /// JPEG engines.
    pub jpegCount: c_uint,
    /// Optical flow engines.
    pub ofaCount: c_uint,
    /// Memory, in MiB.
    pub memorySizeMB: c_ulonglong,
    /// The name, as text.
    pub name: [c_char; 96],
}

/// A GPU instance, and where it is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlGpuInstanceInfo_t {
    /// The GPU.
    pub device: nvmlDevice_t,
    /// Its number on the GPU.
    pub id: c_uint,
    /// The id of its profile.
    pub profileId: c_uint,
    /// Where it lies.
    pub placement: nvmlGpuInstancePlacement_t,
}

/// What compute instances of a profile have.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlComputeInstanceProfileInfo_t {
    /// By which instances of it are made.
    pub id: c_uint,
    /// Compute slices.
    pub sliceCount: c_uint,
    /// The most of it in the GPU instance.
    pub instanceCount: c_uint,
    /// Multiprocessors.
    pub multiprocessorCount: c_uint,
    /// Copy engines, shared.
    pub sharedCopyEngineCount: c_uint,
    /// Video decoders, shared.
    pub sharedDecoderCount: c_uint,
    /// Video encoders, shared.
    pub sharedEncoderCount: c_uint,
    /// JPEG engines, shared.
    pub sharedJpegCount: c_uint,
    /// Optical flow engines, shared.
    pub sharedOfaCount: c_uint,
}

/// A compute instance, and where it is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlComputeInstanceInfo_t {
    /// The GPU.
    pub device: nvmlDevice_t,
    /// The GPU instance.
    pub gpuInstance: nvmlGpuInstance_t,
    /// Its number in the GPU instance.
    pub id: c_uint,
    /// The id of its profile.
    pub profileId: c_uint,
    /// Where it lies in the GPU instance.
    pub placement: nvmlGpuInstancePlacement_t,
}

/// What a device has, a MIG device above all.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlDeviceAttributes_t {
    /// Multiprocessors.
    pub multiprocessorCount: c_uint,
    /// Copy engines, shared.
    pub sharedCopyEngineCount: c_uint,
    /// Video decoders, shared.
    pub sharedDecoderCount: c_uint,
    /// Video encoders, shared.
    pub sharedEncoderCount: c_uint,
    /// JPEG engines, shared.
    pub sharedJpegCount: c_uint,
    /// Optical flow engines, shared.
    pub sharedOfaCount: c_uint,
    /// Slices of the GPU instance.
    pub gpuInstanceSliceCount: c_uint,
    /// Slices of the compute instance.
    pub computeInstanceSliceCount: c_uint,
    /// Memory, in MiB.
    pub memorySizeMB: c_ulonglong,
}
