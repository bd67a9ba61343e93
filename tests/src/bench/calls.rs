//! What a call through the shim costs, in a real container in front of the simulated driver.

use super::sheet::Sheet;
use crate::failure::{Context, Failure, Result};
use crate::host::Host;
use crate::image;
use serde_json::Value;

const PROGRAM: &str = "gpool-launch-cost";
/// Alone on the GPU, any share keeps the gate open.
const FRACTION_PERMILLE: u16 = 400;

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, FRACTION_PERMILLE)?;
    let mount = format!("{}:/bin/{PROGRAM}:ro", host.stage.program(PROGRAM).display());
    let fraction = format!("GPOOL_FRACTION=0.{FRACTION_PERMILLE}");
    let run = ["run", "--rm", "--runtime=gpool", "-e", &fraction, "-e", "GPOOL_MEMORY=1GiB", "-v", &mount];
    let said = host.engine.docker_text(&[&run[..], &[image::NAME, PROGRAM]].concat())?;
    let measured: Value = serde_json::from_str(&said).context(format!("{PROGRAM} said {said:?}"))?;
    add(sheet, "gate.launch_added_whole", &measured, "launch_ns", "launch_native_ns")?;
    add(sheet, "gate.wait_added", &measured, "wait_ns", "wait_native_ns")?;
    add(sheet, "gate.event_added", &measured, "step_ns", "step_native_ns")?;
    add(sheet, "shim.trampoline_added", &measured, "version_ns", "version_native_ns")
}

/// Each block through the shim stands beside the block past it of the same round.
fn add(sheet: &mut Sheet, name: &str, measured: &Value, own: &str, native: &str) -> Result<()> {
    let (own, native) = (numbers(measured, own)?, numbers(measured, native)?);
    let added: Vec<f64> = own.iter().zip(&native).map(|(own, native)| own - native).collect();
    sheet.add(name, &added, &native)
}

fn numbers(measured: &Value, name: &str) -> Result<Vec<f64>> {
    let list = measured[name].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
    list.ok_or_else(|| Failure::new(format!("{PROGRAM} said nothing about {name}")))
}
