//! How long a program takes that loads the library, calls `cuInit` and ends.

use super::place::{REAL, SHIM};
use crate::failure::{Context, Result, ensure};
use gpool_driver_abi::cuda::{CUDA_ERROR_NO_DEVICE, CUDA_SUCCESS};
use serde_json::{Value, json};
use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

const STARTS: usize = 500;

/// In the stand's own `/run`.
const PROGRAM: &str = "/run/start";

/// Microseconds of each start of `program` with the shim and with the driver behind it, one after the other.
pub fn measure(program: &[u8]) -> Result<Value> {
    fs::write(PROGRAM, program).context(PROGRAM)?;
    fs::set_permissions(PROGRAM, Permissions::from_mode(0o755)).context(PROGRAM)?;
    let (mut own, mut native) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        own.push(start(SHIM)?);
        native.push(start(REAL)?);
    }
    Ok(json!({ "own": own, "native": native }))
}

fn start(library: &CStr) -> Result<f64> {
    let start = Instant::now();
    let status = Command::new(PROGRAM).arg(&*library.to_string_lossy()).status().context(PROGRAM)?;
    let elapsed_us = start.elapsed().as_secs_f64() * 1e6;
    let answer = status.code().filter(|code| [CUDA_SUCCESS, CUDA_ERROR_NO_DEVICE].contains(code));
    ensure(answer.is_some(), || format!("{PROGRAM} with {library:?} ended with {status}"))?;
    Ok(elapsed_us)
}
