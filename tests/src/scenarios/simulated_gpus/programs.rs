//! Programs that are linked and loaded without a context, what is told of their kernels, and page-locked memory.

use super::driver::Driver;
use super::{checked, expected, meter};
use crate::failure::{Result, ensure};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

const SPINNING: &CStr = c".version 8.0
.target sm_80
.visible .entry spin_ns_linked(.param .u64 ns) { ret; }
";
const OTHER: &CStr = c".version 8.0
.target sm_80
.entry other() { ret; }
";
const KERNEL_NS: u64 = 300_000;

type Options = (c_uint, *mut c_int, *mut *mut c_void);
const NO_OPTIONS: Options = (0, null_mut(), null_mut());

type LinkCreate = unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, *mut CUlinkState) -> CUresult;
type LinkAddData = unsafe extern "C" fn(
    CUlinkState,
    c_int,
    *mut c_void,
    usize,
    *const c_char,
    c_uint,
    *mut c_int,
    *mut *mut c_void,
) -> CUresult;
type LinkComplete = unsafe extern "C" fn(CUlinkState, *mut *mut c_void, *mut usize) -> CUresult;
type OfHandle = unsafe extern "C" fn(*mut c_void) -> CUresult;
type LibraryLoadData = unsafe extern "C" fn(
    *mut CUlibrary,
    *const c_void,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
) -> CUresult;
type LibraryGetKernel = unsafe extern "C" fn(*mut CUkernel, CUlibrary, *const c_char) -> CUresult;
type Count = unsafe extern "C" fn(*mut c_uint, CUlibrary) -> CUresult;
type SetAttribute = unsafe extern "C" fn(CUfunction, c_int, c_int) -> CUresult;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, CUfunction) -> CUresult;
type Occupancy = unsafe extern "C" fn(*mut c_int, CUfunction, c_int, usize) -> CUresult;
type AllocateHost = unsafe extern "C" fn(*mut *mut c_void, usize) -> CUresult;
type PointerAttributes = unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, CUdeviceptr) -> CUresult;

/// Two texts become one program, whose kernels run in whichever context is current until it is unloaded.
pub(super) fn are_linked_and_run_in_any_context() -> Result<()> {
    let driver = Driver::start()?;
    let contexts = [driver.context(0)?, driver.context(1)?];
    let library = linked(&driver)?;
    let find: LibraryGetKernel = driver.library.function(c"cuLibraryGetKernel")?;
    let count: Count = driver.library.function(c"cuLibraryGetKernelCount")?;
    let unload: OfHandle = driver.library.function(c"cuLibraryUnload")?;
    let (mut kernel, mut kernels) = (null_mut(), 0);
    // SAFETY: results go to live locals, and the names end with a zero; so below.
    unsafe {
        checked("cuLibraryGetKernelCount", count(&mut kernels, library))?;
        checked("cuLibraryGetKernel", find(&mut kernel, library, c"spin_ns_linked".as_ptr()))?;
        let mut none = null_mut();
        expected("a kernel that is not there", find(&mut none, library, c"third".as_ptr()), CUDA_ERROR_NOT_FOUND)?;
    }
    ensure(kernels == 2, || format!("of two kernels there are {kernels}"))?;
    attributes_are_kept(&driver, kernel)?;
    let before = [meter(0)?.busy_ns, meter(1)?.busy_ns];
    // The second device's context is current, then the first one's.
    for context in contexts.iter().rev() {
        checked("cuLaunchKernel", driver.launch(kernel, null_mut(), KERNEL_NS))?;
        driver.wait()?;
        driver.destroy(*context)?;
        if *context == contexts[1] {
            make_current(&driver, contexts[0])?;
        }
    }
    let ran = [meter(0)?.busy_ns - before[0], meter(1)?.busy_ns - before[1]];
    ensure(ran == [KERNEL_NS; 2], || format!("one kernel of {KERNEL_NS} ns on each device took {ran:?}"))?;
    // SAFETY: no pointers that are read.
    checked("cuLibraryUnload", unsafe { unload(library) })?;
    let context = driver.context(0)?;
    expected("an unloaded kernel", driver.launch(kernel, null_mut(), KERNEL_NS), CUDA_ERROR_INVALID_HANDLE)?;
    driver.destroy(context)
}

fn make_current(driver: &Driver, context: CUcontext) -> Result<()> {
    let set: OfHandle = driver.library.function(c"cuCtxSetCurrent")?;
    // SAFETY: no pointers that are read.
    checked("cuCtxSetCurrent", unsafe { set(context) })
}

/// A library of both texts. The linker is gone when it is used.
fn linked(driver: &Driver) -> Result<CUlibrary> {
    let create: LinkCreate = driver.library.function(c"cuLinkCreate_v2")?;
    let add: LinkAddData = driver.library.function(c"cuLinkAddData_v2")?;
    let complete: LinkComplete = driver.library.function(c"cuLinkComplete")?;
    let destroy: OfHandle = driver.library.function(c"cuLinkDestroy")?;
    let load: LibraryLoadData = driver.library.function(c"cuLibraryLoadData")?;
    let (count, options, values) = NO_OPTIONS;
    let (mut link, mut image, mut bytes, mut library) = (null_mut(), null_mut(), 0, null_mut());
    // SAFETY: results go to live locals, the texts end with a zero and are as long as they are said to be.
    unsafe {
        checked("cuLinkCreate", create(count, options, values, &mut link))?;
        for text in [SPINNING, OTHER] {
            let (data, length) = (text.as_ptr().cast_mut().cast(), text.to_bytes_with_nul().len());
            let added = add(link, CU_JIT_INPUT_PTX, data, length, null(), count, options, values);
            checked("cuLinkAddData", added)?;
        }
        let text = c"no program";
        let (data, length) = (text.as_ptr().cast_mut().cast(), text.to_bytes().len());
        let refused = add(link, CU_JIT_INPUT_PTX, data, length, null(), count, options, values);
        expected("a text that is no PTX", refused, CUDA_ERROR_INVALID_PTX)?;
        checked("cuLinkComplete", complete(link, &mut image, &mut bytes))?;
        let copy = std::slice::from_raw_parts(image.cast::<u8>(), bytes).to_vec();
        checked("cuLinkDestroy", destroy(link))?;
        let loaded = load(&mut library, copy.as_ptr().cast(), options, values, count, options, values, count);
        checked("cuLibraryLoadData", loaded)?;
    }
    Ok(library)
}

fn attributes_are_kept(driver: &Driver, kernel: CUfunction) -> Result<()> {
    let set: SetAttribute = driver.library.function(c"cuFuncSetAttribute")?;
    let get: GetAttribute = driver.library.function(c"cuFuncGetAttribute")?;
    let occupancy: Occupancy = driver.library.function(c"cuOccupancyMaxActiveBlocksPerMultiprocessor")?;
    let shared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let (mut found, mut blocks) = (0, [0; 2]);
    // SAFETY: results go to live locals.
    unsafe {
        checked("cuFuncSetAttribute", set(kernel, shared, 96 << 10))?;
        checked("cuFuncGetAttribute", get(&mut found, shared, kernel))?;
        expected("registers", set(kernel, CU_FUNC_ATTRIBUTE_NUM_REGS, 8), CUDA_ERROR_INVALID_VALUE)?;
        checked("cuOccupancy", occupancy(&mut blocks[0], kernel, 256, 0))?;
        checked("cuOccupancy", occupancy(&mut blocks[1], kernel, 256, 80 << 10))?;
    }
    // 2048 threads, and 164 KiB of which each block takes 81.
    ensure(found == 96 << 10 && blocks == [8, 2], || format!("shared memory {found}, blocks {blocks:?}"))
}

/// Page-locked memory is the host's, and no device pays for it.
pub(super) fn host_memory_is_no_devices() -> Result<()> {
    let driver = Driver::start()?;
    let context = driver.context(0)?;
    let allocate: AllocateHost = driver.library.function(c"cuMemAllocHost_v2")?;
    let free: OfHandle = driver.library.function(c"cuMemFreeHost")?;
    let ask: PointerAttributes = driver.library.function(c"cuPointerGetAttributes")?;
    let on_device = driver.memory(4096)?;
    let used = meter(0)?.owners.values().map(|usage| usage.bytes_now).sum::<u64>();
    let mut host = null_mut();
    // SAFETY: results go to live locals.
    checked("cuMemAllocHost", unsafe { allocate(&mut host, 1 << 20) })?;
    let types = [on_device, host as CUdeviceptr, on_device + (1 << 40)].map(|address| {
        let (mut kind, mut asked) = (c_uint::MAX, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
        let mut places = [(&raw mut kind).cast()];
        // SAFETY: one attribute and one place, which is as wide as it.
        let result = unsafe { ask(1, &mut asked, places.as_mut_ptr(), address) };
        checked("cuPointerGetAttributes", result).map(|()| kind)
    });
    let types = types.into_iter().collect::<Result<Vec<_>>>()?;
    ensure(types == [CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, 0], || format!("memory types {types:?}"))?;
    let now = meter(0)?.owners.values().map(|usage| usage.bytes_now).sum::<u64>();
    ensure(now == used, || format!("the device holds {now} bytes instead of {used}"))?;
    // SAFETY: what was allocated, once and then again.
    unsafe {
        checked("cuMemFreeHost", free(host))?;
        expected("freed twice", free(host), CUDA_ERROR_INVALID_VALUE)?;
    }
    driver.destroy(context)
}
