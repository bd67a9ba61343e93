//! The suite for a real GPU, dry: its stages on the simulated one. That tests the suite; what it measures there counts for
//! nothing.

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::Inside;
use serde_json::Value;

/// Where the suite lies.
const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu");
const RESULTS: &str = "/run/gpool-gpu-suite";

/// The stages that judge no share, for every change.
pub fn run(inside: &Inside) -> Result<()> {
    dry(inside, "environment,memory,checkpoint,power", |figures| {
        same(figures, "environment.driver", &"same".into())?;
        same(figures, "environment.container", &"ran".into())?;
        same(figures, "environment.exports_missing", &0.into())?;
        for allocator in ["cuMemAlloc", "cuMemAllocManaged", "cuMemCreate", "cuMemAllocAsync", "cuArrayCreate"] {
            // Of 4 GiB, less a context.
            same(figures, &format!("memory.{allocator}.pieces"), &3.into())?;
            same(figures, &format!("memory.{allocator}.over_cap"), &0.into())?;
        }
        Ok(())
    })
}

/// All stages: some minutes.
pub fn run_all(inside: &Inside) -> Result<()> {
    dry(inside, "environment,cost,shares,lending,latency,memory,many,checkpoint,power", |figures| {
        for (name, least, most) in [
            ("share.30_60_10.error", 0.0, 5.0),
            ("share.10_90.error", 0.0, 5.0),
            // The driver alone gives each a third.
            ("share.native.error", 15.0, 40.0),
            ("limit.graph_050", 0.4, 0.6),
            ("limit.heavy_sync_030", 0.2, 0.4),
            ("lend.idle", 0.8, 1.3),
        ] {
            let value = figures[name]["value"].as_f64().unwrap_or(f64::NAN);
            ensure((least..=most).contains(&value), || format!("{name} is {value}, not {least} to {most}"))?;
        }
        Ok(())
    })
}

fn dry(inside: &Inside, stages: &str, judge: impl Fn(&Value) -> Result<()>) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = run_suite(&host, stages).and_then(|figures| judge(&figures));
    finish(host, outcome)
}

fn run_suite(host: &Host, stages: &str) -> Result<Value> {
    // Of this run's own /run. The environment of the tests is not the suite's: gpool has its keys there.
    let mut command = host.command_named("/usr/bin/python3");
    command.args(["-m", "suite.main", "--simulated", "--budget", "900", "--out", RESULTS, "--stages", stages]);
    command.current_dir(SUITE).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = succeeded("the suite", command.output().context("python3")?)?;
    let text = std::fs::read(format!("{RESULTS}/gpu.json")).context("gpu.json")?;
    let results: Value = serde_json::from_slice(&text).context("gpu.json")?;
    let undone = stages.split(',').find(|stage| results["stages"][*stage]["outcome"] != "done");
    match undone {
        None => Ok(results["figures"].clone()),
        Some(stage) => Err(Failure::new(format!("the stage {stage} did not end well; it said\n{said}"))),
    }
}

fn same(figures: &Value, name: &str, want: &Value) -> Result<()> {
    let value = &figures[name]["value"];
    ensure(value == want, || format!("{name} is {value} instead of {want}"))
}
