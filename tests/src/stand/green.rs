//! Green contexts: parts of the primary one, with whose memory their own is charged and goes.

use super::calls::Calls;
use super::place::{CONTEXT_BYTES, SHIM};
use crate::failure::{Context, Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{
    CUcontext, CuCtxFromGreenCtx, CuCtxGetCurrent, CuCtxSetCurrent, CuGreenCtxCreate, CuGreenCtxDestroy,
    CuModuleLoadData, CuModuleUnload,
};
use serde_json::{Value, json};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const IMAGE: &CStr = c".version 7.0\n.target sm_70\n.address_size 64\n.global .u64 x[262144];\n";

/// Two beside each other, in which memory is allocated that outlives the first and goes with the second.
pub fn contexts() -> Result<Value> {
    let (calls, shim) = (Calls::of_shim()?, Library::open(SHIM)?);
    let create: CuGreenCtxCreate = shim.function(c"cuGreenCtxCreate")?;
    let destroy: CuGreenCtxDestroy = shim.function(c"cuGreenCtxDestroy")?;
    let context_of: CuCtxFromGreenCtx = shim.function(c"cuCtxFromGreenCtx")?;
    let (set, get): (CuCtxSetCurrent, CuCtxGetCurrent) =
        (shim.function(c"cuCtxSetCurrent")?, shim.function(c"cuCtxGetCurrent")?);
    let (load, unload): (CuModuleLoadData, CuModuleUnload) =
        (shim.function(c"cuModuleLoadData")?, shim.function(c"cuModuleUnload")?);
    let held = || calls.room().map(|(free, total)| total - free).context("cuMemGetInfo");
    let before = held()?;
    let is_held = |what: &str, bytes: usize| {
        let charged = held()? - before;
        ensure(charged == bytes, || format!("{charged} bytes are charged {what}, and not {bytes}"))
    };
    let (mut own, mut greens, mut module): (CUcontext, [CUcontext; 2], _) = (null_mut(), [null_mut(); 2], null_mut());
    let failed = |what: &str, result: c_int| ensure(result == 0, || format!("{what} answered {result}"));
    let allocate =
        || calls.allocate(8 * MIB).ok_or_else(|| Failure::new("nothing can be allocated in a green context"));
    // SAFETY: the entry points have these types, there are places for the handles, and those that are given are the driver's;
    // the image is a terminated text.
    unsafe {
        failed("cuCtxGetCurrent", get(&mut own))?;
        for green in &mut greens {
            failed("cuGreenCtxCreate", create(green, null_mut(), 0, 1))?;
            is_held("for green contexts", CONTEXT_BYTES)?;
        }
        let mut contexts = [null_mut(); 2];
        for (context, green) in contexts.iter_mut().zip(greens) {
            failed("cuCtxFromGreenCtx", context_of(context, green))?;
        }
        failed("cuCtxSetCurrent", set(contexts[0]))?;
        let pointer = allocate()?;
        failed("cuModuleLoadData", load(&mut module, IMAGE.as_ptr().cast()))?;
        is_held("with memory and a module", CONTEXT_BYTES + 10 * MIB)?;
        failed("cuCtxSetCurrent", set(contexts[1]))?;
        failed("cuGreenCtxDestroy", destroy(greens[0]))?;
        is_held("after the first has gone", CONTEXT_BYTES + 10 * MIB)?;
        ensure(calls.free(pointer), || "cuMemFree failed".to_owned())?;
        failed("cuModuleUnload", unload(module))?;
        is_held("after they were given back", CONTEXT_BYTES)?;
        allocate()?;
        is_held("with memory in the second", CONTEXT_BYTES + 8 * MIB)?;
        failed("cuCtxSetCurrent", set(own))?;
        failed("cuGreenCtxDestroy", destroy(greens[1]))?;
    }
    is_held("after the second has gone", 0)?;
    Ok(json!({ "contexts": greens.len() }))
}
