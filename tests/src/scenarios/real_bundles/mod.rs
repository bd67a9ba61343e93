//! Two hundred config.json as the engines of this machine write them, with many options: without a request gpool leaves
//! every byte, and with one it only adds.

mod compare;
mod parallel;
mod record;

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, text};
use crate::namespaces::Inside;
use compare::what_is_lost;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// At least so many, or the scenario shows nothing.
const WANTED: usize = 200;
/// An ended lease keeps nothing here, but waits two seconds for a container that never starts.
const GPUS: u32 = 8;
const BUNDLE: &str = "/run/gpool-bundle";
const LOG: &str = "/run/gpool-bundle/log.json";

/// Records, and lets gpool edit.
pub fn run(inside: &Inside) -> Result<()> {
    // A runtime that does nothing: what is judged is the file that it is given.
    let host = Host::start_with(inside, GPUS, "[runtime]\nlow_level = [\"/bin/true\"]\n")?;
    let outcome = record_and_edit(&host);
    // dockerd keeps this for containers in the host's network and does not take it away when it ends.
    let _ = rustix::mount::unmount("/run/gpool-docker/exec/netns/default", rustix::mount::UnmountFlags::DETACH);
    finish(host, outcome)
}

fn record_and_edit(host: &Host) -> Result<()> {
    let recorded = record::all(host)?;
    let (mut edited, mut refused, mut failures) = (0, 0, Vec::new());
    for (origin, bytes) in &recorded {
        if let Err(failure) = without_a_request(host, bytes) {
            failures.push(format!("{origin}: {failure}"));
        }
        match with_a_request(host, bytes) {
            Ok(true) => edited += 1,
            Ok(false) => refused += 1,
            Err(failure) => failures.push(format!("{origin}: {failure}")),
        }
    }
    println!("    {} config.json: {edited} edited, {refused} refused as unsafe", recorded.len());
    ensure(failures.is_empty(), || failures.join("\n"))?;
    ensure(recorded.len() >= WANTED, || format!("only {} config.json were recorded", recorded.len()))?;
    // Most options have nothing to do with safety.
    ensure(edited >= recorded.len() / 2, || format!("only {edited} of {} could be edited", recorded.len()))?;
    wait_until_none_is_leased(host)?;
    parallel::create(host, &recorded[0].1)?;
    wait_until_none_is_leased(host)
}

/// No container of these ever starts, so every lease ends by itself.
fn wait_until_none_is_leased(host: &Host) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let left = host.leases()?.len();
        if left == 0 {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || format!("{left} leases of containers that never started are left"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn create(host: &Host, bytes: &[u8]) -> Result<std::process::Output> {
    let _ = fs::remove_dir_all(BUNDLE);
    fs::create_dir_all(format!("{BUNDLE}/rootfs/usr/lib")).context(BUNDLE)?;
    fs::write(Path::new(BUNDLE).join("config.json"), bytes).context("config.json")?;
    let mut command = Command::new(host.stage.program("gpool-runtime"));
    command.args(["--log", LOG, "create", "--bundle", BUNDLE]).arg(format!("bundle-{}", id()));
    command.output().context("gpool-runtime")
}

/// A new name for each container.
fn id() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn without_a_request(host: &Host, bytes: &[u8]) -> Result<()> {
    let file = Path::new(BUNDLE).join("config.json");
    let output = create(host, bytes)?;
    ensure(output.status.success(), || format!("without a request: {}", text(&output.stderr)))?;
    ensure(fs::read(&file).is_ok_and(|after| after == bytes), || {
        "without a request: config.json was changed".to_owned()
    })?;
    ensure(fs::metadata(&file).context("config.json")?.nlink() == 1, || "config.json was linked".to_owned())?;
    ensure(!Path::new(LOG).exists(), || "something was logged on success".to_owned())
}

/// True when it was edited, false when it was refused for a reason of safety, in one line and with nothing touched.
fn with_a_request(host: &Host, bytes: &[u8]) -> Result<bool> {
    let mut asked: Value = serde_json::from_slice(bytes).context("config.json")?;
    let annotations = asked["annotations"].as_object().cloned().unwrap_or_default();
    asked["annotations"] = annotations.into();
    asked["annotations"]["gpool.io/fraction"] = json!("0.01");
    asked["annotations"]["gpool.io/memory"] = json!("16MiB");
    // The root of the bundle at hand: the engine's own is gone by now.
    asked["root"]["path"] = json!("rootfs");
    // What no gpool knows, with a number that no floating point holds.
    asked["x-newer"] = json!({"z": u64::MAX, "a": [null, 1.5]});
    let before = serde_json::to_vec(&asked).context("config.json")?;
    let output = create(host, &before)?;
    let after = fs::read(Path::new(BUNDLE).join("config.json")).context("config.json")?;
    let log = fs::read_to_string(LOG).unwrap_or_default();
    if !output.status.success() {
        let is_of_safety = ["GPOOL-E105", "GPOOL-E501"].iter().any(|code| log.contains(code));
        ensure(is_of_safety && log.lines().count() == 1, || format!("refused: {log}"))?;
        return ensure(after == before, || "refused, and config.json was changed".to_owned()).map(|()| false);
    }
    ensure(log.is_empty() && output.stderr.is_empty(), || format!("told on success: {log} {}", text(&output.stderr)))?;
    let edited: Value = serde_json::from_slice(&after).context("the edited config.json")?;
    ensure(edited["annotations"]["gpool.io/injected"].is_string(), || "no lease was put in".to_owned())?;
    match what_is_lost(&asked, &edited) {
        None => Ok(true),
        Some(path) => Err(Failure::new(format!("lost or changed: {path}"))),
    }
}
