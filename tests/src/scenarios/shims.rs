//! The shims as they were built: what they export, and how large they are.

use crate::exports;
use crate::failure::{Context, Result, ensure};
use crate::namespaces::Inside;
use crate::stage::Stage;
use gpool_driver_abi::{CUDA_535, NVML_535};
use std::collections::BTreeSet;

/// Loaded into every process that uses a GPU.
const CUDA_LIMIT_BYTES: u64 = 150_000;

/// Reads both files.
pub fn run(_inside: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let cuda = stage.shims().join("libgpool-cuda.so");
    // One name less and a program does not link, or finds the real function behind the shim; one more and its probe for
    // a newer driver is answered wrongly.
    for (library, baseline) in [(&cuda, CUDA_535), (&stage.shims().join("libgpool-nvml.so"), NVML_535)] {
        let (exported, baseline) =
            (exports::of(library)?, baseline.lines().map(str::to_owned).collect::<BTreeSet<_>>());
        let missing: Vec<_> = baseline.difference(&exported).collect();
        let superfluous: Vec<_> = exported.difference(&baseline).collect();
        ensure(missing.is_empty() && superfluous.is_empty(), || {
            format!("{} lacks {missing:?} and has {superfluous:?} too much", library.display())
        })?;
    }
    let bytes = std::fs::metadata(&cuda).context(cuda.display())?.len();
    ensure(bytes <= CUDA_LIMIT_BYTES, || format!("{} has {bytes} of {CUDA_LIMIT_BYTES} bytes", cuda.display()))
}
