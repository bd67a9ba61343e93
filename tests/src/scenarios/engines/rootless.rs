//! podman without root: who may lease, what the containers get, and what one user may not do to others.

use super::life::{CAP, COMMAND};
use super::{Client, WATCH, configure, share_run, wait_for_end, wait_for_lease, wait_for_room};
use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, GROUP, Host, OTHER, Podman, RootlessPodman, USER, User, add_users, text};
use crate::image;
use crate::namespaces::Inside;
use crate::scenarios::finish;
use crate::tenant::report;
use serde_json::{Value, json};
use std::time::Duration;

const CAP_BYTES: u64 = 2 << 30;
const SOCKET: &str = "/run/gpool/gpool.sock";

/// Starts containers as a user, first without leave, then with it.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    add_users()?;
    let mut host = Host::start(inside)?;
    let podman = RootlessPodman::set_up(&host.engine, &host.stage)?;
    // The files of hooks, which belong to the host.
    let of_root = host.podman()?;
    let outcome = without_leave(&host, &podman).and_then(|()| with_leave(&mut host, &podman));
    let cleared = podman.clear().and(of_root.clear());
    finish(host, outcome.and(cleared))
}

fn client(podman: &RootlessPodman) -> Client<'_> {
    Client::new("rootless podman", |arguments| podman.podman(&[&["--runtime=gpool"], arguments].concat()))
}

fn without_leave(host: &Host, podman: &RootlessPodman) -> Result<()> {
    let client = client(podman);
    let said = client.text(&["run", "--rm", image::NAME, "echo", "plain"])?;
    ensure(said == "plain", || format!("without a request: {said}"))?;
    let said = client.refusal(&["run", "--rm", "--annotation=gpool.io/fraction=0.3", image::NAME, "true"])?;
    let is_told = said.contains("user 4712 may not start a leased container")
        && said.contains("[policy] rootless_group")
        && said.contains("[GPOOL-E401]");
    ensure(is_told, || format!("without leave: {said}"))?;
    ensure(host.leases()?.is_empty(), || "without leave there is a lease".to_owned())
}

fn with_leave(host: &mut Host, podman: &RootlessPodman) -> Result<()> {
    configure(&format!("[policy]\nrootless_group = \"{GROUP}\""))?;
    host.stop_supervisor()?;
    host.start_supervisor()?;
    unreachable_region(host, podman)?;
    // As on a host with systemd: what is mounted there later reaches the user's namespace.
    share_run()?;
    podman.text(&["system", "migrate"])?;
    shares(host, podman)?;
    wait_for_room(host)?;
    in_the_hosts_network(podman)?;
    wait_for_room(host)?;
    with_the_hook(host, podman)?;
    wait_for_room(host)?;
    what_others_may_not(host)
}

/// No sysfs can be mounted there: podman mounts the host's, cgroups and all, and it is the user's own namespace that keeps it from
/// being written.
fn in_the_hosts_network(podman: &RootlessPodman) -> Result<()> {
    let share = "--annotation=gpool.io/fraction=0.2";
    let said = client(podman).text(&["run", "--rm", "--network=host", share, image::NAME, "echo", "has", "it"])?;
    ensure(said == "has it", || format!("in the host's network: {said}"))
}

/// The user's namespace was made while mounts of the host did not reach it: told before anything is half done.
fn unreachable_region(host: &Host, podman: &RootlessPodman) -> Result<()> {
    let said = client(podman).refusal(&["run", "--rm", "--annotation=gpool.io/fraction=0.3", image::NAME, "true"])?;
    let is_told = said.contains("cannot be reached from the mount namespace") && said.contains("[GPOOL-E401]");
    ensure(is_told, || format!("out of reach: {said}"))?;
    wait_for_room(host)
}

fn start(host: &Host, client: &Client<'_>, name: &str, fraction: &str) -> Result<Container> {
    let fraction = format!("--annotation=gpool.io/fraction={fraction}");
    let memory = format!("--env=GPOOL_MEMORY={CAP}");
    let options = ["run", "-d", "--name", name, "--stop-timeout=0", &fraction, &memory, image::NAME];
    client.text(&[&options[..], &COMMAND].concat())?;
    let container = client.container(name)?;
    let lease = wait_for_lease(host, &container)?;
    ensure(lease.owner_uid == USER.uid, || format!("the lease is of user {}", lease.owner_uid))?;
    Ok(container)
}

/// What they are charged, by one answer: it changes once a second, for all of them at once.
fn charged(host: &Host, containers: [&Container; 3]) -> Result<[f64; 3]> {
    let leases = host.leases()?;
    let of = |container: &Container| leases.iter().find(|lease| lease.container_id.0 == container.id);
    match containers.map(of) {
        [Some(first), Some(second), Some(third)] => Ok([first, second, third].map(|lease| lease.charged_gpu_ns as f64)),
        _ => Err(Failure::new(format!("a lease is missing: {leases:?}"))),
    }
}

/// Two containers of the user beside one of root: shares as the leases are charged, cap and shims as programs see them.
fn shares(host: &Host, podman: &RootlessPodman) -> Result<()> {
    let client = client(podman);
    let small = start(host, &client, "small", "0.2")?;
    let large = start(host, &client, "large", "0.3")?;
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", CAP)];
    let of_root = host.run_container("of-root", &env, &["--stop-timeout=0"], &COMMAND)?;
    wait_for_lease(host, &of_root)?;
    std::thread::sleep(Duration::from_millis(500));
    let all = [&small, &large, &of_root];
    let before = charged(host, all)?;
    std::thread::sleep(WATCH);
    let had: Vec<f64> = charged(host, all)?.iter().zip(before).map(|(after, before)| after - before).collect();
    let total: f64 = had.iter().sum();
    let points: Vec<f64> = had.iter().map(|ns| 100.0 * ns / total).collect();
    let is_right = points.iter().zip([20.0, 30.0, 50.0]).all(|(had, wanted)| (had - wanted).abs() <= 5.0);
    ensure(is_right, || format!("shares of 20, 30 and 50 %: {points:.1?}"))?;
    // Of the other GPUs and of the devices of others nothing is there, and nothing can be made.
    let greedy = ["exec", "small", "gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
    let seen = report(&client.text(&greedy)?)?;
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (CAP_BYTES, CAP_BYTES), || format!("it sees {totals:?} bytes"))?;
    let said = client.refusal(&["exec", "small", "sh", "-c", "mknod /tmp/other c 195 1"])?;
    ensure(said.contains("not permitted"), || format!("mknod: {said}"))?;

    client.text(&["kill", "small"])?;
    wait_for_end(host, &small)?;
    client.text(&["start", "small"])?;
    let again = client.container("small")?;
    wait_for_lease(host, &again)?;
    may_reach(host, &again)?;
    client.text(&["rm", "-f", "-t", "0", "small"])?;
    wait_for_end(host, &again)?;
    client.text(&["rm", "-f", "-t", "0", "large"])?;
    wait_for_end(host, &large)?;
    host.engine.docker_text(&["rm", "-f", "of-root"]).map(drop)
}

/// The report of a user's lease is for that user, whatever its mode says.
fn may_reach(host: &Host, container: &Container) -> Result<()> {
    let report = format!("/run/gpool/leases/{}/region/report", host.lease_of(container)?.lease_id);
    let reads = |user: User| -> Result<bool> {
        Ok(user.command("/usr/bin/test").args(["-r", &report]).status().context("test")?.success())
    };
    let can = (reads(USER)?, reads(OTHER)?);
    ensure(can == (true, false), || format!("{report} can be read by its user and by another one: {can:?}"))
}

fn with_the_hook(host: &Host, podman: &RootlessPodman) -> Result<()> {
    let hooks = Podman::hooks(false);
    for runtime in ["--runtime=runc", "--runtime=crun"] {
        let client = Client::new(runtime, |arguments| podman.podman(&[&[runtime, &hooks], arguments].concat()));
        let container = start(host, &client, "hooked", "0.3").context(runtime)?;
        client.text(&["rm", "-f", "-t", "0", "hooked"])?;
        wait_for_end(host, &container)?;
    }
    Ok(())
}

/// On the socket itself, where no wrapper stands in between.
fn what_others_may_not(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", CAP)];
    let of_root = host.run_container("of-root", &env, &[], &COMMAND)?;
    let its = wait_for_lease(host, &of_root)?;
    let lease = |request: Value| json!({"container_id": "made-up", "request": request});
    let plain = json!({"fraction_permille": 100});
    let said = post(USER, "/v1/leases", &lease(json!({"fraction_permille": 100, "priority": "scavenger"})))?;
    ensure(said.contains("GPOOL-E105") && said.contains("priority"), || format!("priority: {said}"))?;
    let forged = json!({"container_id": "made-up\ngpool-supervisor: ended", "request": plain});
    let said = post(USER, "/v1/leases", &forged)?;
    ensure(said.contains("GPOOL-E003") && said.contains("container_id"), || format!("a forged id: {said}"))?;
    for verb in ["pause", "bind"] {
        let said = post(USER, &format!("/v1/leases/{}/{verb}", its.lease_id), &json!({"init_pid": of_root.init_pid}))?;
        ensure(said.contains("GPOOL-E401"), || format!("{verb} of root's lease: {said}"))?;
    }
    // With one of his subordinate ids he is nobody else.
    let said = post(User { uid: USER.subordinate + 7, ..USER }, "/v1/leases", &lease(plain.clone()))?;
    let is_told = said.contains("GPOOL-E401") && said.contains(&format!("a subordinate id of {}", USER.name));
    ensure(is_told, || format!("with a subordinate id: {said}"))?;
    // Nor stand for root's container by the id that a person would type.
    let short: String = of_root.id.chars().take(12).collect();
    let alike = post(USER, "/v1/leases", &json!({"container_id": short, "request": plain}))?;
    let alike: Value = serde_json::from_str(&alike).context(format!("a lease of the user: {alike}"))?;
    let other_id = alike["lease_id"].as_str().unwrap_or_default().to_owned();
    let said = match host.client().post::<_, Value>(&format!("/v1/leases/{short}/pause"), &json!({})) {
        Ok(view) => return Err(Failure::new(format!("an id that two users' containers have was taken for {view}"))),
        Err(error) => error.to_string(),
    };
    let names_both = [its.lease_id.0.as_str(), &other_id, "user 0", &format!("user {}", USER.uid)];
    let is_told = said.contains("GPOOL-E302") && names_both.iter().all(|name| said.contains(name));
    ensure(is_told, || format!("an id that two users' containers have: {said}"))?;
    let granted = post(USER, "/v1/leases", &lease(plain))?;
    let granted: Value = serde_json::from_str(&granted).context(format!("a lease of the user: {granted}"))?;
    let id = granted["lease_id"].as_str().unwrap_or_default().to_owned();
    let said = post(USER, &format!("/v1/leases/{id}/bind"), &json!({"init_pid": of_root.init_pid}))?;
    ensure(said.contains("GPOOL-E401") && said.contains("not that user's"), || format!("root's process: {said}"))?;
    let said = post(OTHER, &format!("/v1/leases/{id}/bind"), &json!({"init_pid": of_root.init_pid}))?;
    ensure(said.contains("GPOOL-E401"), || format!("another user's lease: {said}"))?;
    host.engine.docker_text(&["rm", "-f", "of-root"])?;
    wait_for_room(host)
}

/// What the supervisor answers this user.
fn post(user: User, path: &str, message: &Value) -> Result<String> {
    let mut command = user.command("/usr/bin/curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        "--unix-socket",
        SOCKET,
        "--data",
        &message.to_string(),
    ]);
    let output = command.arg(format!("http://localhost{path}")).output().context("curl")?;
    Ok(text(&output.stdout) + &text(&output.stderr))
}
