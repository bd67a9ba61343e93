//! Two hundred containers that are created at the same time: each gets a lease of its own, and no GPU is sold twice.

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, text};
use gpool_protocol::GpuView;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const CREATED: usize = 200;
/// Permille of a GPU for each.
const SHARE: usize = 10;

/// Starts all before it waits for any.
pub fn create(host: &Host, like: &[u8]) -> Result<()> {
    let mut spec: Value = serde_json::from_slice(like).context("config.json")?;
    spec["annotations"] = json!({"gpool.io/fraction": "0.01", "gpool.io/memory": "16MiB"});
    spec["root"]["path"] = json!("rootfs");
    let bundle = |index: usize| format!("/run/gpool-parallel/{index}");
    for index in 0..CREATED {
        fs::create_dir_all(format!("{}/rootfs/usr/lib", bundle(index))).context("bundle")?;
        fs::write(Path::new(&bundle(index)).join("config.json"), spec.to_string()).context("bundle")?;
    }
    let start = |index: usize| {
        let mut command = Command::new(host.stage.program("gpool-runtime"));
        command.args(["create", "--bundle", &bundle(index)]).arg(format!("parallel-{index}"));
        command.stderr(Stdio::piped()).spawn().context("gpool-runtime")
    };
    let started = (0..CREATED).map(start).collect::<Result<Vec<_>>>()?;
    let mut refused = Vec::new();
    for process in started {
        let output = process.wait_with_output().context("gpool-runtime")?;
        if !output.status.success() {
            refused.push(text(&output.stderr));
        }
    }
    ensure(refused.is_empty(), || format!("{} of {CREATED} were refused, first: {}", refused.len(), refused[0]))?;
    let mut leases = BTreeSet::new();
    for index in 0..CREATED {
        let edited = fs::read(Path::new(&bundle(index)).join("config.json")).context("config.json")?;
        let edited: Value = serde_json::from_slice(&edited).context("config.json")?;
        let lease = edited["annotations"]["gpool.io/injected"].as_str().map(str::to_owned);
        leases.insert(lease.ok_or_else(|| Failure::new("no lease was put in"))?);
    }
    ensure(leases.len() == CREATED, || format!("{} leases for {CREATED} containers", leases.len()))?;
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let sold: usize = gpus.iter().map(|gpu| usize::from(gpu.fraction_leased_permille)).sum();
    let is_within = gpus.iter().all(|gpu| gpu.fraction_leased_permille <= 1000) && sold <= CREATED * SHARE;
    ensure(is_within, || format!("sold too much: {gpus:?}"))
}
