//! Calls that few programs make, each as it may be made.

use super::calls::Calls;
use super::place::{CAP_BYTES, SHIM};
use super::{callbacks, graphs};
use crate::failure::{Context, Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_OUT_OF_MEMORY, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CuMemCreate, CuMemGetInfoV2, CuMemMap, CuMemRelease, CuModuleLoadData,
    CuModuleUnload, CuMulticastBindMem,
};
use serde_json::{Value, json};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::thread;
use std::time::Duration;

const PAGE_BYTES: usize = 2 << 20;
const GIB: usize = 1 << 30;

/// All of them.
pub fn calls() -> Result<Value> {
    let (calls, shim) = (Calls::of_shim()?, Library::open(SHIM)?);
    answers_that_nobody_wants(&shim)?;
    images_of_cuda_13(&calls, &shim)?;
    multicast(&calls, &shim)?;
    graphs::within_graphs(&calls, &shim)?;
    callbacks::from_within_calls(&calls)?;
    Ok(json!({ "passed": 5 }))
}

/// A program may ask for one of two figures, or for none, where the driver lets it.
fn answers_that_nobody_wants(shim: &Library) -> Result<()> {
    let ask: CuMemGetInfoV2 = shim.function(c"cuMemGetInfo_v2")?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: null, or places for the answers.
    let said = unsafe { [ask(&mut free, null_mut()), ask(null_mut(), &mut total), ask(null_mut(), null_mut())] };
    ensure(said == [0; 3], || format!("cuMemGetInfo with nulls answered {said:?}"))?;
    let cap = CAP_BYTES as usize;
    ensure(0 < free && free < cap && total == cap, || format!("{free} of {total} bytes are free, the cap is {cap}"))
}

/// A fat binary with one entry, a PTX text with a variable of `bytes`, as a frame of Zstandard (RFC 8878, 3.1.1): the
/// content's length in one byte, and one raw block, which is the last.
fn zstandard_image(bytes: usize) -> Vec<u8> {
    let text = format!(".version 8.0\n.global .b8 hog[{bytes}];");
    let length = u8::try_from(text.len()).expect("the text is short");
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, length];
    frame.extend((u32::from(length) << 3 | 1).to_le_bytes().into_iter().take(3));
    frame.extend(text.bytes());
    let mut entry = [0_u8; 64];
    for (at, value) in
        [(0, 1), (4, 64), (8, frame.len() as u64), (16, frame.len() as u64), (40, 0x8000), (56, length.into())]
    {
        // No field reaches into one that is set after it.
        let width = if at == 0 {
            2
        } else if [8, 40, 56].contains(&at) {
            8
        } else {
            4
        };
        entry[at..at + width].copy_from_slice(&u64::to_le_bytes(value)[..width]);
    }
    let file: Vec<u8> = entry.into_iter().chain(frame).collect();
    let mut image = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    image.extend((file.len() as u64).to_le_bytes());
    image.extend(file);
    image
}

/// What the compiler of CUDA 13 makes is charged before it is loaded.
fn images_of_cuda_13(calls: &Calls, shim: &Library) -> Result<()> {
    let load: CuModuleLoadData = shim.function(c"cuModuleLoadData")?;
    let unload: CuModuleUnload = shim.function(c"cuModuleUnload")?;
    let held = || calls.room().map(|(free, total)| total - free).context("cuMemGetInfo");
    let before = held()?;
    let mut module = null_mut();
    // SAFETY: there is a place for the handle, and the image is one.
    let result = unsafe { load(&mut module, zstandard_image(3 * GIB).as_ptr().cast()) };
    let charged = held()? - before;
    ensure((result, charged) == (0, 3 * GIB), || format!("{result}, and {charged} bytes are charged for 3 GiB"))?;
    // SAFETY: the driver's handle.
    let result = unsafe { unload(module) };
    let left = held()? - before;
    ensure((result, left) == (0, 0), || format!("{result}, and {left} bytes stay charged"))?;
    // SAFETY: as above.
    let result = unsafe { load(&mut module, zstandard_image(CAP_BYTES as usize).as_ptr().cast()) };
    ensure(result == CUDA_ERROR_OUT_OF_MEMORY, || format!("{result} for a variable as large as the cap"))
}

/// Memory that was not given to a multicast object after all goes as any other.
fn refused_binding(calls: &Calls, shim: &Library, object: u64, properties: &CUmemAllocationProp) -> Result<()> {
    let (create, release): (CuMemCreate, CuMemRelease) =
        (shim.function(c"cuMemCreate")?, shim.function(c"cuMemRelease")?);
    let bind: CuMulticastBindMem = shim.function(c"cuMulticastBindMem")?;
    let (before, mut memory) = (calls.room(), 0);
    // SAFETY: there is a place for the handle, and the handles are the driver's.
    let said =
        unsafe { [create(&mut memory, PAGE_BYTES, properties, 0), bind(object, 0, memory, 0, 1, 0), release(memory)] };
    let after = calls.room();
    ensure(said == [0, 1, 0] && before == after, || format!("{said:?}; {before:?} was free, {after:?} is"))
}

/// Nobody waits for a thread that the driver lets wait for a device that somebody else must add.
fn multicast(calls: &Calls, shim: &Library) -> Result<()> {
    type Add = unsafe extern "C" fn(CUmemGenericAllocationHandle, c_int) -> c_int;
    type Make = unsafe extern "C" fn(*mut CUmemGenericAllocationHandle, *const u8) -> c_int;
    let (make, add): (Make, Add) = (shim.function(c"cuMulticastCreate")?, shim.function(c"cuMulticastAddDevice")?);
    let (create, map): (CuMemCreate, CuMemMap) = (shim.function(c"cuMemCreate")?, shim.function(c"cuMemMap")?);
    let bind: CuMulticastBindMem = shim.function(c"cuMulticastBindMem")?;
    let location = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let properties = CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: 0,
        location,
        win32HandleMetaData: null_mut(),
        allocFlags: [0; 8],
    };
    let (mut object, mut memory) = (0, 0);
    // SAFETY: there are places for the handles; the driver behind the stand looks at no properties.
    let begun = unsafe { [make(&mut object, null()), add(object, 0), create(&mut memory, PAGE_BYTES, &properties, 0)] };
    ensure(begun == [0; 3], || format!("the multicast object and its memory: {begun:?}"))?;
    refused_binding(calls, shim, object, &properties)?;
    thread::scope(|scope| {
        // SAFETY: the driver's handles.
        let bound = scope.spawn(move || unsafe { bind(object, 0, memory, 0, PAGE_BYTES, 0) });
        // SAFETY: as above; the address is never followed.
        let mapped = scope.spawn(move || unsafe { map(1 << 42, PAGE_BYTES, 0, object, 0) });
        // Both wait by now, or will for what follows.
        thread::sleep(Duration::from_millis(50));
        // SAFETY: as above.
        let other = unsafe { create(&mut memory, PAGE_BYTES, &properties, 0) };
        let pointer = calls.allocate(PAGE_BYTES).ok_or_else(|| Failure::new("nothing can be allocated meanwhile"))?;
        // SAFETY: as above.
        let added = unsafe { add(object, 1) };
        let said = [other, added, bound.join().unwrap_or(-1), mapped.join().unwrap_or(-1)];
        ensure(said == [0; 4], || format!("beside threads that wait for the second device: {said:?}"))?;
        ensure(calls.free(pointer), || "cuMemFree failed".to_owned())
    })
}
