//! docker, with what people do to containers: restarts on a full GPU, pauses, changes, options of `run`, a compose file
//! and an image made from a leased container.

use super::life::{CAP, COMMAND, lead};
use super::{Client, PATIENCE, configure, wait_for_end, wait_for_lease, wait_for_room};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::image;
use crate::namespaces::Inside;
use crate::scenarios::finish;
use crate::tenant::report;
use gpool_protocol::LeaseState;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Does all of it, one after the other.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = on_a_full_gpu(&host)
        .and_then(|()| with_options(&host))
        .and_then(|()| with_the_hosts_processes(&host))
        .and_then(|()| composed(&host))
        .and_then(|()| committed(&host));
    finish(host, outcome)
}

fn start(host: &Host, name: &str, fraction: &str, options: &[&str]) -> Result<Container> {
    let container =
        host.run_container(name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", CAP)], options, &COMMAND)?;
    wait_for_lease(host, &container)?;
    Ok(container)
}

fn remove(host: &Host, container: &Container) -> Result<()> {
    host.engine.docker_text(&["rm", "-f", &container.name])?;
    wait_for_end(host, container)
}

/// Whatever happens to the container that has all of the GPU, nobody else gets in between.
fn on_a_full_gpu(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let full = start(host, "full", "1", &["--restart=always", "--stop-timeout=0"])?;
    let rival = || {
        let said =
            docker.refusal(&["run", "--rm", "--runtime=gpool", "-e", "GPOOL_FRACTION=0.1", image::NAME, "true"])?;
        ensure(said.contains("[GPOOL-E201]"), || format!("a rival on a full GPU was told {said}"))
    };
    rival()?;
    docker.text(&["restart", "-t", "0", "full"])?;
    rival()?;
    let restarted = docker.container("full")?;
    wait_for_lease(host, &restarted)?;

    restarted.kill_init()?;
    let again = restarted_by_docker(&docker, &restarted)?;
    rival()?;
    wait_for_lease(host, &again)?;

    keep_places(host, Some("10000"))?;
    docker.text(&["stop", "full"])?;
    a_start_fails(host, &docker)?;
    rival()?;
    docker.text(&["start", "full"])?;
    keep_places(host, None)?;
    let again = docker.container("full")?;
    wait_for_lease(host, &again)?;

    docker.text(&["pause", "full"])?;
    rival()?;
    let paused = host.lease_of(&again)?;
    ensure(paused.state == LeaseState::Active, || format!("a paused container's lease is {:?}", paused.state))?;
    docker.text(&["unpause", "full"])?;
    docker.text(&["update", "--cpus=1", "full"])?;
    // The simulated device answers an open that its cgroup allows with this; one that it forbids is not permitted.
    let opened = docker.refusal(&["exec", "full", "sh", "-c", "true < /dev/nvidia0"])?;
    ensure(opened.contains("No such device or address"), || format!("after docker update: {opened}"))?;
    goes_on(host, &again, paused.launches)?;
    ensure(full.id == again.id, || "docker made another container".to_owned())?;
    lead(host, &docker, "full")?;
    wait_for_room(host)
}

/// Has places kept for so many milliseconds: the lease of a start that has failed ends after two seconds alone.
fn keep_places(host: &Host, hold_ms: Option<&str>) -> Result<()> {
    let directory = Path::new("/etc/gpool/conf.d");
    let file = directory.join("hold.toml");
    match hold_ms {
        Some(hold_ms) => {
            fs::create_dir_all(directory).context(directory.display())?;
            fs::write(&file, format!("[lease]\nhold_ms = {hold_ms}\n")).context(file.display())?;
        }
        None => fs::remove_file(&file).context(file.display())?,
    }
    succeeded("gpool config reload", host.gpool(&["config", "reload"])?).map(drop)
}

/// A start that the engine's low-level runtime breaks off, behind the grant. Afterwards nobody asks for that container.
fn a_start_fails(host: &Host, docker: &Client<'_>) -> Result<()> {
    let (hook, away) = (host.stage.hook(), host.stage.hook().with_extension("away"));
    fs::rename(&hook, &away).context(hook.display())?;
    let refused = docker.refusal(&["start", "full"]);
    fs::rename(&away, &hook).context(hook.display())?;
    refused?;
    let deadline = Instant::now() + PATIENCE;
    while host.leases()?.iter().any(|lease| lease.state == LeaseState::Pending) {
        ensure(Instant::now() < deadline, || "the lease of a start that has failed does not end".to_owned())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn restarted_by_docker(docker: &Client<'_>, old: &Container) -> Result<Container> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = docker.container(&old.name)?;
        if now.init_pid != old.init_pid && now.init_pid != 0 {
            return Ok(now);
        }
        ensure(Instant::now() < deadline, || "docker did not restart it".to_owned())?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn goes_on(host: &Host, container: &Container, launches: u64) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while host.lease_of(container)?.launches <= launches {
        ensure(Instant::now() < deadline, || format!("{} stands still", container.name))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Options that change what a container may do or sees; none of them comes between it and its share.
const OPTIONS: [&str; 9] = [
    "--read-only",
    "--user=1000:1000",
    "--ipc=host",
    "--uts=host",
    "--cap-drop=ALL",
    "--init",
    "--security-opt=no-new-privileges",
    "--ulimit=nofile=64",
    "--volume=/dev/null:/dev/gpool/control",
];

fn with_options(host: &Host) -> Result<()> {
    let mut containers = Vec::new();
    for (index, option) in OPTIONS.iter().enumerate() {
        containers.push(start(host, &format!("option-{index}"), "0.1", &[option])?);
    }
    for (container, option) in containers.iter().zip(OPTIONS) {
        let seen = report(&container.log(&host.engine)?).context(option)?;
        let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
        ensure(totals == (2 << 30, 2 << 30), || format!("{option}: sees {totals:?} bytes"))?;
    }
    containers.iter().try_for_each(|container| remove(host, container))?;
    wait_for_room(host)
}

/// Refused, until the host's administrator says that nothing need be enforced.
fn with_the_hosts_processes(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let refused = ["run", "--rm", "--runtime=gpool", "--pid=host", "-e", "GPOOL_FRACTION=0.1", image::NAME, "true"];
    let said = docker.refusal(&refused)?;
    ensure(said.contains("[GPOOL-E105]") && said.contains("--pid=host"), || format!("--pid=host: {said}"))?;
    configure("[policy]\nunenforced = true")?;
    let container = start(host, "host-processes", "0.1", &["--pid=host"])?;
    remove(host, &container)?;
    wait_for_room(host)
}

const COMPOSE: &str = "/run/gpool-compose.yml";

/// A compose file of the format that Debian 12's docker-compose reads.
fn composed(host: &Host) -> Result<()> {
    let service = |name: &str, fraction: &str| {
        format!(
            "  {name}:\n    image: {image}\n    container_name: composed-{name}\n    runtime: gpool\n    \
             network_mode: none\n    environment:\n      GPOOL_FRACTION: \"{fraction}\"\n      GPOOL_MEMORY: {CAP}\n    \
             command: {command}\n",
            image = image::NAME,
            command = COMMAND.join(" ")
        )
    };
    let file = format!("version: \"2.4\"\nservices:\n{}{}", service("one", "0.4"), service("two", "0.2"));
    fs::write(COMPOSE, file).context(COMPOSE)?;
    let compose = |arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/docker-compose");
        command.args(["-f", COMPOSE, "-p", "gpool"]).args(arguments).env("DOCKER_HOST", host.engine.address());
        succeeded("docker-compose", command.output().context("docker-compose cannot be started")?)
    };
    compose(&["up", "-d"])?;
    let docker = Client::docker(host);
    let containers = ["composed-one", "composed-two"].map(|name| docker.container(name));
    for (container, permille) in containers.iter().zip([400, 200]) {
        let container = container.as_ref().map_err(Failure::clone)?;
        let lease = wait_for_lease(host, container)?;
        ensure(lease.fraction_permille == permille, || format!("{} has {lease:?}", container.name))?;
    }
    redeployed(host)?;
    compose(&["down", "-t", "0"])?;
    wait_for_room(host)
}

/// On a full GPU a changed service is a new container, for which the old one is removed a moment before: it has the old one's place. The
/// steps are those of Compose from version 2 on; the one of Debian 12 starts the new container before it removes the old one.
fn redeployed(host: &Host) -> Result<()> {
    const NAME: &str = "composed-one";
    const NEW: &str = "composed-one-new";
    let docker = Client::docker(host);
    for (fraction, permille) in [("0.8", 800), ("0.7", 700), ("0.8", 800)] {
        let asked = [format!("GPOOL_FRACTION={fraction}"), format!("GPOOL_MEMORY={CAP}")];
        let create = ["create", "--runtime=gpool", "--network=none", "--name", NEW, "-e", &asked[0], "-e", &asked[1]];
        docker.text(&[&create[..], &[image::NAME], &COMMAND].concat())?;
        for step in [&["stop", "-t", "0", NAME][..], &["rm", NAME], &["rename", NEW, NAME], &["start", NAME]] {
            docker.text(step)?;
        }
        let lease = wait_for_lease(host, &docker.container(NAME)?)?;
        ensure(lease.fraction_permille == permille, || format!("redeployed it has {lease:?}"))?;
    }
    docker.text(&["rm", "-f", NAME]).map(drop)
}

/// An image that `docker commit` makes from a leased container: nothing of gpool's files is in it, and it runs with and
/// without a share.
fn committed(host: &Host) -> Result<()> {
    const COMMITTED: &str = "committed:1";
    let original = start(host, "original", "0.3", &[])?;
    host.engine.docker_text(&["commit", &original.name, COMMITTED])?;
    remove(host, &original)?;
    wait_for_room(host)?;
    let files = |image: &str| {
        let list = "find / -xdev -type f -exec stat -c '%s %n' {} +";
        host.engine.docker_text(&["run", "--rm", "--hostname=same", image, "sh", "-c", list])
    };
    let (before, after) = (files(image::NAME)?, files(COMMITTED)?);
    let known: Vec<&str> = before.lines().collect();
    // Where something is mounted the low-level runtime leaves an empty file.
    let new: Vec<&str> = after.lines().filter(|line| !known.contains(line) && !line.starts_with("0 ")).collect();
    ensure(new.is_empty(), || format!("an image made from a leased container has files with content: {new:?}"))?;
    let docker = Client::docker(host);
    // The environment is kept by `docker commit`, and with it the request.
    docker.text(&[&["run", "-d", "--runtime=gpool", "--name=again", COMMITTED][..], &COMMAND].concat())?;
    let again = docker.container("again")?;
    let lease = wait_for_lease(host, &again)?;
    ensure(lease.fraction_permille == 300, || format!("the committed image asks for {}", lease.fraction_permille))?;
    remove(host, &again)
}
