//! Memory without an address, arrays, pools and memory of other APIs. Source of the layouts: cuda.h of CUDA 12.2.

use super::{
    CUarray, CUcontext, CUdevice, CUdeviceptr, CUmemGenericAllocationHandle, CUmemoryPool, CUresult, CUstream,
};
use core::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_void};

/// Memory of another API.
pub type CUexternalMemory = *mut c_void;

/// What kind of place a [`CUmemLocation`] names.
pub type CUmemLocationType = c_uint;
/// No place.
pub const CU_MEM_LOCATION_TYPE_INVALID: CUmemLocationType = 0;
/// The device whose ordinal is the id.
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
/// The host.
pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
/// The host's NUMA node whose number is the id.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
/// The NUMA node of the calling thread.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the only type of physical memory and of pools in 12.2.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;

/// Where memory lies.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUmemLocation {
    /// What kind of place.
    pub kind: CUmemLocationType,
    /// Which of them.
    pub id: c_int,
}

/// What cuMemCreate is asked for.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case)] // NVIDIA's names
pub struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub kind: c_uint,
    /// How it may be exported.
    pub requestedHandleTypes: c_uint,
    /// Where it shall lie.
    pub location: CUmemLocation,
    /// Only for Windows.
    pub win32HandleMetaData: *mut c_void,
    /// Compression, use with RDMA, use as tile pool.
    pub allocFlags: [c_uchar; 8],
}

/// Which access a device gets to a range of addresses.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAccessDesc {
    /// The device.
    pub location: CUmemLocation,
    /// None, reading, or reading and writing.
    pub flags: c_uint,
}

/// What a pool is to be like.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case)] // NVIDIA's names
pub struct CUmemPoolProps {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub allocType: c_uint,
    /// How it may be exported.
    pub handleTypes: c_uint,
    /// Where its memory lies.
    pub location: CUmemLocation,
    /// Only for Windows.
    pub win32SecurityAttributes: *mut c_void,
    /// The most that it may hold, in bytes; 0: the driver's choice.
    pub maxSize: usize,
    /// Zero.
    pub reserved: [c_uchar; 56],
}

/// A property of a pool, eight bytes unless its name says otherwise.
#[allow(non_camel_case_types)] // NVIDIA's name
pub type CUmemPool_attribute = c_int;
/// How many bytes the pool keeps at a synchronisation.
pub const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: CUmemPool_attribute = 4;
/// Device memory that the pool holds, in bytes.
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
/// The part of it that is allocated, in bytes.
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: CUmemPool_attribute = 7;
/// `CU_POINTER_ATTRIBUTE_CONTEXT`: the context of an address.
pub const CU_POINTER_ATTRIBUTE_CONTEXT: c_int = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: host or device.
pub const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_POINTER`: the address for the device.
pub const CU_POINTER_ATTRIBUTE_DEVICE_POINTER: c_int = 3;
/// `CU_POINTER_ATTRIBUTE_HOST_POINTER`: the address for the host.
pub const CU_POINTER_ATTRIBUTE_HOST_POINTER: c_int = 4;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`: whether it migrates.
pub const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: the device of an address.
pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`: where the allocation begins.
pub const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: c_int = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`: how long it is.
pub const CU_POINTER_ATTRIBUTE_RANGE_SIZE: c_int = 12;
/// `CU_POINTER_ATTRIBUTE_MAPPED`: whether there is memory behind it.
pub const CU_POINTER_ATTRIBUTE_MAPPED: c_int = 13;
/// `CU_DEVICE_INVALID`: no device.
pub const CU_DEVICE_INVALID: c_int = -2;
/// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`: the pool that an address came from.
pub const CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: c_int = 17;

/// The format of an array's elements.
#[allow(non_camel_case_types)] // NVIDIA's name
pub type CUarray_format = c_uint;

/// A one- or two-dimensional array.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types, missing_docs)] // NVIDIA's names
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Format: CUarray_format,
    pub NumChannels: c_uint,
}

/// An array of up to three dimensions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types, missing_docs)] // NVIDIA's names
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    /// Layers and faces where the flags say so.
    pub Depth: usize,
    pub Format: CUarray_format,
    pub NumChannels: c_uint,
    pub Flags: c_uint,
}

/// The depth counts layers.
pub const CUDA_ARRAY3D_LAYERED: c_uint = 0x01;
/// The depth counts faces.
pub const CUDA_ARRAY3D_CUBEMAP: c_uint = 0x04;
/// Memory is mapped into it later.
pub const CUDA_ARRAY3D_SPARSE: c_uint = 0x40;
/// Memory is mapped into it later, all at once.
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: c_uint = 0x80;

/// What cuImportExternalMemory is told.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)] // NVIDIA's name
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    /// What kind of handle it is.
    pub kind: c_uint,
    /// A union of 16 bytes in C: a descriptor, or one or two pointers.
    pub handle: [u64; 2],
    /// Bytes of the memory.
    pub size: c_ulonglong,
    /// Whether it is for this alone.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// A limit of a context.
pub type CUlimit = c_uint;
/// Bytes of stack of each thread on the device.
pub const CU_LIMIT_STACK_SIZE: CUlimit = 0;
/// Bytes of what printf on the device fills.
pub const CU_LIMIT_PRINTF_FIFO_SIZE: CUlimit = 1;
/// Bytes that malloc on the device takes from.
pub const CU_LIMIT_MALLOC_HEAP_SIZE: CUlimit = 2;

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> CUresult;)*
    };
}

functions! {
    CuMemCreate, "cuMemCreate"(
        *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
    );
    CuMemRelease, "cuMemRelease"(CUmemGenericAllocationHandle);
    CuMemRetainAllocationHandle, "cuMemRetainAllocationHandle"(*mut CUmemGenericAllocationHandle, *mut c_void);
    CuMemMap, "cuMemMap"(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    CuMemUnmap, "cuMemUnmap"(CUdeviceptr, usize);
    CuMemExportToShareableHandle, "cuMemExportToShareableHandle"(
        *mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong
    );
    CuMemImportFromShareableHandle, "cuMemImportFromShareableHandle"(
        *mut CUmemGenericAllocationHandle, *mut c_void, c_uint
    );
    CuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle"(
        *mut CUmemAllocationProp, CUmemGenericAllocationHandle
    );
    CuMemMapArrayAsync, "cuMemMapArrayAsync"(*mut c_void, c_uint, CUstream);
    CuMulticastBindAddr, "cuMulticastBindAddr"(
        CUmemGenericAllocationHandle, usize, CUdeviceptr, usize, c_ulonglong
    );
    CuMulticastBindAddrV2, "cuMulticastBindAddr_v2"(
        CUmemGenericAllocationHandle, CUdevice, usize, CUdeviceptr, usize, c_ulonglong
    );
    CuMulticastBindMemV2, "cuMulticastBindMem_v2"(
        CUmemGenericAllocationHandle, CUdevice, usize, CUmemGenericAllocationHandle, usize, usize, c_ulonglong
    );
    CuMulticastBindMem, "cuMulticastBindMem"(
        CUmemGenericAllocationHandle, usize, CUmemGenericAllocationHandle, usize, usize, c_ulonglong
    );

    CuArrayCreateV2, "cuArrayCreate_v2"(*mut CUarray, *const CUDA_ARRAY_DESCRIPTOR);
    CuArray3DCreateV2, "cuArray3DCreate_v2"(*mut CUarray, *const CUDA_ARRAY3D_DESCRIPTOR);
    CuArrayDestroy, "cuArrayDestroy"(CUarray);
    CuMipmappedArrayCreate, "cuMipmappedArrayCreate"(*mut CUarray, *const CUDA_ARRAY3D_DESCRIPTOR, c_uint);
    CuMipmappedArrayDestroy, "cuMipmappedArrayDestroy"(CUarray);

    CuImportExternalMemory, "cuImportExternalMemory"(*mut CUexternalMemory, *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    CuDestroyExternalMemory, "cuDestroyExternalMemory"(CUexternalMemory);

    CuDeviceGetMemPool, "cuDeviceGetMemPool"(*mut CUmemoryPool, CUdevice);
    CuDeviceSetMemPool, "cuDeviceSetMemPool"(CUdevice, CUmemoryPool);
    CuStreamGetCtx, "cuStreamGetCtx"(CUstream, *mut CUcontext);
    CuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool"(*mut CUmemoryPool, CUdevice);
    CuMemPoolCreate, "cuMemPoolCreate"(*mut CUmemoryPool, *const CUmemPoolProps);
    CuMemPoolDestroy, "cuMemPoolDestroy"(CUmemoryPool);
    CuMemPoolTrimTo, "cuMemPoolTrimTo"(CUmemoryPool, usize);
    CuMemPoolGetAttribute, "cuMemPoolGetAttribute"(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    CuMemPoolSetAttribute, "cuMemPoolSetAttribute"(CUmemoryPool, CUmemPool_attribute, *mut c_void);

    CuCtxSetLimit, "cuCtxSetLimit"(CUlimit, usize);
    CuCtxGetLimit, "cuCtxGetLimit"(*mut usize, CUlimit);
}
