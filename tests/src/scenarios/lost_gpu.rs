//! A GPU that falls off its bus takes no new containers, and a supervisor that starts serves the others. The lease on it
//! stays, also where somebody has the host put in order meanwhile, and is taken over when the GPU is back. The same for one
//! that hangs in NVML. Who starts a container while the supervisor starts waits for neither.

use super::{finish, is_refused, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, text};
use crate::namespaces::Inside;
use gpool_protocol::{DEFAULT_SOCKET, EventKind, GpuUuid, GpuView, LeaseState, LeaseView, SilentGpu};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

const LIKE_SECOND: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")];

/// Loses one of two GPUs.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = lose_one(&mut host);
    finish(host, outcome)
}

fn lose_one(host: &mut Host) -> Result<()> {
    let hurt = start(host, "hurt", "0.6")?;
    let healthy = start(host, "healthy", "0.6")?;
    let (lost, left) = (host.lease_of(&hurt)?.gpu_uuid, host.lease_of(&healthy)?.gpu_uuid);
    ensure(lost != left, || format!("both containers are on {lost}"))?;
    hang_one(host, &lost, &left)?;
    host.set_lost(host.index_of(&lost)?, true)?;
    wait_for("an event about the GPU that does not answer", || Ok(silent(host)? == 1))?;
    // It has room for another 0.4, as the other one has.
    let second = start(host, "second", "0.3")?;
    let its = host.lease_of(&second)?.gpu_uuid;
    ensure(its == left, || format!("a new container is on {its}, not on {left}"))?;
    is_refused(host, &LIKE_SECOND, &["GPOOL-E201"])?;
    is_named(host, "takes no new leases")?;

    restart_beside_a_start(host, "meanwhile")?;
    ensure(silent(host)? == 1, || "no event says that a GPU is left out".to_owned())?;
    is_named(host, "is left out")?;
    ensure(hurt.is_alive(), || "the container on the lost GPU has ended".to_owned())?;
    let (stranded, there): (Vec<LeaseView>, Vec<LeaseView>) =
        host.leases()?.into_iter().partition(|lease| lease.state == LeaseState::Stranded);
    let is_served = there.iter().all(|lease| lease.gpu_uuid == left);
    ensure(there.len() == 5 && is_served, || format!("not the five leases of {left} are taken over: {there:?}"))?;
    is_refused(host, &LIKE_SECOND, &["GPOOL-E201"])?;
    ensure(stranded.len() == 1 && stranded[0].gpu_uuid == lost, || format!("stranded are {stranded:?}"))?;
    is_kept_by_repairs(host, &stranded[0])?;

    host.set_lost(index_of_lost(host)?, false)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let nobody: Vec<SilentGpu> = host.client().get("/v1/gpus/silent")?;
    ensure(nobody.is_empty(), || format!("after that these are silent: {nobody:?}"))?;
    let back = host.lease_of(&hurt)?.gpu_uuid;
    ensure(back == lost && silent(host)? == 0, || format!("the lease on {lost} came back on {back}"))
}

/// NVML hangs on the GPU `hung`: it takes nobody in, the other one is served, and a supervisor that starts does without it.
fn hang_one(host: &mut Host, hung: &GpuUuid, left: &GpuUuid) -> Result<()> {
    let index = host.index_of(hung)?;
    host.set_hung(index, true)?;
    wait_for("an event about the GPU that hangs", || Ok(silent(host)? == 1))?;
    let beside = start(host, "beside", "0.05")?;
    let its = host.lease_of(&beside)?.gpu_uuid;
    ensure(its == *left, || format!("a new container is on {its}, which hangs, and not on {left}"))?;
    is_named(host, "takes no new leases")?;
    host.set_hung(index, false)?;
    wait_for("an event about the GPU that is back", || Ok(host.events_of(EventKind::GpuAnswers)?.len() == 1))?;

    host.set_hung(index, true)?;
    restart_beside_a_start(host, "waiting")?;
    is_named(host, "is left out")?;
    host.set_hung(index, false)?;
    // No service manager starts it again, so it does not end by itself.
    wait_for("an event about the GPU that answers late", || Ok(host.events_of(EventKind::GpuAnswers)?.len() == 1))?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    ensure(silent(host)? == 0, || "the GPU that hung is silent after a restart".to_owned())
}

/// Kills and starts the supervisor behind a socket that listens meanwhile, while somebody starts a container: who waits a few
/// seconds for an answer, and has it.
fn restart_beside_a_start(host: &mut Host, name: &str) -> Result<()> {
    host.kill_supervisor()?;
    std::fs::remove_file(DEFAULT_SOCKET).context(DEFAULT_SOCKET)?;
    let socket = UnixListener::bind(DEFAULT_SOCKET).context(DEFAULT_SOCKET)?;
    let asked = ["-e", "GPOOL_FRACTION=0.01", "-e", "GPOOL_MEMORY=1GiB", crate::image::NAME, "sleep", "600"];
    let mut docker = host.docker_command(&["run", "-d", "--runtime=gpool", "--name", name]);
    docker.args(asked).stdout(Stdio::piped()).stderr(Stdio::piped());
    let docker = docker.spawn().context("docker cannot be started")?;
    host.start_supervisor_behind(socket)?;
    let output = docker.wait_with_output().context("docker")?;
    ensure(output.status.success(), || format!("a start beside the supervisor's is refused: {}", text(&output.stderr)))
}

fn start(host: &Host, name: &str, fraction: &str) -> Result<Container> {
    host.run_container(name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")], &[], &["sleep", "600"])
}

/// `gpool doctor --fix` leaves a lease alone that could not be taken over, however old its files are.
fn is_kept_by_repairs(host: &Host, stranded: &LeaseView) -> Result<()> {
    let listed = text(&host.gpool(&["ps"])?.stdout);
    let is_listed = |line: &&str| line.starts_with(stranded.container_id.short()) && line.contains(" stranded ");
    ensure(listed.lines().filter(is_listed).count() == 1, || format!("gpool ps says {listed}"))?;
    let dir = format!("/run/gpool/leases/{}", stranded.lease_id);
    let aged = Command::new("touch").args(["-d", "10 minutes ago", &dir]).status().context("touch")?;
    ensure(aged.success(), || format!("touch ended with {aged}"))?;
    let repaired = text(&host.gpool(&["doctor", "--fix"])?.stdout);
    let finds_none = |line: &str| line.contains(" leftovers ") && line.contains(" ok ");
    ensure(repaired.lines().any(finds_none), || format!("gpool doctor --fix says {repaired}"))?;
    let page = Path::new(&dir).join("region/control");
    ensure(page.exists(), || format!("gpool doctor --fix has taken {} away: {repaired}", page.display()))
}

/// What people and programs are told of the one GPU that does not answer.
fn is_named(host: &Host, what: &str) -> Result<()> {
    let remedy = "systemctl restart gpool-supervisor";
    let listed = text(&host.gpool(&["gpu", "ls"])?.stdout);
    let is_told = |line: &&str| line.starts_with("GPU ") && line.contains(what) && line.contains(remedy);
    ensure(listed.lines().filter(is_told).count() == 1, || format!("gpool gpu ls says {listed}"))?;
    let document: Value = serde_json::from_slice(&host.gpool(&["gpu", "ls", "--format", "json"])?.stdout)
        .context("gpool gpu ls --format json")?;
    let silent = document["silent"].as_array().map_or(0, Vec::len);
    let has_remedy = document["silent"][0]["remedy"].as_str().is_some_and(|text| text.contains(remedy));
    ensure(silent == 1 && has_remedy, || format!("gpool gpu ls --format json says {document}"))?;
    let examined = host.gpool(&["doctor"])?;
    let said = text(&examined.stdout);
    let is_found = |line: &str| line.contains("fail") && line.contains("silent GPUs") && line.contains(what);
    ensure(examined.status.code() == Some(1), || format!("gpool doctor ends with {}", examined.status))?;
    ensure(said.lines().any(is_found) && said.contains(remedy), || format!("gpool doctor says {said}"))
}

fn silent(host: &Host) -> Result<usize> {
    Ok(host.events_of(EventKind::GpuSilent)?.len())
}

/// The one of the two that the supervisor does not show.
fn index_of_lost(host: &Host) -> Result<u32> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    ensure(gpus.len() == 1, || format!("not one GPU is left: {gpus:?}"))?;
    Ok(1 - gpus[0].index)
}
