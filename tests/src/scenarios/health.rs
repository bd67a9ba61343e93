//! What a GPU's own figures show: it is told with who is on the GPU, counted and shown, and after what a reset or a repair mends nobody
//! comes there any more, also after a restart. Who opens it again in spite of that knows of it, until it becomes more. Clocks that are
//! held down are told, and when that is over. A GPU that hangs keeps no other from being read, and of one that tells nothing nothing is
//! found.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, GpuView};

/// Clocks are held down when two looks have said so.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n[health]\npoll_seconds = 1\nthermal_seconds = 1\n";
const ASKED: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB")];
/// A row is to be replaced by a spare one.
const PENDING: [&str; 3] = ["--remap-pending", "--uncorrectable-rows", "1"];
/// The number of the check "GPU health".
const CHECK: &str = "25";

/// Lets the first of two GPUs say this and that; the other one takes nobody in.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, CONFIGURATION)
        .and_then(|()| succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "1"])?))
        .and_then(|_| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    wait_for("a GPU that is healthy", || is_shown(host, "ok"))?;
    let tenant = Tenant::greedy(500).run(host, "tenant", &ASKED)?;
    wait_for("its program to be known", || Ok(host.lease_of(&tenant)?.processes > 0))?;
    is_pending(host, &tenant.id)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    is_refused(host, &ASKED, &["GPOOL-E201", "by the supervisor: remap-pending"])?;
    is_opened_in_spite_of_it(host)?;
    is_held_down(host)?;
    ensure(tenant.is_alive(), || "the container on the GPU has ended".to_owned())?;
    is_read_beside_one_that_hangs(host)?;
    tells_nothing(host)
}

/// Nobody new comes to a GPU with a row that waits for a reset, and who is on it is named and goes on.
fn is_pending(host: &Host, on_it: &str) -> Result<()> {
    say(host, &PENDING)?;
    wait_for("an event about the row", || Ok(told(host, "shows remap-pending:")?.len() == 1))?;
    let event = &told(host, "shows remap-pending:")?[0];
    let only = event.container_id.as_ref().map(|id| id.0.as_str());
    ensure(only == Some(on_it), || format!("the container there is not named: {event:?}"))?;
    for part in ["0 for correctable errors, 1 for others", "is on it", "reset the GPU"] {
        ensure(event.message.contains(part), || format!("{part:?} is not said: {event:?}"))?;
    }
    wait_for("the GPU to be drained", || Ok(drained(host, "remap-pending")?.len() == 1))?;
    is_refused(host, &ASKED, &["GPOOL-E201", "by the supervisor: remap-pending, memory that has failed"])?;
    ensure(is_shown(host, "remap-pending")?, || "gpool gpu ls does not show it".to_owned())?;
    let examined = text(&host.gpool(&["doctor"])?.stdout);
    let is_found = |line: &str| line.contains(CHECK) && line.contains("warn") && line.contains("remap-pending");
    ensure(examined.lines().any(is_found), || format!("gpool doctor says {examined}"))?;
    is_counted(host, "remap-pending", (1, 1))?;
    is_counted(host, "remap-failure", (0, 0))
}

/// It is not drained for that again, also after a restart; another row is something else.
fn is_opened_in_spite_of_it(host: &mut Host) -> Result<()> {
    let said = succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?)?;
    ensure(said.contains("although it shows remap-pending"), || format!("gpool gpu undrain says {said}"))?;
    runs(host)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("the row to be told again", || Ok(told(host, "shows remap-pending:")?.len() == 1))?;
    runs(host)?;
    ensure(is_shown(host, "remap-pending")?, || "gpool gpu ls does not show it any more".to_owned())?;
    say(host, &["--remap-pending", "--uncorrectable-rows", "2"])?;
    wait_for("the GPU to be drained for another row", || Ok(drained(host, "remap-pending")?.len() == 1))?;
    is_refused(host, &ASKED, &["GPOOL-E201", "remap-pending"])?;
    say(host, &["--uncorrectable-rows", "2"])?;
    wait_for("the end of that", || Ok(told(host, "shows remap-pending no more")?.len() == 1))?;
    is_refused(host, &ASKED, &["GPOOL-E201", "remap-pending"])?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?)?;
    runs(host)
}

/// Heat is told and drains nothing; uncorrected errors as well, until the configuration says otherwise.
fn is_held_down(host: &Host) -> Result<()> {
    let sick = ["--clock-reasons", "64", "--celsius", "93", "--uncorrected-errors", "3"];
    say(host, &[&sick[..], &["--pcie-lanes", "4", "--pcie-replays", "100"]].concat())?;
    for (finding, figures) in [("pcie-width", "(4 of 16)"), ("pcie-replay", "(100 since its driver was loaded)")] {
        let about_it =
            || Ok(told(host, &format!("shows {finding}:"))?.iter().any(|event| event.message.contains(figures)));
        wait_for("an event about the bus", about_it)?;
    }
    wait_for("an event about the heat", || Ok(told(host, "shows thermal:")?.len() == 1))?;
    let said = &told(host, "shows thermal:")?[0].message;
    ensure(said.contains("hardware slowdown by heat, 93 C"), || format!("it says {said}"))?;
    wait_for("an event about the errors", || Ok(told(host, "shows ecc-uncorrected:")?.len() == 1))?;
    runs(host)?;
    reload_with(host, &format!("{CONFIGURATION}drain_on = [\"ecc-uncorrected\"]\n"))?;
    let is_drained = || Ok(drained(host, "ecc-uncorrected")?.len() == 1);
    wait_for("the GPU to be drained for errors that were there", is_drained)?;
    say(host, &[])?;
    for finding in ["thermal", "ecc-uncorrected", "pcie-width", "pcie-replay"] {
        let over = format!("shows {finding} no more");
        wait_for("the end of heat and errors", || Ok(told(host, &over)?.len() == 1))?;
    }
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?)?;
    wait_for("a GPU that is healthy again", || is_shown(host, "ok"))
}

/// The supervisor's thread for the other one stands in the driver meanwhile.
fn is_read_beside_one_that_hangs(host: &Host) -> Result<()> {
    host.set_hung(1, true)?;
    wait_for("an event about the GPU that hangs", || Ok(!host.events_of(EventKind::GpuSilent)?.is_empty()))?;
    say(host, &["--remap-failure"])?;
    let outcome = wait_for("an event about the other one", || Ok(told(host, "shows remap-failure:")?.len() == 1));
    host.set_hung(1, false)?;
    outcome
}

/// An old GPU supports none of these questions: a supervisor that starts beside it knows nothing, and serves it.
fn tells_nothing(host: &mut Host) -> Result<()> {
    say(host, &["--unsupported"])?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    runs(host)?;
    ensure(is_shown(host, "-")?, || "something is known of a GPU that tells nothing".to_owned())?;
    let none = told(host, "")?;
    ensure(none.is_empty(), || format!("of a GPU that tells nothing is told {none:?}"))
}

/// A container with a share may be started.
fn runs(host: &Host) -> Result<()> {
    let container = host.run_container("new", &ASKED, &[], &["sleep", "600"])?;
    host.engine.docker_text(&["rm", "-f", &container.id]).map(drop)
}

/// Has the GPU say this of its health.
fn say(host: &Host, what: &[&str]) -> Result<()> {
    let mut command = host.command("gpool-simgpu");
    let output = command.arg("health").args(what).output().context("gpool-simgpu")?;
    succeeded("gpool-simgpu health", output).map(drop)
}

/// What was told of its health, with these words in it.
fn told(host: &Host, words: &str) -> Result<Vec<Event>> {
    Ok(host.events_of(EventKind::GpuHealth)?.into_iter().filter(|event| event.message.contains(words)).collect())
}

/// When it was drained for something with this name.
fn drained(host: &Host, finding: &str) -> Result<Vec<Event>> {
    let is_it = |event: &Event| event.message.contains(&format!("by the supervisor: {finding}"));
    Ok(host.events_of(EventKind::GpuDrained)?.into_iter().filter(is_it).collect())
}

/// Whether people and programs are told this of it.
fn is_shown(host: &Host, health: &str) -> Result<bool> {
    let listed = text(&host.gpool(&["gpu", "ls", "--format", "wide"])?.stdout);
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let row = listed.lines().nth(1).ok_or_else(|| Failure::new(format!("gpool gpu ls says {listed}")))?;
    Ok(row.ends_with(&format!("  {health}")) && gpool_protocol::health_words(gpus[0].health.as_deref()) == health)
}

fn is_counted(host: &Host, kind: &str, (now, times): (u32, u32)) -> Result<()> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let labels = format!("{{gpu_uuid=\"{}\",kind=\"{kind}\"}}", gpus[0].uuid);
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    for line in [format!("gpool_gpu_health{labels} {now}"), format!("gpool_gpu_health_events_total{labels} {times}")] {
        ensure(metrics.lines().any(|its| its == line), || format!("gpool metrics lacks {line}"))?;
    }
    Ok(())
}
