//! Limits of a context that take device memory.

use crate::accounts::{Reserved, inexact};
use crate::entry::{index, real};
use crate::{HANDLES, PROCESS};
use gpool_driver_abi::cuda::{
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_STACK_SIZE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_SUCCESS, CUdeviceAttribute, CUlimit, CUresult, CuCtxGetLimit, CuCtxSetLimit, CuDeviceGetAttribute,
};
use gpool_interposer_logic::handles::Kind;
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::process::Place;

/// Threads that the current device can hold at once; without an answer more than any has.
fn resident_threads(place: &Place) -> u64 {
    const MANY: i32 = 1 << 16;
    let value = |attribute: CUdeviceAttribute| {
        let (mut value, device) = (MANY, place.driver.current_device().unwrap_or(-1));
        // SAFETY: the entry point's type; there is a place for the answer.
        unsafe { real::<CuDeviceGetAttribute>(index::cuDeviceGetAttribute)(&mut value, attribute, device) };
        value.max(1) as u64
    };
    value(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) * value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)
}

/// Charged where it stands higher than ever.
///
/// # Safety
/// As the driver's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the entry point's type, the caller's arguments.
    let set = || unsafe { real::<CuCtxSetLimit>(index::cuCtxSetLimit)(limit, value) };
    let (kind, times) = match limit {
        CU_LIMIT_PRINTF_FIFO_SIZE => (Kind::PrintfLimit, 1),
        CU_LIMIT_MALLOC_HEAP_SIZE => (Kind::HeapLimit, 1),
        CU_LIMIT_STACK_SIZE => (Kind::StackLimit, resident_threads(place)),
        _ => return set(),
    };
    let (context, mut present) = (place.driver.current_context() as u64, 0usize);
    // SAFETY: the entry point's type; there is a place for the answer.
    unsafe { real::<CuCtxGetLimit>(index::cuCtxGetLimit)(&mut present, limit) };
    let growth = HANDLES.lock().limit_growth(kind, context, present as u64, value as u64);
    if growth == 0 {
        return set();
    }
    inexact();
    let reserved = match Reserved::new(Call::SetLimit, growth.saturating_mul(times)) {
        Ok(reserved) => reserved,
        Err(refused) => return refused,
    };
    let result = set();
    reserved.settle(result);
    if result == CUDA_SUCCESS {
        HANDLES.lock().limit_raised(kind, context, value as u64);
    }
    reserved.answered(result)
}
