//! Contexts that belong to a display, which no program of ours has: charged like others, and given back.

use super::calls::Calls;
use super::place::{CONTEXT_BYTES, SHIM};
use crate::failure::{Context, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::{CUcontext, CuCtxAttach, CuCtxCreateV2, CuCtxDestroyV2, CuCtxDetach, CuVDPAUCtxCreate};
use serde_json::{Value, json};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const OPENGL: [&CStr; 2] = [c"cuGLCtxCreate", c"cuGLCtxCreate_v2"];
const VDPAU: [&CStr; 2] = [c"cuVDPAUCtxCreate", c"cuVDPAUCtxCreate_v2"];

/// Makes a context in each way, one beside the other, and ends them.
pub fn contexts() -> Result<Value> {
    let (calls, shim) = (Calls::of_shim()?, Library::open(SHIM)?);
    let destroy: CuCtxDestroyV2 = shim.function(c"cuCtxDestroy_v2")?;
    let held = || -> Result<usize> {
        let (free, total) = calls.room().context("cuMemGetInfo")?;
        Ok(total - free)
    };
    let (before, mut made) = (held()?, Vec::new());
    for name in OPENGL.into_iter().chain(VDPAU) {
        let mut context: CUcontext = null_mut();
        let result = match VDPAU.contains(&name) {
            true => {
                let create: CuVDPAUCtxCreate = shim.function(name)?;
                // SAFETY: there is a place for the handle; the driver behind the stand looks at no display.
                unsafe { create(&mut context, 0, 0, 0, null()) }
            }
            false => {
                let create: CuCtxCreateV2 = shim.function(name)?;
                // SAFETY: as above.
                unsafe { create(&mut context, 0, 0) }
            }
        };
        ensure(result == 0 && !context.is_null(), || format!("{name:?} answered {result}"))?;
        made.push(context);
        let charged = held()? - before;
        ensure(charged == made.len() * CONTEXT_BYTES, || format!("{charged} bytes are charged after {name:?}"))?;
    }
    for context in &made {
        // SAFETY: a handle that the driver has given.
        let result = unsafe { destroy(*context) };
        ensure(result == 0, || format!("cuCtxDestroy answered {result}"))?;
    }
    uses(&shim, &|| Ok(held()? - before))?;
    let left = held()? - before;
    ensure(left == 0, || format!("{left} bytes stay charged"))?;
    Ok(json!({ "contexts": made.len() }))
}

/// A context that is used twice goes with the second use that ends; `held` says what is charged.
fn uses(shim: &Library, held: &dyn Fn() -> Result<usize>) -> Result<()> {
    let create: CuCtxCreateV2 = shim.function(c"cuCtxCreate_v2")?;
    let (attach, detach): (CuCtxAttach, CuCtxDetach) = (shim.function(c"cuCtxAttach")?, shim.function(c"cuCtxDetach")?);
    let (mut context, mut again): (CUcontext, CUcontext) = (null_mut(), null_mut());
    // SAFETY: there are places for the handles; the one that is given is the driver's.
    unsafe {
        ensure(create(&mut context, 0, 0) == 0 && attach(&mut again, 0) == 0, || "no context".to_owned())?;
        ensure(context == again, || "cuCtxAttach gives another context".to_owned())?;
        for left in [CONTEXT_BYTES, 0] {
            ensure(detach(context) == 0, || "cuCtxDetach failed".to_owned())?;
            let charged = held()?;
            ensure(charged == left, || format!("{charged} bytes are charged after cuCtxDetach in place of {left}"))?;
        }
    }
    Ok(())
}
