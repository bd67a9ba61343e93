//! Limits, pauses and explanations on live containers: a limit holds on an idle GPU and goes when it is taken away, a
//! paused container runs nothing, and `gpool explain` says why one waits.

use super::{finish, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::processor_time::ProcessorTime;
use crate::tenant::Tenant;
use crate::trace::Recorder;
use gpool_protocol::ErrorCode;
use serde_json::{Value, json};
use std::time::Duration;

/// From a change until its effect is judged.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a share is watched, and that of a program that only waits.
const WATCH: Duration = Duration::from_secs(4);
const WATCH_WAITING: Duration = Duration::from_secs(2);

/// Runs one container under changing limits, then two.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = waits(&host).and_then(|()| limit_and_pause(&host));
    finish(host, outcome)
}

fn limit_and_pause(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_LIMIT", "0.3"), ("GPOOL_MEMORY", "2GiB")];
    let capped = Tenant::greedy(500).run(host, "capped", &env)?;
    wait_until_running(host, std::slice::from_ref(&capped))?;
    share_is(host, &capped, "alone under a limit of 0.3", 0.22..=0.33)?;
    update(host, &capped, &["--limit", "0.6"])?;
    share_is(host, &capped, "alone under a limit of 0.6", 0.45..=0.65)?;
    update(host, &capped, &["--no-limit"])?;
    share_is(host, &capped, "alone without a limit", 0.75..=1.0)?;

    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_LIMIT", "0.5"), ("GPOOL_MEMORY", "2GiB")];
    let graphs = Tenant::greedy(250).run_with(host, "graphs", &env, &["--graph", "20"])?;
    wait_until_running(host, std::slice::from_ref(&graphs))?;
    succeeded("gpool pause", host.gpool(&["pause", &capped.id])?)?;
    share_is(host, &capped, "paused", 0.0..=0.001)?;
    share_is(host, &graphs, "launching graphs under a limit of 0.5", 0.4..=0.55)?;
    let explained = explain(host, &capped)?;
    ensure(explained.contains("paused"), || format!("gpool explain of a paused container says {explained}"))?;
    succeeded("gpool resume", host.gpool(&["resume", &capped.id])?)?;
    share_is(host, &capped, "resumed", 0.4..=0.9)?;

    let refused = host.gpool(&["update", &capped.id, "--limit", "0.1"])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure(!refused.status.success() && said.contains("limit") && said.contains("GPOOL-E"), || {
        format!("a limit below the fraction is answered with {said:?}")
    })?;
    slips_change_nothing(host, &capped)
}

/// A forgotten unit, an id that is none, a field that is not known: said to be, each with its exit code, and nothing changes.
fn slips_change_nothing(host: &Host, container: &Container) -> Result<()> {
    let before = host.lease_of(container)?.memory_cap_bytes;
    let id = container.id.as_str();
    for (arguments, status, part) in [
        (&["update", id, "--memory", "1"][..], 2, "a bare number is bytes"),
        (&["update", "", "--memory", "1GiB"], 3, "GPOOL-E301"),
        (&["inspect", ""], 3, "GPOOL-E301"),
        (&["inspect", "a b"], 3, "GPOOL-E301"),
        (&["explain", "a/b"], 3, "GPOOL-E301"),
        (&["pause", "../info"], 3, "GPOOL-E301"),
    ] {
        let output = host.gpool(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.code() == Some(status) && said.contains(part), || {
            format!("gpool {arguments:?} ends with {:?} and {said:?}", output.status.code())
        })?;
    }
    for change in [json!({}), json!({"memory": "1GiB"}), json!({"memory_bytes": 4})] {
        let refused = host.client().patch::<Value, Value>(&format!("/v1/leases/{id}"), &change).err();
        ensure(refused.as_ref().is_some_and(|refused| refused.code == ErrorCode::RequestInvalid), || {
            format!("the change {change} is answered with {refused:?}")
        })?;
    }
    let unknown = host.client().get::<Value>("/v1/leases/").err().map(|refused| refused.code);
    ensure(unknown == Some(ErrorCode::LeaseUnknown), || {
        format!("the lease without an id is answered with {unknown:?}")
    })?;
    let now = host.lease_of(container)?.memory_cap_bytes;
    ensure(now == before, || format!("a slip has changed the cap from {before} to {now}"))
}

/// What a program does while the device has none of its work is not charged, though its bursts go on through its waits: the
/// meter says that a limit lets through what it says, not less.
fn waits(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_LIMIT", "0.3"), ("GPOOL_MEMORY", "2GiB")];
    // With room left for what it copies from.
    let single = |way| ["--launch-batch", "1", "--wait-by", way, "--think-us", "60", "--allocate-mib", "64"];
    for (name, how, what, least) in [
        ("waiting", &["--launch-batch", "4"][..], "waiting after each four launches", 0.2),
        // Pauses so short are not told from work where nothing says that the program has waited: they had 0.06 and 0.10 then.
        // Without a limit the first one has 0.2, for all that it waits.
        ("copying", &single("copy"), "copying each result to the host", 0.13),
        ("asking", &single("query"), "asking until each launch has ended", 0.13),
    ] {
        let waiting = Tenant::greedy(50).run_with(host, name, &env, how)?;
        wait_until_running(host, std::slice::from_ref(&waiting))?;
        share_over(WATCH_WAITING, host, &waiting, &format!("{what} under a limit of 0.3"), least..=0.33)?;
        host.engine.docker_text(&["rm", "-f", &waiting.id])?;
    }
    Ok(())
}

fn update(host: &Host, container: &Container, change: &[&str]) -> Result<()> {
    let arguments = [&["update", container.id.as_str()], change].concat();
    succeeded("gpool update", host.gpool(&arguments)?).map(drop)
}

fn share_is(host: &Host, container: &Container, when: &str, wanted: std::ops::RangeInclusive<f64>) -> Result<()> {
    share_over(WATCH, host, container, when, wanted)
}

fn share_over(
    watch: Duration,
    host: &Host,
    container: &Container,
    when: &str,
    wanted: std::ops::RangeInclusive<f64>,
) -> Result<()> {
    std::thread::sleep(SETTLE);
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let (from_ns, before) = (now_ns(), ProcessorTime::now());
    std::thread::sleep(watch);
    let share = recorder.stop()?.share(&container.id, from_ns, now_ns());
    // What a hypervisor takes in the middle of a wait counts as work, and nothing is launched meanwhile: a limit may let
    // that much less through, and never more.
    let stolen = ProcessorTime::now().zip(before).map_or(0.0, |(now, before)| now.stolen_since(before));
    ensure(((wanted.start() - stolen)..=*wanted.end()).contains(&share), || {
        format!("{when}, {} got {share:.3} instead of {wanted:?}, with {stolen:.2} stolen", container.name)
    })
}

fn explain(host: &Host, container: &Container) -> Result<String> {
    let output = host.gpool(&["explain", &container.id, "--format", "json"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let parsed: Value = serde_json::from_slice(&output.stdout).context("gpool explain --format json")?;
    Ok(parsed.to_string())
}
