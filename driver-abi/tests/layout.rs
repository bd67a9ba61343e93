//! Sizes and offsets against the C headers for x86-64, and the symbol lists.

use gpool_driver_abi::{CUDA_535, NVML_535, cuda, nvml};
use std::mem::{offset_of, size_of};

#[test]
fn cuda_structures_have_the_layout_of_cuda_h() {
    assert_eq!(size_of::<cuda::CUuuid>(), 16);
    assert_eq!(size_of::<cuda::CUlaunchAttribute>(), 72);
    assert_eq!(offset_of!(cuda::CUlaunchAttribute, value), 8);
    assert_eq!(size_of::<cuda::CUDA_GRAPH_INSTANTIATE_PARAMS>(), 32);
    assert_eq!(offset_of!(cuda::CUDA_GRAPH_INSTANTIATE_PARAMS, result_out), 24);
    assert_eq!(size_of::<cuda::CUlaunchConfig>(), 56);
    assert_eq!(offset_of!(cuda::CUlaunchConfig, sharedMemBytes), 24);
    assert_eq!(offset_of!(cuda::CUlaunchConfig, hStream), 32);
    assert_eq!(offset_of!(cuda::CUlaunchConfig, attrs), 40);
    assert_eq!(offset_of!(cuda::CUlaunchConfig, numAttrs), 48);
}

#[test]
fn cuda_copies_have_the_layout_of_cuda_h() {
    assert_eq!(size_of::<cuda::CUDA_MEMCPY2D>(), 128);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY2D, srcMemoryType), 16);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY2D, srcDevice), 32);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY2D, dstMemoryType), 72);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY2D, WidthInBytes), 112);
    assert_eq!(size_of::<cuda::CUDA_MEMCPY3D>(), 200);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, srcMemoryType), 32);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, reserved0), 64);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, srcHeight), 80);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, dstMemoryType), 120);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, reserved1), 152);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D, WidthInBytes), 176);
    assert_eq!(size_of::<cuda::CUmemcpy3DOperand>(), 40);
    assert_eq!(offset_of!(cuda::CUmemcpy3DOperand, place), 8);
    assert_eq!(size_of::<cuda::CUDA_MEMCPY3D_BATCH_OP>(), 112);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D_BATCH_OP, dst), 40);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D_BATCH_OP, extent), 80);
    assert_eq!(offset_of!(cuda::CUDA_MEMCPY3D_BATCH_OP, flags), 108);
    assert_eq!(size_of::<cuda::CUmemDecompressParams>(), 64);
    assert_eq!(offset_of!(cuda::CUmemDecompressParams, algo), 40);
}

#[test]
fn structures_of_memory_have_the_layout_of_cuda_h() {
    assert_eq!(size_of::<cuda::CUmemLocation>(), 8);
    assert_eq!(size_of::<cuda::CUmemAllocationProp>(), 32);
    assert_eq!(offset_of!(cuda::CUmemAllocationProp, location), 8);
    assert_eq!(size_of::<cuda::CUmemAccessDesc>(), 12);
    assert_eq!(size_of::<cuda::CUmemPoolProps>(), 88);
    assert_eq!(offset_of!(cuda::CUmemPoolProps, location), 8);
    assert_eq!(offset_of!(cuda::CUmemPoolProps, maxSize), 24);
    assert_eq!(size_of::<cuda::CUDA_MEM_ALLOC_NODE_PARAMS>(), 120);
    assert_eq!(offset_of!(cuda::CUDA_MEM_ALLOC_NODE_PARAMS, bytesize), 104);
    assert_eq!(size_of::<cuda::CUDA_ARRAY_DESCRIPTOR>(), 24);
    assert_eq!(size_of::<cuda::CUDA_ARRAY3D_DESCRIPTOR>(), 40);
    assert_eq!(offset_of!(cuda::CUDA_ARRAY3D_DESCRIPTOR, Flags), 32);
    assert_eq!(size_of::<cuda::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>(), 104);
    assert_eq!(offset_of!(cuda::CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size), 24);
}

#[test]
fn arguments_of_suspension_have_the_layout_of_cuda_h() {
    assert_eq!(size_of::<cuda::CUcheckpointLockArgs>(), 64);
    assert_eq!(offset_of!(cuda::CUcheckpointLockArgs, reserved1), 8);
    assert_eq!(size_of::<cuda::CUcheckpointCheckpointArgs>(), 64);
    assert_eq!(size_of::<cuda::CUcheckpointGpuPair>(), 32);
    assert_eq!(size_of::<cuda::CUcheckpointRestoreArgs>(), 64);
    assert_eq!(offset_of!(cuda::CUcheckpointRestoreArgs, gpuPairsCount), 8);
    assert_eq!(offset_of!(cuda::CUcheckpointRestoreArgs, reserved), 12);
    assert_eq!(offset_of!(cuda::CUcheckpointRestoreArgs, reserved1), 56);
    assert_eq!(size_of::<cuda::CUcheckpointUnlockArgs>(), 64);
}

#[test]
fn nvml_structures_have_the_layout_of_nvml_h() {
    assert_eq!(size_of::<nvml::nvmlMemory_t>(), 24);
    assert_eq!(offset_of!(nvml::nvmlMemory_t, used), 16);
    assert_eq!(size_of::<nvml::nvmlMemory_v2_t>(), 40);
    assert_eq!(offset_of!(nvml::nvmlMemory_v2_t, reserved), 16);
    assert_eq!(offset_of!(nvml::nvmlMemory_v2_t, used), 32);
    assert_eq!(nvml::NVML_MEMORY_V2, 0x0200_0028);
    assert_eq!(size_of::<nvml::nvmlSetMemoryLimits_v1_t>(), 24);
    assert_eq!(offset_of!(nvml::nvmlSetMemoryLimits_v1_t, hardLimit), 16);
    assert_eq!(size_of::<nvml::nvmlGetMemoryLimits_v1_t>(), 32);
    assert_eq!(offset_of!(nvml::nvmlGetMemoryLimits_v1_t, currentUsed), 24);
    assert_eq!(size_of::<nvml::nvmlProcessInfo_v1_t>(), 16);
    assert_eq!(size_of::<nvml::nvmlProcessInfo_v2_t>(), 24);
    assert_eq!(offset_of!(nvml::nvmlProcessInfo_v2_t, usedGpuMemory), 8);
    assert_eq!(offset_of!(nvml::nvmlProcessInfo_v2_t, gpuInstanceId), 16);
    assert_eq!(size_of::<nvml::nvmlUtilization_t>(), 8);
    assert_eq!(size_of::<nvml::nvmlProcessUtilizationSample_t>(), 32);
    assert_eq!(offset_of!(nvml::nvmlProcessUtilizationSample_t, timeStamp), 8);
    assert_eq!(offset_of!(nvml::nvmlProcessUtilizationSample_t, decUtil), 28);
    assert_eq!(size_of::<nvml::nvmlFieldValue_t>(), 40);
    assert_eq!(offset_of!(nvml::nvmlFieldValue_t, nvmlReturn), 28);
    assert_eq!(size_of::<nvml::nvmlPciInfo_t>(), 68);
    assert_eq!(offset_of!(nvml::nvmlPciInfo_t, busId), 36);
}

#[test]
fn results_are_sorted_and_named() {
    assert!(cuda::RESULTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(nvml::RESULTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(cuda::RESULTS.iter().any(|(code, name, _)| *code == 2 && *name == c"CUDA_ERROR_OUT_OF_MEMORY"));
}

#[test]
fn symbol_lists_hold_single_names_of_the_right_library() {
    let cuda: Vec<&str> = CUDA_535.lines().collect();
    let nvml: Vec<&str> = NVML_535.lines().collect();
    assert_eq!((cuda.len(), nvml.len()), (600, 332));
    assert!(cuda.iter().all(|name| name.starts_with("cu") && !name.contains(char::is_whitespace)));
    assert!(nvml.iter().all(|name| name.starts_with("nvml") && !name.contains(char::is_whitespace)));
    assert!(cuda.contains(&"cuLaunchKernel") && nvml.contains(&"nvmlInit_v2"));
}
