//! The suite for a real GPU, from its bundle, on machines that have a driver and nothing else of use, dry on the simulated
//! GPU: with no cgroups, with the driver mounted file by file, and with a kernel that makes no overlays. Each begins with
//! what a run that was killed has left.

use crate::failure::{Context, Result, ensure};
use crate::host::succeeded;
use crate::namespaces::Inside;
use crate::stage::Stage;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// See the script.
const KINDS: [&str; 3] = ["no-cgroups", "mounted-driver", "no-layers"];
const SCRIPT: &str = include_str!("../../programs/bare_machine.sh");
const MAKE_BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/bundle.sh");
const BUNDLE: &str = "/run/gpool-bundle";

/// Runs it on each of them.
pub fn run(_: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let script = Path::new("/run/bare-machine.sh");
    std::fs::write(script, SCRIPT).context(script.display())?;
    let mut bundle = Command::new("/bin/sh");
    succeeded(
        "the bundle",
        bundle.arg(MAKE_BUNDLE).args([stage.root(), Path::new(BUNDLE)]).output().context(MAKE_BUNDLE)?,
    )?;
    KINDS.iter().try_for_each(|kind| on_machine(&stage, script, kind).context(*kind))
}

fn on_machine(stage: &Stage, script: &Path, kind: &str) -> Result<()> {
    let results = format!("/run/bare-{kind}");
    let mut machine = Command::new("/usr/bin/unshare");
    machine.args(["--mount", "--propagation", "private", "/bin/sh"]).arg(script).arg(stage.root());
    machine.args([BUNDLE, kind, &results, "--stages", "environment,memory"]);
    let said = succeeded(kind, machine.stdin(Stdio::null()).output().context("unshare")?)?;
    let text = std::fs::read(format!("{results}/gpu.json")).context("gpu.json")?;
    let found: Value = serde_json::from_slice(&text).context("gpu.json")?;
    for (name, want) in [
        ("environment.driver", Value::from("same")),
        ("environment.exports_missing", 0.into()),
        ("environment.container", "same".into()),
        ("memory.cuMemAlloc.pieces", 3.into()),
    ] {
        let value = &found["figures"][name]["value"];
        ensure(*value == want, || format!("{name} is {value} instead of {want}; the suite said\n{said}"))?;
    }
    let over = found["figures"]["memory.cuMemAlloc.over_cap"]["value"].as_i64();
    ensure(over.is_some_and(|bytes| bytes <= 0), || format!("{over:?} bytes above the cap; the suite said\n{said}"))?;
    Ok(())
}
