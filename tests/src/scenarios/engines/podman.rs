//! podman: with gpool-runtime as its runtime, runc and crun behind it, and with the precreate hook under its own runtimes.

use super::life::{CAP, COMMAND, lead};
use super::{Client, check_shares, configure, wait_for_lease, wait_for_room};
use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{FAILING, Host, Podman, SLOW, succeeded};
use crate::image;
use crate::namespaces::{Inside, spawn_bound};
use crate::scenarios::{finish, wait_for};
use crate::tenant::report;
use gpool_protocol::{Event, EventKind, WaitingView};
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A way to start a leased container: options of podman, of its `run`, and the share that these ask for.
pub(super) struct Way<'a> {
    pub name: &'a str,
    pub global: &'a [&'a str],
    pub request: &'a [&'a str],
    pub share: f64,
}

/// Leads containers through their lives in all ways.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    let host = Host::start(inside)?;
    let podman = host.podman()?;
    let outcome = in_all_ways(&host, &podman)
        .and_then(|()| between_hook_and_runtime(&host, &podman))
        .and_then(|()| waits_for_room(&host, &podman))
        .and_then(|()| under_a_daemon(&host, &podman))
        .and_then(|()| annotations_of_an_image(&podman));
    let cleared = podman.clear();
    finish(host, outcome.and(cleared))
}

fn in_all_ways(host: &Host, podman: &Podman) -> Result<()> {
    let (hooks, hooks_for_all) = (Podman::hooks(false), Podman::hooks(true));
    // Under their own runtimes, and in front of runc.
    together(
        host,
        podman,
        &[
            Way {
                name: "wrapped-runc",
                global: &["--runtime=gpool"],
                request: &["--annotation=gpool.io/fraction=0.2"],
                share: 0.2,
            },
            Way {
                name: "hooked-runc",
                global: &["--runtime=runc", &hooks],
                request: &["--annotation=gpool.io/fraction=0.3"],
                share: 0.3,
            },
            Way {
                name: "hooked-crun",
                global: &["--runtime=crun", &hooks_for_all],
                request: &["--env=GPOOL_FRACTION=0.4"],
                share: 0.4,
            },
        ],
    )?;
    configure("[runtime]\nlow_level = [\"/usr/bin/crun\"]")?;
    together(
        host,
        podman,
        &[
            Way {
                name: "wrapped-crun",
                global: &["--runtime=gpool"],
                request: &["--annotation=gpool.io/fraction=0.3"],
                share: 0.3,
            },
            // The hook has done the work when the wrapper sees it.
            Way {
                name: "wrapped-and-hooked",
                global: &["--runtime=gpool", &hooks],
                request: &["--annotation=gpool.io/fraction=0.5"],
                share: 0.5,
            },
        ],
    )?;
    // Nothing comes back under the id of what podman removes: its place is free at once.
    for _ in 0..2 {
        let options = ["--runtime=gpool", "run", "--rm", "--env=GPOOL_FRACTION=0.9"];
        podman.text(&[&options[..], &[image::NAME, "true"]].concat())?;
    }
    // A container without a request is left as it is.
    let said = podman.text(&["--runtime=crun", &hooks_for_all, "run", "--rm", image::NAME, "ls", "/dev"])?;
    ensure(!said.contains("gpool") && !said.contains("nvidia"), || format!("without a request: {said}"))
}

pub(super) fn together(host: &Host, podman: &Podman, ways: &[Way<'_>]) -> Result<()> {
    let memory = format!("--env=GPOOL_MEMORY={CAP}");
    let mut containers = Vec::new();
    for way in ways {
        let client = client(podman, way);
        let options = ["run", "-d", "--name", way.name, "--stop-timeout=0", &memory];
        client.text(&[&options, way.request, &[image::NAME], &COMMAND].concat())?;
        let container = client.container(way.name)?;
        let lease = wait_for_lease(host, &container)?;
        let granted = f64::from(lease.fraction_permille) / 1000.0;
        ensure(granted == way.share, || format!("{} was granted {granted}", way.name))?;
        containers.push((container, way.share));
    }
    let entitled: Vec<_> = containers.iter().map(|(container, share)| (container, *share)).collect();
    check_shares(host, &entitled)?;
    ways.iter().try_for_each(|way| lead(host, &client(podman, way), way.name))?;
    wait_for_room(host)
}

fn client<'a>(podman: &'a Podman, way: &'a Way<'a>) -> Client<'a> {
    Client::new(way.name, |arguments| podman.podman(&[way.global, arguments].concat()))
}

/// The hook has ended long before there is a container: until then its lease waits for podman, and ends with it.
fn between_hook_and_runtime(host: &Host, podman: &Podman) -> Result<()> {
    let hooks = Podman::hooks(false);
    let tenant = ["gpool-tenant", "--nvml", "--kernel-us", "300", "--allocate-mib", "64", "--seconds", "1"];
    let run = |annotation: &str| {
        let annotation = format!("--annotation={annotation}=1");
        let request = ["--annotation=gpool.io/fraction=0.3", &annotation];
        podman.podman(&[&["--runtime=crun", &hooks, "run", "--rm"][..], &request, &[image::NAME], &tenant].concat())
    };
    report(&succeeded("a slow start", run(SLOW)?)?)?;
    let failed = run(FAILING)?;
    ensure(!failed.status.success(), || "podman ignores a hook that fails".to_owned())?;
    wait_for_room(host)
}

/// Whoever asks for the container, its start waits until somebody else has ended.
fn waits_for_room(host: &Host, podman: &Podman) -> Result<()> {
    let hooks = Podman::hooks(false);
    for global in [&["--runtime=gpool"][..], &["--runtime=crun", &hooks]] {
        let mut holder = host.command("gpool");
        holder.args(["run", "--fraction", "0.9", "--memory", "1GiB", "--", "sleep", "600"]);
        let mut holder = spawn_bound(&mut holder).context("gpool run")?;
        wait_for("another one to have room", || Ok(host.leases()?.len() == 1))?;
        let start = || {
            let request = ["--annotation=gpool.io/fraction=0.5", "--annotation=gpool.io/wait=50s"];
            podman.text(&[global, &["run", "--rm"], &request, &[image::NAME, "true"]].concat())
        };
        let started = std::thread::scope(|scope| {
            let starting = scope.spawn(start);
            let waits = || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.len() == 1);
            let waiting = wait_for("podman's container to wait for room", waits);
            let _ = rustix::process::kill_process(Pid::from_child(&holder), Signal::TERM);
            let started = starting.join().unwrap_or_else(|_| Err(Failure::new("the thread that starts it panicked")));
            waiting.and(started)
        });
        holder.wait().context("gpool run")?;
        started.context(format!("{global:?}"))?;
    }
    // Podman would give it up after four minutes, and what waits would go on.
    let request = ["--annotation=gpool.io/fraction=0.5", "--annotation=gpool.io/wait=5m"];
    let client = Client::new("podman", |arguments| podman.podman(arguments));
    let said = client.refusal(&[&["--runtime=gpool", "run", "--rm"], &request[..], &[image::NAME, "true"]].concat())?;
    ensure(said.contains("[GPOOL-E105]") && said.contains("wait=230s"), || {
        format!("longer than podman waits: {said}")
    })?;
    wait_for_room(host)
}

/// A start that fails after the hook's part leaves a lease that waits for podman, which lives on here: the next start of
/// the same container takes its place.
fn under_a_daemon(host: &Host, podman: &Podman) -> Result<()> {
    let hooks = Podman::hooks(false);
    let daemon = podman.serve(&["--runtime=runc", &hooks])?;
    let cgroup_parent = format!("--cgroup-parent=/{}", podman.cgroup_parent());
    let failing = format!("--annotation={FAILING}=1");
    let request = ["--annotation=gpool.io/fraction=0.6", &failing];
    let create = ["create", "--name=again", "--network=none", &cgroup_parent];
    let asked = podman.ask_daemon(&[&create[..], &request, &[image::NAME, "true"]].concat())?;
    let id = succeeded("podman --remote create", asked)?;
    for attempt in 1..=3 {
        let said = podman.ask_daemon(&["start", "again"])?;
        ensure(!said.status.success(), || "podman ignores a hook that fails".to_owned())?;
        let about = |event: &&Event| event.container_id.as_ref().is_some_and(|container| container.0 == id);
        let events = host.events()?;
        let of_kind = |kind| events.iter().filter(about).filter(|event| event.kind == kind).count();
        let counts = (of_kind(EventKind::LeaseGranted), of_kind(EventKind::LeaseRefused));
        ensure(counts == (attempt, 0), || format!("start {attempt}: granted and refused {counts:?}: {events:#?}"))?;
    }
    succeeded("podman --remote rm", podman.ask_daemon(&["rm", "-f", "again"])?)?;
    daemon.kill()?;
    wait_for_room(host)
}

/// Debian 12's podman gives a container the annotations of its image: they are bounded like its environment.
fn annotations_of_an_image(podman: &Podman) -> Result<()> {
    let image = annotated_image(podman)?;
    let hooks = Podman::hooks(false);
    let command = ["run", "--rm", "--annotation=gpool.io/fraction=0.1", &image, "true"];
    for global in [&["--runtime=gpool"][..], &["--runtime=runc", &hooks]] {
        let client = Client::new("podman", |arguments| podman.podman(arguments));
        let said = client.refusal(&[global, &command].concat())?;
        let is_told = said.contains("[GPOOL-E104]") && said.contains("gpool.io/priority");
        ensure(is_told, || format!("an image's annotation: {said}"))?;
    }
    Ok(())
}

/// The image with an annotation in its manifest, as any registry may serve it. Its id.
pub(super) fn annotated_image(podman: &Podman) -> Result<String> {
    let layout = podman.directory().join("layout");
    let layout_name = layout.display().to_string();
    podman.text(&["save", "--format=oci-dir", "-o", &layout_name, image::NAME])?;
    let read = |path: &Path| -> Result<serde_json::Value> {
        serde_json::from_slice(&fs::read(path).context(path.display())?).context(path.display())
    };
    let mut index = read(&layout.join("index.json"))?;
    let digest = index["manifests"][0]["digest"].as_str().unwrap_or_default().to_owned();
    let blobs = layout.join("blobs/sha256");
    let mut manifest = read(&blobs.join(digest.trim_start_matches("sha256:")))?;
    manifest["annotations"] = serde_json::json!({"gpool.io/priority": "burst"});
    let text = manifest.to_string();
    let draft = blobs.join("draft");
    fs::write(&draft, &text).context("the manifest")?;
    let sum = Command::new("sha256sum").arg(&draft).output().context("sha256sum")?.stdout;
    let sum = String::from_utf8_lossy(&sum).split_whitespace().next().unwrap_or_default().to_owned();
    fs::rename(&draft, blobs.join(&sum)).context("the manifest")?;
    index["manifests"][0]["digest"] = format!("sha256:{sum}").into();
    index["manifests"][0]["size"] = text.len().into();
    fs::write(layout.join("index.json"), index.to_string()).context("index.json")?;
    podman.text(&["pull", "-q", &format!("oci:{layout_name}")])
}
