//! The simulated libcuda in this process.

use super::checked;
use crate::failure::Result;
use crate::library::Library;
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns) { ret; }
";

macro_rules! functions {
    ($($field:ident: $kind:ty = $name:literal;)*) => {
        /// The functions that the checks call.
        pub(super) struct Driver { pub(super) library: Library, $(pub(super) $field: $kind),* }

        impl Driver {
            fn load() -> Result<Self> {
                let library = Library::open(c"/run/gpool-simgpu/lib/libcuda.so.1")?;
                Ok(Self { $($field: library.function($name)?,)* library })
            }
        }
    };
}

functions! {
    init: CuInit = c"cuInit";
    find: CuGetProcAddressV2 = c"cuGetProcAddress_v2";
    device_count: CuDeviceGetCount = c"cuDeviceGetCount";
    device_get: CuDeviceGet = c"cuDeviceGet";
    device_uuid: CuDeviceGetUuid = c"cuDeviceGetUuid";
    device_attribute: CuDeviceGetAttribute = c"cuDeviceGetAttribute";
    context_create: CuCtxCreateV2 = c"cuCtxCreate_v2";
    context_destroy: CuCtxDestroyV2 = c"cuCtxDestroy_v2";
    context_device: CuCtxGetDevice = c"cuCtxGetDevice";
    synchronize: CuCtxSynchronize = c"cuCtxSynchronize";
    allocate: CuMemAllocV2 = c"cuMemAlloc_v2";
    to_device: CuMemcpyHtoDV2 = c"cuMemcpyHtoD_v2";
    to_host: CuMemcpyDtoHV2 = c"cuMemcpyDtoH_v2";
    within: CuMemcpyDtoDV2 = c"cuMemcpyDtoD_v2";
    to_device_async: CuMemcpyHtoDAsyncV2 = c"cuMemcpyHtoDAsync_v2";
    to_host_async: CuMemcpyDtoHAsyncV2 = c"cuMemcpyDtoHAsync_v2";
    within_async: CuMemcpyDtoDAsyncV2 = c"cuMemcpyDtoDAsync_v2";
    copy: CuMemcpy = c"cuMemcpy";
    rows: CuMemcpy2DV2 = c"cuMemcpy2D_v2";
    block_async: CuMemcpy3DAsyncV2 = c"cuMemcpy3DAsync_v2";
    peer: CuMemcpyPeer = c"cuMemcpyPeer";
    fill_words: CuMemsetD32V2 = c"cuMemsetD32_v2";
    stream_create: CuStreamCreate = c"cuStreamCreate";
    capture_begin: CuStreamBeginCaptureV2 = c"cuStreamBeginCapture_v2";
    capture_end: CuStreamEndCapture = c"cuStreamEndCapture";
    event_create: CuEventCreate = c"cuEventCreate";
    event_record: CuEventRecord = c"cuEventRecord";
    event_elapsed: CuEventElapsedTime = c"cuEventElapsedTime";
    module_load: CuModuleLoadData = c"cuModuleLoadData";
    module_function: CuModuleGetFunction = c"cuModuleGetFunction";
    launch_kernel: CuLaunchKernel = c"cuLaunchKernel";
    graph_instantiate: CuGraphInstantiateWithParams = c"cuGraphInstantiateWithParams";
    graph_upload: CuGraphUpload = c"cuGraphUpload";
    graph_launch: CuGraphLaunch = c"cuGraphLaunch";
}

impl Driver {
    /// Loads and initialises the library.
    pub(super) fn start() -> Result<Self> {
        let driver = Self::load()?;
        // SAFETY: no pointers.
        checked("cuInit", unsafe { (driver.init)(0) })?;
        Ok(driver)
    }

    /// A context on the device with this ordinal, current to this thread.
    pub(super) fn context(&self, device: CUdevice) -> Result<CUcontext> {
        let mut context = null_mut();
        // SAFETY: the result goes to a live local.
        checked("cuCtxCreate", unsafe { (self.context_create)(&mut context, 0, device) })?;
        Ok(context)
    }

    /// Takes the context away with all that it holds.
    pub(super) fn destroy(&self, context: CUcontext) -> Result<()> {
        // SAFETY: no pointers that are read.
        checked("cuCtxDestroy", unsafe { (self.context_destroy)(context) })
    }

    /// Device memory in the current context.
    pub(super) fn memory(&self, bytes: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the result goes to a live local.
        checked("cuMemAlloc", unsafe { (self.allocate)(&mut address, bytes) })?;
        Ok(address)
    }

    /// A stream of the current context.
    pub(super) fn stream(&self) -> Result<CUstream> {
        let mut stream = null_mut();
        // SAFETY: the result goes to a live local.
        checked("cuStreamCreate", unsafe { (self.stream_create)(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        Ok(stream)
    }

    /// An event of the current context.
    pub(super) fn event(&self) -> Result<CUevent> {
        let mut event = null_mut();
        // SAFETY: the result goes to a live local.
        checked("cuEventCreate", unsafe { (self.event_create)(&mut event, 0) })?;
        Ok(event)
    }

    /// The spinning kernel in the current context.
    pub(super) fn kernel(&self) -> Result<CUfunction> {
        let (mut module, mut kernel) = (null_mut(), null_mut());
        // SAFETY: the results go to live locals, and the PTX and the name end with a zero.
        unsafe {
            checked("cuModuleLoadData", (self.module_load)(&mut module, PTX.as_ptr().cast()))?;
            checked("cuModuleGetFunction", (self.module_function)(&mut kernel, module, c"spin_ns".as_ptr()))?;
        }
        Ok(kernel)
    }

    /// The code that a launch of the spinning kernel gives.
    pub(super) fn launch(&self, kernel: CUfunction, stream: CUstream, mut duration_ns: u64) -> CUresult {
        let mut parameters = [(&raw mut duration_ns).cast::<c_void>()];
        let list = parameters.as_mut_ptr();
        // SAFETY: the kernel takes one u64, which outlives the call.
        unsafe { (self.launch_kernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, list, null_mut()) }
    }

    /// Waits for the current context.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: no arguments.
        checked("cuCtxSynchronize", unsafe { (self.synchronize)() })
    }
}
