//! Reservations: nobody else is given what is kept, promised or waiting, and whoever may have it is; what is not used of it is had by
//! those who run; it begins and ends at its time; and with `[preemption]` lower priorities have made room by then.

use super::{finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::image;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, GpuView, LeaseState, LeaseView, ReservationState, ReservationView};
use std::process::{Child, Command, Stdio};

const CONFIGURATION: &str =
    "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\", \"priority\", \"mode\", \"wait\"]\n";
/// An ended container's place is free at once.
const AT_ONCE: &str = "[lease]\nhold_ms = 0\n";
const SERVING: &str = "[reservation.serving]\nteams = [\"vision\"]\nfraction = \"0.5\"\nmemory = \"8GiB\"\n";
const MAKES_ROOM: &str = "[preemption]\nenabled = true\ngrace_seconds = 3\nleast_run_seconds = 0\n";
/// What does not handle the signal, goes on without its program and has most of the memory.
const IN_THE_WAY: &str = "trap '' TERM; gpool-tenant --kernel-us 500 --allocate-mib 15000; exec sleep 600";

/// Has one team share a GPU with others that it is partly reserved from.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = reload_with(&host, &format!("{AT_ONCE}{SERVING}"))
        .and_then(|()| nobody_else_has_it(&host))
        .and_then(|()| who_may_has_it(&mut host))
        .and_then(|waiting| it_ends(&host, waiting))
        .and_then(|()| room_is_made_by_then(&host));
    finish(host, outcome)
}

fn asks<'a>(team: &'a str, fraction: &'a str, memory: &'a str) -> Vec<(&'a str, &'a str)> {
    let team = (!team.is_empty()).then_some(("GPOOL_TEAM", team));
    let share = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)];
    team.into_iter().chain(share).collect()
}

fn start(host: &Host, name: &str, env: &[(&str, &str)]) -> Result<Container> {
    host.run_container(name, env, &[], &["sleep", "600"])
}

fn reservation(host: &Host) -> Result<ReservationView> {
    let all: Vec<ReservationView> = host.client().get("/v1/reservations")?;
    all.into_iter().next().ok_or_else(|| Failure::new("there is no reservation"))
}

/// Kept share and memory, and missing share and memory, on its one GPU.
fn kept(host: &Host) -> Result<[u64; 4]> {
    let view = reservation(host)?;
    let [seat] = view.seats.as_slice() else { return Err(Failure::new(format!("it is on no GPU: {view:?}"))) };
    Ok([
        seat.kept_share_permille.into(),
        seat.kept_memory_bytes >> 30,
        seat.missing_share_permille.into(),
        seat.missing_memory_bytes >> 30,
    ])
}

/// Not by its share, nor by its memory, nor all of the GPU; but what is idle of it.
fn nobody_else_has_it(host: &Host) -> Result<()> {
    let is_told = ["GPOOL-E201", "reserved for others by [reservation.serving]", "gpool reservation ls"];
    is_refused(host, &asks("", "0.6", "1GiB"), &is_told)?;
    is_refused(host, &asks("speech", "0.1", "17GiB"), &is_told)?;
    is_refused(host, &[("GPOOL_MODE", "exclusive")], &is_told)?;
    let burst = [&asks("", "0.1", "17GiB")[..], &[("GPOOL_PRIORITY", "burst")]].concat();
    is_refused(host, &burst, &is_told)?;
    // There will never be more.
    is_refused(host, &[&asks("", "0.6", "1GiB")[..], &[("GPOOL_WAIT", "300s")]].concat(), &is_told)?;
    let asked = |request: &str| host.gpool(&["explain", "--request", request]);
    said(&asked("fraction=0.6,memory=1GiB,p99=50ms")?, 75, &["now      refused: what is free is reserved for others"])?;
    said(&asked("fraction=0.6,memory=17GiB,team=vision,p99=50ms")?, 0, &["now      granted by mode=slice: 60 %"])?;

    let other =
        Tenant { allocate_mib: Some(64), ..Tenant::greedy(500) }.run(host, "other", &asks("", "0.5", "12GiB"))?;
    let [share, ..] = kept(host)?;
    ensure(share == 500, || format!("{share} permille are kept"))?;
    said(&host.gpool(&["update", &other.id, "--fraction", "0.6"])?, 75, &is_told[..2])?;
    said(&host.gpool(&["update", &other.id, "--memory", "17GiB"])?, 75, &is_told[1..2])?;
    wait_for("it to have what is kept and not used", || Ok(host.lease_of(&other)?.received_permille > 900))
}

/// Whoever waits meanwhile, in the next life of the supervisor too, and no more than is there. The one that waits.
fn who_may_has_it(host: &mut Host) -> Result<Child> {
    let waiting = waits(host, &[&asks("", "0.4", "1GiB")[..], &[("GPOOL_WAIT", "300s")]].concat())?;
    wait_for("one to wait", || Ok(host.client().get::<Vec<serde_json::Value>>("/v1/queue")?.len() == 1))?;

    start(host, "first", &asks("vision", "0.3", "6GiB"))?;
    is_listed(host, ["0.3/0.5", "6GiB/8GiB", "open"])?;
    ensure(kept(host)? == [200, 2, 0, 0], || format!("{:?} is kept beside 0.3", kept(host)))?;
    is_refused(host, &asks("speech", "0.1", "1GiB"), &["GPOOL-E201"])?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    ensure(kept(host)? == [200, 2, 0, 0], || "the next supervisor keeps something else".to_owned())?;
    is_refused(host, &asks("speech", "0.1", "1GiB"), &["GPOOL-E201"])?;
    let second = start(host, "second", &asks("vision", "0.2", "2GiB"))?;
    is_listed(host, ["0.5/0.5", "8GiB/8GiB", "open"])?;
    is_refused(host, &asks("vision", "0.1", "1GiB"), &["GPOOL-E201", "0 % free"])?;
    second.kill_init()?;
    wait_for("what it had to be kept again", || Ok(kept(host)? == [200, 2, 0, 0]))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    for figure in [
        "gpool_reservation_open{reservation=\"serving\"} 1",
        "gpool_reservation_gpus{reservation=\"serving\"} 0.5",
        "gpool_reservation_used_gpus{reservation=\"serving\"} 0.3",
        "gpool_reservation_missing_gpus{reservation=\"serving\"} 0",
    ] {
        ensure(metrics.lines().any(|line| line == figure), || format!("gpool metrics lacks {figure}: {metrics}"))?;
    }
    Ok(waiting)
}

/// From then on who waits has it.
fn it_ends(host: &Host, waiting: Child) -> Result<()> {
    Container::inspect(&host.engine, "first")?.kill_init()?;
    let starts = |host: &Host| -> Result<Vec<LeaseView>> {
        Ok(host.leases()?.into_iter().filter(|lease| lease.fraction_permille == 400).collect())
    };
    wait_for("all of it to be kept", || Ok(kept(host)?[0] == 500))?;
    ensure(starts(host)?.is_empty(), || "one that waits has what is kept".to_owned())?;
    reload_with(host, &format!("{AT_ONCE}{SERVING}until = \"{}\"\n", local("+4 seconds")?))?;
    succeeded("docker run of who waited", waiting.wait_with_output().context("docker run")?)?;
    let told = || host.events_of(EventKind::Reservation);
    wait_for("it to be told", || Ok(told()?.last().is_some_and(|event| event.message.contains("is over for now"))))?;
    let (over, began) = (told()?.last().map_or(0, |event| event.unix_ms), starts(host)?[0].created_unix_ms);
    // The event is found out every two seconds, and whoever waits asks as often at least.
    ensure(began + 2500 >= over && began <= over + 10_000, || {
        format!("who waited began at {began}, and it was over at {over}")
    })?;
    ensure(reservation(host)?.state == ReservationState::Over, || format!("{:?}", reservation(host)))?;
    // Once, though the supervisor was started anew meanwhile.
    let audit = succeeded("gpool audit show", host.gpool(&["audit", "show", "--kind", "reservation"])?)?;
    let parts = ["reservation serving has begun", "0.5 of a GPU's share and 8GiB are for those who may have it"];
    ensure(parts.iter().all(|part| audit.matches(part).count() == 1), || format!("it was told {audit}"))
}

/// One of a lower priority has most of the memory, and is told before it is wanted.
fn room_is_made_by_then(host: &Host) -> Result<()> {
    host.engine.remove_all_containers()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))?;
    let env = [&asks("", "0.3", "16GiB")[..], &[("GPOOL_PRIORITY", "burst")]].concat();
    let burst = host.run_container("burst", &env, &[], &["sh", "-c", IN_THE_WAY])?;
    let small = start(host, "small", &[&asks("", "0.1", "1GiB")[..], &[("GPOOL_PRIORITY", "burst")]].concat())?;
    wait_for("its program to have the GPU", || Ok(host.lease_of(&burst)?.memory_used_bytes > 8 << 30))?;
    let begins = local("+22 seconds")?;
    let table = SERVING.replace("8GiB", "16GiB");
    reload_with(host, &format!("{AT_ONCE}{MAKES_ROOM}{table}from = \"{begins}\"\n"))?;
    ensure(reservation(host)?.state == ReservationState::Closed, || format!("{:?}", reservation(host)))?;
    wait_for("those in the way to be told", || Ok(!host.events_of(EventKind::LeasePreempted)?.is_empty()))?;
    ensure(reservation(host)?.state == ReservationState::Ahead, || format!("{:?}", reservation(host)))?;
    let told = host.events_of(EventKind::LeasePreempted)?[0].message.clone();
    let parts = ["makes room for reservation serving, which comes before burst", "if that still needs it then"];
    ensure(parts.iter().all(|part| told.contains(part)), || format!("it was told {told:?}"))?;
    let explained = text(&host.gpool(&["explain", &burst.id])?.stdout);
    ensure(explained.contains("for reservation serving, if that still needs the room then"), || explained.clone())?;
    wait_for("its GPU to be taken", || Ok(host.lease_of(&burst)?.state == LeaseState::Revoked))?;
    is_listed(host, ["0/0.5", "0B/16GiB", "ahead"])?;
    let is_free = || Ok(host.client().get::<Vec<GpuView>>("/v1/gpus")?[0].memory_leased_bytes <= 1 << 30);
    wait_for("what it had to be free", is_free)?;
    let asked = host.gpool(&["explain", "--request", "fraction=0.1,memory=10GiB"])?;
    said(&asked, 75, &["what is free is reserved for others by [reservation.serving]"])?;
    wait_for("it to begin", || Ok(reservation(host)?.state == ReservationState::Open))?;
    start(host, "serving", &asks("vision", "0.5", "16GiB"))?;
    let kept_its_own = host.lease_of(&small)?.state == LeaseState::Active && burst.is_alive();
    ensure(kept_its_own, || "one has gone that need not, or all of one that has lost its GPU".to_owned())
}

fn is_listed(host: &Host, [gpus, memory, state]: [&str; 3]) -> Result<()> {
    let listed = text(&host.gpool(&["reservation", "ls", "--format", "wide"])?.stdout);
    let row = listed.lines().find(|line| line.starts_with("serving")).unwrap_or_default();
    let fields: Vec<&str> = row.split_whitespace().collect();
    let is_so = fields.get(1..6) == Some(&["team", "vision", gpus, memory, state]);
    ensure(is_so, || format!("gpool reservation ls says {listed}"))
}

/// A moment of the host's local time, as the configuration has it.
fn local(when: &str) -> Result<String> {
    let output = Command::new("date").args(["+%F %T", "-d", when]).output().context("date")?;
    Ok(succeeded("date", output)?.trim().to_owned())
}

/// `docker run`, which does not come back before there is room.
fn waits(host: &Host, env: &[(&str, &str)]) -> Result<Child> {
    let env: Vec<String> = env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut words = vec!["run", "-d", "--rm", "--runtime=gpool"];
    words.extend(env.iter().flat_map(|text| ["-e", text.as_str()]));
    words.extend([image::NAME, "sleep", "600"]);
    let mut docker = host.docker_command(&words);
    spawn_bound(docker.stdout(Stdio::piped()).stderr(Stdio::piped())).context("docker run")
}
